//! Fixtures with their machine primitives in a header.

use peerwarp_codegen::ir::Kernel;
use peerwarp_codegen::print::{EmitOptions, PrintError, Split, emit_split};

use crate::printed::asked;

/// The folder of the headers, from a source.
pub const FOLDER: &str = "../primitives/";

/// Emits a fixture that includes its primitives.
pub fn split(make: fn(u32) -> Kernel, target: &str, options: &EmitOptions) -> Result<Split, PrintError> {
    let (kernel, target, info) = asked(make, target);
    emit_split(&kernel, target, &info, options, FOLDER)
}
