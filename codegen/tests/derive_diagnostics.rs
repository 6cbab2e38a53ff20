//! What the derives say about mistakes, and where.

use crate::refused;

#[test]
fn mistakes_are_told_at_their_tokens() {
    refused::of_codegen("ui/derive");
}
