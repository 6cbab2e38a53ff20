//! Properties of operations: what a consumer asks that need not know the operation itself.
//!
//! Each is defined once, over all operations of the groups that it tells apart. A new operation does not compile until it has
//! all of them.

use std::fmt;

use super::{
    BlockSignal, BlockWait, BulkCopy, CommOp, ControlOp, Dot, FarPublish, FarPut, FarSettle, FarWait,
    LoadMatrix, LoadRow, MatrixOp, MemoryOp, OpKind, ParamId, ParcelId, Part, Place, Put, PutMatrix,
    ReceiveMessages, SendMessages, Signal, SignalOrder, StoreMatrix, ValueId, ValueOp, VarId, Wait, WaitAll,
};

/// What running an operation reads or changes besides values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: equal operands give equal results.
    None,
    /// Reads a variable.
    ReadsVar,
    /// Reads memory.
    ReadsMemory,
    /// Changes variables or memory, communicates, or decides what runs.
    Acts,
}

/// What is done to a buffer, flag array or shared array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any read of a buffer or shared array.
    Load,
    /// Any write of a local buffer or shared array.
    Store,
    /// An atomic update.
    Atomic,
    /// A put, also one that copies.
    Put,
    /// A signal.
    Signal,
    /// A wait for one flag or for several, of ranks or of blocks, or for messages that stay.
    Wait,
    /// A sending of messages.
    Send,
    /// A receiving of messages that leaves them empty.
    Take,
    /// A wait for the local completion of puts.
    Settle,
}

/// An access of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accessed {
    /// What is done.
    pub access: Access,
    /// To what: this rank's own instance, or in the case of puts, signals and sends that of the target ranks.
    pub place: Place,
    /// From which element on (`U32`): of the first piece, if there are several; none where it takes a row and a column to say.
    pub index: Option<ValueId>,
}

/// What an operation is to its parcel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Member<'a> {
    /// Puts into this buffer.
    Put(ParamId),
    /// Publishes the puts.
    Signal(&'a Signal),
}

/// What an operation does to a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarUse {
    /// Declares it with this value.
    Declare(ValueId),
    /// Reads it as this value.
    Get(ValueId),
    /// Assigns it this value.
    Set(ValueId),
}

/// What is true of an access.
struct Deed {
    verb: &'static str,
    waits: bool,
    is_awaited: bool,
    stores: bool,
}

impl Access {
    const fn deed(self) -> Deed {
        let no = Deed { verb: "", waits: false, is_awaited: false, stores: false };
        match self {
            Access::Load => Deed { verb: "loads", ..no },
            Access::Store => Deed { verb: "stores", stores: true, ..no },
            Access::Atomic => Deed { verb: "atomics", stores: true, ..no },
            Access::Put => Deed { verb: "puts", ..no },
            Access::Signal => Deed { verb: "signals", is_awaited: true, ..no },
            Access::Wait => Deed { verb: "waits", waits: true, ..no },
            Access::Send => Deed { verb: "sends", is_awaited: true, ..no },
            Access::Take => Deed { verb: "takes", waits: true, ..no },
            Access::Settle => Deed { verb: "settles", waits: true, ..no },
        }
    }

    /// Whether it polls until another rank or block has sent, and so may expire.
    pub const fn waits(self) -> bool {
        self.deed().waits
    }

    /// Whether another rank can wait for what it sends.
    pub const fn is_awaited(self) -> bool {
        self.deed().is_awaited
    }

    /// Whether it writes this rank's own memory with values that the kernel computes.
    pub const fn stores(self) -> bool {
        self.deed().stores
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.deed().verb)
    }
}

impl OpKind {
    /// What it reads or changes besides values.
    pub const fn effect(&self) -> Effect {
        match self {
            OpKind::Value(op) => op.effect(),
            OpKind::Memory(op) => op.effect(),
            OpKind::Matrix(op) => op.effect(),
            OpKind::Comm(_) => Effect::Acts,
            OpKind::Control(op) => op.effect(),
        }
    }

    /// What it accesses. A copy's read comes before its put.
    pub fn accesses(&self) -> Vec<Accessed> {
        match self {
            OpKind::Memory(op) => vec![op.accessed()],
            OpKind::Matrix(op) => op.accesses(),
            OpKind::Comm(op) => op.accesses(),
            OpKind::Value(_) | OpKind::Control(_) => vec![],
        }
    }

    /// Whether it waits for another rank, and so ends the launch when none comes.
    pub fn may_expire(&self) -> bool {
        self.accesses().iter().any(|a| a.access.waits())
    }

    /// The parcel that it belongs to, and as what.
    pub const fn member(&self) -> Option<(ParcelId, Member<'_>)> {
        match self {
            OpKind::Comm(op) => op.member(),
            OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Control(_) => None,
        }
    }

