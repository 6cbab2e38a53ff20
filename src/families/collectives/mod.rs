//! Collectives: all-reduce, reduce-scatter, all-gather, all-to-all, also ragged, and broadcast.

mod all_gather;
mod all_gather_nodes;
mod all_reduce;
mod all_reduce_config;
mod all_reduce_nodes;
mod all_to_all;
mod all_to_all_nodes;
mod broadcast;
mod broadcast_nodes;
mod cut;
mod exchange;
mod ladder;
mod legal;
mod length;
mod multimem;
mod nodes;
mod nodes_workload;
mod norm;
mod op;
mod pull;
mod ragged;
mod reduce_scatter;
mod reduce_scatter_nodes;
mod reference;
mod registered;
mod tiled;
mod workload;

pub use all_gather::{
    AllGather, AllGatherArgs, AllGatherKey, AllGatherLaunch, GatherArgs, GatherPushArgs, Gathering,
    all_gather,
};
pub use all_gather_nodes::{
    AllGatherNodes, AllGatherNodesArgs, AllGatherNodesKey, AllGatherNodesLaunch, all_gather_nodes,
};
pub use all_reduce::{
    AllReduceArgs, AllReduceLaunch, BySwitchArgs, ExchangeArgs, PullTwoShotArgs, PushArgs, all_reduce,
};
pub use all_reduce_config::{Algorithm, AllReduce, AllReduceKey, Hook};
pub use all_reduce_nodes::{
    AllReduceNodes, AllReduceNodesArgs, AllReduceNodesKey, AllReduceNodesLaunch, Levels, all_reduce_nodes,
};
pub use all_to_all::{AllToAll, AllToAllArgs, AllToAllKey, AllToAllLaunch, all_to_all};
pub use all_to_all_nodes::{
    AllToAllNodes, AllToAllNodesArgs, AllToAllNodesKey, AllToAllNodesLaunch, all_to_all_nodes,
};
pub use broadcast::{Broadcast, BroadcastArgs, BroadcastKey, BroadcastLaunch, broadcast};
pub use broadcast_nodes::{
    BroadcastNodes, BroadcastNodesArgs, BroadcastNodesKey, BroadcastNodesLaunch, broadcast_nodes,
};
pub use exchange::Reduction;
pub use ladder::{Ladder, Rung};
pub use length::{Length, LengthArgs, LengthLaunch, Lengths};
pub use multimem::MultimemArgs;
pub use norm::{NormArgs, NormForm, NormLaunch, NormQuantise, ScaleLayout, Weights};
pub use op::{Collective, Collectives, Norm};
pub use pull::{Pull, PullArgs, PullSumsArgs};
pub use ragged::{
    RaggedAllToAll, RaggedAllToAllArgs, RaggedAllToAllKey, RaggedAllToAllLaunch, ragged_all_to_all,
};
pub use reduce_scatter::{
    ReduceScatter, ReduceScatterArgs, ReduceScatterKey, ReduceScatterLaunch, reduce_scatter,
};
pub use reduce_scatter_nodes::{
    ReduceScatterNodes, ReduceScatterNodesArgs, ReduceScatterNodesKey, ReduceScatterNodesLaunch,
    reduce_scatter_nodes,
};

pub use registered::{
    ReadArgs, RegisteredAllReduce, RegisteredAllReduceArgs, RegisteredAllReduceKey,
    RegisteredAllReduceLaunch, Shots, SumReadArgs, TileReadArgs, registered_all_reduce,
};

use peerwarp_codegen::family::FamilyEntry;

use crate::harness::suite;
use crate::harness::workload::{Suite, Workload};

/// The families, each of which is a suite of its own.
pub fn families() -> Vec<(FamilyEntry, &'static dyn Suite)> {
    fn one<F: Workload>() -> (FamilyEntry, &'static dyn Suite) {
        (F::entry(), suite::of::<F>())
    }
    vec![
        one::<AllReduce>(),
        one::<RegisteredAllReduce>(),
        one::<AllReduceNodes>(),
        one::<ReduceScatter>(),
        one::<ReduceScatterNodes>(),
        one::<AllGather>(),
        one::<AllGatherNodes>(),
        one::<AllToAll>(),
        one::<AllToAllNodes>(),
        one::<RaggedAllToAll>(),
        one::<Broadcast>(),
        one::<BroadcastNodes>(),
    ]
}
