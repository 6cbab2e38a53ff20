//! How tiles are spread over the lanes of a group.
//!
//! Element `e` of a tile belongs to lane `e / E % lanes`, in step `e / E / lanes`: each lane holds `E` consecutive
//! elements a step, so that a lane's share of a step is one vector access. Tiles that meet in an elementwise operation
//! need the same `E`; a union-find over those operations finds the classes, and the memory accesses of a class choose
//! its `E`. What no access can use as a vector falls back to narrower ones by itself ([`Layouts::access`]).

use super::Fragments;
use crate::family::Target;
use crate::ir::{
    CommOp, ControlOp, Deinterleave, Dtype, Kernel, Loc, MatrixOp, MemoryOp, OpId, OpKind, PACKET_BYTES, Put,
    SendMessages, Transport, Type, ValueId, ValueOp, VarId,
    analysis::{DefUse, Tree},
    mutate::insert_before,
};
use crate::print::analysis::{Program, multimem};
use crate::print::text::PrintError;

/// Bytes of the widest memory access of a lane.
pub(crate) const WIDEST: u32 = 16;

/// How a tile is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    /// Elements of the tile.
    pub len: u32,
    /// Lanes of the group.
    pub lanes: u32,
    /// Consecutive elements a lane holds in a step, a power of two that divides `len`.
    pub per_lane: u32,
    /// How the warps share a matrix: see [`Fragments`].
    pub fragments: Option<Fragments>,
}

impl Layout {
    /// Steps until every element has its lane.
    pub fn steps(self) -> u32 {
        self.len.div_ceil(self.lanes * self.per_lane)
    }

    /// Whether a lane holds one element at most.
    pub fn is_single(self) -> bool {
        self.per_lane == 1 && self.steps() == 1
    }

    /// Steps in which every lane has elements.
    pub fn full_steps(self) -> u32 {
        self.len / (self.lanes * self.per_lane)
    }

    /// Whether every lane has elements in every step.
    pub fn is_whole(self) -> bool {
        self.full_steps() == self.steps()
    }

    /// Whether both are of one matrix of a group, whose parts warps may share in several ways.
    fn is_same_matrix(self, other: Layout) -> bool {
        let shape = |l: Layout| l.fragments.map(|f| (f.rows, f.columns, l.lanes));
        shape(self).is_some() && shape(self) == shape(other)
    }

    /// 32-bit registers that a lane needs to hold a whole tile of this type.
    pub fn words(self, dtype: Dtype) -> u32 {
        (self.steps() * self.per_lane * dtype.bytes()).div_ceil(4)
    }
}

/// The layout of every tile of a kernel.
#[derive(Debug)]
pub(crate) struct Layouts {
    parent: Vec<u32>,
    of_class: Vec<Option<Layout>>,
    values: usize,
}

impl Layouts {
    /// Chooses layouts, or says where a tile is used by a group that does not hold it.
    pub fn new(p: &Program, target: Target) -> Result<Layouts, PrintError> {
        let k = p.kernel;
        let nodes = k.values.len() + k.vars.len();
        let mut l = Layouts {
            parent: (0..nodes as u32).collect(),
            of_class: vec![None; nodes],
            values: k.values.len(),
        };
        for &id in p.ops() {
            l.connect(k, &k.op(id).kind);
        }
        let mut wanted = vec![1u32; nodes];
        for &id in p.ops() {
            l.place_blocks(p, id, target)?;
        }
        for &id in p.ops() {
            l.place(p, id, target, &mut wanted)?;
        }
        let mut pinned = vec![None; nodes];
        for &id in p.ops() {
            l.pin(p, id, &mut pinned)?;
        }
        for &id in p.ops() {
            l.pin_sent(p, id, &mut pinned)?;
        }
        for (class, layout) in l.of_class.iter_mut().enumerate() {
            if let Some(layout) = layout {
                let best = || match layout.fragments {
                    Some(_) => target.matrix_neighbours(),
                    None => choose(layout.len, layout.lanes, wanted[class]),
                };
                layout.per_lane = pinned[class].unwrap_or_else(best);
            }
        }
        Ok(l)
    }

