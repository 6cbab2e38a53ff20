//! A problem on ranks: simulated on the CPU, or on GPUs. Both take it through the same steps. Launches on simulated ranks can also
//! have somebody's own data instead of a problem's.

mod by_name;
mod given;
mod gpu;
mod kernels;
mod memory;
mod room;
mod sim;
mod windows;

pub(crate) use room::room_for;

pub use by_name::{OfRanks, SimError, SimOperation, SimRanks};
pub use given::{HostSteps, Lasting, SimLaunches};
pub(crate) use gpu::pass;
pub use gpu::{GpuRun, GpuSession, LaunchTimes, Replayed};
pub(crate) use sim::Answered;
pub use sim::{Ran, SimSession};
pub use windows::Windows;

#[cfg(test)]
mod tests;
