//! Loaders: a warp of its own in each block brings the operands of products, while all others multiply.
//!
//! A GPU whose copies bring whole boxes of a matrix needs one lane for that, and the lanes that multiply then neither compute
//! addresses nor wait for what they have brought themselves. A role that only multiplies becomes two functions: the loader's has
//! the role's waits, its loads and its draws from work counters, the other one all the rest. They meet by a ring of pieces in
//! shared memory. What takes part is decided here; the kernel is then cut in two, of which the emitter writes either part as it
//! writes any other kernel.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::{cut, drawn};
use crate::device::Device;
use crate::family::{MatrixUnit, Target};
use crate::ir::{
    CommOp, ControlOp, DOT_ROW_BYTES, Dot, Dtype, Kernel, LoadMatrix, LoadRow, Loc, MatrixOp, MemoryOp, Op,
    OpId, OpKind, Param, ParamId, ParamKind, Place, Region, Role, Rows, SCALES_TILE, SharedId, ValueId,
    ValueOp, Wait, dot_columns, scale_words,
};
use crate::print::analysis::signals::asks_status;
use crate::print::facts::{Facts, Side};
use crate::print::launch::{TensorMap, args};
use crate::print::layout::{Moved, shared::warps_meet};
use crate::print::text::type_name;

/// What the number of a lane's registers is a multiple of.
const REGISTERS_STEP: u32 = 8;

/// Registers that a loader's lane keeps, where others want them.
const KEPT: u32 = 56;

/// Warps that give registers away together.
const WARPGROUP: u32 = 4;

/// Bytes of the two mbarriers of a piece.
const BARRIERS: u32 = 16;

/// Bytes of the four mbarriers of sums in tensor memory, and of the number of their first column.
const SUMS_BYTES: u32 = 36;

/// Rows of a block of a pair: as many as tensor memory has lanes.
const PAIR_ROWS: u32 = 128;

/// The pieces of operands that the products of a role go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    pub room: SharedId,
    dtype: Dtype,
    /// Rows of the left and of the right matrix.
    rows: [u32; 2],
    /// How many of them boxes have: fewer if that is all that a matrix has.
    boxes: [u32; 2],
    stages: u32,
    /// Whether the loader draws numbers, which the others take from it.
    pub draws: bool,
    /// Whether one thread makes products in tensor memory, which the others take sums from.
    pub tensor: bool,
    /// Words of a row's scales in a piece; none if operands have no scales of blocks.
    pub scale_words: u32,
    /// Whether the loaders of two neighbouring blocks bring half of the right rows each.
    pub paired: bool,
}

impl Ring {
    /// The type in emitted source.
    pub fn text(&self) -> String {
        let Ring { dtype, rows: [left, right], boxes, stages, scale_words, .. } = *self;
        let scales = if scale_words > 0 { format!(", {scale_words}") } else { String::new() };
        let fewer = boxes == [left, self.right_rows()] && scale_words == 0;
        let fewer = if fewer { String::new() } else { format!(", {}, {}{scales}", boxes[0], boxes[1]) };
        format!("Ring<{stages}, {left}, {right}, {}{fewer}>", type_name(dtype))
    }

    /// Bytes of shared memory, barriers and what is drawn included. Where the pieces fit these do, too: pieces end at a multiple of
    /// 8 KiB, which is 1 KiB and more before the end of what a block can have.
    pub fn bytes(&self) -> u32 {
        self.end() + if self.draws { drawn::BYTES } else { 0 }
    }

    /// Rows of the right matrix that the block's own loader brings.
    fn right_rows(&self) -> u32 {
        own_rows(self.rows[1], self.paired)
    }

    /// Columns of tensor memory that scales of two pieces take.
    pub fn scale_columns(&self) -> u32 {
        2 * self.scale_words * (self.rows[0] + self.rows[1]) / 32
    }

    /// The first byte behind pieces and barriers.
    pub fn end(&self) -> u32 {
        let piece = (self.rows[0] + self.right_rows()) * (DOT_ROW_BYTES + 4 * self.scale_words);
        let words = if self.tensor { (SUMS_BYTES + 4 * self.stages).next_multiple_of(16) } else { 0 };
        self.stages * (piece + BARRIERS) + words
    }
}

