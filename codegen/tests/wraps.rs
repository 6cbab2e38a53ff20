//! What is printed of integers that wrap.

use crate::printed::wraps as fixture;

use fixture::{cut, steps};
use peerwarp_codegen::ir::{Kernel, verify};
use peerwarp_codegen::print::{EmitInfo, emit};

fn roles_of(kernel: Kernel) -> String {
    let target = "cuda:sm_90a".parse().unwrap();
    let kernel = verify(kernel).unwrap_or_else(|e| panic!("{e}"));
    let text = emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap().text;
    let (_, after) = text.split_once("main_role(const Args& args").unwrap();
    after.split_once("\n}\n").unwrap().0.to_owned()
}

/// Both indices begin at the same element, although the second is computed from a number that is 2^32 larger.
#[test]
fn a_cast_that_drops_bits_hides_no_overlap() {
    let text = roles_of(cut(32));
    let (_, after) = text.split_once("store_shared").expect("a row is stored");
    assert!(after.contains("block.sync();"), "{text}");
}

/// A step is cut to what is left where the next number may be beyond the type's range, and else stays as it is.
#[test]
fn a_counter_ends_at_its_end() {
    let text = roles_of(steps(32));
    assert_eq!(text.matches("min_of<").count(), 3, "{text}");
    assert!(text.contains("++i"), "{text}");
}
