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

/// One length of a capacity: in every round, and in every way to say it.
#[test]
fn a_length_is_given() {
    for (family, lengths) in [
        ("all_reduce", &["host", "device"][..]),
        ("reduce_scatter", &["host", "each"]),
        ("all_gather", &["device", "each"]),
        ("all_to_all", &["device"]),
        ("broadcast", &["host"]),
    ] {
        for length in lengths {
            let key = format!("--family {family} elements=9000 ranks=3 dtype=bf16 row=8 length={length}");
            for rows in [1, 37, 375] {
                let (code, text) = peerwarp(&format!("run {key} --launch-rows {rows} --backend sim"));
                assert_eq!(code, 0, "{text}");
                assert!(text.contains(&format!("launch-rows {rows}, ")), "{text}");
                assert!(text.contains("ok: the result agrees with the reference"), "{text}");
            }
        }
    }
    let told = |args: &str, words: &[&str]| {
        let (code, text) = peerwarp(&format!("run {args} --backend sim"));
        assert_eq!(code, 2, "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let key = "--family all_reduce elements=9000 ranks=3 dtype=bf16";
    told(&format!("{key} --launch-rows 5"), &["--launch-rows", "5", "length=whole", "length=host"]);
    told(&format!("{key} length=host row=8 --launch-rows 1126"), &["--launch-rows", "1126", "1 to 1125"]);
    told(&format!("{key} length=host --launch-rows few"), &["--launch-rows", "few", "a whole number"]);
    let norm = "hook=rms-norm hidden=64 quantise=nvfp4 scale_layout=128x4 length=host row=64";
    let key = key.replace("9000", "9024");
    told(&format!("{key} {norm} --launch-rows 5"), &["--launch-rows", "scale_layout=row"]);
    let other = "--family registered_all_reduce elements=9000 ranks=3 dtype=bf16 --launch-rows 5";
    told(other, &["--launch-rows", "registered_all_reduce"]);
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
