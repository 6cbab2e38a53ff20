//! Loaders: a warp of its own in each block brings the operands of products, while all others multiply.
//!
//! A GPU whose copies bring whole boxes of a matrix needs one lane for that, and the lanes that multiply then neither compute
//! addresses nor wait for what they have brought themselves. A role that only multiplies becomes two functions: the loader's has
//! the role's waits, its loads and its draws from work counters, the other one all the rest. They meet by a ring of pieces in
//! shared memory. What takes part is decided here; the kernel is then cut in two, of which the emitter writes either part as it
//! writes any other kernel.

use std::collections::HashSet;

use serde::Serialize;

use crate::{
    device::Device,
    family::{CudaArch, Target},
    ir::{
        CommOp, ControlOp, DOT_COLUMNS, Dot, Dtype, Kernel, LoadMatrix, LoadRow, MatrixOp, OpId, OpKind,
        Param, ParamId, ParamKind, Place, Region, Rows, SharedId, ValueOp,
    },
};

use super::{
    args::{self, TensorMap},
    cut::{self, Side},
    drawn,
    facts::Facts,
    lines,
    matrix::{self, Moved},
    ops::type_name,
    source,
};

/// What the number of a lane's registers is a multiple of.
const REGISTERS_STEP: u32 = 8;

/// Registers that a loader's lane keeps, where others want them.
const KEPT: u32 = 56;

/// Warps that give registers away together.
const WARPGROUP: u32 = 4;

/// Bytes of the two mbarriers of a piece.
const BARRIERS: u32 = 16;

/// The pieces of operands that the products of a role go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    pub room: SharedId,
    dtype: Dtype,
    /// Rows of the left and of the right matrix.
    rows: [u32; 2],
    /// How many of them boxes have: fewer if that is all that a matrix has.
    boxes: [u32; 2],
    stages: u32,
    /// Whether the loader draws numbers, which the others take from it.
    pub draws: bool,
}

impl Ring {
    /// The type in emitted source.
    pub fn text(&self) -> String {
        let Ring { dtype, rows: [left, right], boxes, stages, .. } = *self;
        let fewer = if boxes == self.rows { String::new() } else { format!(", {}, {}", boxes[0], boxes[1]) };
        format!("Ring<{stages}, {left}, {right}, {}{fewer}>", type_name(dtype))
    }

    /// Bytes of shared memory, barriers and what is drawn included. Where the pieces fit these do, too: pieces end at a multiple of
    /// 8 KiB, which is 1 KiB and more before the end of what a block can have.
    pub fn bytes(&self) -> u32 {
        self.end() + if self.draws { drawn::BYTES } else { 0 }
    }

    /// The first byte behind pieces and barriers.
    pub fn end(&self) -> u32 {
        let piece = (self.rows[0] + self.rows[1]) * DOT_COLUMNS * self.dtype.bytes();
        self.stages * (piece + BARRIERS)
    }
}

/// The warps of a loader, and how many registers lanes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Crew {
    /// Warps that a block has for its loader, in front of those of roles beside it. One works.
    pub warps: u32,
    /// What a lane of the loader, and of roles beside, keeps and a lane of the others gets then. Only whole warpgroups can give
    /// registers away, so that up to three warps are idle.
    pub registers: Option<[u32; 2]>,
    /// Whether what ends an expired wait is emitted wherever one may: a function that is called with other numbers of registers than
    /// those who multiply have keeps the compiler from giving these to them.
    pub ends_inline: bool,
}

impl Crew {
    /// That of a kernel's loaders. An SM's quarter has registers for two warps as large as can be. Where blocks have four warps,
    /// one more changes nothing.
    fn of(kernel: &Kernel, target: Target) -> Crew {
        let beside = kernel.beside_warps();
        if kernel.block_warps + beside < 2 * WARPGROUP {
            return Crew { warps: 1, registers: None, ends_inline: false };
        }
        let (warps, others) = ((1 + beside).next_multiple_of(WARPGROUP), kernel.block_threads());
        let few = warps * kernel.warp_size;
        let round = |registers: u32| registers / REGISTERS_STEP * REGISTERS_STEP;
        let all = round(Device::of(target).sm_registers() / (others + few)) * (others + few);
        let registers = Some([KEPT, round((all - few * KEPT) / others)]);
        Crew { warps: warps - beside, registers, ends_inline: false }
    }
}

