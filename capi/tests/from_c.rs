//! C programs that use the library: on simulated ranks, and on a driver that stands in for NVIDIA's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use peerwarp::build::emit::Job;
use peerwarp::build::pack::{self, BuildError, Options};
use peerwarp::codegen::family::Variant;
use peerwarp::prelude::*;
use peerwarp_c as _;

/// Elements of a row.
const ROW: u32 = 4;

/// Adds a number to rows.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "shift", kernel = shift, args = ShiftArgs, warps = 4)]
struct Shift {
    /// The most rows.
    #[key(range = 1..=16)]
    most: u32,
    /// World size.
    #[key(range = 1..=4, ranks)]
    ranks: u32,
}

impl Legal for Shift {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// Parameters of [`shift`].
#[derive(KernelArgs)]
#[args(config = Shift)]
struct ShiftArgs {
    /// Rows.
    #[input]
    #[rows(n, |c| c.most)]
    #[len(|c| u64::from(c.most * ROW))]
    x: Ptr<f32>,
    /// The rows with the number added.
    #[output]
    #[rows(n, |c| c.most)]
    #[len(|c| u64::from(c.most * ROW))]
    out: Ptr<f32>,
    /// How many rows there are.
    n: Val<u32>,
    /// What is added.
    by: Val<f32>,
}

#[kernel]
fn shift(_: &Shift, a: &ShiftArgs) {
    role("shift", 1, |b| {
        for i in b.strided(a.n) {
            a.out.store(i * ROW, a.x.load(i * ROW, ROW) + a.by);
        }
    });
}

/// Writes twice.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "racy", kernel = racy, args = RacyArgs, warps = 1)]
struct Racy {
    /// World size.
    #[key(range = 1..=4, ranks)]
    ranks: u32,
}

impl Legal for Racy {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// Parameters of [`racy`].
#[derive(KernelArgs)]
#[args(config = Racy)]
struct RacyArgs {
    /// What both roles write.
    #[output]
    #[len(|_| 4)]
    out: Ptr<u32>,
}

#[kernel]
fn racy(_: &Racy, a: &RacyArgs) {
    role("one", 1, |_| a.out.store(0, splat(1u32, 4)));
    role("other", 1, |_| a.out.store(0, splat(2u32, 4)));
}

/// A pack of these kernels and a histogram. None without a compiler, but not in CI.
fn pack() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let make = || {
        let target = "cuda:sm_90a".parse().unwrap();
        let variants = [
            Shift { most: 4, ranks: 1 }.into_variant(),
            Shift { most: 4, ranks: 2 }.into_variant(),
            Racy { ranks: 2 }.into_variant(),
            kernels::Histogram::from_text("numbers=1000 bins=256 ranks=2").unwrap().into_variant(),
        ];
        let job = |variant: Variant| Job { label: "test".into(), variant, target };
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pack");
        let _ = std::fs::remove_dir_all(&out);
        match pack::build("test", &variants.map(job), &[], &out, &Options::default(), || ()) {
            Ok(built) => built.tree.write(&out).unwrap(),
            Err(BuildError::Compiler(e)) if std::env::var_os("CI").is_none() => {
                println!("skipped: {e}");
                return None;
            }
            Err(e) => panic!("{e}"),
        };
        Some(out)
    };
    MADE.get_or_init(make).as_deref()
}

fn ran(command: &mut Command) -> String {
    let out = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{command:?}\n{}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

/// The folder of the library that was built beside this test.
fn library() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A program of `tests/c`, linked with the library.
fn program(name: &str) -> PathBuf {
    let (root, library) = (Path::new(env!("CARGO_MANIFEST_DIR")), library());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c99", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
    compiler.arg("-I").arg(root.join("include")).arg(root.join(format!("tests/c/{name}.c")));
    compiler.arg("-L").arg(&library).arg("-lpeerwarp_c").arg(format!("-Wl,-rpath,{}", library.display()));
    ran(&mut compiler);
    program
}

#[test]
fn the_header_is_cpp_too() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/peerwarp.h");
    ran(Command::new("c++")
        .args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"])
        .arg(header));
}

#[test]
fn a_c_program_runs_a_pack_on_simulated_ranks_and_learns_what_is_wrong() {
    let Some(pack) = pack() else { return };
    let said = ran(Command::new(program("simulated")).arg(pack));
    insta::assert_snapshot!(said);
}

/// A folder with a driver of two GPUs, whose memory is the host's.
fn driver() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver");
    std::fs::create_dir_all(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/driver/cuda.c");
    ran(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(folder.join("libcuda.so.1")).arg(source));
    folder
}

#[test]
fn a_c_program_launches_a_kernel_on_its_gpu_and_learns_what_is_wrong() {
    let Some(pack) = pack() else { return };
    let (program, driver) = (program("gpu"), driver());
    let run = |settings: &[(&str, &str)]| {
        let mut command = Command::new(&program);
        for launcher in ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "PEERWARP_SECRET"] {
            command.env_remove(launcher);
        }
        ran(command.arg(pack).env("LD_LIBRARY_PATH", &driver).envs(settings.iter().copied()))
    };
    let mpirun = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("PEERWARP_RENDEZVOUS", "localhost:29500"),
    ];
    let failing = |call, error| run(&[("PEERWARP_STUB_CALL", call), ("PEERWARP_STUB_ERROR", error)]);
    let failed = failing("cuLaunchKernelEx", "719");
    let launches = failed.lines().filter(|line| line.starts_with("peerwarp_launch"));
    insta::assert_snapshot!(
        [
            run(&[]),
            "-- a launch that fails".into(),
            launches.take(1).collect(),
            "-- started by mpirun, without a secret".into(),
            run(&mpirun),
            "-- without a GPU".into(),
            failing("cuInit", "100"),
        ]
        .join("\n")
    );
}

#[test]
fn the_example_links_and_says_what_is_missing() {
    let nvcc = std::env::var("PEERWARP_NVCC").ok().filter(|nvcc| !nvcc.is_empty());
    let Some(nvcc) = nvcc else {
        assert!(std::env::var_os("CI").is_none(), "PEERWARP_NVCC is not set");
        return println!("skipped: PEERWARP_NVCC is not set");
    };
    let home = Path::new(&nvcc).parent().and_then(Path::parent).expect("nvcc stands in a bin folder");
    let build = Path::new(env!("CARGO_TARGET_TMPDIR")).join("with_library");
    let _ = std::fs::remove_dir_all(&build);
    let mut make = Command::new("make");
    make.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/c"));
    make.arg(format!("LIBPEERWARP={}", library().display())).arg(format!("BUILD={}", build.display()));
    make.arg(format!("NVCC={nvcc}")).arg(format!("CUDA_HOME={}", home.display()));
    let program = build.join("with_library");
    ran(make.args(["CXXFLAGS=-O1"]).arg(&program));

    let run = |pack: &[&str]| {
        let out = Command::new(&program).args(pack).output().unwrap();
        (out.status.code(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    };
    assert_eq!(run(&[]), (Some(2), "usage: with_library PACK\n".into()));
    // Without a GPU the world is not formed; with one there is no pack.
    let (code, said) = run(&["/nowhere"]);
    assert_eq!(code, Some(2), "{said}");
    let words = ["error: no GPU can be used\n", "error: /nowhere/pack.json: "];
    assert!(words.iter().any(|words| said.starts_with(words)), "{said}");
}
