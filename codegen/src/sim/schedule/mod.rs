//! A run and what takes turns in it: launches, blocks, their groups, and the clocks that order them.

pub(super) mod agent;
pub(super) mod agents;
pub(super) mod clock;
pub(super) mod launch;
pub(super) mod teams;
pub(super) mod turns;
pub(super) mod world;

pub(super) use agent::{Agent, AgentId};
pub(super) use clock::Clock;
pub(super) use world::World;
