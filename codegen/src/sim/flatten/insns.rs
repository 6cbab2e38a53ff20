//! Groups of instructions: those on tiles, those that access memory, those that communicate.

use super::code::{Access, AnyReg, EpochOf, Reg, TargetReg, TileReg};
use crate::ir::{
    BinaryOp, CompareOp, Dtype, Lines, ParamId, Place, ReceiptId, ReduceOp, SharedId, SignalOrder, Transport,
    UnaryOp, scaled_elements,
};
use crate::sim::far::FarInsn;
use crate::sim::transport::Receive;

/// What computes on tiles.
#[derive(Clone, Debug)]
pub(crate) enum TileInsn {
    Binary { op: BinaryOp, dtype: Dtype, out: TileReg, a: TileReg, b: TileReg },
    Unary { op: UnaryOp, dtype: Dtype, out: TileReg, a: TileReg },
    Compare { op: CompareOp, dtype: Dtype, out: TileReg, a: TileReg, b: TileReg },
    Select { dtype: Dtype, out: TileReg, cond: TileReg, a: TileReg, b: TileReg },
    Cast { from: Dtype, to: Dtype, out: TileReg, a: TileReg },
    Fma { out: TileReg, a: TileReg, b: TileReg, c: TileReg },
    Splat { dtype: Dtype, len: u32, out: TileReg, a: Reg },
    Arange { len: u32, out: TileReg },
    Reduce { op: ReduceOp, dtype: Dtype, out: Reg, a: TileReg },
    Scan { op: ReduceOp, dtype: Dtype, exclusive: bool, out: TileReg, a: TileReg },
}

/// What accesses this rank's memory.
#[derive(Clone, Debug)]
pub(crate) enum MemoryInsn {
    Load { from: Access, out: Reg, receipt: Option<ReceiptId> },
    LoadTile { from: Access, len: u32, out: TileReg, receipt: Option<ReceiptId> },
    LoadMasked { from: Access, out: TileReg, mask: TileReg, other: TileReg, receipt: Option<ReceiptId> },
    Gather(Gather),
    Peer(PeerLoad),
    All(AllLoad),
    Store { to: Access, value: AnyReg, mask: Option<AnyReg> },
    Scatter(Scatter),
    Atomic { op: ReduceOp, on: Access, out: Reg, value: Reg },
    Tally { place: Place, out: TileReg, index: TileReg, mask: TileReg },
    Ticket { counter: ParamId, out: Reg, index: Reg, count: Reg, order: SignalOrder },
}

/// What makes matrices of this rank's memory, and stores them there.
#[derive(Clone, Debug)]
pub(crate) enum MatrixInsn {
    /// Apart, as it has many fields: all instructions are of one size.
    Dot(Box<Dot>),
    Load {
        at: RowsReg,
        column: Reg,
        shape: (u32, u32),
        out: TileReg,
    },
    Row {
        from: Access,
        lines: Lines,
        shape: (u32, u32),
        out: TileReg,
        receipt: Option<ReceiptId>,
        /// A vector that says which elements, and its first element.
        list: Option<(ParamId, Reg)>,
    },
    Lines {
        op: ReduceOp,
        lines: Lines,
        shape: (u32, u32),
        out: TileReg,
        a: TileReg,
    },
    /// Of a matrix of so many columns.
    Deinterleave {
        columns: u32,
        odd: bool,
        out: TileReg,
        a: TileReg,
    },
    Store {
        to: RowsReg,
        column: Reg,
        shape: (u32, u32),
        value: TileReg,
    },
}

/// Rows of a matrix in memory, as registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsReg {
    pub place: Place,
    /// The rank whose window it is, if it is one's.
    pub rank: Option<Reg>,
    pub row: Reg,
    /// The row from which on none is there.
    pub end: Option<Reg>,
    /// Whether rows from there on are anything.
    pub loose: bool,
    pub receipt: Option<ReceiptId>,
    /// The vector that names them, if they are scattered.
    pub list: Option<ParamId>,
    /// The vector with scales of their blocks.
    pub scales: Option<ParamId>,
}

/// Of a multiplication.
#[derive(Clone, Debug)]
pub(crate) struct Dot {
    pub dtype: Dtype,
    pub acc: Option<TileReg>,
    pub a: RowsReg,
    pub b: RowsReg,
    pub from: Reg,
    pub count: Reg,
    /// Rows and columns of the result.
    pub shape: (u32, u32),
    pub stages: u32,
    pub room: SharedId,
    pub paired: bool,
    pub out: TileReg,
}

impl Dot {
    /// Elements of a column.
    pub fn elements(&self) -> u32 {
        if self.a.scales.is_some() { scaled_elements(self.dtype).0 } else { 1 }
    }
}

