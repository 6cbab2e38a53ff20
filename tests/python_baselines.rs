//! `bench/baselines/emitted.py` understands what `generate` writes: its own tests, on the folder that `gpumode.py` is run with;
//! `timing.py` times what it is asked for, by its own tests, which need no PyTorch; and all scripts are Python.
//! Without python3 it says so; in CI it is an error.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn said(out: &Output) -> String {
    [&out.stdout, &out.stderr].map(|s| String::from_utf8_lossy(s).into_owned()).concat()
}

/// What the catalogue of `gpumode.py` asks for.
fn generated() -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python_baselines");
    let _ = std::fs::remove_dir_all(&out);
    let ran = Command::new(env!("CARGO_BIN_EXE_peerwarp"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["generate", "--catalogue", "bench/baselines/gpumode.toml", "--out"])
        .arg(&out)
        .output()
        .expect("it was built");
    assert!(ran.status.success(), "{}", said(&ran));
    out
}

/// Whether there is a Python to run tests with.
fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        assert!(std::env::var_os("CI").is_none(), "python3 is not there");
        println!("skipped: python3 is not there");
    }
    found
}

/// Runs the tests of a file beside the scripts.
fn unittest(name: &str, emitted: Option<&Path>) {
    let mut python = Command::new("python3");
    python.args(["-B", "-m", "unittest", "-v", name]);
    python.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/baselines"));
    python.envs(emitted.map(|folder| ("PEERWARP_EMITTED", folder)));
    let ran = python.output().expect("it was there before");
    println!("{}", said(&ran));
    assert!(ran.status.success(), "bench/baselines/{name}.py failed");
}

#[test]
fn scripts_compile() {
    if !has_python() {
        return;
    }
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/baselines");
    let all = std::fs::read_dir(all).unwrap().map(|entry| entry.unwrap().path());
    let scripts: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|end| end == "py")).collect();
    assert!(scripts.len() > 10, "{scripts:?}");
    let compile = "import sys\nfor name in sys.argv[1:]: compile(open(name).read(), name, 'exec')";
    let ran = Command::new("python3").args(["-c", compile]).args(scripts).output().unwrap();
    assert!(ran.status.success(), "{}", said(&ran));
}

#[test]
fn baselines_are_timed_as_they_are_asked_for() {
    if has_python() {
        unittest("test_timing", None);
    }
}

#[test]
fn emitted_kernels_are_understood_in_python() {
    let ci = std::env::var_os("CI").is_some();
    if !has_python() {
        return;
    }
    // One of its tests compiles, and says that it was skipped.
    assert!(!ci || std::env::var_os("PEERWARP_NVCC").is_some(), "PEERWARP_NVCC is not set");
    unittest("test_emitted", Some(&generated()));
}
