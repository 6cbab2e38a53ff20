//! Collectives: all-reduce, reduce-scatter, all-gather, all-to-all and broadcast.

mod all_reduce;
mod all_reduce_config;
mod cut;
mod exchange;
mod inbox;
mod legal;
mod reference;
mod workload;

pub use all_reduce::{AllReduceArgs, AllReduceLaunch, all_reduce};
pub use all_reduce_config::{Algorithm, AllReduce, AllReduceKey};
pub use exchange::Reduction;
pub use inbox::{InboxArgs, Protocol, Wire};

use peerwarp_codegen::family::{Family, FamilyEntry};

use crate::harness::suite;
use crate::harness::workload::{Suite, Workload};

/// The families, each of which is a suite of its own.
pub fn families() -> Vec<(FamilyEntry, &'static dyn Suite)> {
    fn one<F: Workload>() -> (FamilyEntry, &'static dyn Suite) {
        (F::entry(), suite::of::<F>())
    }
    vec![one::<AllReduce>()]
}
