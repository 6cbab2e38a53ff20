//! Collectives by their plain names on the command line.

use std::process::{Command, Output};

pub fn peerwarp(args: &str) -> (i32, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_peerwarp")).args(args.split_whitespace()).output().unwrap();
    (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

/// Families, and what their sizes are called.
const FAMILIES: [(&str, &str); 7] = [
    ("all_reduce", "elements"),
    ("registered_all_reduce", "elements"),
    ("reduce_scatter", "elements"),
    ("all_gather", "elements"),
    ("all_to_all", "elements"),
    ("ragged_all_to_all", "capacity"),
    ("broadcast", "elements"),
];

#[test]
fn every_family_runs_and_is_checked() {
    for (family, size) in FAMILIES {
        let (code, text) =
            peerwarp(&format!("run --family {family} {size}=10007 ranks=5 dtype=bf16 --backend sim"));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("ok: the result agrees with the reference"), "{text}");
        let (code, text) =
            peerwarp(&format!("check --family {family} {size}=333 ranks=3 dtype=f32 --seeds 8"));
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("explored 8 schedules"), "{text}");
    }
}

#[test]
fn wrong_fields_are_told_with_what_is_allowed() {
    let told = |args: &str, words: &[&str]| {
        let (code, text) = peerwarp(args);
        assert_eq!(code, 2, "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let key = "elements=10007 ranks=5";
    told(&format!("run --family all_reduce {key}"), &["dtype", "f32, fp16, bf16"]);
    told(&format!("run --family all_reduce {key} dtype=fp8"), &["dtype", "fp8", "f32, fp16, bf16"]);
    told(
        &format!("run --family all_reduce {key} dtype=f32 op=product"),
        &["op", "product", "sum, max, min, avg"],
    );
    told(&format!("run --family all_reduce {key} dtype=f32 elemnts=3"), &["elemnts", "elements"]);
    told("run --family all_reduce elements=ten ranks=5 dtype=f32", &["elements", "ten", "1 to 268435456"]);
    told("run --family all_redcue elements=10 ranks=5 dtype=f32", &["all_redcue", "all_reduce"]);
    told(&format!("run --family broadcast {key} dtype=f32 root=5"), &["root", "5", "0 to 4"]);
}
