//! MoE dispatch and combine.
//!
//! *Dispatch* brings every token to the ranks that own its experts, grouped by expert for a grouped GEMM, or by token with an
//! index by which one gathers ([`Layout`]). *Combine* brings the experts' outputs back and sums them with the weights.
//!
//! # Protocol
//! A rank has up to `tokens` tokens with `topk` *entries* each: expert ids. What travels is a *slot*: a token's row, once
//! for every rank that owns one of its experts (`dedup`), or once for every entry (plain). The slot's number is the
//! token's or entry's own, so a sender needs no counter, no atomic and no answer before it may send.
//!
//! 1. **route** (dispatch): for each chunk of tokens a block ranks every entry among those of its chunk that go to the
//!    same expert, counts entries per expert, and tells all ranks, itself included: the *record*. Records are sent for
//!    empty chunks too: every rank waits for all of them, which is what keeps ranks within one round of each other.
//! 2. **send** (dispatch): a group loads a row once, stores it to every destination, and flags each.
//! 3. **recv** (dispatch): having all records, every block knows by one prefix sum where each (expert, source, chunk)
//!    starts in its output; an entry's row goes there, plus its rank in the chunk. Shared memory holds these
//!    bases; where there are too many, a block of the role **bases** computes them in this rank's memory, and its flag tells the
//!    others. Of few entries that go as packets each block counts all. No atomics: the order of rows is always expert, source,
//!    token, k. What combine needs to find its way back stays in this rank's memory. With rows by
//!    token the place is the slot's own: a group knows from the words of the slot's entries whether its row comes, and puts
//!    it down without having heard of any other. With packets it waits for nothing else; with flags, for all records, which
//!    is cheaper than an acquire for each row. Blocks of the role **index** meanwhile do the prefix sum, and write down the
//!    rows of each expert, in the same order, and the expert and the weight of each entry.
//! 4. **send** (combine): the owner sums a token's rows with their weights in f32, rounds once, and stores the result
//!    at the source; in plain mode every row goes back as it is, and so does, by token, every token's: the experts' work
//!    included the sum.
//! 5. **recv** (combine): the source adds what the owners sent, in the order of ranks; in plain mode it applies the
//!    weights, in the order of k, which is bit for bit what a loop over k computes.
//!
//! Rows travel in one of two ways, there and back ([`Protocol`]). With *flags*, a row is stored 16 bytes at a time and
//! its flag is released after it: three trips, for the release waits until the stores are acknowledged. As *packets*, 16
//! bytes at a time are stored by one access that carries its own sign of having arrived: one trip, and no wait in the
//! sender; the receiver polls the data themselves and empties what it has taken. Records, which every block of a rank reads,
//! go with a flag in the first case; in the second each of their words travels with the epoch, and no block waits for flags.
//!
//! A *round trip* in one launch ([`round_trip`]) is made of the same parts, for experts that are elementwise: rows go out and come
//! back as packets, and the group that takes a row's piece runs the experts on it and sends the sum home at once. No row is
//! stored in between, and no block needs to know how many rows an expert has: a record is an entry's expert and its weight.
//!
//! # Files
//! | what | file |
//! |---|---|
//! | the launches: parameters and roles | `dispatch.rs`, `combine.rs`, `round_trip.rs`, `layer.rs` |
//! | what travels out, and where it lands: records, rows, ready ranks | `wire.rs`, `scales.rs`, `travel.rs` |
//! | which experts ids name, and where a table places these | `ids.rs` |
//! | dispatch sends | `route.rs` (records), `send.rs`, `quantise.rs` (rows) |
//! | dispatch receives | `rank_major.rs`, `expert_major.rs`; `bases.rs`, `bases_in_memory.rs`, `placing.rs`, `entries.rs`, `deliver.rs` |
//! | combine sends | `outputs.rs` (what goes back), `returned.rs` (in which type), `send_back.rs` (with which flag) |
//! | combine receives | `sums.rs` |
//! | what goes from node to node, before dispatch and after combine | `nodes/` |
//! | keys, plans, and what is legal | `config.rs`, `combine_config.rs`, `round_trip_config.rs`, `layer_config.rs`, `plan.rs`, `limits.rs`, `thresholds.rs` |
//!
//! # Why buffers may be written again
//! Nothing is ever cleared, no barrier separates rounds; flags are compared with the epoch, which the kernels count in
//! device memory. One round is dispatch, then combine, each rank's launches in order (split launches too).
//!
//! - *A row slot* on rank B is written in round e+1 by its source S after S finished combine e. If the slot was in use in
//!   round e, S waited there for B's result for that very slot, which B sends in combine, after its dispatch had read the
//!   slot. If it was not in use, the same holds for the last round in which it was. Zero tokens and masked ids only ever
//!   leave slots unused. The row's flag goes with it.
//! - *Records* have no answer: a rank that owns none of my tokens may still be in dispatch e while I am in e+1. They exist
//!   twice, by parity of the epoch. S writes those of e+2 after its dispatch e+1 had every rank's record of e+1; B sent
//!   its own after its dispatch e, where it read those of e, was over. That needs every rank's record in every round. With
//!   flags, the records' own flags order this. LL words order nothing, so that every rank also sends a credit: a block of the
//!   role **ready** of dispatch signals it at once (`notify_ready`), and one of that role of combine waits for it
//!   (`await_ready`). It has long arrived by then, and no other block waits for it.
//! - *A return slot* on S is written by owner B in combine e+1, once B has the slot's row of dispatch e+1, which S
//!   sent after its combine e had read everything.
//! - *A packet* on rank B is sent in dispatch e+2 of its source S after S, in combine e+1, had the credit that B sent in dispatch
//!   e+1. B sent it after its dispatch e had emptied the packet. So rows exist twice, by parity: the memory model of PTX
//!   orders only what a flag released and a wait acquired, and neither packets nor LL words are that. A packet that comes back
//!   to S in combine e+2 is sent by B after its combine e+1 had the credit that S sent in dispatch e+1, after its combine e had
//!   emptied the packet. So rows come back as they went out: combine waits for credits only if packets are used, and the slots of
//!   rows that go out with flags need the flags of their returns.
//! - *Rows, positions, weights and the index* on B are read by the experts and by B's combine e and written by B's dispatch
//!   e+1: same rank, in order.
//!
//! None of this depends on the order of rows. By token, the blocks that move rows have not waited for all records when they are
//! done, but the launch has when it is: the role index waits for every rank's, which is what orders the records of e+2
//! that come with flags. Combine sends a slot's row back in the very cases in which dispatch took it: some entry is this rank's,
//! whether its row or its expert says that.
//!
//! In one launch the same holds for packets that go out and for records. Packets that come back have two banks as well, as no rank
//! waits for another between taking a row and returning it: one that comes back to S in round e+2 is sent by B after its round
//! e+1 had the credit of S, which S sent after its round e had emptied the packet.
//!
//! A layer in one launch ([`moe_layer`]) has flags alone, and keeps the order of a round: a slot's row is read before it is multiplied, and its
//! result goes home after that, by the flags of this rank's blocks. So the first three points hold as they are. Its rows, places and tiles
//! are this rank's own, and a launch's end orders them.
//!
//! # What a caller keeps to
//! Every rank launches dispatch and combine in turn, in one stream, with `n` and `ids` (and, in plain mode, `weights`)
//! unchanged from a dispatch to its combine. All ranks use the same variants. A split operation is its `send` launch and
//! then its `recv` launch, with any other work in between. Blocks of a launch are resident together.
//!
//! Where a table places experts (`place`, `replicas`), it stays as it is until dispatch, or its sending half, has ended: the blocks that
//! send rows and those that send records read it apart. Combine reads what dispatch wrote down (`routed`).
//!
//! A hook of one's own on the rows is a family of one's own around [`dispatch_with`].

