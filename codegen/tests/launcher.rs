//! What a program in C or C++ gets: headers that any C compiler takes, with the layout that the printer computed, and
//! launchers, which run here against a stand-in for the runtime. Compilers are named as for `compile_emitted.rs`;
//! `PEERWARP_ROCM` names a folder with ROCm's `include/hip/hip_runtime.h`.

use crate::printed;
use crate::together::{Written, together};

use std::path::{Path, PathBuf};
use std::process::Command;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::print::{EmitInfo, Source, emit};
use rayon::prelude::*;

/// A kernel called `sample` with every kind of parameter, and `words` of shared memory.
fn sample(target: &str, words: u32) -> Source {
    let target: Target = target.parse().unwrap();
    let mut meta = TraceMeta::new("sample", 4, target.warp_size(), 4);
    meta.doc = "Has every kind of parameter.".into();
    meta.usage = "First line.\n\nThird line: */ does not end the comment.".into();
    let kernel = trace(meta, |p| {
        let x = p.arg::<Ptr<half::bf16>>("x", 64);
        let small = p.arg::<Val<u32>>("small", 1);
        let big = p.arg::<Val<u64>>("big", 1);
        p.arg::<Ptr<f32>>("unused", 5);
        let inbox = p.arg::<Sym<u32>>("inbox", 3);
        let flag = p.arg::<Flags>("flag", 7);
        let word = p.arg::<EpochWord>("epoch", 1);
        let y = p.arg::<Ptr<half::bf16>>("y", 64);
        let epoch = word.begin();
        role("main", 3, |_| {
            let kept = shared::<u32>("kept", words);
            kept.set(0, small + big.to_u32());
            let mut parcel = send_to(Peers::all());
            parcel.put_value(&inbox, 0, kept.get(0));
            parcel.signal(&flag, 0, epoch);
            let _ = flag.from(0u32.val()).wait(0, epoch);
            y.store(0, x.load(0, 64));
        });
    })
    .unwrap_or_else(|e| panic!("{e}"));
    emit(&verify(kernel).unwrap(), target, &EmitInfo { command: "peerwarp show sample".into() }).unwrap()
}

/// A folder of its own with the source, its header and the program of this test.
fn folder(name: &str, source: &Source) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(&source.file_name), &source.text).unwrap();
    std::fs::write(dir.join(&source.abi_file_name), &source.abi).unwrap();
    dir
}

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("launcher").join(file)
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let complained = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && complained.is_empty(), "{command:?}\n{said}{complained}");
    said
}

/// The compiler or folder that a variable names; without it the test is skipped, in CI it fails.
fn named(variable: &str) -> Option<String> {
    let named = std::env::var(variable).ok().filter(|c| !c.is_empty());
    if named.is_none() {
        assert!(std::env::var_os("CI").is_none(), "{variable} is not set");
        println!("skipped: {variable} is not set");
    }
    named
}

fn strict(command: &mut Command) -> &mut Command {
    command.args(["-pedantic-errors", "-Wall", "-Wextra", "-Werror"])
}

/// A header by itself, and the others in a unit, each included twice.
#[test]
fn headers_are_c89_and_cpp98() {
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        let printed = printed::ALL.iter().map(|(_, make)| printed::emitted(*make, target).unwrap());
        let timed = printed::ALL.iter().filter(|f| f.0 == "mail");
        let timed = timed.map(|(_, make)| printed::emitted_with(*make, target, &printed::TIMED).unwrap());
        let mut units = vec![vec![sample(target, 4)], vec![]];
        for source in printed.chain(timed) {
            let is_free = |unit: &&mut Vec<Source>| unit.iter().all(|other| other.entry != source.entry);
            match units[1..].iter_mut().find(is_free) {
                Some(unit) => unit.push(source),
                None => units.push(vec![source]),
            }
        }
        for (number, sources) in units.iter().enumerate() {
            let name = format!("header_{}_{number}", target.replace(':', "_"));
            let include = |source: &Source| {
                let header = folder(&name, source).join(&source.abi_file_name);
                format!("#include \"{}\"\n", header.display()).repeat(2)
            };
            let includes: String = sources.iter().map(include).collect();
            let twice = folder(&name, &sources[0]).join("twice.c");
            std::fs::write(&twice, includes + "int unit;\n").unwrap();
            for (compiler, language, standard) in
                [("cc", "c", "c89"), ("cc", "c", "c11"), ("c++", "c++", "c++98"), ("c++", "c++", "c++17")]
            {
                let mut c = Command::new(compiler);
                strict(&mut c).args(["-x", language, &format!("-std={standard}"), "-fsyntax-only"]);
                run(c.arg(&twice));
            }
        }
    }
}

#[test]
fn headers_list_packets() {
    let (_, mail) = printed::ALL.iter().find(|f| f.0 == "mail").expect("a fixture has packets");
    let source = printed::emitted(*mail, "cuda:sm_90a").unwrap();
    assert!(source.abi.contains(", PACKETS, "), "{}", source.abi);
}