/// Rows of the right matrix that a block's loader brings: of a pair half.
pub(crate) fn own_rows(right: u32, paired: bool) -> u32 {
    if paired { right / 2 } else { right }
}

/// The warps of a loader, and how many registers lanes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Crew {
    /// Warps that a block has for its loader, in front of those of roles beside it. One works.
    pub warps: u32,
    /// What a lane of the loader, and of roles beside, keeps and a lane of the others gets then. Only whole warpgroups can give
    /// registers away, so that up to three warps are idle.
    pub registers: Option<[u32; 2]>,
    /// Whether what ends an expired wait is emitted wherever one may: a function that is called with other numbers of registers than
    /// the multiplying warps have keeps the compiler from giving these to them.
    pub ends_inline: bool,
}

impl Crew {
    /// That of a kernel's loaders. An SM's quarter has registers for two warps as large as can be. Where blocks have four warps,
    /// one more changes nothing; where two such blocks share an SM, nor do two more. Where sums are made in tensor memory, one thread of a
    /// second warp makes them, and no registers are wanted.
    fn of(kernel: &Kernel, target: Target) -> Crew {
        let beside = kernel.beside_warps();
        if target.matrix_unit() == MatrixUnit::TensorMemory {
            return Crew { warps: 2, registers: None, ends_inline: false };
        }
        let (device, warps) = (Device::of(target), (1 + beside).next_multiple_of(WARPGROUP));
        let (others, few) = (kernel.block_threads(), warps * kernel.warp_size);
        let blocks = device.blocks_each(kernel.grid_blocks(), others + few, 0);
        if blocks * (kernel.block_warps + beside) < 2 * WARPGROUP + blocks - 1 {
            return Crew { warps: 1, registers: None, ends_inline: false };
        }
        let round = |registers: u32| registers / REGISTERS_STEP * REGISTERS_STEP;
        let all = round(device.sm_registers() / blocks / (others + few)) * (others + few);
        let registers = Some([KEPT, round((all - few * KEPT) / others)]);
        Crew { warps: warps - beside, registers, ends_inline: false }
    }
}

/// The loaders of a kernel.
#[derive(Debug)]
pub(crate) struct Loaders {
    /// By role.
    rings: Vec<Option<Ring>>,
    pub crew: Crew,
    /// The matrices that operands are boxes of.
    maps: Vec<(ParamId, TensorMap)>,
    /// What the kernel writes.
    pub written: HashSet<ParamId>,
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
        let mut crew = Crew::of(kernel, f.target);
        if !f.target.matrix_unit().reads_shared() || f.timeline.is_some() || of_kernel(f, crew).is_some() {
            return None;
        }
        let of_role = |role: &Role| Fit::new(f, &role.body).ring(role).ok().flatten();
        let rings: Vec<Option<Ring>> = kernel.roles.iter().map(of_role).collect();
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
        // A thread of its own tells of sums in tensor memory.
        let leaves = f.target.matrix_unit() != MatrixUnit::TensorMemory;
        let [loads, multiplies] =
            [Side::Loads, Side::Multiplies].map(|side| cut::part(&f.p, &roles, &drawn, (side, leaves)));
        Some(Loaders { crew, maps, written: args::written(kernel), loads, multiplies, rings, drawn })
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

/// Why a role whose products read shared memory has no loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    /// Number of the role.
    pub role: usize,
    /// The line that stands in the way.
    pub loc: Loc,
    /// Why it does.
    pub why: &'static str,
}

