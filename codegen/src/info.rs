//! What `#[kernel]` records about the function it stands on.

use crate::ir::Loc;

/// Name, documentation and place of a kernel function. `#[kernel]` puts one beside the function, as a hidden constant
/// `__peerwarp_kernel_<function>`; `#[derive(Family)]` reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Name of the function.
    pub name: &'static str,
    /// First paragraph of its documentation, on one line.
    pub doc: &'static str,
    /// The rest of it, line by line: what the launching side should know.
    pub usage: &'static str,
    /// Where its name stands.
    pub loc: Loc,
}
