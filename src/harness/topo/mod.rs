//! What joins the GPUs of a machine, and what that means for transfers: measured, or described in a file.
//!
//! A [`Network`] is a machine as transfers see it. It comes from a [`Description`], a file that people write, or from a
//! [`Profile`], a file that `peerwarp topo` measures. What transfers at the same time get of it is computed by max-min
//! fairness ([`flow`]).

mod algorithms;
mod cards;
mod class;
mod describe;
pub mod flow;
mod gpu;
pub mod kernels;
mod measure;
mod network;
mod nodes;
mod notes;
mod predict;
mod profile;
mod report;

pub use algorithms::{Algorithm, Prediction, Range, fastest, predict, worlds};
pub use cards::{Card, cards};
pub use class::LinkClass;
pub use describe::{Description, HubKind, Hubs, LinkKind, Links, Times, builtin};
pub use gpu::{OnGpus, limits_of};
pub use measure::{Facts, Latency, Place, Probe, measure, measure_limits, steps};
pub use network::{Network, NoPath, Resource, Route, Transfer};
pub use nodes::{Between, Nic, Nodes, PutTimes};
pub use notes::notes;
pub use predict::{Copies, Copy, Patterns, copies, patterns};
pub use profile::{GpuRates, Pair, Profile, Rates, Way};
pub use report::{Table, Topo, WorldSums, html};