mod bases;
mod bases_in_memory;
mod combine;
mod combine_config;
mod config;
mod deliver;
mod device;
mod dispatch;
mod entries;
mod expert_major;
mod ids;
mod layer;
mod layer_config;
mod layer_products;
mod layout;
mod limits;
mod nodes;
mod outputs;
mod pieces;
mod placing;
mod plan;
mod protocol;
mod quantise;
mod rank_major;
mod returned;
mod roles;
mod round_trip;
mod round_trip_config;
mod route;
mod scales;
mod send;
mod send_back;
mod sums;
mod thresholds;
mod travel;
mod wire;

pub use bases_in_memory::BaseArgs;
pub use combine::{CombineArgs, CombineLaunch, ReturnArgs, combine};
pub use combine_config::{Combine, CombineDtype, CombineKey, CombinePlan};
pub use config::{Dispatch, DispatchKey, DispatchPlan};
pub use deliver::{Hook, RowHook};
pub use dispatch::{DispatchArgs, DispatchLaunch, TokenArgs, TokenLaunch, dispatch, dispatch_with};
pub use ids::IdType;
pub use layer::{MoeLayerArgs, MoeLayerLaunch, moe_layer};
pub use layer_config::{MoeLayer, MoeLayerKey};
pub use layout::{Begins, Layout, Room};
pub use nodes::{
    CombineNodes, CombineNodesArgs, CombineNodesKey, CombineNodesPlan, DispatchNodes, DispatchNodesArgs,
    DispatchNodesKey, DispatchNodesPlan, combine_nodes, dispatch_nodes,
};
pub use plan::{Bases, Begin, Copies, Count, Index, Own, Schedule, Share, Then};
pub use protocol::{Phase, Protocol};
pub use quantise::{Quantise, ScaleRounding};
pub use returned::{ReturnDtype, Returned};
pub use round_trip::{RoundTripArgs, RoundTripLaunch, round_trip, round_trip_with};
pub use round_trip_config::{RoundTrip, RoundTripKey};
pub use scales::{ScaleLayout, ScaleRoom};
pub use wire::{FlagRecordArgs, InboxArgs, LlRecordArgs, ReadyArgs, RecordArgs, Row};
