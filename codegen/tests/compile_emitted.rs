//! Compiles emitted sources, when compilers are named: `PEERWARP_NVCC` (CUDA 12.4 or newer; the standard library of its
//! `CUDA_HOME` is found by it) and `PEERWARP_CLANG` (18 or newer, with the AMDGPU backend; no ROCm is needed).

use crate::printed;
use crate::printed::apart;
use crate::together::{Written, together};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use peerwarp_codegen::print::{EmitOptions, Primitives, PrintError, Source, Split, hip_prelude};
use rayon::prelude::*;

/// The compiler that a variable names, or a note on standard output that its part is skipped.
pub fn compiler(variable: &str) -> Option<String> {
    let named = std::env::var(variable).ok().filter(|c| !c.is_empty());
    if named.is_none() {
        println!("skipped: {variable} names no compiler");
    }
    named
}

pub fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).expect("the target folder is writable");
    dir
}

const TIMED: [&str; 4] = ["token_copy", "mail", "teams", "relay"];

/// What a compiler says about a source, if that is more than that all is well.
pub fn complaint(path: &Path, command: &(impl Fn(&Path, &Path) -> Command + Sync)) -> Option<String> {
    let out = command(path, &path.with_extension("bin")).output().expect("the compiler starts");
    let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    let spilled = said.lines().any(|l| l.contains("spill stores") && !l.contains(" 0 bytes spill stores"));
    let bad = !out.status.success() || spilled || said.contains("warning");
    bad.then(|| format!("{}:\n{said}", path.display()))
}

/// Writes every fixture for a target to files, with the primitives of all of them in headers.
fn write_split(dir: &Path, target: &str) -> Vec<Written> {
    let (sources, headers) = (dir.join(target.replace(':', "_")), dir.join("primitives"));
    std::fs::create_dir_all(&headers).expect("the target folder is writable");
    let plain = printed::ALL.iter().map(|(name, make)| (name.to_string(), *make, EmitOptions::default()));
    let timed = printed::ALL.iter().filter(|(name, _)| TIMED.contains(name));
    let timed = timed.map(|(name, make)| (format!("timeline_{name}"), *make, printed::TIMED));
    let mut written = vec![];
    let mut primitives: BTreeMap<String, Primitives> = BTreeMap::new();
    for (name, make, options) in plain.chain(timed) {
        let Split { source, primitives: own } =
            apart::split(make, target, &options).unwrap_or_else(|e| panic!("{target}: {e}"));
        written.push(Written::new(&sources, &name, &source));
        match primitives.get_mut(&own.file_name()) {
            Some(others) => others.merge(own),
            None => drop(primitives.insert(own.file_name(), own)),
        }
    }
    for (name, primitives) in &primitives {
        std::fs::write(headers.join(name), primitives.text()).expect("the target folder is writable");
    }
    written
}

/// Writes every fixture for a target to files.
fn write(dir: &Path, target: &str) -> Vec<Written> {
    let plain = printed::ALL.iter().map(|(name, make)| (name.to_string(), printed::emitted(*make, target)));
    let timed = printed::ALL.iter().filter(|(name, _)| TIMED.contains(name));
    let timed = timed.map(|(name, make)| {
        (format!("timeline_{name}"), printed::emitted_with(*make, target, &printed::TIMED))
    });
    let written = |(name, source): (String, Result<Source, PrintError>)| {
        let source = source.unwrap_or_else(|e| panic!("{name} for {target}: {e}"));
        Written::new(&dir.join(target.replace(':', "_")), &name, &source)
    };
    plain.chain(timed).map(written).collect()
}

/// Each source by itself.
fn alone(written: Vec<Written>) -> Vec<PathBuf> {
    written.into_iter().map(|source| source.path).collect()
}

/// Compiles units, and collects what failed and what spilled.
fn complaints(units: Vec<PathBuf>, command: impl Fn(&Path, &Path) -> Command + Sync) -> Vec<String> {
    units.into_par_iter().filter_map(|unit| complaint(&unit, &command)).collect()
}

/// The command that compiles CUDA for an architecture.
pub fn nvcc<'a>(nvcc: &'a str, arch: &'a str) -> impl Fn(&Path, &Path) -> Command + Sync {
    move |source, out| {
        let mut c = Command::new(nvcc);
        c.args(["-std=c++17", "-O3", "-cubin", "-Xptxas", "-v", "-Werror", "all-warnings"])
            .args([&format!("-arch={arch}"), "-o"])
            .arg(out)
            .arg(source);
        c
    }
}

/// The command that compiles HIP for an architecture, and the stand-in for ROCm's header in the folder.
pub fn clang<'a>(clang: &'a str, arch: &'a str, dir: &'a Path) -> impl Fn(&Path, &Path) -> Command + Sync {
    let include = dir.join("hip");
    std::fs::create_dir_all(&include).expect("the target folder is writable");
    let prelude = hip_prelude().expect("the prelude renders");
    std::fs::write(include.join("hip_runtime.h"), prelude).expect("the target folder is writable");
    move |source, out| {
        let mut c = Command::new(clang);
        c.args(["-x", "hip", &format!("--offload-arch={arch}")])
            .args(["--cuda-device-only", "-nogpuinc", "-nogpulib", "--no-gpu-bundle-output"])
            .args(["-std=c++17", "-O3", "-Wall", "-Wno-unused-function", "-I"])
            .arg(dir)
            .arg("-o")
            .arg(out)
            .arg(source);
        c
    }
}

/// For one architecture primitives stand in headers. Sources of HIP stand by themselves, and so do those of packs
/// (`tests/pack_catalogue.rs`).
#[test]
fn cuda_sources_compile_without_warnings_or_spills() {
    let Some(compiler) = compiler("PEERWARP_NVCC") else { return };
    let (dir, split) = (folder("emitted_cuda"), folder("split_cuda"));
    let mut said =
        complaints(together(&split, "sm_80", &write_split(&split, "cuda:sm_80")), nvcc(&compiler, "sm_80"));
    for arch in ["sm_90a", "sm_100a"] {
        let units = together(&dir, arch, &write(&dir, &format!("cuda:{arch}")));
        said.extend(complaints(units, nvcc(&compiler, arch)));
    }
    assert!(said.is_empty(), "{}", said.join("\n"));
}

#[test]
fn hip_sources_compile_without_warnings() {
    let Some(compiler) = compiler("PEERWARP_CLANG") else { return };
    let (dir, split) = (folder("emitted_hip"), folder("split_hip"));
    let mut said = complaints(alone(write_split(&split, "hip:gfx90a")), clang(&compiler, "gfx90a", &split));
    said.extend(complaints(alone(write(&dir, "hip:gfx942")), clang(&compiler, "gfx942", &dir)));
    assert!(said.is_empty(), "{}", said.join("\n"));
}
