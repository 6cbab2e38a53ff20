//! Rounds of MoE problems: dispatch, the stand-in expert `y = x * (1 + rank)`, combine, over and over, and what the reference
//! says of them.
//!
//! ```
//! use std::sync::Arc;
//! use peerwarp::codegen::sim::Options;
//! use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
//! use peerwarp::families::moe::{MoeProblem, MoeShape, RowDtype};
//! use peerwarp::harness::session::SimSession;
//!
//! let shape = MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Bf16 };
//! let problem = MoeProblem::uniform(shape, &[4, 3], 1)?;
//! let rounds = MoeRounds::new(&problem, &MoeTuning::defaults(&shape)?, 2)?;
//! let ran = SimSession::new(Arc::new(rounds))?.run(&Options::default())?;
//! assert!(ran.verdict.ok(), "{ran:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod between;
mod data;
mod expect;
mod fused;
mod nodes;
mod rounds;
mod traffic;

pub use super::MoeTuning;
pub use data::{Inputs, Round, Semantics};
pub use expect::Expected;
pub use rounds::MoeRounds;
pub use traffic::{RankTraffic, Traffic};
