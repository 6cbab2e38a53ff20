//! The built-in catalogue compiles for every architecture that it is for, without spills and with all blocks resident.
//!
//! All of it for one architecture of each kind. For each of the others a seventh, always another one: compilers take a good part
//! of a second for a kernel.

use std::collections::BTreeSet;

use peerwarp::build::emit::Job;
use peerwarp::build::pack::{self, BuildError, Options, Pack};
use peerwarp::cli;
use peerwarp::codegen::family::{Family, Registry, Target};
use peerwarp::families::moe::catalogue;
use peerwarp::families::moe::kernels::Combine;
use peerwarp::harness::request;

const WHOLE: [&str; 2] = ["cuda:sm_90a", "hip:gfx942"];
/// A tuning field and its value.
type Setting = (&'static str, &'static str);

/// An A100 and an MI210 have fewer SMs than the grids that are the defaults have blocks.
const FEWER_BLOCKS: [Setting; 3] = [
    ("moe_dispatch.send_blocks", "32"),
    ("moe_dispatch.recv_blocks", "32"),
    ("moe_combine.recv_blocks", "32"),
];
/// The other architectures, in what their tuning differs from the defaults, with which some of the kernels for thousands of tokens
/// spill there (docs/how-to/packs.md), and whether they have fewer SMs.
const OTHERS: [(&str, &[Setting], bool); 4] = [
    ("cuda:sm_100a", &[("moe_dispatch.warps", "16")], false),
    ("hip:gfx950", &[], false),
    ("cuda:sm_80", &[("moe_combine.warps", "16")], true),
    ("hip:gfx90a", &[], true),
];

/// The variants of the catalogue for a target, with some tuning.
fn jobs(target: &str, tuning: &[Setting]) -> Vec<Job> {
    let registry = Registry::new(cli::builtin().iter().map(|e| e.family()));
    let target: Target = target.parse().unwrap();
    let mut problems = catalogue::builtin().problems;
    for request in problems.iter_mut().flatten() {
        request.tuning.extend(tuning.iter().map(|(f, v)| ((*f).to_owned(), (*v).to_owned())));
    }
    let variants = problems.iter().flat_map(|requests| {
        let resolved = request::resolve(requests, &registry).unwrap_or_else(|e| panic!("{e}"));
        let job = |variant| Job { label: requests[0].label.clone(), variant, target };
        resolved.into_iter().map(job).collect::<Vec<_>>()
    });
    variants.collect()
}

/// Packs jobs, and looks at what comes out. Without compilers the test is skipped, but not in CI.
fn packs(jobs: &[Job]) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("pack");
    let built = match pack::build("peerwarp", jobs, &[], &out, &Options::default(), || ()) {
        Ok(built) => built,
        Err(BuildError::Compiler(e)) if std::env::var_os("CI").is_none() => return println!("skipped: {e}"),
        Err(e) => panic!("{e}"),
    };
    let wanted: BTreeSet<(Target, String)> =
        jobs.iter().map(|j| (j.target, j.variant.variant_name())).collect();
    assert_eq!(built.compiled, wanted.len());
    built.tree.write(&out).unwrap();

    let opened = Pack::open(&out).unwrap();
    let found: BTreeSet<_> = opened.kernels().map(|k| (k.entry.target, k.entry.variant.clone())).collect();
    assert_eq!(found, wanted);
    for kernel in opened.kernels() {
        let (entry, object) = (kernel.entry, kernel.object);
        let name = format!("{} for {}", entry.variant, entry.target);
        // An ELF file, of the machine CUDA (190) or AMDGPU (224), that has the entry.
        let machine = u16::from_le_bytes([object[18], object[19]]);
        let expected = if entry.target.backend() == "cuda" { 190 } else { 224 };
        assert_eq!((&object[..4], machine), (&b"\x7fELF"[..], expected), "{name}");
        let has_entry = object.windows(entry.entry.len()).any(|w| w == entry.entry.as_bytes());
        assert!(has_entry, "{name}");
        let used = &entry.resources;
        assert!(used.registers >= 16 && used.code_bytes >= 4096, "{name}: {used:?}");
        assert_eq!(used.instructions > 0, machine == 190, "{name}: {used:?}");
        assert!(entry.residency.blocks() >= entry.launch.grid, "{name}");
    }
}

#[test]
fn all_of_it_for_one_architecture_of_each_kind() {
    packs(&WHOLE.map(|target| jobs(target, &[])).into_iter().flatten().collect::<Vec<_>>());
}

#[test]
fn a_seventh_of_it_for_each_of_the_others() {
    let of = |(target, tuning, is_small): (_, &[Setting], bool)| {
        jobs(target, &[tuning, if is_small { &FEWER_BLOCKS } else { &[] }].concat())
    };
    let seventh = |(at, other)| of(other).into_iter().skip(at).step_by(7);
    let jobs: Vec<Job> = OTHERS.into_iter().enumerate().flat_map(seventh).collect();
    let labels: BTreeSet<&str> = jobs.iter().map(|j| j.label.as_str()).collect();
    let all: BTreeSet<String> =
        catalogue::builtin().problems.into_iter().flatten().map(|r| r.label).collect();
    assert_eq!(labels.len(), all.len(), "every model is among them");
    packs(&jobs);
}

/// Rows by expert on two ranks, where a lane has as many of them in flight as its registers hold: few and many packets, with flags, and
/// those in whole pieces and not.
#[test]
fn many_rows_by_expert_on_two_ranks() {
    let shapes = [
        "hidden=7168 topk=8 tokens=64",
        "hidden=7168 topk=8 tokens=1024",
        "hidden=7168 topk=6 tokens=1024",
        "hidden=7168 topk=6 tokens=2048",
        "hidden=7168 topk=8 tokens=4096",
        "hidden=2880 topk=4 tokens=4096",
    ];
    let targets = ["cuda:sm_90a", "cuda:sm_100a", "hip:gfx942", "hip:gfx950"];
    let job = |shape, target: &str| {
        let settings = format!("{shape} experts=256 ranks=2 dtype=bf16 layout=expert-major phase=both");
        let config = Combine::from_text(&settings).unwrap_or_else(|e| panic!("{settings}: {e}"));
        assert_eq!(config.vectors, 4, "{settings}");
        Job { label: String::new(), variant: config.into_variant(), target: target.parse().unwrap() }
    };
    packs(&shapes.iter().flat_map(|shape| targets.map(|target| job(shape, target))).collect::<Vec<_>>());
}
