//! What the derives say about mistakes, and where.

#[test]
fn mistakes_are_told_at_their_tokens() {
    trybuild::TestCases::new().compile_fail("ui/derive/*.rs");
}
