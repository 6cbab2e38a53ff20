//! What rustc says when the types of a kernel do not fit.

#[test]
fn type_errors_say_what_to_do() {
    trybuild::TestCases::new().compile_fail("ui/dsl/*.rs");
}