/// The roles whose products read shared memory without a loader, each with its first obstacle.
pub(crate) fn obstacles(f: &Facts) -> Vec<Obstacle> {
    let kernel = f.p.kernel;
    if !f.target.matrix_unit().reads_shared() || f.timeline.is_some() {
        return vec![];
    }
    let of_kernel = of_kernel(f, Crew::of(kernel, f.target));
    let of_role = |(role, of): (usize, &Role)| {
        let (loc, why) = match (Fit::new(f, &of.body).ring(of), of_kernel) {
            (Err(Hindrance { loc, why }), _) => (loc, why),
            (Ok(Some(_)), Some(why)) => (of.loc, why),
            (Ok(_), _) => return None,
        };
        Some(Obstacle { role, loc, why })
    };
    kernel.roles.iter().enumerate().filter_map(of_role).collect()
}

/// Why no role of a kernel has a loader. Warps that leave together are all but the loader.
fn of_kernel(f: &Facts, crew: Crew) -> Option<&'static str> {
    let kernel = f.p.kernel;
    let threads = (kernel.block_warps + crew.warps + kernel.beside_warps()) * kernel.warp_size;
    match () {
        () if asks_status(kernel) => Some("ranks signal, and the kernel begins no epoch"),
        () if threads > 1024 => {
            Some("a block has 1024 threads at most, and has no room for a loader's warps")
        }
        () => None,
    }
}

/// Rows of boxes of a matrix: those of tiles, or all that it has, as the rest of a box would be filled row by row.
fn box_rows(kernel: &Kernel, param: ParamId, rows: u32) -> u32 {
    let all = kernel.params[param.index()].shape().map_or(u64::MAX, |(all, _)| all);
    u32::try_from(all).map_or(rows, |all| rows.min(all))
}

/// The maps of a product's operands, each once.
fn add_maps(f: &Facts, op: &OpKind, maps: &mut Vec<(ParamId, TensorMap)>) {
    let OpKind::Matrix(MatrixOp::Dot(Dot { out, a, b, paired, .. })) = op else { return };
    let Some((left, right)) = f.p.kernel.ty(*out).shape() else { return };
    for (rows, box_rows) in [(a, left), (b, own_rows(right, *paired))] {
        let Some(id) = rows.place.param() else { continue };
        let param = &f.p.kernel.params[id.index()];
        let Some((all, columns)) = param.shape() else { continue };
        let box_rows = if rows.list.is_some() { 1 } else { self::box_rows(f.p.kernel, id, box_rows) };
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

/// A line that needs all warps, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hindrance {
    loc: Loc,
    why: &'static str,
}

/// What a role reads that other blocks of the rank write in the same launch: it waits for their flags, and so does its loader.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The products, and loads of rows, that such a wait stands before: the kernel may write what they read.
    reads: HashSet<OpId>,
    /// Waits that the multiplying warps leave to the loader: they read nothing before they have a piece that it brings later.
    pub left: HashSet<OpId>,
    /// Local memory that others write and the role reads by single elements.
    scalars: HashSet<ParamId>,
    /// Whether a loader reads any of it.
    pub by_loader: bool,
}

impl Heard {
    /// That of a role.
    pub fn of(kernel: &Kernel, body: &Region, tails: &Tails) -> Heard {
        let (written, mut heard) = (args::written(kernel), Heard::default());
        let mut waits = false;
        kernel.walk(body, &mut |_, op| waits |= matches!(op.kind, OpKind::Comm(CommOp::BlockWait(_))));
        if !waits {
            return heard;
        }
        let local = |place: Place| {
            let written = place.param().filter(|id| written.contains(id));
            written.filter(|id| kernel.params[id.index()].kind == ParamKind::Local)
        };
        let mut stored = HashSet::new();
        kernel.walk(body, &mut |id, op| {
            stored.extend(stores(&op.kind));
            if let OpKind::Memory(MemoryOp::Load { out, place, receipt: None, .. }) = &op.kind
                && !kernel.ty(*out).is_tile()
                && !tails.inside.contains(&id)
            {
                heard.scalars.extend(local(*place));
            }
            if let OpKind::Matrix(MatrixOp::Dot(dot)) = &op.kind {
                heard.by_loader |= [&dot.a, &dot.b].iter().any(|rows| local(rows.place).is_some());
            }
        });
        heard.scalars.retain(|id| !stored.contains(id));
        heard.by_loader |= !heard.scalars.is_empty();
        heard.reads_of(kernel, body, None);
        heard
    }

