//! The parts of an operation: what it defines, what it reads, what it refers to, what it holds.
//!
//! An operation lists its parts once, where it is declared: the type of a field says what part it is. Everything that goes
//! over the parts of operations whatever these are comes of that list.

use super::{
    CommOp, ControlOp, MatrixOp, MemoryOp, OpKind, ParamId, ParcelId, Place, ReceiptId, Region, Rows,
    SharedId, Target, ValueId, ValueOp, VarId,
};

/// A part of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// A value that it defines for the region it stands in.
    Out(ValueId),
    /// A value that it defines for its body alone.
    Counter(ValueId),
    /// A value that it reads.
    In(ValueId),
    /// Where it sends; the ranks are a value, too.
    Target(Target),
    /// A nested region.
    Region(&'a Region),
    /// A parameter.
    Param(ParamId),
    /// A shared array.
    Shared(SharedId),
    /// A variable.
    Var(VarId),
    /// A parcel.
    Parcel(ParcelId),
    /// A receipt.
    Receipt(ReceiptId),
}

/// A part that can be replaced.
pub(super) enum PartMut<'a> {
    In(&'a mut ValueId),
    Region(&'a mut Region),
}

/// The parts of a place: the memory, and the rank of a peer's, which is a value that is read.
pub(super) fn place<'a>(place: Place, visit: &mut dyn FnMut(Part<'a>)) {
    match place {
        Place::Param(p) | Place::All(p, _) => visit(Part::Param(p)),
        Place::Shared(s) => visit(Part::Shared(s)),
        Place::Peer(p, rank) => {
            visit(Part::Param(p));
            visit(Part::In(rank));
        }
    }
}

/// The parts of rows of a matrix in memory.
pub(super) fn rows<'a>(rows: &'a Rows, visit: &mut dyn FnMut(Part<'a>)) {
    place(rows.place, visit);
    visit(Part::In(rows.row));
    rows.end.iter().for_each(|end| visit(Part::In(*end)));
    rows.list.iter().chain(&rows.scales).for_each(|of| visit(Part::Param(*of)));
    rows.receipt.iter().for_each(|r| visit(Part::Receipt(*r)));
}

/// Visits the part that a field of a type is, if it is one.
macro_rules! part {
    (Out, $field:ident, $visit:ident) => {
        $visit(Part::Out(*$field))
    };
    (LoopCounter, $field:ident, $visit:ident) => {
        $visit(Part::Counter(*$field))
    };
    (In, $field:ident, $visit:ident) => {
        $visit(Part::In(*$field))
    };
    (OptIn, $field:ident, $visit:ident) => {
        $field.iter().for_each(|v| $visit(Part::In(*v)))
    };
    (Results, $field:ident, $visit:ident) => {
        for (out, then, otherwise) in $field {
            $visit(Part::Out(*out));
            $visit(Part::In(*then));
            $visit(Part::In(*otherwise));
        }
    };
    (Tiles, $field:ident, $visit:ident) => {
        for tile in $field {
            $visit(Part::Out(tile.out));
            $visit(Part::In(tile.index));
            $visit(Part::In(tile.from));
        }
    };
    (Rows, $field:ident, $visit:ident) => {
        parts::rows($field, $visit)
    };
    (OptList, $field:ident, $visit:ident) => {
        $field.iter().for_each(|list| {
            $visit(Part::Param(list.param));
            $visit(Part::In(list.first));
        })
    };
    (Target, $field:ident, $visit:ident) => {
        $visit(Part::Target(*$field))
    };
    (Region, $field:ident, $visit:ident) => {
        $visit(Part::Region($field))
    };
    (ParamId, $field:ident, $visit:ident) => {
        $visit(Part::Param(*$field))
    };
    (SharedId, $field:ident, $visit:ident) => {
        $visit(Part::Shared(*$field))
    };
    (Place, $field:ident, $visit:ident) => {
        parts::place(*$field, $visit)
    };
    (VarId, $field:ident, $visit:ident) => {
        $visit(Part::Var(*$field))
    };
    (ParcelId, $field:ident, $visit:ident) => {
        $visit(Part::Parcel(*$field))
    };
    (ReceiptId, $field:ident, $visit:ident) => {
        $visit(Part::Receipt(*$field))
    };
    (OptReceipt, $field:ident, $visit:ident) => {
        $field.iter().for_each(|r| $visit(Part::Receipt(*r)))
    };
    ($plain:ident, $field:ident, $visit:ident) => {
        parts::plain::<$plain>($field)
    };
}