    /// The layout of a tile.
    pub fn of(&self, v: ValueId) -> Layout {
        self.of_class[self.find(v.0) as usize].expect("every tile that an operation touches has a layout")
    }

    /// Elements that one access at element `index` of a buffer may move, for a tile of `per_lane` elements a lane.
    pub fn access(p: &Program, index: ValueId, dtype: Dtype, per_lane: u32) -> u32 {
        p.divisor(index, WIDEST / dtype.bytes()).min(per_lane)
    }

    fn find(&self, node: u32) -> u32 {
        let mut n = node;
        while self.parent[n as usize] != n {
            n = self.parent[n as usize];
        }
        n
    }

    fn union(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        self.parent[a.max(b) as usize] = a.min(b);
    }

    /// A lane holds one packet a step of a tile that is taken as packets, or that all ranks are reached with; one element of one that is
    /// counted in order; and of one that is read as LL elements, or sent as such where a word has several, one word.
    fn pin(&self, p: &Program, id: OpId, pinned: &mut [Option<u32>]) -> Result<(), PrintError> {
        let op = p.kernel.op(id);
        if let Some(tile) = multimem::sixteen(p.kernel, id) {
            return self.pin_to(packet(p, tile), tile, op.loc, pinned);
        }
        let (tile, per_lane) = match &op.kind {
            OpKind::Memory(op) => match op {
                MemoryOp::Tally { out, .. } => (*out, 1),
                any!(loads, stores) | MemoryOp::Atomic { .. } | MemoryOp::Ticket { .. } => return Ok(()),
            },
            OpKind::Comm(comm) => match comm {
                CommOp::ReceiveMessages(op) => {
                    let out = op.tiles[0].out;
                    (out, op.transport.unit(p.kernel.ty(out).dtype))
                }
                CommOp::SendMessages(op) => match width(op.transport, p.kernel.ty(op.value).dtype) {
                    Width::Exactly(per_lane) => (op.value, per_lane),
                    Width::Multiple(_) | Width::Any => return Ok(()),
                },
                any!(puts, signals, waits, far) => return Ok(()),
            },
            OpKind::Matrix(_) | OpKind::Value(_) | OpKind::Control(_) => return Ok(()),
        };
        self.pin_to(per_lane, tile, op.loc, pinned)
    }

    fn pin_to(
        &self,
        per_lane: u32,
        tile: ValueId,
        loc: Loc,
        pinned: &mut [Option<u32>],
    ) -> Result<(), PrintError> {
        match pinned[self.find(tile.0) as usize].replace(per_lane) {
            Some(other) if other != per_lane => Err(PrintError::LaneWidths { loc, per_lane, other }),
            _ => Ok(()),
        }
    }

    /// A lane holds one packet a step, or several, of a tile that is sent as packets: as many as what it is computed from.
    fn pin_sent(&self, p: &Program, id: OpId, pinned: &mut [Option<u32>]) -> Result<(), PrintError> {
        let op = p.kernel.op(id);
        let OpKind::Comm(CommOp::SendMessages(SendMessages { transport, value, .. })) = op.kind else {
            return Ok(());
        };
        let Width::Multiple(per_lane) = width(transport, p.kernel.ty(value).dtype) else { return Ok(()) };
        match &mut pinned[self.find(value.0) as usize] {
            Some(other) if !other.is_multiple_of(per_lane) => {
                Err(PrintError::LaneWidths { loc: op.loc, per_lane, other: *other })
            }
            Some(_) => Ok(()),
            none => {
                *none = Some(per_lane);
                Ok(())
            }
        }
    }