/// The loaders of a kernel.
#[derive(Debug)]
pub(super) struct Loaders {
    /// By role.
    rings: Vec<Option<Ring>>,
    pub crew: Crew,
    /// The matrices that operands are boxes of.
    maps: Vec<(ParamId, TensorMap)>,
    /// What the loaders draw for the others.
    drawn: HashSet<OpId>,
    /// The kernel as the loaders run it, and as all others do.
    pub loads: Kernel,
    pub multiplies: Kernel,
}

impl Loaders {
    /// Those of a kernel, if any of its roles has one.
    pub fn of(f: &Facts) -> Option<Loaders> {
        let kernel = f.p.kernel;
        let boxes = f.target == Target::Cuda(CudaArch::Sm90a);
        // Those who would leave together, or go on together as another role, are all warps but the loader.
        let leaves = source::asks_status(kernel);
        let mut crew = Crew::of(kernel, f.target);
        let threads = (kernel.block_warps + crew.warps + kernel.beside_warps()) * kernel.warp_size;
        let alone = kernel.roles.iter().all(|role| role.goes_on_as.is_none());
        if !boxes || leaves || !alone || f.timeline.is_some() || threads > 1024 {
            return None;
        }
        let rings: Vec<Option<Ring>> = kernel.roles.iter().map(|role| Fit { f }.ring(&role.body)).collect();
        if rings.iter().all(Option::is_none) {
            return None;
        }
        let waits = |body| {
            let mut found = false;
            kernel.walk(body, &mut |_, op| found |= op.kind.may_expire());
            found
        };
        let mut others = kernel.roles.iter().zip(&rings).filter(|(_, ring)| ring.is_none());
        crew.ends_inline = crew.registers.is_some() && others.any(|(role, _)| waits(&role.body));
        let with_ring = |role: &usize| rings[*role].is_some();
        let roles: Vec<usize> = (0..rings.len()).filter(with_ring).collect();
        let mut maps = vec![];
        for &role in &roles {
            kernel.walk(&kernel.roles[role].body, &mut |_, op| add_maps(f, &op.kind, &mut maps));
        }
        let drawn: HashSet<OpId> =
            roles.iter().flat_map(|&role| drawn::of(&f.p, &kernel.roles[role].body)).collect();
        let [loads, multiplies] =
            [Side::Loads, Side::Multiplies].map(|side| cut::part(kernel, &roles, &drawn, side));
        Some(Loaders { crew, maps, loads, multiplies, rings, drawn })
    }

    /// Whether the loader draws a number for the others.
    pub fn draws(&self, id: OpId) -> bool {
        self.drawn.contains(&id)
    }

    /// The ring of a role that has a loader.
    pub fn ring(&self, role: usize) -> Option<&Ring> {
        self.rings[role].as_ref()
    }

    /// Threads that a block has more.
    pub fn threads(&self) -> u32 {
        self.crew.warps * self.loads.warp_size
    }

    /// What launchers fill, in order.
    pub fn maps(&self) -> Vec<TensorMap> {
        self.maps.iter().map(|(_, map)| map.clone()).collect()
    }

    /// The member with the boxes of an operand.
    pub fn boxes(&self, param: ParamId, rows: u32) -> &str {
        let rows = box_rows(&self.loads, param, rows);
        let found = self.maps.iter().find(|(of, map)| *of == param && map.box_rows == rows);
        &found.expect("every operand has boxes").1.name
    }
}

/// Rows of boxes of a matrix: those of tiles, or all that it has, as the rest of a box would be filled row by row.
fn box_rows(kernel: &Kernel, param: ParamId, rows: u32) -> u32 {
    let all = kernel.params[param.index()].shape().map_or(u64::MAX, |(all, _)| all);
    u32::try_from(all).map_or(rows, |all| rows.min(all))
}

