//! What safe code cannot do to memory of GPUs: each misuse does not compile, for the reason that stands beside it.

#[test]
fn does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
