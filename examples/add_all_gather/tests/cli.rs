//! The three-line binary has all of Peerwarp's commands.

use std::process::{Command, Output};

fn run(args: &[&str]) -> (i32, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_add-all-gather")).args(args).output().unwrap();
    (status.code().unwrap(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

const SELECTION: [&str; 5] = ["--family", "add_all_gather", "elements=500", "ranks=3", "dtype=f32"];

fn with(command: &str, rest: &[&str]) -> (i32, String) {
    run(&[&[command], &SELECTION[..], rest].concat())
}

#[test]
fn lists_its_own_family_only() {
    let (code, text) = run(&["list"]);
    assert_eq!(code, 0, "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn runs_and_checks() {
    let (code, text) = with("run", &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("ok: the result agrees with the reference"), "{text}");
    let (code, text) = with("check", &["--seeds", "4"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("explored 4 schedules of 2 epochs"), "{text}");
    let (code, text) = with("check", &["--set", "protocol=packets", "--seeds", "16"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn shows_and_generates() {
    let (code, text) = with("show", &["--explain"]);
    assert_eq!(code, 0, "{text}");
    insta::assert_snapshot!(text);
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    let out = dir.to_str().unwrap();
    let (code, text) = with("generate", &["--target", "cuda:sm_80,hip:gfx90a", "--out", out]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = with("generate", &["--target", "cuda:sm_80,hip:gfx90a", "--out", out, "--check"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn teaches_about_its_own_fields() {
    let (code, text) = run(&["show", "--family", "add_all_gather", "elements=0", "ranks=3", "dtype=f32"]);
    assert_eq!(code, 2);
    assert!(text.contains("elements = 0") && text.contains("1 to 16777216"), "{text}");
    let (code, text) = run(&["run", "--model", "deepseek-v3"]);
    assert_eq!(code, 2);
    assert!(text.contains("--family with one of add_all_gather"), "{text}");
}
