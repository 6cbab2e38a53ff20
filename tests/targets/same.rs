//! Targets whose products are the same text as sm_100a's, which runs on a CPU.

use peerwarp::codegen::family::Target;

use super::products::sources;

/// All targets with tensor memory but sm_100a.
const SAME: [&str; 2] = ["sm_103a", "sm_110a"];

/// The banner names the target twice; all else is one text, launched in one way.
#[test]
fn products_in_tensor_memory_are_one_text() {
    let others = Target::all().filter(|t| t.has_pairs() && t.arch() != "sm_100a");
    assert!(others.map(Target::arch).eq(SAME), "those of {SAME:?} are compared");
    let executed = sources("cuda:sm_100a");
    for arch in SAME {
        let other = sources(&format!("cuda:{arch}"));
        assert_eq!(executed.len(), other.len());
        for (executed, other) in executed.iter().zip(&other) {
            assert!(other.text.contains("tcgen05.mma") && other.text.matches(arch).count() == 2);
            assert_eq!(executed.text.replace("sm_100a", arch), other.text, "{arch}, {}", other.entry);
            assert_eq!(format!("{:?}", executed.launch), format!("{:?}", other.launch), "{arch}");
        }
    }
}