    /// The parcel that it puts into, and the buffer there.
    pub const fn puts(&self) -> Option<(ParcelId, ParamId)> {
        match self.member() {
            Some((parcel, Member::Put(buffer))) => Some((parcel, buffer)),
            Some((_, Member::Signal(_))) | None => None,
        }
    }

    /// The signal, if it publishes a parcel.
    pub const fn signal(&self) -> Option<&Signal> {
        match self.member() {
            Some((_, Member::Signal(signal))) => Some(signal),
            Some((_, Member::Put(_))) | None => None,
        }
    }

    /// What it publishes all that its group did before with, and in which order.
    pub const fn release(&self) -> Option<(ParamId, SignalOrder)> {
        match self {
            OpKind::Memory(MemoryOp::Ticket { counter, order, .. }) => Some((*counter, *order)),
            OpKind::Comm(
                CommOp::Signal(Signal { flag, order, .. })
                | CommOp::BlockSignal(BlockSignal { flag, order, .. }),
            ) => Some((*flag, *order)),
            OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Control(_) => None,
        }
    }

    /// The variable that it uses, and what for.
    pub const fn var_use(&self) -> Option<(VarId, VarUse)> {
        match self {
            OpKind::Control(op) => op.var_use(),
            OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) => None,
        }
    }

    /// The variable that it declares.
    pub const fn declares(&self) -> Option<VarId> {
        match self.var_use() {
            Some((var, VarUse::Declare(_))) => Some(var),
            Some((_, VarUse::Get(_) | VarUse::Set(_))) | None => None,
        }
    }

    /// The counter that it defines in its body.
    pub fn counter(&self) -> Option<ValueId> {
        let mut counter = None;
        self.parts(&mut |part| {
            if let Part::Counter(v) = part {
                counter = Some(v);
            }
        });
        counter
    }

    /// Whether it reads values at the end of its regions, as those that arms yield and the condition of a loop.
    pub const fn reads_inside(&self) -> bool {
        match self {
            OpKind::Control(op) => op.reads_inside(),
            OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) => false,
        }
    }

    /// Whether it runs a region over and over, which `Break` and `Continue` refer to.
    pub const fn is_loop(&self) -> bool {
        match self {
            OpKind::Control(op) => op.is_loop(),
            OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) => false,
        }
    }
}

impl ValueOp {
    const fn effect(&self) -> Effect {
        match self {
            // The last block to begin stores it back.
            ValueOp::Epoch { .. } => Effect::Acts,
            any!(by_element, spreads, reductions)
            | ValueOp::Const { .. }
            | ValueOp::Rank { .. }
            | ValueOp::Node { .. }
            | ValueOp::Active { .. }
            | ValueOp::ScalarParam { .. }
            | ValueOp::GroupIndex { .. } => Effect::None,
        }
    }
}

impl MemoryOp {
    const fn effect(&self) -> Effect {
        match self {
            MemoryOp::Load { .. } | MemoryOp::LoadMasked { .. } | MemoryOp::Gather { .. } => {
                Effect::ReadsMemory
            }
            any!(stores, counts) => Effect::Acts,
        }
    }

    /// Its access.
    pub const fn accessed(&self) -> Accessed {
        let (access, place, index) = match *self {
            MemoryOp::Load { place, index, .. }
            | MemoryOp::LoadMasked { place, index, .. }
            | MemoryOp::Gather { place, index, .. } => (Access::Load, place, index),
            MemoryOp::Scatter { place, index, adds: true, .. } => (Access::Atomic, place, index),
            MemoryOp::Store { place, index, .. } | MemoryOp::Scatter { place, index, .. } => {
                (Access::Store, place, index)
            }
            MemoryOp::Atomic { place, index, .. } | MemoryOp::Tally { place, index, .. } => {
                (Access::Atomic, place, index)
            }
            MemoryOp::Ticket { counter, index, .. } => (Access::Atomic, Place::Param(counter), index),
        };
        Accessed { access, place, index: Some(index) }
    }
}