    /// Notes what a region, and those inside of it, read after a wait for blocks, unless the role has `stored` to it itself since. Before any
    /// wait there is no such set.
    fn reads_of(&mut self, kernel: &Kernel, region: &Region, mut stored: Option<HashSet<ParamId>>) {
        let mut since = vec![];
        for &id in &region.ops {
            let kind = &kernel.op(id).kind;
            let told = |places: &[Place]| {
                let own = |place: &Place| {
                    place.param().is_none_or(|id| !stored.as_ref().is_some_and(|of| of.contains(&id)))
                };
                stored.is_some() && places.iter().all(own)
            };
            match kind {
                OpKind::Comm(CommOp::BlockWait(_)) => {
                    stored = Some(HashSet::new());
                    since.push(id);
                }
                OpKind::Matrix(MatrixOp::Dot(dot)) => {
                    self.reads.extend(told(&[dot.a.place, dot.b.place]).then_some(id));
                    self.left.extend(since.drain(..));
                }
                OpKind::Value(_) => {}
                OpKind::Matrix(MatrixOp::LoadRow(load)) => {
                    self.reads.extend(told(&[load.place]).then_some(id));
                    since.clear();
                }
                OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_) => since.clear(),
            }
            let regions = kind.regions();
            if let Some(stored) = &mut stored {
                stored.extend(stores(kind));
                for inner in &regions {
                    kernel.walk(inner, &mut |_, op| stored.extend(stores(&op.kind)));
                }
            }
            regions.into_iter().for_each(|inner| self.reads_of(kernel, inner, stored.clone()));
        }
    }

    /// Whether blocks have told each other what an operation reads.
    fn before(&self, read: OpId) -> bool {
        self.reads.contains(&read)
    }
}

/// The parameters that an operation stores to.
fn stores(kind: &OpKind) -> Vec<ParamId> {
    let accesses = kind.accesses();
    accesses.iter().filter(|a| a.access.stores()).filter_map(|a| a.place.param()).collect()
}

/// Finds out whether a role only multiplies.
struct Fit<'f, 'k> {
    f: &'f Facts<'k>,
    written: HashSet<ParamId>,
    /// What the role reads of it when blocks of the rank have told each other that it is there.
    heard: Heard,
    /// The parts that the last block runs alone.
    tails: Tails,
}

/// Tails of a role: the regions that only the last block to take a ticket runs.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    /// Whether a block is the last one.
    pub last: HashSet<ValueId>,
    /// Operations of tails.
    inside: HashSet<OpId>,
}

impl Tails {
    /// The tails in a region.
    pub fn of(kernel: &Kernel, body: &Region) -> Tails {
        let mut tails = Tails::default();
        kernel.walk(body, &mut |_, op| match &op.kind {
            OpKind::Memory(MemoryOp::Ticket { out, .. }) => {
                tails.last.insert(*out);
            }
            OpKind::Control(ControlOp::If { cond, then, .. }) if tails.last.contains(cond) => {
                kernel.walk(then, &mut |id, _| {
                    tails.inside.insert(id);
                });
            }
            OpKind::Control(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Value(_) => {}
        });
        tails
    }
}

impl<'f, 'k> Fit<'f, 'k> {
    fn new(f: &'f Facts<'k>, body: &Region) -> Fit<'f, 'k> {
        let (kernel, tails) = (f.p.kernel, Tails::of(f.p.kernel, body));
        let heard = Heard::of(kernel, body, &tails);
        Fit { f, written: args::written(kernel), heard, tails }
    }