/// The maps of a product's operands, each once.
fn add_maps(f: &Facts, op: &OpKind, maps: &mut Vec<(ParamId, TensorMap)>) {
    let OpKind::Matrix(MatrixOp::Dot(Dot { out, a, b, .. })) = op else { return };
    let Some((left, right)) = f.p.kernel.ty(*out).shape() else { return };
    for (rows, box_rows) in [(a, left), (b, right)] {
        let Some(id) = rows.place.param() else { continue };
        let param = &f.p.kernel.params[id.index()];
        let Some((all, columns)) = param.shape() else { continue };
        let box_rows = self::box_rows(f.p.kernel, id, box_rows);
        if maps.iter().any(|(of, map)| *of == id && map.box_rows == box_rows) {
            continue;
        }
        let taken: Vec<String> = maps.iter().map(|(_, map)| map.name.clone()).collect();
        let map = TensorMap {
            name: f.args.another(&format!("{}_boxes", param.name), taken),
            offset: 0,
            of: f.args.of(id).into(),
            symmetric: param.kind == ParamKind::Symmetric,
            dtype: param.dtype,
            rows: all,
            columns,
            box_rows,
        };
        maps.push((id, map));
    }
}

/// Finds out whether a role only multiplies.
struct Fit<'f, 'k> {
    f: &'f Facts<'k>,
}

impl Fit<'_, '_> {
    /// The ring that all products of a region go through, if nothing in it needs all warps.
    fn ring(&self, body: &Region) -> Option<Ring> {
        let kernel = self.f.p.kernel;
        let written = args::written(kernel);
        let (mut rings, mut products) = (vec![], 0);
        let (mut shapes, mut stores, mut fits) = (vec![], vec![], true);
        kernel.walk(body, &mut |id, op| {
            if let Some(moved) = Moved::stored(&op.kind)
                && !self.in_lane_order(moved.rows.place)
            {
                stores.push(matrix::exchanges(self.f, moved));
            }
            if let OpKind::Matrix(MatrixOp::Dot(dot)) = &op.kind {
                rings.extend(self.ring_of(id, dot, &written));
                products += 1;
            }
            fits &= self.allows(&op.kind, &written);
            shapes.extend(op.kind.outs().into_iter().filter_map(|v| kernel.ty(v).shape()));
        });
        let ring = *rings.first()?;
        // Tiles of one shape are spread over lanes in one way, and stored in one way: who stores an element again is the lane
        // that stored it before, and nobody has to meet in between.
        let alike = rings.len() == products
            && rings.iter().all(|r| *r == ring)
            && shapes.iter().all(|&(m, n)| [m, n] == ring.rows)
            && stores.iter().all(|exchanges| *exchanges == stores[0]);
        let draws = !drawn::of(&self.f.p, body).is_empty();
        (fits && alike).then_some(Ring { draws, ..ring })
    }

    fn ring_of(&self, id: OpId, dot: &Dot, written: &HashSet<ParamId>) -> Option<Ring> {
        let Dot { out, a, b, from, count, stages, room, .. } = dot;
        let f = self.f;
        let (left, right) = f.p.kernel.ty(*out).shape()?;
        let split = f.p.split(id).is_some();
        let by_warpgroups = f.layouts.of(*out).fragments?.by_warpgroups(f.target);
        let (from, count) = (f.p.int(*from), f.p.int(*count)?);
        let whole = |rows: &Rows| {
            let Some((_, columns)) = self.param(rows).and_then(|p| p.shape()) else { return false };
            // Boxes have zeros only where the matrix ends.
            let to_the_end = from.is_some_and(|from| from + count == i128::from(columns));
            to_the_end || count % i128::from(DOT_COLUMNS) == 0
        };
        let fits = [a, b].into_iter().all(|rows| self.is_loaded(rows, written) && whole(rows));
        let dtype = self.param(a)?.dtype;
        let boxes = [(a.place.param()?, left), (b.place.param()?, right)];
        let boxes = boxes.map(|(param, rows)| box_rows(f.p.kernel, param, rows));
        (fits && by_warpgroups && !split).then_some(Ring {
            room: *room,
            dtype,
            rows: [left, right],
            boxes,
            stages: *stages,
            draws: false,
        })
    }

