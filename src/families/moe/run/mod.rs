//! Runs MoE problems: dispatch, the stand-in expert `y = x * (1 + rank)`, combine, round after round, and compares with
//! the reference.
//!
//! ```
//! use peerwarp::codegen::sim::Options;
//! use peerwarp::families::moe::{MoeProblem, MoeShape, RowDtype};
//! use peerwarp::families::moe::run::{MoeSim, MoeTuning};
//!
//! let shape = MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Bf16 };
//! let problem = MoeProblem::uniform(shape, &[4, 3], 1)?;
//! let sim = MoeSim::new(&problem, &MoeTuning::defaults(&shape)?, 2)?;
//! let run = sim.run(&Options::default());
//! assert!(run.ok, "{run:?}");
//! # Ok::<(), peerwarp::families::moe::MoeError>(())
//! ```

mod data;
mod expect;
mod fused;
mod gpu;
pub(crate) mod io;
mod result;
mod sim;
mod steps;
mod traffic;
mod tuning;

pub use data::{Inputs, Round, Way};
pub use expect::Expected;
pub use gpu::{GpuRunError, MoeGpu, MoeGpuRun, Replayed};
pub use result::{Errors, MoeRun};
pub use sim::MoeSim;
pub use traffic::{RankTraffic, Traffic};
pub use tuning::MoeTuning;
