//! What the protocol relies on, looked up in machine code: the width of row accesses, the scope of flag accesses, fences
//! before signals and after polls, barriers between a poll and what it lets through. Every complaint names the device
//! primitive that is wrong, and for each there is an edit of the machine code that must bring it up.

mod amd;
mod collectives;
mod nvidia;
mod order;
mod packs;
mod page;
mod products;
mod same;
mod shipped;
mod tensor;

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::process::Command;

use peerwarp::build::toolchain::{Tool, find};
use peerwarp::codegen::family::Family;
use peerwarp::codegen::print::{EmitInfo, Source, emit};
use peerwarp::families::collectives::AllGather;
use peerwarp::families::moe::kernels::{Combine, Dispatch};

/// An instruction of a listing.
#[derive(Clone, Debug, PartialEq)]
struct Instruction {
    text: String,
    /// Where it may go on, as places in the listing.
    next: Vec<usize>,
}

/// The places of the instructions that are `what`.
fn places(code: &[Instruction], what: impl Fn(&str) -> bool) -> Vec<usize> {
    (0..code.len()).filter(|&at| what(&code[at].text)).collect()
}

/// Whether a path leads on from one of the places `from` to an instruction that is `to`, and passes none that is
/// `through`.
fn avoids(
    code: &[Instruction],
    from: &[usize],
    to: impl Fn(&str) -> bool,
    through: impl Fn(&str) -> bool,
) -> bool {
    let mut seen = HashSet::new();
    let mut open: Vec<usize> = from.iter().flat_map(|&at| code[at].next.iter().copied()).collect();
    while let Some(at) = open.pop() {
        if at >= code.len() || !seen.insert(at) || through(&code[at].text) {
            continue;
        }
        if to(&code[at].text) {
            return true;
        }
        open.extend(&code[at].next);
    }
    false
}

/// The path of a tool, or none where the test is to be skipped: never in CI.
fn tool(tool: Tool) -> Option<PathBuf> {
    match find(tool) {
        Ok(found) => Some(found.path),
        Err(e) if std::env::var_os("CI").is_some() => panic!("{e}"),
        Err(e) => {
            println!("skipped: {e}");
            None
        }
    }
}

/// Runs a command for its output, stderr after stdout.
#[track_caller]
fn output(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = [&out.stdout, &out.stderr].map(|s| String::from_utf8_lossy(s).into_owned()).concat();
    assert!(out.status.success(), "{command:?}:\n{said}");
    said
}

/// A folder for the files of one test.
fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("targets").join(name);
    std::fs::create_dir_all(&dir).expect("the target folder is writable");
    dir
}

/// Sources that may be compiled side by side: each in files of its name.
#[track_caller]
fn distinct(sources: Vec<Source>) -> Vec<Source> {
    let names: BTreeSet<&str> = sources.iter().map(|s| &s.file_name[..]).collect();
    assert_eq!(names.len(), sources.len(), "two of them are the same: {names:#?}");
    sources
}

/// DeepSeek-V3's dispatch, combine of gpt-oss-120b, whose rows end in a partial step, and fp8 rows with scales.
fn sources(target: &str) -> Vec<Source> {
    let deepseek = "hidden=7168 experts=256 topk=8 tokens=128 ranks=8";
    let gpt_oss = "hidden=2880 experts=128 topk=4 tokens=128 ranks=8";
    let both = "layout=expert-major phase=both protocol=flags group_warps=4";
    vec![
        source::<Dispatch>(&format!("{deepseek} {both} hook=raw dtype=bf16"), target),
        source::<Dispatch>(&format!("{deepseek} {both} hook=raw dtype=fp8"), target),
        source::<Combine>(&format!("{gpt_oss} {both} dtype=bf16"), target),
    ]
}

/// DeepSeek-V3's dispatch and combine with rows as packets, and a vector of one element, which has one word of a packet.
fn packet_sources(target: &str) -> Vec<Source> {
    let shape = "hidden=7168 experts=256 topk=8 tokens=128 ranks=8";
    let both = format!("{shape} layout=expert-major phase=both dtype=bf16 protocol=packets");
    vec![
        source::<Dispatch>(&format!("{both} hook=raw"), target),
        source::<Combine>(&both, target),
        source::<AllGather>("elements=1 ranks=2 dtype=f32 protocol=packets", target),
    ]
}

fn source<F: Family>(settings: &str, target: &str) -> Source {
    let target = target.parse().expect("tests name targets that exist");
    let config = F::from_text(settings).unwrap_or_else(|e| panic!("{settings}: {e}"));
    let warp_size = peerwarp::codegen::family::Target::warp_size(target);
    let kernel = config.trace(warp_size).unwrap_or_else(|e| panic!("{settings}: {e}"));
    let command = format!("peerwarp show {} --target {target}", config.variant_name());
    emit(&peerwarp::codegen::ir::verify(kernel).unwrap(), target, &EmitInfo { command })
        .unwrap_or_else(|e| panic!("{settings}: {e}"))
}

/// How often a source waits.
fn waits(source: &Source) -> usize {
    source.text.matches("if (!wait_").count()
}

/// Checks a listing, and that every edit of it brings up a complaint about the primitive that it breaks.
#[track_caller]
fn check(name: &str, listing: &str, complaints: impl Fn(&str) -> Vec<String>, plants: &[Plant]) {
    let said = complaints(listing);
    assert!(said.is_empty(), "{name}:\n{}", said.join("\n"));
    for plant in plants {
        let edited: Vec<String> = listing.lines().filter_map(plant.edit).collect();
        let edited = edited.join("\n");
        assert_ne!(edited, listing.trim_end_matches('\n'), "{name}: {} changes nothing", plant.primitive);
        let said = complaints(&edited);
        let named = said.iter().any(|s| s.starts_with(&format!("{}:", plant.primitive)));
        assert!(named, "{name}: {} was broken, but: {said:?}", plant.primitive);
    }
}

/// An edit of each line of a listing, and the primitive that it breaks.
struct Plant {
    primitive: &'static str,
    edit: fn(&str) -> Option<String>,
}

#[test]
fn paths_are_followed_around_branches() {
    let i = |text: &str, next: &[usize]| Instruction { text: text.into(), next: next.to_vec() };
    let code = [i("put", &[1]), i("branch", &[2, 3]), i("barrier", &[3]), i("signal", &[])];
    let is = |what: &'static str| move |t: &str| t == what;
    assert!(avoids(&code, &[0], is("signal"), is("barrier")), "the branch goes around the barrier");
    let straight = [i("put", &[1]), i("barrier", &[2]), i("signal", &[])];
    assert!(!avoids(&straight, &places(&straight, is("put")), is("signal"), is("barrier")));
}
