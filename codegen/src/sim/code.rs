//! Linear code: what a role runs, with jumps instead of regions, so that an agent's state is a position and registers.

use crate::ir::{
    BinaryOp, CompareOp, Dtype, Kernel, OpId, ParamId, Place, ReceiptId, ReduceOp, SignalOrder, UnaryOp,
};

/// A scalar register.
pub(super) type Reg = u32;
/// A tile register.
pub(super) type TileReg = u32;
/// A position in the code.
pub(super) type Pc = u32;

/// A scalar or a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnyReg {
    Scalar(Reg),
    Tile(TileReg),
}

/// Destination of a put or signal, as registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum TargetReg {
    Rank(Reg),
    Mask(Reg),
}

/// Where an epoch value comes from: the word's parameter and the register that holds the value.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochOf {
    pub word: ParamId,
    pub value: Reg,
}

/// A tile of packets that are taken, as registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakenReg {
    pub out: TileReg,
    pub index: Reg,
    pub from: Reg,
}

/// A place with what an access to it needs to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub place: Place,
    pub index: Reg,
    pub dtype: Dtype,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(super) enum Insn {
    Copy {
        out: Reg,
        a: Reg,
    },
    CopyTile {
        out: TileReg,
        a: TileReg,
    },
    Rank {
        out: Reg,
    },
    ScalarParam {
        out: Reg,
        param: ParamId,
    },
    Epoch {
        out: Reg,
        word: ParamId,
        advance: bool,
    },
    GroupIndex {
        out: Reg,
    },
    Binary {
        op: BinaryOp,
        dtype: Dtype,
        out: Reg,
        a: Reg,
        b: Reg,
    },
    BinaryTile {
        op: BinaryOp,
        dtype: Dtype,
        out: TileReg,
        a: TileReg,
        b: TileReg,
    },
    Unary {
        op: UnaryOp,
        dtype: Dtype,
        out: Reg,
        a: Reg,
    },
    UnaryTile {
        op: UnaryOp,
        dtype: Dtype,
        out: TileReg,
        a: TileReg,
    },
    Compare {
        op: CompareOp,
        dtype: Dtype,
        out: Reg,
        a: Reg,
        b: Reg,
    },
    CompareTile {
        op: CompareOp,
        dtype: Dtype,
        out: TileReg,
        a: TileReg,
        b: TileReg,
    },
    Select {
        out: Reg,
        cond: Reg,
        a: Reg,
        b: Reg,
    },
    SelectTile {
        dtype: Dtype,
        out: TileReg,
        cond: TileReg,
        a: TileReg,
        b: TileReg,
    },
    Cast {
        from: Dtype,
        to: Dtype,
        out: Reg,
        a: Reg,
    },
    CastTile {
        from: Dtype,
        to: Dtype,
        out: TileReg,
        a: TileReg,
    },
    Fma {
        out: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    FmaTile {
        out: TileReg,
        a: TileReg,
        b: TileReg,
        c: TileReg,
    },
    Splat {
        dtype: Dtype,
        len: u32,
        out: TileReg,
        a: Reg,
    },
    Arange {
        len: u32,
        out: TileReg,
    },
    Reduce {
        op: ReduceOp,
        dtype: Dtype,
        out: Reg,
        a: TileReg,
    },
    Scan {
        op: ReduceOp,
        dtype: Dtype,
        exclusive: bool,
        out: TileReg,
        a: TileReg,
    },
    Load {
        from: Access,
        out: Reg,
        receipt: Option<ReceiptId>,
    },
    LoadTile {
        from: Access,
        len: u32,
        out: TileReg,
        receipt: Option<ReceiptId>,
    },
    LoadMasked {
        from: Access,
        out: TileReg,
        mask: TileReg,
        other: TileReg,
        receipt: Option<ReceiptId>,
    },
    Gather {
        place: Place,
        dtype: Dtype,
        out: TileReg,
        index: TileReg,
        mask: TileReg,
        other: TileReg,
        receipt: Option<ReceiptId>,
    },
    Store {
        to: Access,
        value: AnyReg,
        mask: Option<AnyReg>,
    },
    Scatter {
        place: Place,
        dtype: Dtype,
        index: TileReg,
        value: TileReg,
        mask: Option<TileReg>,
    },
    Atomic {
        op: ReduceOp,
        on: Access,
        out: Reg,
        value: Reg,
    },
    Tally {
        place: Place,
        out: TileReg,
        index: TileReg,
        mask: TileReg,
    },
    Put {
        target: TargetReg,
        buffer: ParamId,
        dtype: Dtype,
        index: Reg,
        value: AnyReg,
        mask: Option<AnyReg>,
        /// The epoch that the parcel is signalled with, where the code tells before the signal.
        epoch: Option<EpochOf>,
    },
    Signal {
        target: TargetReg,
        flag: ParamId,
        index: Reg,
        value: Reg,
        order: SignalOrder,
    },
    Wait {
        receipt: ReceiptId,
        flag: ParamId,
        index: Reg,
        from: Reg,
        value: Reg,
        epoch: Option<ParamId>,
    },
    WaitAll {
        receipt: ReceiptId,
        flag: ParamId,
        index: Reg,
        count: Reg,
        only: Option<Reg>,
        per_rank: u32,
        value: Reg,
        epoch: Option<ParamId>,
    },
    SendPackets {
        target: TargetReg,
        packets: ParamId,
        dtype: Dtype,
        index: Reg,
        value: TileReg,
    },
    TakePackets {
        packets: ParamId,
        dtype: Dtype,
        /// Elements of a tile.
        len: u32,
        tiles: Box<[TakenReg]>,
        mask: Reg,
    },
    SendLl {
        target: TargetReg,
        ll: ParamId,
        index: Reg,
        value: TileReg,
        epoch: Reg,
    },
    ReadLl {
        ll: ParamId,
        out: TileReg,
        index: TileReg,
        from: TileReg,
        mask: TileReg,
        epoch: Reg,
    },
    Jump {
        to: Pc,
    },
    /// Jumps unless the condition holds.
    Unless {
        cond: Reg,
        to: Pc,
    },
    /// Leaves a counted loop unless `var < end`.
    LoopHead {
        dtype: Dtype,
        var: Reg,
        end: Reg,
        to: Pc,
    },
    /// Counts up and goes back to the head, or leaves when the counter would overflow.
    LoopNext {
        dtype: Dtype,
        var: Reg,
        step: Reg,
        head: Pc,
        exit: Pc,
    },
    /// Starts `groups` agents at the next instruction and goes on at `after` when all are done.
    Split {
        groups: u32,
        after: Pc,
    },
    /// End of a group of a split.
    Join,
    /// End of the block.
    End,
}

/// What a role runs, the prologue included.
#[derive(Debug)]
pub(super) struct RoleCode {
    pub code: Vec<Insn>,
    /// The operation that each instruction comes from.
    pub ops: Vec<OpId>,
    /// Initial scalar registers: constants are there from the start.
    pub scalars: Vec<u64>,
    /// How many tile registers there are.
    pub tiles: u32,
    /// Most groups that a block of the role is split into, at least 1.
    pub max_groups: u32,
    /// Number of the role's first agent among those of a launch.
    pub first_agent: u32,
}

/// A kernel made ready for simulation.
#[derive(Debug)]
pub struct Compiled {
    pub(super) kernel: Kernel,
    pub(super) roles: Vec<RoleCode>,
    /// Agents that exist at once when every block of a launch runs.
    pub(super) agents: u32,
}

impl Compiled {
    /// The kernel this was made from.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Role and number within the role of a block.
    pub(super) fn role_of(&self, block: u32) -> (usize, u32) {
        let mut first = 0;
        for (i, role) in self.kernel.roles.iter().enumerate() {
            if block < first + role.blocks {
                return (i, block - first);
            }
            first += role.blocks;
        }
        (self.kernel.roles.len() - 1, 0)
    }
}

impl Insn {
    /// Calls `visit` on every tile register of the instruction; those it writes come last.
    pub fn tiles(&mut self, visit: &mut dyn FnMut(&mut TileReg)) {
        let any = |r: &mut AnyReg, visit: &mut dyn FnMut(&mut TileReg)| {
            if let AnyReg::Tile(t) = r {
                visit(t);
            }
        };
        match self {
            Insn::CopyTile { out, a }
            | Insn::UnaryTile { out, a, .. }
            | Insn::CastTile { out, a, .. }
            | Insn::Scan { out, a, .. } => [a, out].into_iter().for_each(visit),
            Insn::BinaryTile { out, a, b, .. } | Insn::CompareTile { out, a, b, .. } => {
                [a, b, out].into_iter().for_each(visit);
            }
            Insn::SelectTile { out, cond, a, b, .. } => [cond, a, b, out].into_iter().for_each(visit),
            Insn::FmaTile { out, a, b, c } => [a, b, c, out].into_iter().for_each(visit),
            Insn::Splat { out, .. } | Insn::Arange { out, .. } | Insn::LoadTile { out, .. } => visit(out),
            Insn::Reduce { a, .. } => visit(a),
            Insn::LoadMasked { out, mask, other, .. } => [mask, other, out].into_iter().for_each(visit),
            Insn::Gather { out, index, mask, other, .. } => {
                [index, mask, other, out].into_iter().for_each(visit);
            }
            Insn::Store { value, mask, .. } | Insn::Put { value, mask, .. } => {
                any(value, visit);
                if let Some(mask) = mask {
                    any(mask, visit);
                }
            }
            Insn::Scatter { index, value, mask, .. } => {
                [index, value].into_iter().chain(mask).for_each(visit);
            }
            Insn::Tally { out, index, mask, .. } => [index, mask, out].into_iter().for_each(visit),
            Insn::SendPackets { value, .. } | Insn::SendLl { value, .. } => visit(value),
            Insn::ReadLl { out, index, from, mask, .. } => {
                [index, from, mask, out].into_iter().for_each(visit);
            }
            Insn::TakePackets { tiles, .. } => tiles.iter_mut().for_each(|t| visit(&mut t.out)),
            Insn::Copy { .. }
            | Insn::Rank { .. }
            | Insn::ScalarParam { .. }
            | Insn::Epoch { .. }
            | Insn::GroupIndex { .. }
            | Insn::Binary { .. }
            | Insn::Unary { .. }
            | Insn::Compare { .. }
            | Insn::Select { .. }
            | Insn::Cast { .. }
            | Insn::Fma { .. }
            | Insn::Load { .. }
            | Insn::Atomic { .. }
            | Insn::Signal { .. }
            | Insn::Wait { .. }
            | Insn::WaitAll { .. }
            | Insn::Jump { .. }
            | Insn::Unless { .. }
            | Insn::LoopHead { .. }
            | Insn::LoopNext { .. }
            | Insn::Split { .. }
            | Insn::Join
            | Insn::End => {}
        }
    }
}