    fn connect(&mut self, k: &Kernel, kind: &OpKind) {
        let var_node = |var: VarId| self.values as u32 + var.0;
        let tiles = |list: &[ValueId]| -> Vec<u32> {
            list.iter().filter(|v| k.ty(**v).is_tile()).map(|v| v.0).collect()
        };
        let sets: Vec<Vec<u32>> = match kind {
            OpKind::Control(op) => match op {
                ControlOp::If { results, .. } => results.iter().map(|&(o, a, b)| tiles(&[o, a, b])).collect(),
                ControlOp::VarDecl { var, init: v }
                | ControlOp::VarSet { var, value: v }
                | ControlOp::VarGet { var, out: v } => {
                    if k.ty(*v).is_tile() {
                        vec![vec![var_node(*var), v.0]]
                    } else {
                        vec![]
                    }
                }
                // Their operands are scalars.
                any!(exits) | ControlOp::For { .. } | ControlOp::While { .. } | ControlOp::Split { .. } => {
                    vec![]
                }
            },
            // Its result has half of the columns.
            OpKind::Matrix(MatrixOp::Deinterleave(_)) => vec![],
            OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) => {
                let mut all = kind.outs();
                all.extend(kind.operands());
                vec![tiles(&all)]
            }
        };
        for set in sets {
            for pair in set.windows(2) {
                self.union(pair[0], pair[1]);
            }
        }
    }

    /// Gives every other block of columns of a matrix the lanes that have them: warps share the columns that are left as they share all.
    fn place_blocks(&mut self, p: &Program, id: OpId, target: Target) -> Result<(), PrintError> {
        let OpKind::Matrix(MatrixOp::Deinterleave(Deinterleave { out, a, .. })) = p.kernel.op(id).kind else {
            return Ok(());
        };
        let (rows, columns) = p.kernel.ty(a).shape().expect("the verifier tells matrices from vectors");
        let of = match self.of_class[self.find(a.0) as usize] {
            Some(Layout { fragments: Some(fragments), .. }) => fragments,
            _ => Fragments::of(p, id, target, (rows, columns))?,
        };
        let half = of.every_other_block().ok_or_else(|| {
            let (loc, warps) = (p.kernel.op(id).loc, p.lanes(id) / p.kernel.warp_size);
            PrintError::MatrixShape { loc, rows, columns, warps }
        })?;
        let class = self.find(out.0) as usize;
        let layout =
            Layout { len: rows * columns / 2, lanes: p.lanes(id), per_lane: 1, fragments: Some(half) };
        self.of_class[class] = Some(layout);
        Ok(())
    }

    /// Gives the tiles of an operation their length and lanes, and notes what width its memory accesses like.
    fn place(&mut self, p: &Program, id: OpId, target: Target, wanted: &mut [u32]) -> Result<(), PrintError> {
        let kind = &p.kernel.op(id).kind;
        let mut tiles: Vec<(u32, Type)> = vec![];
        for v in kind.outs().into_iter().chain(kind.operands()) {
            tiles.push((v.0, p.kernel.ty(v)));
        }
        if let Some(var) = kind.declares() {
            tiles.push((self.values as u32 + var.0, p.kernel.vars[var.index()].ty));
        }
        for (node, ty) in tiles {
            let Some(len) = ty.len else { continue };
            let class = self.find(node) as usize;
            let fragments = ty.shape().map(|shape| Fragments::of(p, id, target, shape)).transpose()?;
            let here = Layout { len, lanes: p.lanes(id), per_lane: 1, fragments };
            match self.of_class[class] {
                None => self.of_class[class] = Some(here),
                Some(l) if l == here || l.is_same_matrix(here) => {}
                Some(_) => return Err(PrintError::TileAcrossSplit { loc: p.kernel.op(id).loc }),
            }
        }
        let Some((tile, index)) = wide(p, id) else { return Ok(()) };
        if p.kernel.ty(tile).is_tile() {
            let dtype = p.kernel.ty(tile).dtype;
            let class = self.find(tile.0) as usize;
            wanted[class] = wanted[class].max(Layouts::access(p, index, dtype, WIDEST));
        }
        Ok(())
    }
}

