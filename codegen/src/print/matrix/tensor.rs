//! Products in tensor memory, and what is said of the instructions that a role multiplies by.

use crate::family::{MatrixUnit, Target};
use crate::ir::{Dot, Dtype, Kernel, Loc, MatrixOp, OpId, OpKind, Region, scale_words};
use crate::print::analysis::signals::{asks_status, begun};
use crate::print::emit::Emitter;
use crate::print::facts::Facts;
use crate::print::loader::{Loaders, Obstacle, plan};
use crate::print::text::{Prim, PrintError};

/// Refuses products with scales of blocks and those of pairs, for a target whose instructions are not for such.
pub(crate) fn check(kernel: &Kernel, target: Target) -> Result<(), PrintError> {
    check_pairs(kernel, target)?;
    if target.has_block_scales() {
        return Ok(());
    }
    let scaled = kernel.ops.iter().find_map(|op| {
        let OpKind::Matrix(MatrixOp::Dot(Dot { a, .. })) = &op.kind else { return None };
        a.scales.and_then(|_| Some((op.loc, a.place.param()?)))
    });
    let Some((loc, operand)) = scaled else { return Ok(()) };
    Err(PrintError::NoBlockScales { loc, operand: kernel.params[operand.index()].name.clone(), target })
}

fn check_pairs(kernel: &Kernel, target: Target) -> Result<(), PrintError> {
    let mut dots = kernel.ops.iter().filter_map(|op| {
        let OpKind::Matrix(MatrixOp::Dot(dot)) = &op.kind else { return None };
        Some((op.loc, dot))
    });
    let Some((loc, dot)) = dots.clone().find(|(_, dot)| dot.paired) else { return Ok(()) };
    if !target.has_pairs() {
        let operand = dot.b.place.param().map_or(String::new(), |b| kernel.params[b.index()].name.clone());
        return Err(PrintError::NoPairs { loc, operand, target });
    }
    let alone = dots.find(|(_, dot)| !dot.paired || dot.a.scales.is_some());
    let begins = kernel.prologue.ops.iter().any(|&id| begun(kernel, id).is_some());
    let (loc, why) = match alone {
        Some((loc, _)) => {
            let why = "all products of a kernel are made in pairs, and none has scales of blocks that instructions take";
            (loc, why)
        }
        // Blocks that begin an epoch have the first one's verdict. Others read by themselves that the world is aborted.
        None if !begins && (asks_status(kernel) || kernel.ops.iter().any(|op| op.kind.may_expire())) => (
            loc,
            "the kernel waits for ranks or blocks and begins no epoch, so that one block of a pair may leave alone",
        ),
        None => return Ok(()),
    };
    Err(PrintError::PairsHindered { loc, why })
}

/// Why a product of pairs, or one whose operands have scales of blocks, is not emitted where no loader brings them.
pub(crate) fn without_loader(f: &Facts, product: Loc, paired: bool) -> PrintError {
    let first = plan::obstacles(f).into_iter().next();
    let why = "kernels with a timeline, and roles without whole warpgroups, get none";
    let (loc, why) = first.map_or((product, why), |Obstacle { loc, why, .. }| (loc, why));
    if paired { PrintError::PairsHindered { loc, why } } else { PrintError::ScalesWithoutLoader { loc, why } }
}

/// The products of a region, and what makes each.
fn products<'k>(f: &Facts<'k>, region: &Region) -> Vec<(OpId, &'k Dot, MatrixUnit)> {
    let kernel: &'k Kernel = f.p.kernel;
    let mut ids = vec![];
    kernel.walk(region, &mut |id, _| ids.push(id));
    let product = |id: OpId| {
        let OpKind::Matrix(MatrixOp::Dot(dot)) = &kernel.op(id).kind else { return None };
        let fragments = f.layouts.of(dot.out).fragments?;
        Some((id, dot, fragments.unit(&f.p, id, f.target)))
    };
    ids.into_iter().filter_map(product).collect()
}

/// Most columns of tensor memory that the sums of one product of a region take.
fn most_columns(f: &Facts, region: &Region) -> u32 {
    let in_memory = products(f, region).into_iter().filter(|(_, _, unit)| *unit == MatrixUnit::TensorMemory);
    let columns = in_memory.filter_map(|(_, dot, _)| f.layouts.of(dot.out).fragments);
    columns.map(|fragments| fragments.tensor_columns()).max().unwrap_or(0)
}

/// Columns of tensor memory that the blocks of a role take: with a loader, those of two products and of the scales of two pieces.
fn role_columns(f: &Facts, loaders: Option<&Loaders>, role: usize) -> u32 {
    let ring = loaders.and_then(|loaders| loaders.ring(role));
    let products = if ring.is_some() { 2 } else { 1 };
    let sums = products * most_columns(f, &f.p.kernel.roles[role].body);
    match ring.map_or(0, |ring| ring.scale_columns()) {
        0 => sums,
        scales => (sums + scales).next_power_of_two(),
    }
}