/// What goes to other ranks or blocks, or waits for them.
#[derive(Clone, Debug)]
pub(crate) enum CommInsn {
    Put(Put),
    PutMatrix(Box<PutMatrix>),
    Signal(Signal),
    Wait(Wait),
    WaitAll(WaitAll),
    BlockSignal(BlockSignal),
    BlockWait(BlockWait),
    SendMessages(SendMessages),
    Receive(Receive),
    /// Apart, as some have many fields: all instructions are of one size.
    Far(Box<FarInsn>),
}

/// Registers of a gather.
#[derive(Clone, Debug)]
pub(crate) struct Gather {
    pub place: Place,
    pub dtype: Dtype,
    pub out: TileReg,
    pub index: TileReg,
    pub mask: TileReg,
    pub other: TileReg,
    pub receipt: Option<ReceiptId>,
}

/// A load from a rank's window.
#[derive(Clone, Debug)]
pub(crate) struct PeerLoad {
    pub window: ParamId,
    pub rank: Reg,
    pub dtype: Dtype,
    pub form: PeerForm,
    pub receipt: Option<ReceiptId>,
}

/// A load from all ranks' windows at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllLoad {
    pub window: ParamId,
    pub op: ReduceOp,
    pub dtype: Dtype,
    pub out: TileReg,
    pub index: Reg,
    pub len: u32,
    pub receipt: Option<ReceiptId>,
}

/// Which elements a load from a rank's window reads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PeerForm {
    One { out: Reg, index: Reg },
    Tile { out: TileReg, index: Reg, len: u32 },
    Masked { out: TileReg, index: Reg, mask: TileReg, other: TileReg },
    Gather { out: TileReg, index: TileReg, mask: TileReg, other: TileReg },
}

/// Registers of a scatter.
#[derive(Clone, Debug)]
pub(crate) struct Scatter {
    pub place: Place,
    pub dtype: Dtype,
    pub index: TileReg,
    pub value: TileReg,
    pub mask: Option<TileReg>,
    pub adds: bool,
}

/// Of a put.
#[derive(Clone, Debug)]
pub(crate) struct Put {
    pub target: TargetReg,
    pub buffer: ParamId,
    pub dtype: Dtype,
    pub index: Reg,
    pub value: AnyReg,
    pub mask: Option<AnyReg>,
    /// The epoch that the parcel is signalled with, where the code tells before the signal.
    pub epoch: Option<EpochOf>,
}

/// Of a put of a matrix.
#[derive(Clone, Debug)]
pub(crate) struct PutMatrix {
    pub target: TargetReg,
    pub to: RowsReg,
    pub column: Reg,
    pub shape: (u32, u32),
    pub value: TileReg,
    /// As of a put.
    pub epoch: Option<EpochOf>,
}

/// Of a signal.
#[derive(Clone, Debug)]
pub(crate) struct Signal {
    pub target: TargetReg,
    pub flag: ParamId,
    pub index: Reg,
    pub value: Reg,
    pub order: SignalOrder,
}

/// Of a wait for one flag.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub receipt: ReceiptId,
    pub flag: ParamId,
    pub index: Reg,
    pub from: Reg,
    pub value: Reg,
    pub epoch: Option<ParamId>,
}

/// Of a wait for several flags.
#[derive(Clone, Debug)]
pub(crate) struct WaitAll {
    pub receipt: ReceiptId,
    pub flag: ParamId,
    pub index: Reg,
    pub count: Reg,
    pub only: Option<Reg>,
    pub per_rank: u32,
    pub value: Reg,
    pub or_later: bool,
    pub epoch: Option<ParamId>,
}

/// Of a signal between blocks.
#[derive(Clone, Debug)]
pub(crate) struct BlockSignal {
    pub flag: ParamId,
    pub index: Reg,
    pub value: Reg,
    pub order: SignalOrder,
}

/// Of a wait for other blocks.
#[derive(Clone, Debug)]
pub(crate) struct BlockWait {
    pub flag: ParamId,
    pub index: Reg,
    pub count: Reg,
    pub from: Reg,
    pub value: Reg,
    pub per_block: u32,
}

/// Of a sending of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendMessages {
    pub transport: Transport,
    pub target: TargetReg,
    pub buffer: ParamId,
    pub index: Reg,
    pub value: TileReg,
    /// What each carries, where the transport has it.
    pub epoch: Option<Reg>,
    /// How many first elements' messages.
    pub count: Option<Reg>,
}

fn any(register: &mut AnyReg, visit: &mut dyn FnMut(&mut TileReg)) {
    if let AnyReg::Tile(tile) = register {
        visit(tile);
    }
}