    /// The ring that all products of a role go through, if it has any. Warps that go on as another role are all but the loader: so may those
    /// of this one, and others may not go on as this one.
    ///
    /// # Errors
    /// Something in it needs all warps.
    fn ring(&self, role: &Role) -> Result<Option<Ring>, Hindrance> {
        let (kernel, body) = (self.f.p.kernel, &role.body);
        let mut ring: Option<Ring> = None;
        let (mut hindrance, mut multiplies) = (None, false);
        kernel.walk(body, &mut |id, op| {
            let OpKind::Matrix(MatrixOp::Dot(dot)) = &op.kind else { return };
            // Only instructions that read shared memory multiply what a loader has brought.
            multiplies |= self.reads_shared(id, dot);
            let found = self.ring_of(id, dot).and_then(|this| match ring {
                Some(first) if first != this => Err("products of a role have one shape, and as many stages"),
                _ => Ok(this),
            });
            match found {
                Ok(this) => ring = Some(this),
                Err(why) => {
                    hindrance.get_or_insert(Hindrance { loc: op.loc, why });
                }
            }
        });
        if !multiplies {
            return Ok(None);
        }
        if kernel.roles.iter().any(|other| other.goes_on_as.as_ref() == Some(&role.name)) {
            let why = "blocks of another role go on as this one";
            hindrance.get_or_insert(Hindrance { loc: role.loc, why });
        }
        if let Some(hindrance) = hindrance {
            return Err(hindrance);
        }
        let Some(ring) = ring else { return Ok(None) };
        // Tiles of one shape are spread over lanes in one way, and each matrix in memory is stored in one way: the lane that stores an
        // element again is the lane that stored it before, and no lanes have to meet in between. Every other block of columns stays in
        // the lanes that have it.
        let mut stores: HashMap<Place, (bool, Option<(u32, u32)>)> = HashMap::new();
        let [m, n] = ring.rows;
        kernel.walk(body, &mut |id, op| {
            let why = self.allows(id, op).err().or_else(|| {
                let loads = matches!(op.kind, OpKind::Matrix(MatrixOp::LoadMatrix(_)));
                let lies = |shape| shape == (m, n) || (shape == (m, n / 2) && !loads);
                let other = |v: &ValueId| kernel.ty(*v).shape().is_some_and(|shape| !lies(shape));
                let shaped = op.kind.outs().iter().any(other);
                shaped.then_some("a matrix of another shape than the product lies in other lanes")
            });
            let why = why.or_else(|| {
                let moved = Moved::stored(&op.kind).filter(|moved| !self.in_lane_order(moved.rows.place))?;
                let way = (self.f.exchanges(moved), kernel.ty(moved.matrix).shape());
                let before = *stores.entry(moved.rows.place).or_insert(way);
                (before != way).then_some("other lanes store this than stored the matrix before: is its first column a multiple of 8?")
            });
            if let Some(why) = why {
                hindrance.get_or_insert(Hindrance { loc: op.loc, why });
            }
        });
        let draws = !drawn::of(&self.f.p, body).is_empty();
        if draws && ring.paired {
            let why = "blocks of a pair draw numbers of their own from a work counter";
            hindrance.get_or_insert(Hindrance { loc: role.loc, why });
        }
        // What stands in memory after a wait that has expired may be another number for either block.
        if ring.paired && !self.heard.scalars.is_empty() {
            let why = "blocks of a pair read numbers by themselves that other blocks write";
            hindrance.get_or_insert(Hindrance { loc: role.loc, why });
        }
        hindrance.map_or(Ok(Some(Ring { draws, ..ring })), Err)
    }

    fn reads_shared(&self, id: OpId, dot: &Dot) -> bool {
        let fragments = self.f.layouts.of(dot.out).fragments;
        fragments.is_some_and(|fragments| fragments.unit(&self.f.p, id, self.f.target).reads_shared())
    }