/// Those that a block of any role takes.
pub(crate) fn columns(f: &Facts, loaders: Option<&Loaders>) -> u32 {
    let each = (0..f.p.kernel.roles.len()).map(|role| role_columns(f, loaders, role));
    each.max().unwrap_or(0)
}

/// The instructions that a role multiplies by, in words.
pub(crate) fn instructions(f: &Facts, loaders: Option<&Loaders>, role: usize) -> Option<String> {
    let mut names = vec![];
    for (_, dot, unit) in products(f, &f.p.kernel.roles[role].body) {
        let param = dot.a.place.param()?;
        let columns = f.p.kernel.ty(dot.out).shape()?.1;
        let dtype = f.p.kernel.params[param.index()].dtype;
        let name = match (dot.a.scales, scale_words(dtype)) {
            (None, _) => instruction(f.target, unit, dtype, columns, dot.paired),
            (Some(_), 1) => "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale".into(),
            (Some(_), _) => "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale".into(),
        };
        let name = format!("`{name}`");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return None;
    }
    let said = format!("Multiplies by {}", names.join(", "));
    let columns = role_columns(f, loaders, role);
    if columns == 0 {
        return Some(said);
    }
    let ring = loaders.and_then(|loaders| loaders.ring(role));
    let scales = match ring.map_or(0, |ring| ring.scale_columns()) {
        0 => String::new(),
        columns => format!(", {columns} of them for scales of two pieces by `tcgen05.cp.32x128b.warpx4`"),
    };
    let by = match ring {
        Some(ring) if ring.paired => {
            "one thread of the first block's loader issues for two neighbouring blocks, each of which brings its rows and half of the \
             columns; sums of two products in turn"
        }
        Some(_) => "one thread of the loader's second warp issues; sums of two products in turn",
        None => "one thread issues; sums",
    };
    Some(format!(
        "{said} (never run on hardware), which {by} lie in {columns} columns of tensor memory{scales}, and warps load them by \
         `tcgen05.ld.16x256b`"
    ))
}

/// What an instruction is called.
fn instruction(target: Target, unit: MatrixUnit, dtype: Dtype, columns: u32, paired: bool) -> String {
    let fp8 = dtype == Dtype::Fp8;
    match (target, unit) {
        (_, MatrixUnit::TensorMemory) => {
            let (blocks, kind) = (if paired { 2 } else { 1 }, if fp8 { "f8f6f4" } else { "f16" });
            format!("tcgen05.mma.cta_group::{blocks}.kind::{kind}")
        }
        // Of fp8, 128 columns at once.
        (_, MatrixUnit::Warpgroup) if fp8 => format!("wgmma.mma_async.m64n{}k32", columns.min(128)),
        (_, MatrixUnit::Warpgroup) => format!("wgmma.mma_async.m64n{columns}k16"),
        (Target::Cuda(_), MatrixUnit::Warp) if fp8 && target.has_fp8_products() => "mma.sync.m16n8k32".into(),
        (Target::Cuda(_), MatrixUnit::Warp) => "mma.sync.m16n8k16".into(),
        (Target::Hip(_), MatrixUnit::Warp) if target.is_gfx12() => {
            format!("wmma_f32_16x16x{}", if fp8 { 64 } else { 32 })
        }
        (Target::Hip(_), MatrixUnit::Warp) if fp8 && target.has_fp8_products() => "mfma_f32_16x16x32".into(),
        (Target::Hip(_), MatrixUnit::Warp) => "mfma_f32_16x16x16".into(),
    }
}

impl Emitter<'_, '_> {
    /// Declares the columns of tensor memory that the products of a region need, if no loader's warps have them.
    pub fn declare_tensor_memory(&mut self, region: &Region) {
        let columns = most_columns(self.f, region);
        if columns == 0 || !self.ring.is_empty() {
            return;
        }
        self.used.add(Prim::DotTensor);
        let words = self.names.fresh("tensor_words");
        self.tensor = self.names.fresh("tensor");
        self.w.line(&format!("__shared__ u64 {words}[2];"));
        self.w.line(&format!("TensorMemory<{columns}> {}({}, {words});", self.tensor, self.group.name));
    }

    /// Ends what a loader brings, where one thread multiplies it.
    pub fn end_ring(&mut self) {
        if self.f.loads() && self.in_tensor_memory() {
            self.w.line_with(&format!("end_pieces(loader, {});", self.ring), "no more are multiplied");
        }
    }

    /// Whether a loader's second warp multiplies what the first one brings.
    pub fn in_tensor_memory(&self) -> bool {
        !self.ring.is_empty() && self.f.target.matrix_unit() == MatrixUnit::TensorMemory
    }
}
