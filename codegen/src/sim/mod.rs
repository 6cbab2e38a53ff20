//! The simulator: runs the IR of kernels on N virtual ranks and checks their communication.
//!
//! A [`Machine`] holds the ranks' buffers and, for each rank, a program of kernel launches and host steps. A run
//! executes all of it under one schedule that follows from a seed: groups take turns when they communicate, ranks
//! progress independently, and stores to symmetric memory become visible late and out of order unless a release
//! signal and the wait for it order them. The same seed gives the same run.
//!
//! What is checked at every access, and reported at the author's line with both sides ([`FindingKind`]): data races
//! (with vector clocks: two accesses that nothing orders are found even if this schedule happened to run them in the
//! right order), uninitialised and stale reads, bounds, lost, doubled and unwaited signals, epochs mixed up, deadlocks
//! with the chain of who waits for whom, and waits for blocks that have no room to run.
//!
//! [`check`] runs many seeds. It explores; it does not prove.
//!
//! ```
//! use std::sync::Arc;
//! use peerwarp_codegen::ir::*;
//! use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};
//!
//! // Every rank stores its number to `out`.
//! let loc = Loc::caller();
//! let mut b = Builder::new("number", 2, 32, 1, loc);
//! let out = b.param("out", ParamKind::Local, Dtype::U32, 1);
//! let rank = b.emit(Type::scalar(Dtype::U32), loc, |out| ValueOp::Rank { out });
//! let zero = b.constant(Const::U32(0), loc);
//! b.begin();
//! b.push(MemoryOp::Store { place: Place::Param(out), index: zero, value: rank, mask: None }, loc);
//! let body = b.end();
//! b.role("all", 1, body, loc);
//! let kernel = Arc::new(Compiled::new(verify(b.finish())?));
//!
//! let mut machine = Machine::new(2);
//! machine.buffers_of(kernel.kernel())?;
//! machine.launch_all(&kernel, &Bindings::new())?;
//! let outcome = machine.run(&Options::default())?;
//! assert_eq!(outcome.memory.read::<u32>(1, "out")?, [1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// Lanes of the warps that harnesses simulate. Only the order of float sums depends on it.
pub const WARP_SIZE: u32 = 32;

mod exec;
mod far;
mod findings;
mod flatten;
mod memory;
mod schedule;
mod setup;
mod transport;
mod values;

pub use exec::ring::Mistake;
pub use findings::finding::{Finding, FindingKind, Findings, Party};
pub use flatten::code::Compiled;
pub use memory::global::{HostMemory, Memory};
pub use setup::error::SimError;
pub use setup::explore::{Exploration, check};
pub use setup::machine::{Bindings, Machine, Outcome};
pub use setup::options::{Death, Options, Strategy};
pub use setup::report::{Counts, Report};

#[cfg(test)]
mod tests;
