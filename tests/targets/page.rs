//! docs/explanation/targets.md says of each target what is known of it, from the tests' own records: what packs, and which targets the
//! tests of machine code, of texts on a CPU and of GPUs name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use peerwarp::codegen::device::Device;
use peerwarp::codegen::family::Target;
use peerwarp::codegen::print::Paths;

use super::packs;

const PAGE: &str = "docs/explanation/targets.md";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The files of a folder that end so, with what they say.
fn texts(folder: &str, end: &str) -> Vec<String> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|own| own == end));
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

/// The targets that a test's text names, as `"hip:gfx942"` or `"gfx942"`.
fn named(text: &str) -> BTreeSet<Target> {
    let target = |word: &str| Target::all().find(|t| t.arch() == word || t.to_string() == word);
    text.split('"').filter_map(target).collect()
}

fn all_named<'t>(texts: impl IntoIterator<Item = &'t String>) -> BTreeSet<Target> {
    texts.into_iter().flat_map(|text| named(text)).collect()
}

/// A device that kernels were tuned on, as a table of what was measured there says it, and how many keys it has.
fn tuned() -> Vec<(Target, String, usize)> {
    let table = |text: &String| {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
            line.unwrap_or_else(|| panic!("a table says its {name}")).trim_matches('"').to_owned()
        };
        (value("target").parse().unwrap(), value("device"), text.matches("[[record]]").count())
    };
    texts("generated/tuned", "toml").iter().map(table).collect()
}

/// What is known of a target, a cell for each column but the first.
fn row(target: Target, texts_of: &BTreeMap<&str, BTreeSet<Target>>, families: usize) -> Vec<String> {
    let record = packs::record();
    let packed = &record[&target];
    let names: Vec<&str> = packs::families().into_iter().map(|(name, _)| name).collect();
    let not: Vec<String> =
        names.iter().filter(|name| !packed.iter().any(|p| p == *name)).map(|n| format!("`{n}`")).collect();
    let packs =
        if not.is_empty() { format!("all {families}") } else { format!("all but {}", not.join(", ")) };
    let is = |what: &str| if texts_of[what].contains(&target) { "yes" } else { "no" }.to_owned();
    let catalogue = match () {
        () if texts_of["whole"].contains(&target) => "whole",
        () if texts_of["catalogue"].contains(&target) => "a seventh",
        () => "no",
    };
    let results = texts("bench/results", "md");
    let measured = tuned().into_iter().filter(|(of, ..)| *of == target).map(|(_, device, keys)| {
        let short = device.split(' ').nth(1).expect("a maker and a name").to_owned();
        let pages = results.iter().filter(|page| page.contains(&short)).count();
        format!("{short}: {keys} keys tuned, {pages} pages")
    });
    let measured: Vec<String> = measured.collect();
    let gpus = if measured.is_empty() { "no".to_owned() } else { measured.join("; ") };
    let products = Paths::of(target).products.to_owned();
    vec![products, packs, catalogue.to_owned(), is("read"), is("cpu"), gpus]
}

fn page() -> String {
    let catalogue = read(&root().join("tests/pack_catalogue.rs"));
    let whole = catalogue.lines().find(|line| line.starts_with("const WHOLE")).expect("it has a list");
    let targets = |name: &str| read(&root().join(format!("tests/targets/{name}.rs")));
    let machine_code = ["nvidia", "order", "products", "tensor"].map(targets);
    let executed = [texts("tests/host", "rs"), vec![targets("same")]].concat();
    let texts_of = BTreeMap::from([
        ("whole", named(whole)),
        ("catalogue", named(&catalogue)),
        ("read", all_named(&machine_code)),
        ("cpu", all_named(&executed)),
    ]);
    let families = packs::families().len();
    // Targets of which the same is known share a row.
    let mut rows: Vec<(Vec<Target>, Vec<String>)> = vec![];
    for target in Target::all() {
        let cells = row(target, &texts_of, families);
        match rows.iter_mut().find(|(_, known)| *known == cells) {
            Some((targets, _)) => targets.push(target),
            None => rows.push((vec![target], cells)),
        }
    }
    let mut page = format!(
        "# Targets\n\n\
         What is known of each target. A test writes this page from the tests' own records: `cargo test -p peerwarp --test targets -- \
         --ignored write_page`.\n\n\
         All {families} families are emitted for every target, with the variant that fits its device. `peerwarp list targets` shows \
         compilers and instructions.\n\n\
         | targets | multiply by | families that pack | MoE catalogue | machine code is read | text runs on a CPU | ran on GPUs |\n\
         |---|---|---|---|---|---|---|\n"
    );
    for (targets, cells) in rows {
        let names: Vec<String> = targets.iter().map(|target| format!("`{}`", target.arch())).collect();
        writeln!(page, "| {} | {} |", names.join(", "), cells.join(" | ")).expect("a string takes it");
    }
    page += NOTES;
    page += &meshes();
    page
}

const NOTES: &str = "
- *Families that pack*: each compiles without spills, and all of its blocks are resident (`tests/targets/packed.txt`). \
CI compiles each seventh.
- *MoE catalogue*: what of the built-in catalogue CI compiles (`tests/pack_catalogue.rs`).
- *Machine code is read*: disassembled, and compared with the [memory model](memory-model.md) (`tests/targets`); with \
`tcgen05`, which has never run on hardware, products' instructions, spills and registers alone.
- *Text runs on a CPU*: [emitted source on the CPU](host-execution.md), bit for bit against the simulator \
(`tests/host`); for `sm_80` and `gfx950` fp8 alone, for `gfx1250` products and reductions of matrices. Texts of \
`sm_103a` and `sm_110a` are compared with that of `sm_100a`.
- *Ran on GPUs*: a tuned table holds what was measured there, and \
[results](https://github.com/peerwarp/peerwarp/tree/main/bench/results) name it.

No kernel ran on an AMD GPU. No emulator of CDNA machine code can be had as a package. What is said of AMD's GPUs is reasoned from \
manuals and data sheets; their defaults are those of an H200, cut to fit.
";

/// What is published of boards whose devices have a link to each other one.
fn meshes() -> String {
    let mesh = |target: Target| {
        let Device { name, mesh, dies, .. } = Device::of(target);
        let mesh = mesh?;
        let seen = mesh.seen_gbps.map_or(String::new(), |gbps| format!(", of which {gbps} were seen"));
        Some(format!("{name}: {dies} dies, {} peers, {} GB/s a link{seen}", mesh.peers, mesh.sold_gbps))
    };
    let all: Vec<String> = Target::all().filter_map(mesh).collect();
    format!(
        "\nBoards of eight, as published: {}. `peerwarp topo --machine mi300x-xgmi-8` [reasons](../how-to/topo.md) from it.\n",
        all.join("; ")
    )
}

#[test]
fn page_of_targets_is_written_by_the_tests() {
    let now = page();
    assert_eq!(
        read(&root().join(PAGE)),
        now,
        "write it anew: cargo test -p peerwarp --test targets -- --ignored write_page"
    );
}

#[test]
#[ignore = "writes the page"]
fn write_page() {
    fs::write(root().join(PAGE), page()).unwrap();
}