    fn ring_of(&self, id: OpId, dot: &Dot) -> Result<Ring, &'static str> {
        const MEMORY: &str = "operands of a loader are whole matrices in memory";
        let Dot { out, a, b, from, count, stages, room, paired, .. } = dot;
        let f = self.f;
        let (left, right) = f.p.kernel.ty(*out).shape().ok_or(MEMORY)?;
        let tensor = f.target.matrix_unit() == MatrixUnit::TensorMemory;
        if !self.reads_shared(id, dot) {
            return Err(if tensor {
                "tensor memory has sums of 64, 128 or 256 rows and columns, 128 x 256 at most, for whole warpgroups"
            } else {
                "whole warpgroups multiply 64 rows each, and 64, 128 or 256 columns"
            });
        }
        if f.p.split(id).is_some() {
            return Err("a group of some of the block's warps multiplies");
        }
        let (from, count) = (f.p.int(*from), f.p.int(*count).ok_or("the number of columns is not known")?);
        for rows in [a, b] {
            self.is_loaded(id, rows)?;
            let param = self.param(rows).ok_or(MEMORY)?;
            let (_, columns) = param.shape().ok_or(MEMORY)?;
            // Boxes have zeros only where the matrix ends.
            let to_the_end = from.is_some_and(|from| from + count == i128::from(columns));
            if !to_the_end && count % i128::from(dot_columns(param.dtype)) != 0 {
                return Err(
                    "the columns are no whole pieces of 128 bytes a row, and end before the matrix does",
                );
            }
        }
        let dtype = self.param(a).ok_or(MEMORY)?.dtype;
        if *paired && left < PAIR_ROWS {
            return Err(
                "a block of a pair has 128 rows of a product or 256, which fill its lanes of tensor memory",
            );
        }
        let own = own_rows(right, *paired);
        let boxes = [(a.place.param().ok_or(MEMORY)?, left), (b.place.param().ok_or(MEMORY)?, own)];
        // Of rows that a list names boxes have one each, and there are as many.
        let boxes = boxes.map(|(param, rows)| box_rows(f.p.kernel, param, rows));
        let boxes = if a.list.is_some() { [left, boxes[1]] } else { boxes };
        let scale_words = a.scales.map_or(0, |_| scale_words(dtype));
        if scale_words > 0 && [left, right] != [SCALES_TILE; 2] {
            return Err(
                "tensor memory has 128 x 128 sums of products with scales of blocks beside those of the next one",
            );
        }
        let rows = [left, right];
        let (room, stages, paired) = (*room, *stages, *paired);
        Ok(Ring { room, dtype, rows, boxes, stages, draws: false, tensor, scale_words, paired })
    }

