//! Linear code: what a role runs, with jumps instead of regions, so that an agent's state is a position and registers.

use super::insns::{CommInsn, MatrixInsn, MemoryInsn, TileInsn};
use super::registers::TileRegisters;
use crate::ir::{BinaryOp, CompareOp, Dtype, Kernel, OpId, ParamId, Place, Role, UnaryOp};
use crate::sim::exec::scalar::Scalar;

/// A scalar register.
pub(crate) type Reg = u32;
/// A tile register.
pub(crate) type TileReg = u32;
/// A position in the code.
pub(crate) type Pc = u32;

/// A scalar or a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnyReg {
    Scalar(Reg),
    Tile(TileReg),
}

/// Destination of a put or signal, as registers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TargetReg {
    Rank(Reg),
    Mask(Reg),
}

/// The epoch that a parcel is signalled with: the word's parameter, the flags', and the register that holds the value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochOf {
    pub word: ParamId,
    pub flag: ParamId,
    pub value: Reg,
}

/// A tile of packets that are taken, as registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenReg {
    pub out: TileReg,
    pub index: Reg,
    pub from: Reg,
}

/// A place with what an access to it needs to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub place: Place,
    pub index: Reg,
    pub dtype: Dtype,
}

/// The blocks that run a role's body, those of roles that go on as it included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Team {
    /// How many.
    pub blocks: u32,
    /// Which of them the first block of the code's own role is.
    pub first: u32,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) enum Insn {
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
    Node {
        out: Reg,
    },
    Active {
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
        team: Team,
    },
    Binary {
        op: BinaryOp,
        dtype: Dtype,
        out: Reg,
        a: Reg,
        b: Reg,
    },
    Unary {
        op: UnaryOp,
        dtype: Dtype,
        out: Reg,
        a: Reg,
    },
    Compare {
        op: CompareOp,
        dtype: Dtype,
        out: Reg,
        a: Reg,
        b: Reg,
    },
    Select {
        out: Reg,
        cond: Reg,
        a: Reg,
        b: Reg,
    },
    Cast {
        from: Dtype,
        to: Dtype,
        out: Reg,
        a: Reg,
    },
    Fma {
        out: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Tile(TileInsn),
    Memory(MemoryInsn),
    Matrix(MatrixInsn),
    Comm(CommInsn),
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
pub(crate) struct RoleCode {
    pub code: Vec<Insn>,
    /// The same as the loop of instructions on scalars reads it.
    pub scalar_code: Vec<Scalar>,
    /// The operation that each instruction comes from.
    pub ops: Vec<OpId>,
    /// Initial scalar registers: constants are there from the start.
    pub scalars: Vec<u64>,
    pub tiles: TileRegisters,
    /// Most groups that a block of the role is split into, at least 1.
    pub max_groups: u32,
    /// Number of the role's first agent among those of a launch.
    pub first_agent: u32,
    /// The roles that run beside it.
    pub companions: Vec<usize>,
}

/// A kernel made ready for simulation.
#[derive(Debug)]
pub struct Compiled {
    pub(crate) kernel: Kernel,
    pub(crate) roles: Vec<RoleCode>,
    /// Agents that exist at once when every block of a launch runs.
    pub(crate) agents: u32,
}

impl Compiled {
    /// The kernel this was made from.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Role and number within the role of a rank's block.
    pub(crate) fn role_of(&self, rank: u32, block: u32) -> (usize, u32) {
        let (mut first, rank) = (0, self.kernel.near(rank));
        let own = |(_, role): &(usize, &Role)| role.beside.is_none() && role.is_on(rank);
        for (i, role) in self.kernel.roles.iter().enumerate().filter(own) {
            if block < first + role.blocks {
                return (i, block - first);
            }
            first += role.blocks;
        }
        (self.kernel.roles.len() - 1, 0)
    }

    /// The roles that a rank's block has warps of: the one that it is of, and those beside it.
    pub(crate) fn roles_of(&self, rank: u32, block: u32) -> impl Iterator<Item = usize> + '_ {
        let (role, _) = self.role_of(rank, block);
        std::iter::once(role).chain(self.roles[role].companions.iter().copied())
    }
}

/// What a turn has of for each time that somebody may communicate in it.
pub(crate) const COMMUNICATION: u32 = 256;

impl Insn {
    /// How much of a turn it takes; 0 is for what no other agent can see. Accesses to plain memory are hardly a reason to take
    /// turns: the clocks find what races with them, in any order. They count for a little, so that a loop that
    /// only loads does not keep others from running.
    pub fn share_of_turn(&self) -> u32 {
        if let Insn::Memory(memory) = self {
            let communicates =
                matches!(memory, MemoryInsn::Atomic { .. } | MemoryInsn::Ticket { .. } | MemoryInsn::Peer(_));
            return if communicates { COMMUNICATION } else { 1 };
        }
        let of_peer = matches!(self, Insn::Matrix(MatrixInsn::Load { at, .. }) if at.rank.is_some());
        let communicates = of_peer || matches!(self, Insn::Comm(_));
        if communicates { COMMUNICATION } else { matches!(self, Insn::Matrix(_)).into() }
    }

    /// The scalar register that it writes.
    pub fn writes(&self) -> Option<Reg> {
        match *self {
            Insn::Copy { out, .. }
            | Insn::Binary { out, .. }
            | Insn::Unary { out, .. }
            | Insn::Compare { out, .. }
            | Insn::Select { out, .. }
            | Insn::Cast { out, .. }
            | Insn::Fma { out, .. }
            | Insn::Rank { out }
            | Insn::Node { out }
            | Insn::Active { out }
            | Insn::ScalarParam { out, .. }
            | Insn::Epoch { out, .. }
            | Insn::GroupIndex { out, .. }
            | Insn::LoopNext { var: out, .. }
            | Insn::Tile(TileInsn::Reduce { out, .. }) => Some(out),
            Insn::Memory(ref insn) => insn.writes(),
            any!(ends)
            | Insn::CopyTile { .. }
            | Insn::Tile(_)
            | Insn::Matrix(_)
            | Insn::Comm(_)
            | Insn::Jump { .. }
            | Insn::Unless { .. }
            | Insn::LoopHead { .. } => None,
        }
    }

    /// Calls `visit` on every tile register of the instruction; those it writes come last.
    pub fn tiles(&mut self, visit: &mut dyn FnMut(&mut TileReg)) {
        match self {
            Insn::CopyTile { out, a } => [a, out].into_iter().for_each(visit),
            Insn::Tile(insn) => insn.tiles(visit),
            Insn::Memory(insn) => insn.tiles(visit),
            Insn::Matrix(insn) => insn.tiles(visit),
            Insn::Comm(insn) => insn.tiles(visit),
            any!(scalars, launched, ends)
            | Insn::Jump { .. }
            | Insn::Unless { .. }
            | Insn::LoopHead { .. }
            | Insn::LoopNext { .. } => {}
        }
    }
}
