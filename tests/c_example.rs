//! `examples/c` builds: emitted sources, their headers in C and in C++, and a program that links them. Without GPUs it says
//! so. Compilers are named as for `tests/emitted_moe.rs`, a ROCm by `PEERWARP_ROCM`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The compiler or folder that a variable names; without it the test is skipped, in CI it fails.
fn named(variable: &str) -> Option<String> {
    let named = std::env::var(variable).ok().filter(|c| !c.is_empty());
    if named.is_none() {
        assert!(std::env::var_os("CI").is_none(), "{variable} is not set");
        println!("skipped: {variable} is not set");
    }
    named
}

fn said(out: &Output) -> String {
    [&out.stdout, &out.stderr].map(|s| String::from_utf8_lossy(s).into_owned()).concat()
}

/// Runs make in the example's folder, and returns where it built.
fn make(name: &str, settings: &[String]) -> PathBuf {
    let build = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&build);
    let out = Command::new("make")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/c"))
        .arg(format!("PEERWARP={}", env!("CARGO_BIN_EXE_peerwarp")))
        .arg(format!("BUILD={}", build.display()))
        .args(["-j2", "CXXFLAGS=-O1"])
        .args(settings)
        .output()
        .expect("make is there");
    assert!(out.status.success(), "{}", said(&out));
    build
}

#[test]
fn links_for_cuda_and_says_what_is_missing() {
    let Some(nvcc) = named("PEERWARP_NVCC") else { return };
    let home = Path::new(&nvcc).parent().and_then(Path::parent).expect("nvcc stands in a bin folder");
    let build = make("c_example_cuda", &[format!("NVCC={nvcc}"), format!("CUDA_HOME={}", home.display())]);
    let run = |arguments: &[&str]| {
        let out = Command::new(build.join("example")).args(arguments).output().expect("it was linked");
        (out.status.code(), said(&out))
    };
    let (code, text) = run(&["--gpus", "two"]);
    assert_eq!((code, text.as_str()), (Some(2), "error: --gpus takes a number from 1 on\n"));
    let (code, text) = run(&["--gpus", "2"]);
    match code {
        Some(0) => assert!(text.contains(" 0 wrong"), "{text}"), // there are GPUs
        _ => {
            assert_eq!(code, Some(2), "{text}");
            assert!(
                text.starts_with("error: ") && (text.contains("driver") || text.contains("GPU")),
                "{text}"
            );
        }
    }
}

#[test]
fn compiles_for_hip() {
    let (Some(clang), Some(rocm)) = (named("PEERWARP_CLANG"), named("PEERWARP_ROCM")) else { return };
    let build = make(
        "c_example_hip",
        &[
            // The newest GPU that the ROCm of Debian 12 has libraries for.
            "GPU=hip".into(),
            "ARCH=gfx90a".into(),
            format!("ROCM_PATH={rocm}"),
            format!("HIPCC={clang} --rocm-path={rocm}"),
            "objects".into(),
        ],
    );
    assert_eq!(std::fs::read_dir(build.join("kernels")).unwrap().count(), 6);
}
