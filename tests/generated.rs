//! `generated/` is what the sources emit, on any machine. After a change to a kernel or a printer, write it anew with the
//! command below without `--check`, and read the difference.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use peerwarp::codegen::print::hip_prelude;

const COMMAND: &str = "generate --no-lines --tuned none --split-primitives --catalogue reviewed --out";

fn generated() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("generated")
}

fn said(out: &Output) -> String {
    [&out.stdout, &out.stderr].map(|s| String::from_utf8_lossy(s).into_owned()).concat()
}

fn peerwarp(arguments: &str) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_peerwarp"));
    c.args(arguments.split(' '));
    c
}

#[test]
fn is_as_emitted_whatever_the_locale_the_threads_and_the_folder() {
    let elsewhere = tempfile::tempdir().unwrap();
    let surroundings =
        [("C", "1", elsewhere.path()), ("tr_TR.UTF-8", "7", Path::new(env!("CARGO_MANIFEST_DIR")))];
    for (locale, threads, folder) in surroundings {
        let ran = peerwarp(COMMAND)
            .arg(generated())
            .arg("--check")
            .envs([("LC_ALL", locale), ("LANG", locale), ("RAYON_NUM_THREADS", threads)])
            .current_dir(folder)
            .output()
            .expect("the command runs");
        let place = format!("LC_ALL={locale} RAYON_NUM_THREADS={threads}");
        assert!(ran.status.success(), "{}\n{place}; write it anew: peerwarp {COMMAND} generated", said(&ran));
    }
}

/// All files of a folder whose name ends like this.
fn files(dir: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.extension() {
            None => found.extend(files(&path, ends)),
            Some(end) if ends.iter().any(|e| end == *e) => found.push(path),
            Some(_) => {}
        }
    }
    found.sort();
    found
}

#[test]
fn every_banner_names_the_command_that_prints_the_file() {
    let (shared, all): (Vec<_>, Vec<_>) = files(&generated(), &["cu", "hip", "h"])
        .into_iter()
        .partition(|f| f.parent().unwrap().ends_with("primitives"));
    assert!(all.len() >= 20 && shared.len() == 2, "{} and {}", all.len(), shared.len());
    let print = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        let command = text.lines().find_map(|l| Some(l.split_once("peerwarp show ")?.1)).expect("a command");
        let ran = peerwarp(&format!("show {command}")).output().expect("the command runs");
        assert!(ran.status.success(), "{command}: {}", said(&ran));
        assert!(ran.stdout == text.as_bytes(), "{} is not what its command prints", file.display());
    };
    let (some, others) = all.split_at(all.len() / 2);
    std::thread::scope(|s| {
        s.spawn(|| some.iter().for_each(print));
        others.iter().for_each(print);
    });
}

/// It is there to be read: a change that makes it much larger should be meant.
#[test]
fn is_small_enough_to_review() {
    let sources = files(&generated(), &["cu", "hip"]);
    let all = files(&generated(), &["cu", "hip", "h", "json"]);
    let bytes: u64 = all.iter().map(|f| f.metadata().unwrap().len()).sum();
    println!("{} sources, {} files, {bytes} bytes", sources.len(), all.len());
    assert!(sources.len() <= 12 && bytes < 500_000, "{} sources, {bytes} bytes", sources.len());
}

/// What a compiler says about the sources of a target, each of which includes the header of primitives.
fn complaints(end: &str, compile: impl Fn(&Path, &Path) -> Command) -> String {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated_compiles");
    std::fs::create_dir_all(dir.join("hip")).unwrap();
    std::fs::write(dir.join("hip/hip_runtime.h"), hip_prelude().unwrap()).unwrap();
    let sources = files(&generated(), &[end]);
    assert!(sources.len() >= 5, "{sources:?}");
    let one = |source: &PathBuf| {
        let mut command = compile(&dir, &dir.join(source.file_name().unwrap()).with_extension("bin"));
        let out = command.arg(source).output().expect("the compiler starts");
        let bad = !out.status.success() || said(&out).contains("warning");
        bad.then(|| format!("{}:\n{}\n", source.display(), said(&out)))
    };
    sources.iter().filter_map(one).collect()
}

#[test]
fn cuda_compiles_without_warnings() {
    let Ok(nvcc) = std::env::var("PEERWARP_NVCC") else {
        return println!("skipped: PEERWARP_NVCC is not set");
    };
    let said = complaints("cu", |_, out| {
        let mut c = Command::new(&nvcc);
        c.args(["-std=c++17", "-O1", "-cubin", "-Werror", "all-warnings", "-arch=sm_90a", "-o"]).arg(out);
        c
    });
    assert!(said.is_empty(), "{said}");
}

#[test]
fn hip_compiles_without_warnings() {
    let Ok(clang) = std::env::var("PEERWARP_CLANG") else {
        return println!("skipped: PEERWARP_CLANG is not set");
    };
    let said = complaints("hip", |dir, out| {
        let mut c = Command::new(&clang);
        c.args(["-x", "hip", "--offload-arch=gfx942", "--cuda-device-only", "-nogpuinc", "-nogpulib"]);
        c.args(["--no-gpu-bundle-output", "-std=c++17", "-O1", "-Wall", "-Wno-unused-function", "-I"]);
        c.arg(dir).arg("-o").arg(out);
        c
    });
    assert!(said.is_empty(), "{said}");
}
