//! What rustc says when the types of a kernel do not fit.

use crate::refused;

#[test]
fn type_errors_say_what_to_do() {
    refused::of_codegen("ui/dsl");
}
