//! Mixture of experts: dispatch, which brings every token to the ranks that own its experts, and combine, which brings the
//! experts' outputs back.

pub mod baselines;
pub mod catalogue;
pub mod cost;
pub mod gpumode;
pub mod kernels;
mod ladder;
pub mod npy;
mod op;
mod problem;
pub mod reference;
mod registry;
pub mod routing;
pub mod run;
pub mod select;
pub mod slices;
mod tuned;
pub mod work;
pub mod workload;

pub use op::{MoeAllToAll, MoeRank, Returning, Routed, Sending, Tokens};
pub use problem::{ExpertMap, MoeError, MoeProblem, MoeShape, Routing, RowDtype, SCALE_BLOCK};
pub use registry::{MoeKey, MoeRegistry};
pub use tuned::choose;
pub use workload::MoeSuite;
