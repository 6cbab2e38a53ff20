//! The words that MoE dispatch and combine are described in: a problem's shape, its routing, who owns an expert.

mod error;
mod experts;
mod placement;
mod routed;
mod shape;

pub use error::MoeError;
pub use experts::ExpertMap;
pub use placement::Placement;
pub use routed::{MoeProblem, Routing};
pub use shape::{MoeShape, RowDtype, SCALE_BLOCK};