/// The tile that an operation accesses in wide pieces, if it can, and the element where it begins. Gathers, scatters and
/// accesses under a mask of single elements go element by element, and coalesce best one a lane.
pub(crate) fn wide(p: &Program, id: OpId) -> Option<(ValueId, ValueId)> {
    let by_vectors = |mask: Option<ValueId>| mask.is_none_or(|m| p.vector_mask(m).is_some());
    match p.kernel.op(id).kind {
        OpKind::Memory(ref op) => match *op {
            MemoryOp::Load { out, index, .. } => Some((out, index)),
            MemoryOp::LoadMasked { out, index, .. } => p.loads_by_vectors(id).then_some((out, index)),
            MemoryOp::Store { index, value, mask, .. } => by_vectors(mask).then_some((value, index)),
            any!(counts) | MemoryOp::Gather { .. } | MemoryOp::Scatter { .. } => None,
        },
        OpKind::Comm(ref op) => match *op {
            CommOp::Put(Put { index, value, mask, .. }) => by_vectors(mask).then_some((value, index)),
            // Their tiles have the width of a packet or of an LL element, or none.
            any!(signals, waits, messages, far) | CommOp::PutMatrix(_) | CommOp::BulkCopy(_) => None,
        },
        // A lane's elements of a matrix are where the matrix instruction has them.
        OpKind::Matrix(_) | OpKind::Value(_) | OpKind::Control(_) => None,
    }
}

/// How many elements a step a lane holds of a tile that is sent.
pub(crate) enum Width {
    /// As many as what it is computed from.
    Any,
    /// A multiple of so many.
    Multiple(u32),
    /// So many.
    Exactly(u32),
}

/// What a transport wants of tiles that are sent.
pub(crate) fn width(transport: Transport, dtype: Dtype) -> Width {
    match transport.unit(dtype) {
        unit if is_wide(transport) => Width::Multiple(unit),
        1 => Width::Any,
        unit => Width::Exactly(unit),
    }
}

/// Whether lanes move whole 16 bytes, so that a tile has fewer of them than elements.
pub(crate) fn is_wide(transport: Transport) -> bool {
    transport.traits().wide
}

/// The kernel with a splat of its own for every operation that reads one. A splat is written out where it is used, so it
/// says nothing about how the tiles that it meets are spread over lanes; as one value, which equal splats are, it would
/// make them all be spread in the same way.
pub(crate) fn splats_apart(kernel: &Kernel) -> Kernel {
    let tree = Tree::of(kernel);
    let uses = DefUse::of(kernel, &tree);
    let mut apart = kernel.clone();
    for &id in tree.in_order() {
        let OpKind::Value(ValueOp::Splat { out, a }) = kernel.op(id).kind else { continue };
        for user in uses.uses(out).iter().skip(1) {
            let copy = apart.add_value(kernel.ty(out), None);
            insert_before(&mut apart, id, ValueOp::Splat { out: copy, a });
            let operands = apart.ops[user.index()].kind.operands_mut();
            operands.into_iter().filter(|v| **v == out).for_each(|v| *v = copy);
        }
    }
    apart
}

/// Elements of a packet of a tile's type, of which the verifier lets all indices be multiples.
fn packet(p: &Program, tile: ValueId) -> u32 {
    PACKET_BYTES / p.kernel.ty(tile).dtype.bytes()
}

/// Elements a lane: what the accesses like, as far as it divides the tile and leaves no more than half of the lanes
/// idle.
fn choose(len: u32, lanes: u32, wanted: u32) -> u32 {
    let mut e = wanted.max(1);
    while e > 1 && (!len.is_multiple_of(e) || len / e < lanes / 2) {
        e /= 2;
    }
    e
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_divides_the_tile_and_keeps_lanes_busy() {
        // 2880 bf16 over four warps: 16-byte vectors, three steps, the last of them partial.
        assert_eq!(choose(2880, 128, 8), 8);
        let l = Layout { len: 2880, lanes: 128, per_lane: 8, fragments: None };
        assert_eq!((l.steps(), l.full_steps(), l.words(Dtype::Bf16)), (3, 2, 12));
        // Over 512 lanes 360 vectors will do; over 1024 they are too few.
        assert_eq!(choose(2880, 512, 8), 8);
        assert_eq!(choose(2880, 1024, 8), 4);
        assert_eq!(choose(1440, 1024, 8), 2);
        assert_eq!(choose(30, 32, 8), 1);
        assert_eq!(choose(36, 32, 8), 2);
        assert_eq!(choose(7, 32, 8), 1);
        assert_eq!(choose(64, 512, 4), 1);
        assert_eq!(choose(512, 128, 4), 4);
    }
}