    /// Whether boxes can be loaded of a matrix: of one that the kernel does not write, that a receipt is for, or that blocks tell each other of.
    /// All rows that a box has are then there.
    fn is_loaded(&self, product: OpId, rows: &Rows) -> Result<(), &'static str> {
        let (Place::Param(id), Some(param)) = (rows.place, self.param(rows)) else {
            return Err("an operand is another rank's");
        };
        let listed = rows.list.is_some_and(|list| self.written.contains(&list));
        if listed {
            return Err("the kernel writes the list of an operand's rows");
        }
        if rows.scales.is_some_and(|scales| self.written.contains(&scales)) {
            return Err("the kernel writes the scales of an operand's rows");
        }
        let there = !self.written.contains(&id) || self.heard.before(product);
        let input = param.kind == ParamKind::Local && rows.receipt.is_none() && there;
        let sent = param.kind == ParamKind::Symmetric && rows.receipt.is_some();
        match (input || sent, rows.end) {
            (false, _) => Err("the kernel writes an operand"),
            (true, Some(_)) if rows.list.is_none() && !rows.loose => {
                Err("`below` ends an operand's rows inside a box")
            }
            (true, _) => Ok(()),
        }
    }

    fn param(&self, rows: &Rows) -> Option<&Param> {
        rows.place.param().map(|id| &self.f.p.kernel.params[id.index()])
    }

    fn in_lane_order(&self, place: Place) -> bool {
        place.param().is_some_and(|param| self.f.lane_order.contains_key(&param))
    }

    /// Whether an operation is of one side only, or the same on both. Either waits for what it reads itself. What the warps that
    /// multiply read of the operation's own memory lies as lanes hold it: no lane reads what another one has written. In a tail they
    /// meet, and read what other blocks wrote.
    fn allows(&self, id: OpId, op: &Op) -> Result<(), &'static str> {
        let kernel = self.f.p.kernel;
        let tail = self.tails.inside.contains(&id);
        let own =
            |place: Place| place.param().filter(|id| kernel.params[id.index()].kind == ParamKind::Local);
        let input = |place, receipt: Option<_>| {
            receipt.is_none() && own(place).is_some_and(|id| !self.written.contains(&id))
        };
        let unless = |fits: bool, why| if fits { Ok(()) } else { Err(why) };
        match &op.kind {
            OpKind::Value(op) => match op {
                any!(given, by_element, spreads) => Ok(()),
                ValueOp::Reduce { .. } | ValueOp::Scan { .. } => {
                    unless(tail, "all warps meet in a reduction")
                }
            },
            OpKind::Control(op) => match op {
                ControlOp::If { .. } | ControlOp::For { .. } | ControlOp::While { .. } => Ok(()),
                ControlOp::Break { .. } | ControlOp::Continue { .. } => {
                    unless(!tail, "a loop ends in what the last block does alone")
                }
                // Outside of tails either side computes all scalars, and so what a variable is set to. Nothing that the loader does
                // comes of tiles.
                ControlOp::VarDecl { .. } | ControlOp::VarGet { .. } | ControlOp::VarSet { .. } => {
                    unless(!tail, "the loader does not see what the last block sets a variable to")
                }
                ControlOp::Split { .. } => Err("the block is split into groups"),
            },
            OpKind::Comm(op) => match op {
                CommOp::Wait(Wait { flag, .. }) if kernel.counts(*flag) => Err("a count is taken once"),
                CommOp::Wait(_) | CommOp::WaitAll(_) | CommOp::BlockWait(_) => {
                    unless(!tail, "the last block waits alone")
                }
                CommOp::PutMatrix(_) | CommOp::Signal(_) | CommOp::BlockSignal(_) => Ok(()),
                any!(messages, far) | CommOp::Put(_) | CommOp::BulkCopy(_) => {
                    Err("all warps send and receive vectors together")
                }
            },
            OpKind::Memory(op) => match op {
                MemoryOp::Ticket { out, .. } => {
                    let asks = |user: &OpId| {
                        matches!(&kernel.op(*user).kind, OpKind::Control(ControlOp::If { cond, otherwise, results, .. })
                            if cond == out && otherwise.ops.is_empty() && results.is_empty())
                    };
                    unless(
                        self.f.p.users(*out).iter().all(asks),
                        "whether a block is the last one decides other things",
                    )
                }
                _ if drawn::draws(kernel, op) => unless(!tail, "the last block draws numbers alone"),
                MemoryOp::Load { out, place, receipt, .. }
                    if !tail
                        && !kernel.ty(*out).is_tile()
                        && (input(*place, *receipt)
                            || own(*place).is_some_and(|id| self.heard.scalars.contains(&id))) =>
                {
                    Ok(())
                }
                any!(loads, stores) | MemoryOp::Atomic { .. } | MemoryOp::Tally { .. } => {
                    let place = op.accessed().place;
                    let here = own(place).is_some();
                    unless(tail && here, "all warps access vectors, or single elements, together")
                }
            },
            OpKind::Matrix(op) => match op {
                MatrixOp::Dot(_) => unless(!tail, "the last block multiplies alone"),
                MatrixOp::Deinterleave(_) | MatrixOp::StoreMatrix(_) => Ok(()),
                // Of a row that a warpgroup multiplies one warp has all; of a column several have parts, and would meet.
                MatrixOp::ReduceLines(reduce) => {
                    unless(!warps_meet(&self.f.layouts, reduce), "warps meet in this reduction along lines")
                }
                MatrixOp::LoadMatrix(LoadMatrix { at: Rows { place, receipt, .. }, .. }) => unless(
                    input(*place, *receipt) || self.in_lane_order(*place) || (tail && own(*place).is_some()),
                    "other lanes of the kernel have written what is loaded",
                ),
                MatrixOp::LoadRow(LoadRow { place, receipt, list, .. }) => unless(
                    (input(*place, *receipt) || (own(*place).is_some() && (tail || self.heard.before(id))))
                        && list.is_none_or(|list| tail || !self.written.contains(&list.param)),
                    "other lanes of the kernel have written what is loaded",
                ),
            },
        }
    }
}
