//! Emitted CUDA and HIP, executed on the CPU: the sources as a GPU's compiler gets them, compiled for the host with
//! preludes of our own, a fiber for every GPU thread, all ranks in one process, under seeded schedules. See
//! `docs/explanation/host-execution.md`.

mod alike;
mod beside;
mod bugs;
mod build;
mod collectives;
mod far;
mod fp8;
mod functions;
mod histogram;
mod job;
mod looks;
mod matmul;
mod misses;
mod missing;
mod moe;
mod moe_nodes;
mod norms;
mod ops;
mod placement;
mod problem;
mod processes;
mod ptx;
mod puts;
mod rewrite;
mod same;
mod shapes;
mod signals;
mod tails;
mod tensor;
mod timeline;
mod waits;
mod windows;
mod workload;
mod wraps;
