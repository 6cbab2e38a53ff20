//! `bench/baselines/emitted.py` understands what `generate` writes: its own tests, on the folder that `gpumode.py` is run with.
//! Without python3 it says so; in CI it is an error.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn said(out: &Output) -> String {
    [&out.stdout, &out.stderr].map(|s| String::from_utf8_lossy(s).into_owned()).concat()
}

/// What the catalogue of `gpumode.py` asks for.
fn generated() -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python_peers");
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

#[test]
fn emitted_kernels_are_understood_in_python() {
    let ci = std::env::var_os("CI").is_some();
    if Command::new("python3").arg("--version").output().is_err() {
        assert!(!ci, "python3 is not there");
        println!("skipped: python3 is not there");
        return;
    }
    // One of its tests compiles, and says that it was skipped.
    assert!(!ci || std::env::var_os("PEERWARP_NVCC").is_some(), "PEERWARP_NVCC is not set");
    let ran = Command::new("python3")
        .args(["-B", "-m", "unittest", "-v", "test_emitted"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/baselines"))
        .env("PEERWARP_EMITTED", generated())
        .output()
        .expect("it was there before");
    println!("{}", said(&ran));
    assert!(ran.status.success(), "bench/baselines/test_emitted.py failed");
}
