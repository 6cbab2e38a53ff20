//! MoE dispatch and combine: on the simulator against the reference, in all their configurations, and as emitted.

mod batches;
mod deaths;
mod early;
mod harness;
mod hooks;
mod ladder;
mod layouts;
mod legality;
mod nodes;
mod placement;
mod plans;
mod properties;
mod returns;
mod rows;
mod shapes;
mod snapshots;
mod support;
mod weighted;