/// The lines `name offset bytes allocated` of the layout.
fn layout(source: &Source) -> Vec<String> {
    let allocated = |name: &str| match name {
        "x" | "y" => 128,
        "inbox" => 12,
        "flag" => 28,
        "epoch" => 8,
        "status" => 56,
        _ => 0,
    };
    let line = |f: &peerwarp_codegen::print::ArgField| {
        format!("{} {} {} {}", f.name, f.offset, f.bytes, allocated(&f.name))
    };
    let mut all: Vec<String> = source.args.fields.iter().map(line).collect();
    all.push(format!("all 0 {0} {0}", source.args.bytes));
    all.sort();
    all
}

#[test]
fn c_lays_the_arguments_out_as_the_manifest_says() {
    let source = sample("cuda:sm_90a", 4);
    let dir = folder("layout", &source);
    let program = dir.join("program");
    let mut c = Command::new("cc");
    run(strict(c.args(["-std=c89", "-I"]).arg(&dir)).arg(here("driver.c")).arg("-o").arg(&program));
    let said = run(&mut Command::new(program));
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort();
    assert_eq!(lines, layout(&source));
}

/// What the test's program says of the launcher in an object file, with a stand-in for the runtime.
fn calls(runtime: &str, dir: &Path, object: &Path, source: &Source) -> String {
    let program = dir.join("program");
    let mut parts = vec![];
    for file in ["driver.c", "fake_runtime.c"] {
        let part = dir.join(file).with_extension("o");
        let mut c = Command::new("cc");
        c.args(["-std=c99", &format!("-DRUNTIME={runtime}"), "-Wall", "-Wextra", "-Werror", "-c", "-I"]);
        run(c.arg(dir).arg(here(file)).arg("-o").arg(&part));
        parts.push(part);
    }
    run(Command::new("c++").args(&parts).arg(object).arg("-o").arg(&program));
    let said = run(&mut Command::new(program));
    let after = source.args.fields.len() + 1;
    said.lines().skip(after).collect::<Vec<_>>().join("\n")
}

#[test]
fn cuda_launchers_check_and_launch() {
    let Some(nvcc) = named("PEERWARP_NVCC") else { return };
    let source = sample("cuda:sm_90a", 30000);
    let dir = folder("launcher_cuda", &source);
    let object = dir.join("sample.o");
    let mut c = Command::new(nvcc);
    c.args(["-std=c++17", "-arch=sm_90a", "-Xcompiler", "-Wall,-Wextra", "-c", "-o"]).arg(&object);
    run(c.arg(dir.join(&source.file_name)));
    insta::assert_snapshot!(calls("cuda", &dir, &object, &source));
}

#[test]
fn every_hip_source_is_understood_with_the_headers_of_rocm() {
    let (Some(clang), Some(rocm)) = (named("PEERWARP_CLANG"), named("PEERWARP_ROCM")) else { return };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rocm");
    let written = |(name, make): &(&str, _)| {
        let source = printed::emitted(*make, "hip:gfx942").unwrap_or_else(|e| panic!("{name}: {e}"));
        Written::new(&dir.join(name), name, &source)
    };
    let mut sources: Vec<Written> = printed::ALL.iter().map(written).collect();
    let (_, mail) = printed::ALL.iter().find(|f| f.0 == "mail").expect("a fixture has packets");
    let timed = printed::emitted_with(*mail, "hip:gfx942", &printed::TIMED).unwrap();
    sources.push(Written::new(&dir.join("timeline"), "mail", &timed));
    // The next test compiles a source by itself, and `compile_emitted.rs` compiles all for the device.
    let units = together(&dir, "all", &sources);
    units.into_par_iter().for_each(|unit| drop(run(hip(&clang, &rocm).arg("-fsyntax-only").arg(unit))));
}

/// clang with a ROCm, for both sides of a compilation.
fn hip(clang: &str, rocm: &str) -> Command {
    let mut c = Command::new(clang);
    c.args([
        "-x",
        "hip",
        "--offload-arch=gfx942",
        "-nogpulib",
        "-std=c++17",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]);
    c.args(["-Wno-unused-function", &format!("--rocm-path={rocm}"), "-fPIC", "-c", "-o", "/dev/null"]);
    c
}

#[test]
fn hip_launchers_check_and_launch() {
    let (Some(clang), Some(rocm)) = (named("PEERWARP_CLANG"), named("PEERWARP_ROCM")) else { return };
    let source = sample("hip:gfx942", 4);
    let dir = folder("launcher_hip", &source);
    let object = dir.join("sample.o");
    let mut c = hip(&clang, &rocm);
    run(c.arg("-o").arg(&object).arg(dir.join(&source.file_name)));
    insta::assert_snapshot!(calls("hip", &dir, &object, &source));
}
