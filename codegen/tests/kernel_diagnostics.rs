//! What rustc tells the author of a `#[kernel]` function, for each mistake that it can see.

#[test]
fn compile_errors() {
    trybuild::TestCases::new().compile_fail("ui/kernel/*.rs");
}