/// As `part`, of what can be replaced.
macro_rules! part_mut {
    (In, $field:ident, $visit:ident) => {
        $visit(PartMut::In($field))
    };
    (OptIn, $field:ident, $visit:ident) => {
        $field.iter_mut().for_each(|v| $visit(PartMut::In(v)))
    };
    (Results, $field:ident, $visit:ident) => {
        for (_, then, otherwise) in $field {
            $visit(PartMut::In(then));
            $visit(PartMut::In(otherwise));
        }
    };
    (Place, $field:ident, $visit:ident) => {
        if let Place::Peer(_, rank) = $field {
            $visit(PartMut::In(rank))
        }
    };
    (Tiles, $field:ident, $visit:ident) => {
        for tile in $field {
            $visit(PartMut::In(&mut tile.index));
            $visit(PartMut::In(&mut tile.from));
        }
    };
    (Rows, $field:ident, $visit:ident) => {
        if let Place::Peer(_, rank) = &mut $field.place {
            $visit(PartMut::In(rank))
        }
        $visit(PartMut::In(&mut $field.row));
        $field.end.iter_mut().for_each(|end| $visit(PartMut::In(end)));
    };
    (OptList, $field:ident, $visit:ident) => {
        $field.iter_mut().for_each(|list| $visit(PartMut::In(&mut list.first)))
    };
    (Region, $field:ident, $visit:ident) => {
        $visit(PartMut::Region($field))
    };
    ($other:ident, $field:ident, $visit:ident) => {
        parts::kept::<$other>($field)
    };
}

/// What fields may be that are no part: a type of theirs that is new has to be put here or among the parts.
pub(super) trait Plain {}
impl Plain for bool {}
impl Plain for u32 {}
impl Plain for super::Const {}
impl Plain for super::BinaryOp {}
impl Plain for super::UnaryOp {}
impl Plain for super::CompareOp {}
impl Plain for super::ReduceOp {}
impl Plain for super::Lines {}
impl Plain for super::FarReach {}
impl Plain for super::Transport {}
impl Plain for super::SignalOrder {}

pub(super) fn plain<T: Plain>(_: &T) {}
pub(super) fn kept<T>(_: &T) {}

