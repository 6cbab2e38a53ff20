//! Mixture of experts: dispatch, which brings every token to the ranks that own its experts, and combine, which brings the
//! experts' outputs back.
//!
//! A problem asks by one key (`key.rs`), one plan holds every choice (`plan.rs`), and `legal.rs` says what goes together. The launches
//! in `kernels/` are projections of the key and the plan.
//!
//! # Ten questions about dispatch
//! | question | answer | where |
//! |---|---|---|
//! | Which ranks does a row go to? | Each rank that owns one of the slot's experts, by order or by a table. One group sends all copies, or a group for each. | `kernels/send.rs`: `destinations`, `send_apart`; `kernels/ids.rs`: `Ids` |
//! | Who counts the entries of a record? | The block that sends it, or each block that receives it. | `kernels/plan.rs`: `Count`, `count_rule`; `kernels/route.rs`: `route` |
//! | Where does a row arrive? | In the slot of its source and its token or entry, at each destination. | `kernels/config.rs`: `arrivals`; `kernels/wire.rs`: `InboxArgs` |
//! | What says that a row has arrived? | Its flag, or each packet for itself. | `kernels/protocol.rs`: `Protocol`; `kernels/wire.rs`: `wait` |
//! | Who waits for what? | A block waits for records, for bases that are in memory (`based`), then for each row that a record announces. In a layer it also waits for all notes and for the list of tiles. | `kernels/wire.rs`: `RecordWire`; `kernels/bases.rs`: `bases`; `kernels/rank_major.rs`: `receive`; `kernels/expert_major.rs`: `receive`; `kernels/layer.rs`: `put_rows` |
//! | Where do an expert's rows begin? | At the sum of the counts before, moved to where the layout has it. Each block computes it, or one block for all (always in a layer). | `kernels/bases.rs`: `lay_out`, `place_apart`; `kernels/bases_in_memory.rs`: `lay_out_in_memory`; `kernels/placing.rs`: `Beginning` |
//! | Where does a row land? | By expert at its base plus its rank in the record, by token at its source and token. With `in_place` that is where it arrives. A layer looks a place's row up (`from`). | `kernels/expert_major.rs`: `numbered`, `placed`, `note_places`; `kernels/rank_major.rs`: `receive`; `kernels/config.rs`: `in_place`; `kernels/layer.rs`: `put_rows` |
//! | What becomes of a rank's own rows? | They go through its inbox, or straight from the input to their places. | `kernels/plan.rs`: `Own`, `own_rule`; `kernels/travel.rs`: `Travel`; `kernels/wire.rs`: `Given` |
//! | What does dispatch leave for combine? | The place or expert of each entry (from `node_first` on, where ids are a node's), its weight, and each source's tokens. `routed` has where this rank's own entries went. | `kernels/entries.rs`: `note_entries`, `noted`; `kernels/expert_major.rs`: `note`; `kernels/route.rs`: `note` |
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
