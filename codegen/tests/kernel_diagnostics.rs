//! What rustc tells the author of a `#[kernel]` function, for each mistake that it can see.

use crate::refused;

#[test]
fn compile_errors() {
    refused::of_codegen("ui/kernel");
}
