//! Mixture of experts: dispatch, which brings every token to the ranks that own its experts, and combine, which brings the
//! experts' outputs back.

pub mod baselines;
pub mod catalogue;
pub mod cost;
pub mod gpumode;
pub mod kernels;
mod key;
mod ladder;
mod legal;
pub mod npy;
mod op;
pub mod plan;
mod problem;
pub mod reference;
mod registry;
pub mod routing;
pub mod run;
pub mod select;
pub mod slices;
pub mod work;
pub mod workload;

pub use key::MoeKey;
pub use op::{MoeAllToAll, MoeRank, Returning, Routed, Sending, Tokens};
pub use plan::{MoePlan, MoeTuning};
pub use problem::{ExpertMap, MoeError, MoeProblem, MoeShape, Routing, RowDtype, SCALE_BLOCK};
pub use registry::{MoeRegistry, choose};
pub use workload::MoeSuite;
