//! From IR to readable CUDA C++ and HIP C++.
//!
//! The printer holds structure: which lane does what, where groups meet, what is named and what is written out. Machine
//! primitives and the file's skeleton are handlebars templates: one file for a primitive whose text is that of both
//! targets, else one for each. Both targets share the structure; they differ in those templates and in the warp size
//! that a kernel was traced with.
//!
//! # What a launcher must know
//!
//! A source has one `extern "C"` entry, named after the variant, which takes one struct by value ([`ArgsLayout`], and
//! as C in [`Source::abi`]): a pointer for each local buffer, `ranks` pointers for each symmetric one (this rank's own
//! mapping included), scalars, the status records of all ranks, the budget of a wait in nanoseconds, and the rank.
//! Buffers are aligned to 16 bytes and do not overlap. Kernels that bring boxes of matrices have a [`TensorMap`] for each, too. An epoch word, `u32[1]` in the IR, is two words: the epoch, and
//! the number of blocks that have begun, by which the last one to begin knows that it has to advance the epoch. Both words, all
//! flags and the status records are zero before the first launch.
//!
//! For programs in C and C++ the source ends with a launcher, which the host side of a compilation sees and the device side
//! does not; it includes the header, so the two files belong side by side.
//!
//! All blocks must be resident at once. When a wait expires, the kernel raises `aborted` in every rank's status, leaves
//! a record in its own, and returns; all other waits of the world give up when they see it. Epochs advance as blocks begin, so
//! an aborted launch has advanced them.

mod analysis;
mod control;
mod emit;
mod facts;
mod launch;
mod layout;
mod loader;
mod matrix;
mod memory;
mod paths;
mod source;
mod text;
mod transport;

use crate::{
    family::Target,
    ir::{Verified, explain::Explain},
};

pub use analysis::gin::GIN_DEPTH;
pub use analysis::waits::WaitSite;
pub use control::flow::MOST_NAMED_BARRIERS;
pub use facts::options::{EmitOptions, FarEngine};
pub use facts::timeline::{SiteKind, SitePeers, Timeline, TimelineSite};
pub use launch::args::{ArgField, ArgsLayout, TENSOR_MAP_BYTES, TensorMap};
pub use launch::host::{EmitInfo, LaunchShape};
pub use paths::Paths;
pub use source::apart::Primitives;
pub use source::assemble::{Excess, Source, Split};
pub use source::idle::{Warning, warnings};
pub use text::error::PrintError;

/// What a kernel asks of a target's device beyond what that has.
///
/// # Errors
/// The target cannot have the kernel for another reason.
pub fn excess(kernel: &Verified, target: Target) -> Result<Excess, PrintError> {
    source::assemble::excess(kernel, target)
}

/// Emits a kernel for a target.
pub fn emit(kernel: &Verified, target: Target, info: &EmitInfo) -> Result<Source, PrintError> {
    emit_with(kernel, target, info, &EmitOptions::default())
}

/// As [`emit`], of a kernel that records when its warps wait, signal and send.
pub fn emit_with_timeline(
    kernel: &Verified,
    target: Target,
    info: &EmitInfo,
    slots: u32,
) -> Result<Source, PrintError> {
    emit_with(kernel, target, info, &EmitOptions { timeline: Some(slots), ..EmitOptions::default() })
}

/// As [`emit`], with options.
pub fn emit_with(
    kernel: &Verified,
    target: Target,
    info: &EmitInfo,
    options: &EmitOptions,
) -> Result<Source, PrintError> {
    if options.lines {
        return source::assemble::emit(kernel, target, info, options);
    }
    let mut kernel = kernel.clone().into_kernel();
    kernel.forget_lines();
    source::assemble::emit(&kernel, target, info, options)
}

/// As [`emit_with`], with the machine primitives in a header below `folder`, a path that ends with `/` and that the source
/// includes. The header holds [`Primitives::text`] under [`Primitives::file_name`].
pub fn emit_split(
    kernel: &Verified,
    target: Target,
    info: &EmitInfo,
    options: &EmitOptions,
    folder: &str,
) -> Result<Split, PrintError> {
    let mut kernel = kernel.clone().into_kernel();
    if !options.lines {
        kernel.forget_lines();
    }
    source::assemble::emit_split(&kernel, target, info, options, Some(folder))
}

/// A source without comments and empty lines: what is compiled, whatever is said about it.
pub fn code(text: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().trim().to_owned();
    text.lines().map(code).filter(|line| !line.is_empty()).map(|line| line + "\n").collect()
}

/// A kernel in words, as [`emit`] writes it for a target.
///
/// # Errors
/// [`PrintError`] as for [`emit`].
pub fn explain(kernel: &Verified, target: Target) -> Result<Explain, PrintError> {
    source::assemble::explain(kernel, target)
}

/// Text of a stand-in for `hip/hip_runtime.h`, with which emitted HIP sources compile where there is no ROCm: write it
/// to a file of that name and give its folder to clang with `-I`.
pub fn hip_prelude() -> Result<String, PrintError> {
    text::template::hip_prelude()
}

#[cfg(test)]
mod tests;
