//! Plants protocol bugs in a kernel, to test that the checker finds them.
//!
//! A mutation says what to do to which operations; a [`Site`] addresses those by role, kind and buffer. The result
//! always passes [`verify_structure`], so it prints and simulates; it mostly does not pass [`verify()`].
//!
//! A dropped wait leaves its receipt to the reads that name it: nothing orders them any more, and whatever they find in
//! the buffer is what they read.

mod apply;
mod edit;
mod every;
mod operand;
mod site;

use std::fmt;

use thiserror::Error;

use super::*;

pub use super::Access;
pub(crate) use edit::{constant, insert_before, move_before};
pub use every::{Mutant, every};
pub use site::Site;

/// A bug to plant.
#[derive(Clone, Debug, PartialEq)]
pub enum Mutation {
    /// Makes signals and tickets relaxed: they order nothing that comes before them.
    Relax(Site),
    /// Moves signals in front of the puts and stores to windows that they publish, together with what computes their operands;
    /// those without data, and those of blocks, to the beginning of their region.
    SignalFirst(Site),
    /// Leaves operations out: puts, signals, waits, stores.
    Drop(Site),
    /// Adds a constant to an operand.
    Offset {
        /// Which operations.
        site: Site,
        /// Which operand.
        slot: Slot,
        /// What is added; arithmetic wraps.
        by: i64,
    },
    /// Replaces an operand.
    Replace {
        /// Which operations.
        site: Site,
        /// Which operand.
        slot: Slot,
        /// By what.
        with: Operand,
    },
    /// Replaces every use of values with a name.
    ReplaceValue {
        /// The author's name.
        name: String,
        /// Which of the values of that name, counted in program order over the kernel; all if none is given.
        nth: Option<usize>,
        /// By what.
        with: Operand,
    },
    /// Runs operations only if a condition holds.
    Guard {
        /// Which operations.
        site: Site,
        /// When they still run.
        when: Condition,
        /// Also the other puts and the signal of a put's or signal's parcel.
        whole_parcel: bool,
    },
    /// Changes an operand of one operation.
    At {
        /// The operation.
        op: OpId,
        /// Number of the operand in [`OpKind::operands`].
        operand: usize,
        /// What is done to it.
        change: Change,
    },
    /// Does not advance an epoch word: each launch works in the epoch of the one before.
    KeepEpoch(String),
}

/// What is done to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This is added to it; arithmetic wraps.
    By(i64),
    /// It is this.
    To(i64),
}

/// An operand of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The first element, of a `ReceiveMessages` that of its first tile.
    Index,
    /// What is stored, put, signalled or waited for; of LL elements, the epoch.
    Value,
    /// How many flags a `WaitAll` waits for.
    Count,
    /// The rank that a `Wait`, or the first tile of a `ReceiveMessages`, expects data from, or whose window a load reads.
    From,
    /// Which tiles a `ReceiveMessages` takes, or which flags a `WaitAll` waits for.
    Mask,
    /// Where packets, a put or a signal go (that one alone; the rest of its parcel keeps its target).
    Target,
}

/// What to put in an operand's place.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A number, converted to the operand's type; a tile has it in every element.
    Number(i64),
    /// The value or variable that the author called so and that is nearest before the place.
    Named(String),
}

/// A comparison of something that has a name with a number.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The author's name of a value or variable.
    pub name: String,
    /// How to compare.
    pub op: CompareOp,
    /// With what.
    pub number: i64,
}

impl Condition {
    /// `name op number`.
    pub fn new(name: &str, op: CompareOp, number: i64) -> Condition {
        Condition { name: name.into(), op, number }
    }
}

/// Why a bug could not be planted.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum MutateError {
    /// Nothing is at the address.
    #[error("the kernel has no {site}; it has: {}", .present.join(", "))]
    NoMatch {
        /// The address.
        site: String,
        /// What there is.
        present: Vec<String>,
    },
    /// Fewer matches than asked for.
    #[error("number {nth} of {site}, counted from 0, where there are only {found}")]
    NoSuchNth {
        /// The address.
        site: String,
        /// The one asked for.
        nth: usize,
        /// How many there are.
        found: usize,
    },
    /// The operation has no such operand.
    #[error("`{op}` has no {slot}")]
    NoSlot {
        /// The operation.
        op: &'static str,
        /// The operand.
        slot: Slot,
    },
    /// The operation has fewer operands.
    #[error("`{op}` has {count} operands")]
    NoOperand {
        /// The operation.
        op: &'static str,
        /// How many there are.
        count: usize,
    },
    /// The operation has no parcel.
    #[error("`{op}` belongs to no parcel")]
    NoParcel {
        /// The operation.
        op: &'static str,
    },
    /// The operation defines values, so that it cannot be left out or guarded.
    #[error("`{op}` defines values that others use")]
    DefinesValues {
        /// The operation.
        op: &'static str,
    },
    /// No value or variable of this name where it is needed.
    #[error("nothing named `{name}` is visible at {loc}")]
    NoSuchName {
        /// The name.
        name: String,
        /// Where it was looked for.
        loc: Loc,
    },
    /// No value of this name.
    #[error("the kernel has no value named `{name}`")]
    NoSuchValue {
        /// The name.
        name: String,
    },
    /// No epoch word of this name.
    #[error("the kernel reads no epoch word `{name}`")]
    NoSuchEpoch {
        /// The name.
        name: String,
    },
    /// The operand's type has no constants or no addition.
    #[error("cannot make a number or an offset of type {ty}")]
    NoNumber {
        /// The type.
        ty: Type,
    },
    /// The kernel would not be well-formed any more.
    #[error("the mutated kernel is malformed: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Malformed(VerifyErrors),
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Slot::Index => "index",
            Slot::Value => "value",
            Slot::Count => "count",
            Slot::From => "source rank",
            Slot::Mask => "mask",
            Slot::Target => "target",
        })
    }
}

/// A copy of the kernel with the bug in it.
pub fn mutate(kernel: &Kernel, mutation: &Mutation) -> Result<Planted, MutateError> {
    let mut mutant = kernel.clone();
    apply::apply(&mut mutant, mutation)?;
    Planted::new(mutant).map_err(MutateError::Malformed)
}