impl MatrixOp {
    const fn effect(&self) -> Effect {
        match self {
            MatrixOp::LoadMatrix(_) | MatrixOp::LoadRow(_) => Effect::ReadsMemory,
            MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) => Effect::None,
            // What it brings takes the place of what was in shared memory.
            MatrixOp::Dot(_) => Effect::Acts,
            MatrixOp::StoreMatrix(_) => Effect::Acts,
        }
    }

    fn accesses(&self) -> Vec<Accessed> {
        let load = |place, index| Accessed { access: Access::Load, place, index };
        match self {
            MatrixOp::Dot(Dot { a, b, .. }) => {
                let list = a.list.map(|list| load(Place::Param(list), Some(a.row)));
                let scales = [a, b].into_iter().filter_map(|rows| rows.scales);
                let scales = scales.map(|scales| load(Place::Param(scales), None));
                [load(a.place, None), load(b.place, None)].into_iter().chain(list).chain(scales).collect()
            }
            MatrixOp::LoadMatrix(LoadMatrix { at, .. }) => vec![load(at.place, None)],
            MatrixOp::LoadRow(LoadRow { place, index, list, .. }) => {
                let list = list.map(|list| load(Place::Param(list.param), Some(list.first)));
                [load(*place, Some(*index))].into_iter().chain(list).collect()
            }
            MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) => vec![],
            MatrixOp::StoreMatrix(StoreMatrix { to, .. }) => {
                vec![Accessed { access: Access::Store, place: to.place, index: None }]
            }
        }
    }
}

impl CommOp {
    fn accesses(&self) -> Vec<Accessed> {
        let to = |access, param, index| Accessed { access, place: Place::Param(param), index };
        vec![match self {
            CommOp::Put(Put { buffer, index, .. }) => to(Access::Put, *buffer, Some(*index)),
            CommOp::PutMatrix(PutMatrix { to, .. }) => {
                Accessed { access: Access::Put, place: to.place, index: None }
            }
            CommOp::BulkCopy(BulkCopy { buffer, index, source, from, .. }) => {
                return vec![to(Access::Load, *source, Some(*from)), to(Access::Put, *buffer, Some(*index))];
            }
            CommOp::Signal(Signal { flag, index, .. })
            | CommOp::BlockSignal(BlockSignal { flag, index, .. }) => to(Access::Signal, *flag, Some(*index)),
            CommOp::Wait(Wait { flag, index, .. })
            | CommOp::WaitAll(WaitAll { flag, index, .. })
            | CommOp::BlockWait(BlockWait { flag, index, .. }) => to(Access::Wait, *flag, Some(*index)),
            CommOp::SendMessages(SendMessages { buffer, index, .. }) => {
                to(Access::Send, *buffer, Some(*index))
            }
            CommOp::ReceiveMessages(ReceiveMessages { transport, buffer, tiles, .. }) => {
                let access = if transport.traits().takes { Access::Take } else { Access::Wait };
                to(access, *buffer, tiles.first().map(|t| t.index))
            }
            CommOp::FarPut(FarPut { outbox, from, inbox, index, .. }) => {
                return vec![to(Access::Load, *outbox, Some(*from)), to(Access::Put, *inbox, Some(*index))];
            }
            CommOp::FarPublish(FarPublish { counts, counter, .. }) => {
                to(Access::Signal, *counts, Some(*counter))
            }
            CommOp::FarWait(FarWait { counts, counter, .. }) => to(Access::Wait, *counts, Some(*counter)),
            CommOp::FarSettle(FarSettle { outbox }) => to(Access::Settle, *outbox, None),
        }]
    }

    const fn member(&self) -> Option<(ParcelId, Member<'_>)> {
        match self {
            CommOp::Put(Put { parcel, buffer, .. }) | CommOp::BulkCopy(BulkCopy { parcel, buffer, .. }) => {
                Some((*parcel, Member::Put(*buffer)))
            }
            CommOp::PutMatrix(PutMatrix { parcel, to, .. }) => match to.place.param() {
                Some(buffer) => Some((*parcel, Member::Put(buffer))),
                None => None,
            },
            CommOp::Signal(signal) => Some((signal.parcel, Member::Signal(signal))),
            any!(waits, messages, far) | CommOp::BlockSignal(_) => None,
        }
    }
}

impl ControlOp {
    const fn effect(&self) -> Effect {
        match self {
            ControlOp::VarGet { .. } => Effect::ReadsVar,
            any!(branches, exits) | ControlOp::VarDecl { .. } | ControlOp::VarSet { .. } => Effect::Acts,
        }
    }

    const fn var_use(&self) -> Option<(VarId, VarUse)> {
        match *self {
            ControlOp::VarDecl { var, init } => Some((var, VarUse::Declare(init))),
            ControlOp::VarGet { out, var } => Some((var, VarUse::Get(out))),
            ControlOp::VarSet { var, value } => Some((var, VarUse::Set(value))),
            any!(branches, exits) => None,
        }
    }

    const fn reads_inside(&self) -> bool {
        match self {
            ControlOp::If { .. } | ControlOp::While { .. } => true,
            any!(exits, variables) | ControlOp::For { .. } | ControlOp::Split { .. } => false,
        }
    }

    const fn is_loop(&self) -> bool {
        match self {
            ControlOp::For { .. } | ControlOp::While { .. } => true,
            any!(exits, variables) | ControlOp::If { .. } | ControlOp::Split { .. } => false,
        }
    }
}
