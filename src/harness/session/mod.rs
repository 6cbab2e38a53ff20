//! A problem on ranks: simulated on the CPU, or on GPUs. Both take it through the same steps.

mod gpu;
mod memory;
mod room;
mod sim;

pub(crate) use room::room_for;

pub use gpu::{GpuRun, GpuSession, LaunchTimes, Replayed};
pub use sim::{Ran, SimSession};

#[cfg(test)]
mod tests;
