//! Products of matrices, alone and with what goes to or comes from other ranks.

mod all_gather_matmul;
mod epilogue;
mod grouped;
mod grouped_workload;
mod matmul_reduce_scatter;
pub(in crate::families) mod order;
mod output;
mod product;
pub(in crate::families) mod reference;
mod scales;
mod split;
pub(in crate::families) mod workload;

pub use all_gather_matmul::{
    AllGatherMatmul, AllGatherMatmulArgs, AllGatherMatmulKey, AllGatherMatmulLaunch, all_gather_matmul,
};
pub use epilogue::Activation;
pub(in crate::families) use epilogue::epilogue;
pub use grouped::{GroupedMatmul, GroupedMatmulArgs, GroupedMatmulKey, GroupedMatmulLaunch, grouped_matmul};
pub use matmul_reduce_scatter::{
    Algorithm, MatmulReduceScatter, MatmulReduceScatterArgs, MatmulReduceScatterKey,
    MatmulReduceScatterLaunch, matmul_reduce_scatter,
};
pub use order::Order;
pub use output::Output;
pub(in crate::families) use output::Stored;
pub use product::{Matmul, MatmulArgs, MatmulKey, MatmulLaunch, matmul};
pub(in crate::families) use scales::Product;
pub use scales::Scales;

use peerwarp_codegen::family::FamilyEntry;

use crate::harness::suite;
use crate::harness::workload::{Suite, Workload};

/// The families, each of which is a suite of its own.
pub fn families() -> Vec<(FamilyEntry, &'static dyn Suite)> {
    fn one<F: Workload>() -> (FamilyEntry, &'static dyn Suite) {
        (F::entry(), suite::of::<F>())
    }
    vec![one::<Matmul>(), one::<GroupedMatmul>(), one::<AllGatherMatmul>(), one::<MatmulReduceScatter>()]
}