/// Declares a group of operations as an enum, and lists their parts.
macro_rules! operations {
    ($(#[$meta:meta])* $group:ident { $(
        $(#[$doc:meta])* $op:ident = $name:expr, { $($field:ident: $ty:ident),* $(,)? }
    )* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[allow(missing_docs)] // the variants document their fields
        pub enum $group {
            $($(#[$doc])* $op { $($field: $ty),* }),*
        }

        impl $group {
            #[allow(unused_variables)] // most names ask no field
            pub(super) const fn name(&self) -> &'static str {
                match self { $($group::$op { $($field),* } => $name,)* }
            }

            /// Visits the parts, in the order of the fields.
            pub fn parts<'a>(&'a self, visit: &mut dyn FnMut(Part<'a>)) {
                match self {
                    $($group::$op { $($field),* } => { $(part!($ty, $field, visit);)* })*
                }
            }

            pub(super) fn parts_mut<'a>(&'a mut self, visit: &mut dyn FnMut(PartMut<'a>)) {
                match self {
                    $($group::$op { $($field),* } => { $(part_mut!($ty, $field, visit);)* })*
                }
            }
        }
    };
}

/// As `operations`, with a struct for each operation, which consumers hand on whole.
macro_rules! operation_structs {
    ($(#[$meta:meta])* $group:ident { $(
        $(#[$doc:meta])* $op:ident = $name:expr, { $($field:ident: $ty:ident),* $(,)? }
    )* }) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
            #[allow(missing_docs)] // the struct documents its fields
            pub struct $op { $(pub $field: $ty),* }
        )*

        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[allow(missing_docs)] // the structs are documented
        pub enum $group {
            $($op($op)),*
        }

        impl $group {
            #[allow(unused_variables)] // most names ask no field
            pub(super) const fn name(&self) -> &'static str {
                match self { $($group::$op($op { $($field),* }) => $name,)* }
            }

            /// Visits the parts, in the order of the fields.
            pub fn parts<'a>(&'a self, visit: &mut dyn FnMut(Part<'a>)) {
                match self {
                    $($group::$op($op { $($field),* }) => { $(part!($ty, $field, visit);)* })*
                }
            }

            pub(super) fn parts_mut<'a>(&'a mut self, visit: &mut dyn FnMut(PartMut<'a>)) {
                match self {
                    $($group::$op($op { $($field),* }) => { $(part_mut!($ty, $field, visit);)* })*
                }
            }
        }
    };
}

pub(super) use {operation_structs, operations, part, part_mut};

macro_rules! group_of {
    ($($kind:ident: $group:ident),*) => {
        $(impl From<$group> for OpKind {
            fn from(op: $group) -> OpKind {
                OpKind::$kind(op)
            }
        })*

        impl OpKind {
            /// One word for the operation, for messages.
            pub const fn name(&self) -> &'static str {
                match self { $(OpKind::$kind(op) => op.name(),)* }
            }

            /// Visits the parts, in the order of the fields.
            pub fn parts<'a>(&'a self, visit: &mut dyn FnMut(Part<'a>)) {
                match self {
                    $(OpKind::$kind(op) => op.parts(visit)),*
                }
            }

            fn parts_mut<'a>(&'a mut self, visit: &mut dyn FnMut(PartMut<'a>)) {
                match self {
                    $(OpKind::$kind(op) => op.parts_mut(visit)),*
                }
            }
        }
    };
}

group_of!(Value: ValueOp, Memory: MemoryOp, Matrix: MatrixOp, Comm: CommOp, Control: ControlOp);

impl OpKind {
    /// The values this operation defines for the region it stands in (for a `For`, the counter is defined in its body
    /// and not listed).
    pub fn outs(&self) -> Vec<ValueId> {
        let mut outs = vec![];
        self.parts(&mut |part| {
            if let Part::Out(v) = part {
                outs.push(v);
            }
        });
        outs
    }

    /// The values this operation reads, in the order of its fields (those of nested regions are not listed; the
    /// results that an `If`'s arms yield are, and so is a `While`'s condition; where it sends is not).
    pub fn operands(&self) -> Vec<ValueId> {
        let mut operands = vec![];
        self.parts(&mut |part| {
            if let Part::In(v) = part {
                operands.push(v);
            }
        });
        operands
    }

    /// The operands, in the order of [`OpKind::operands`].
    pub fn operands_mut(&mut self) -> Vec<&mut ValueId> {
        let mut operands = vec![];
        self.parts_mut(&mut |part| {
            if let PartMut::In(v) = part {
                operands.push(v);
            }
        });
        operands
    }

    /// The nested regions, in order.
    pub fn regions(&self) -> Vec<&Region> {
        let mut regions = vec![];
        self.parts(&mut |part| {
            if let Part::Region(region) = part {
                regions.push(region);
            }
        });
        regions
    }

    /// The nested regions, in the order of [`OpKind::regions`].
    pub fn regions_mut(&mut self) -> Vec<&mut Region> {
        let mut regions = vec![];
        self.parts_mut(&mut |part| {
            if let PartMut::Region(region) = part {
                regions.push(region);
            }
        });
        regions
    }
}
