//! Mixture of experts: dispatch, which brings every token to the ranks that own its experts, and combine, which brings the
//! experts' outputs back.
//!
//! A problem asks by one key (`key.rs`), one plan holds every choice (`plan.rs`), and `legal.rs` says what goes together. The launches
//! in `kernels/` are projections of the key and the plan.
//!
//! # Ten questions about dispatch
//! | question | answer | where |
//! |---|---|---|
//! | Which ranks does a row go to? | Each rank that owns one of the slot's experts, once, by order or by a table. | `kernels/send.rs`: `destinations`; `kernels/ids.rs`: `Ids` |
//! | Who counts the entries of a record? | The block that sends it, or each block that receives it. | `kernels/plan.rs`: `Count`, `count_rule`; `kernels/route.rs`: `route` |
//! | Where does a row arrive? | In the slot of its source and its token or entry, at each destination. | `kernels/config.rs`: `arrivals`; `kernels/wire.rs`: `InboxArgs` |
//! | What says that a row has arrived? | Its flag, or each packet for itself. | `kernels/protocol.rs`: `Protocol`; `kernels/wire.rs`: `wait` |
//! | Who waits for what? | A block waits for records, then for each row that a record announces. | `kernels/wire.rs`: `RecordWire`; `kernels/rank_major.rs`: `receive`; `kernels/expert_major.rs`: `receive` |
//! | Where do an expert's rows begin? | At the sum of the counts before, moved to where the layout has it. | `kernels/bases.rs`: `lay_out`, `place_apart`; `kernels/placing.rs`: `Beginning` |
//! | Where does a row land? | By expert at its base plus its rank in the record, by token at its source and token. | `kernels/expert_major.rs`: `numbered`, `placed`; `kernels/rank_major.rs`: `receive` |
//! | What becomes of a rank's own rows? | They go through its inbox, or straight from the input to their places. | `kernels/plan.rs`: `Own`, `own_rule`; `kernels/travel.rs`: `Travel`; `kernels/wire.rs`: `Given` |
//! | What does dispatch leave for combine? | The place or expert of each entry, its weight, and each source's tokens. | `kernels/entries.rs`: `note_entries`; `kernels/expert_major.rs`: `note` |
//! | When may a bank be written again? | Two rounds later, after every rank's record or credit of the round between. | `kernels/wire.rs`: `notify_ready`, `await_ready`; `kernels/mod.rs`: "Why buffers may be written again" |

pub mod baselines;
pub mod catalogue;
pub mod cost;
pub mod far_cost;
pub mod gpumode;
pub mod kernels;
mod key;
mod ladder;
pub mod layer;
mod legal;
mod nodes;
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
pub use nodes::NodesPlan;
pub use op::{MoeAllToAll, MoeRank, Returning, Routed, Sending, Tables, Tokens};
pub use plan::{MoePlan, MoeTuning};
pub use problem::{ExpertMap, MoeError, MoeProblem, MoeShape, Placement, Routing, RowDtype, SCALE_BLOCK};
pub use registry::{MoeRegistry, choose};
pub use workload::MoeSuite;

#[cfg(test)]
mod questions_tests;