impl TileInsn {
    /// See [`Insn::tiles`](super::code::Insn::tiles).
    pub fn tiles(&mut self, visit: &mut dyn FnMut(&mut TileReg)) {
        match self {
            TileInsn::Unary { out, a, .. }
            | TileInsn::Cast { out, a, .. }
            | TileInsn::Scan { out, a, .. } => {
                [a, out].into_iter().for_each(visit);
            }
            TileInsn::Binary { out, a, b, .. } | TileInsn::Compare { out, a, b, .. } => {
                [a, b, out].into_iter().for_each(visit);
            }
            TileInsn::Select { out, cond, a, b, .. } => [cond, a, b, out].into_iter().for_each(visit),
            TileInsn::Fma { out, a, b, c } => [a, b, c, out].into_iter().for_each(visit),
            TileInsn::Splat { out, .. } | TileInsn::Arange { out, .. } => visit(out),
            TileInsn::Reduce { a, .. } => visit(a),
        }
    }
}

impl MemoryInsn {
    /// See [`Insn::writes`](super::code::Insn::writes).
    pub fn writes(&self) -> Option<Reg> {
        match *self {
            MemoryInsn::Load { out, .. }
            | MemoryInsn::Atomic { out, .. }
            | MemoryInsn::Ticket { out, .. }
            | MemoryInsn::Peer(PeerLoad { form: PeerForm::One { out, .. }, .. }) => Some(out),
            MemoryInsn::LoadTile { .. }
            | MemoryInsn::LoadMasked { .. }
            | MemoryInsn::Gather(_)
            | MemoryInsn::Peer(_)
            | MemoryInsn::All(_)
            | MemoryInsn::Store { .. }
            | MemoryInsn::Scatter(_)
            | MemoryInsn::Tally { .. } => None,
        }
    }

    /// See [`Insn::tiles`](super::code::Insn::tiles).
    pub fn tiles(&mut self, visit: &mut dyn FnMut(&mut TileReg)) {
        match self {
            MemoryInsn::LoadTile { out, .. } | MemoryInsn::All(AllLoad { out, .. }) => visit(out),
            MemoryInsn::LoadMasked { out, mask, other, .. } => [mask, other, out].into_iter().for_each(visit),
            MemoryInsn::Gather(Gather { out, index, mask, other, .. }) => {
                [index, mask, other, out].into_iter().for_each(visit);
            }
            MemoryInsn::Store { value, mask, .. } => {
                [value].into_iter().chain(mask).for_each(|r| any(r, visit))
            }
            MemoryInsn::Scatter(Scatter { index, value, mask, .. }) => {
                [index, value].into_iter().chain(mask).for_each(visit);
            }
            MemoryInsn::Peer(PeerLoad { form, .. }) => match form {
                PeerForm::One { .. } => {}
                PeerForm::Tile { out, .. } => visit(out),
                PeerForm::Masked { out, mask, other, .. } => [mask, other, out].into_iter().for_each(visit),
                PeerForm::Gather { out, index, mask, other } => {
                    [index, mask, other, out].into_iter().for_each(visit);
                }
            },
            MemoryInsn::Tally { out, index, mask, .. } => [index, mask, out].into_iter().for_each(visit),
            MemoryInsn::Load { .. } | MemoryInsn::Atomic { .. } | MemoryInsn::Ticket { .. } => {}
        }
    }
}

impl MatrixInsn {
    /// See [`Insn::tiles`](super::code::Insn::tiles).
    pub fn tiles(&mut self, visit: &mut dyn FnMut(&mut TileReg)) {
        match self {
            MatrixInsn::Dot(dot) => dot.acc.iter_mut().chain([&mut dot.out]).for_each(visit),
            MatrixInsn::Load { out, .. } | MatrixInsn::Row { out, .. } => visit(out),
            MatrixInsn::Lines { out, a, .. } | MatrixInsn::Deinterleave { out, a, .. } => {
                [a, out].into_iter().for_each(visit)
            }
            MatrixInsn::Store { value, .. } => visit(value),
        }
    }
}

impl CommInsn {
    /// Whether another rank or block can wait for what it sends.
    pub fn sends(&self) -> bool {
        match self {
            CommInsn::Signal(_) | CommInsn::BlockSignal(_) | CommInsn::SendMessages(_) => true,
            CommInsn::Put(_)
            | CommInsn::PutMatrix(_)
            | CommInsn::Wait(_)
            | CommInsn::WaitAll(_)
            | CommInsn::BlockWait(_)
            | CommInsn::Receive(_)
            | CommInsn::Far(_) => false,
        }
    }

    /// See [`Insn::tiles`](super::code::Insn::tiles).
    pub fn tiles(&mut self, visit: &mut dyn FnMut(&mut TileReg)) {
        match self {
            CommInsn::Put(Put { value, mask, .. }) => {
                [value].into_iter().chain(mask).for_each(|r| any(r, visit))
            }
            CommInsn::SendMessages(SendMessages { value, .. }) => visit(value),
            CommInsn::PutMatrix(put) => visit(&mut put.value),
            CommInsn::Receive(receive) => receive.tiles(visit),
            CommInsn::Signal(_)
            | CommInsn::Wait(_)
            | CommInsn::WaitAll(_)
            | CommInsn::BlockSignal(_)
            | CommInsn::BlockWait(_)
            | CommInsn::Far(_) => {}
        }
    }
}
