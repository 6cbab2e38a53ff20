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
    let (code, text) = with("run", &["--backend", "sim"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("ok: the result agrees with the reference"), "{text}");
    let (code, text) = with("check", &["--seeds", "4"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("explored 4 schedules of 5 epochs"), "{text}");
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
    assert!(text.contains("unexpected argument '--model'"), "{text}");
}

#[test]
fn has_no_options_of_other_families() {
    for command in ["run", "check", "bench", "tune", "trace", "generate"] {
        let (code, text) = run(&[command, "--help"]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("--family <NAME>") && text.contains("--ranks <R>"), "{text}");
        let others = "--model --hf-config --hidden --experts --topk --tokens --dtype --layout --dedup --phase \
                      --routing --tokens-per-rank --gpumode --fused";
        let found: Vec<&str> =
            others.split_whitespace().filter(|o| text.contains(&format!("{o} "))).collect();
        assert_eq!(found, [""; 0], "{command}: {text}");
        let lower = text.to_lowercase();
        let words: Vec<&str> = lower.split(|c: char| !c.is_alphanumeric()).collect();
        for word in ["expert", "experts", "dispatch", "combine", "moe", "token", "tokens", "routing"] {
            assert!(!words.contains(&word), "{command} says {word}: {text}");
        }
    }
}

#[test]
fn its_only_family_needs_no_name() {
    let (code, text) = run(&["run", "--backend", "sim", "elements=500", "dtype=f32", "--ranks", "3"]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("on the simulator, as --backend says"), "{text}");
}

#[test]
fn shares_a_folder_with_another_program_s_families() {
    use peerwarp::cli::{App, Said, builtin};

    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("shared");
    let _ = std::fs::remove_dir_all(&dir);
    let out = dir.to_str().unwrap();
    let moe = |more: &[&str]| -> Said {
        let shape = ["--hidden", "64", "--experts", "4", "--topk", "2", "--tokens", "4", "--ranks", "2"];
        App::new(&builtin())
            .name("peerwarp")
            .run([&["peerwarp", "generate"], &shape[..], &["--out", out], more].concat())
    };
    let families = || {
        let manifest = std::fs::read_to_string(dir.join("manifest.json")).unwrap();
        ["moe_dispatch", "moe_combine", "add_all_gather"]
            .map(|f| manifest.contains(&format!("\"family\": \"{f}\"")))
    };
    assert_eq!(moe(&[]).code, 0);
    assert_eq!(families(), [true, true, false]);
    let (code, text) = with("generate", &["--out", out]);
    assert!(code == 0 && !text.contains("removed"), "{text}");
    assert_eq!(families(), [true, true, true]);
    // Both find it as they would write it, in whatever order they come.
    for _ in 0..2 {
        let said = moe(&["--check"]);
        assert_eq!(said.code, 0, "{}", said.out);
        let (code, text) = with("generate", &["--out", out, "--check"]);
        assert_eq!(code, 0, "{text}");
        assert!(moe(&[]).out.contains("all up to date"));
    }
    // A run replaces what is of its own families.
    let (code, text) = run(&[
        "generate",
        "--family",
        "add_all_gather",
        "elements=800",
        "ranks=3",
        "dtype=f32",
        "--out",
        out,
    ]);
    assert!(code == 0 && text.contains("2 removed"), "{text}");
    assert_eq!((families(), moe(&["--check"]).code), ([true, true, true], 0));
}