    /// Whether boxes can be loaded of a matrix: of what nobody writes meanwhile, or what a receipt is for. All rows that a box
    /// has are then there.
    fn is_loaded(&self, rows: &Rows, written: &HashSet<ParamId>) -> bool {
        let (Place::Param(id), Some(param)) = (rows.place, self.param(rows)) else { return false };
        let input = param.kind == ParamKind::Local && rows.receipt.is_none() && !written.contains(&id);
        let sent = param.kind == ParamKind::Symmetric && rows.receipt.is_some();
        (input || sent) && rows.end.is_none()
    }

    fn param(&self, rows: &Rows) -> Option<&Param> {
        rows.place.param().map(|id| &self.f.p.kernel.params[id.index()])
    }

    fn in_lane_order(&self, place: Place) -> bool {
        place.param().is_some_and(|param| self.f.lane_order.contains(&param))
    }

    /// Whether an operation is of one side only, or the same on both. Either waits for what it reads itself. What those who
    /// multiply read of the operation's own memory lies as lanes hold it: no lane reads what another one has written.
    fn allows(&self, op: &OpKind, written: &HashSet<ParamId>) -> bool {
        let kernel = self.f.p.kernel;
        let own =
            |place: Place| place.param().filter(|id| kernel.params[id.index()].kind == ParamKind::Local);
        let input = |place, receipt: Option<_>| {
            receipt.is_none() && own(place).is_some_and(|id| !written.contains(&id))
        };
        match op {
            OpKind::Value(op) => match op {
                ValueOp::Const { .. }
                | ValueOp::Rank { .. }
                | ValueOp::ScalarParam { .. }
                | ValueOp::Epoch { .. }
                | ValueOp::GroupIndex { .. }
                | ValueOp::Binary { .. }
                | ValueOp::Unary { .. }
                | ValueOp::Compare { .. }
                | ValueOp::Select { .. }
                | ValueOp::Cast { .. }
                | ValueOp::Fma { .. }
                | ValueOp::Bitcast { .. }
                | ValueOp::Splat { .. }
                | ValueOp::Arange { .. } => true,
                ValueOp::Reduce { .. } | ValueOp::Scan { .. } => false,
            },
            OpKind::Control(op) => match op {
                ControlOp::If { .. }
                | ControlOp::For { .. }
                | ControlOp::While { .. }
                | ControlOp::Break { .. }
                | ControlOp::Continue { .. } => true,
                ControlOp::VarDecl { .. }
                | ControlOp::VarGet { .. }
                | ControlOp::VarSet { .. }
                | ControlOp::Split { .. } => false,
            },
            OpKind::Comm(op) => match op {
                CommOp::Wait(_)
                | CommOp::WaitAll(_)
                | CommOp::PutMatrix(_)
                | CommOp::Signal(_)
                | CommOp::BlockSignal(_)
                | CommOp::BlockWait(_) => true,
                CommOp::Put(_)
                | CommOp::BulkCopy(_)
                | CommOp::SendPackets(_)
                | CommOp::TakePackets(_)
                | CommOp::SendLl(_)
                | CommOp::ReadLl(_) => false,
            },
            OpKind::Memory(op) => drawn::draws(kernel, op),
            OpKind::Matrix(op) => match op {
                MatrixOp::Dot(_) => true,
                MatrixOp::StoreMatrix(_) => true,
                // Of a row that a warpgroup multiplies one warp has all; of a column several have parts, and would meet.
                MatrixOp::ReduceLines(reduce) => !lines::meets(self.f, reduce),
                MatrixOp::LoadMatrix(LoadMatrix { at: Rows { place, receipt, .. }, .. }) => {
                    input(*place, *receipt) || self.in_lane_order(*place)
                }
                MatrixOp::LoadRow(LoadRow { place, receipt, .. }) => input(*place, *receipt),
            },
        }
    }
}
