//! Which module may use which, which words it may say, and how often kernels branch on their configuration: read from the sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a module of `src` may use, beside itself and what is at the bottom: `input` and `models`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("build", &[]),
    ("runtime", &["build"]),
    ("harness", &["build", "runtime"]),
    ("families", &["build", "runtime", "harness"]),
    ("cli", &["build", "runtime", "harness", "families"]),
    ("models", &[]),
    ("input", &[]),
];

/// What tests of a module may use besides: the smallest kernels there are, as they have to run some.
const TESTS_MAY_USE: &[(&str, &[&str])] = &[("runtime", &["harness"]), ("harness", &["families"])];

/// Words of one family, which no other folder says.
const WORDS: [&str; 5] = ["expert", "experts", "dispatch", "combine", "moe"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|end| end == "rs") => found.push(path),
            false => {}
        }
    }
}

/// Path from the root of the crate, and text, of all sources.
fn all() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![];
    sources(&root.join("src"), &mut found);
    let text = |path: &PathBuf| {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
        (name, std::fs::read_to_string(path).unwrap())
    };
    found.iter().map(text).collect()
}

fn module(file: &str) -> &str {
    let rest = file.strip_prefix("src/").unwrap();
    rest.split(['/', '.']).next().unwrap()
}

/// How many lines of a file come before its tests: none if it is tests alone.
fn before_tests(file: &str, text: &str) -> usize {
    let is_tests = file.ends_with("_tests.rs") || file.ends_with("/tests.rs") || file.contains("/tests/");
    let start = if is_tests { Some(0) } else { text.find("\n#[cfg(test)]\nmod tests") };
    text[..start.unwrap_or(text.len())].lines().count()
}

/// The modules at the root of the crate that a line names: `crate::runtime::..`, `crate::{build, runtime}`.
fn named(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap();
    let mut found = vec![];
    for start in ["crate::", "peerwarp::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
                continue;
            }
            let rest = &code[at + start.len()..];
            match rest.strip_prefix('{') {
                None => found.extend(rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()),
                Some(list) => {
                    let parts = list.split([',', '}']).map(str::trim);
                    found.extend(parts.filter_map(|part| part.split("::").next()));
                }
            }
        }
    }
    found
}

/// What a file uses that stands above it.
fn upward(file: &str, text: &str) -> Vec<String> {
    let own = module(file);
    let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == own) else { return vec![] };
    let in_tests = TESTS_MAY_USE.iter().find(|(name, _)| *name == own).map_or(&[][..], |(_, more)| more);
    let tests = before_tests(file, text);
    let above = |name: &&str, number: usize| {
        let known = MAY_USE.iter().any(|(module, _)| module == name);
        let may = allowed.contains(name) || number >= tests && in_tests.contains(name);
        known && *name != own && !may && !["input", "models"].contains(name)
    };
    let of_line = |(number, line): (usize, &str)| {
        let names = named(line).into_iter().filter(|name| above(name, number));
        names.map(|name| format!("{file}:{}: {own} uses {name}", number + 1)).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(of_line).collect()
}

#[test]
fn nothing_points_up() {
    let files = all();
    let found = files.iter().flat_map(|(file, text)| upward(file, text));
    assert_eq!(found.collect::<Vec<_>>(), [""; 0]);
}

/// The words of one family in a text, by line, in any case.
fn said(text: &str) -> Vec<(usize, String)> {
    let of_line = |(number, line): (usize, &str)| {
        let lower = line.to_lowercase();
        let words = lower.split(|c: char| !c.is_alphanumeric()).map(str::to_owned);
        words.filter(|w| WORDS.contains(&w.as_str())).map(|w| (number + 1, w)).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(of_line).collect()
}

#[test]
fn only_a_family_says_what_it_alone_knows() {
    let mut found = vec![];
    for (file, text) in all() {
        let generic = ["build", "runtime", "harness", "cli"].contains(&module(&file));
        // Families that come with the program are registered somewhere.
        if !generic || file == "src/cli/mod.rs" {
            continue;
        }
        found.extend(said(&text).into_iter().map(|(line, word)| format!("{file}:{line}: {word}")));
    }
    assert_eq!(found, [""; 0]);
}

/// Lines of code before the tests of a file that start threads by other means than `codegen/src/threads.rs`.
fn started(file: &str, text: &str) -> Vec<String> {
    const STARTS: [&str; 6] = [
        "thread::spawn",
        "Builder::new().spawn",
        "scope.spawn(",
        "ThreadPoolBuilder",
        "build_global",
        "enable_steady_tick",
    ];
    let lines = text.lines().take(before_tests(file, text)).enumerate();
    let code = lines.map(|(number, line)| (number + 1, line.split("//").next().unwrap()));
    let found = code.filter(|(_, code)| STARTS.iter().any(|start| code.contains(start)));
    found.map(|(number, code)| format!("{file}:{number}: {}", code.trim())).collect()
}

/// The library's sources, codegen's among them.
fn library() -> BTreeMap<String, String> {
    let mut files = all();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![];
    sources(&root.join("codegen/src"), &mut found);
    for path in found {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        files.insert(name, std::fs::read_to_string(path).unwrap());
    }
    files
}

#[test]
fn threads_that_the_system_may_refuse_are_started_by_one_module() {
    let files = library();
    let others = files.iter().filter(|(file, _)| *file != "codegen/src/threads.rs");
    let found: Vec<String> = others.flat_map(|(file, text)| started(file, text)).collect();
    assert_eq!(found, [""; 0]);
    let text = "std::thread::spawn(work);\n// thread::spawn\n";
    assert_eq!(started("src/x.rs", text), ["src/x.rs:1: std::thread::spawn(work);"]);
}

#[test]
fn parallel_iterators_run_where_the_pool_was_started() {
    // The data of rounds are computed for a problem whose construction has started it.
    const STARTED_BY: [(&str, &str); 1] =
        [("src/families/moe/run/data.rs", "src/families/moe/run/rounds.rs")];
    let files = library();
    let starts = |file: &str| files[file].contains("threads::pool()");
    for (file, text) in &files {
        let parallel =
            text.lines().take(before_tests(file, text)).any(|line| line.contains("rayon::prelude"));
        let by = STARTED_BY.iter().find(|(of, _)| of == file).map_or(file.as_str(), |(_, by)| by);
        assert!(
            !parallel || starts(by),
            "{file}: without `threads::pool()` rayon panics where threads are refused"
        );
    }
}

/// Lines of code that call a driver past the tables of its calls: cudarc's functions panic where the driver lacks one.
fn untabled(file: &str, text: &str) -> Vec<String> {
    let calls = |line: &str| {
        let starts = |(at, found): (usize, &str)| {
            line[at + found.len()..].starts_with(|c: char| c.is_ascii_uppercase())
        };
        ["sys::cu", "sys::nvrtc"].iter().any(|name| line.match_indices(name).any(starts))
            || ["driver::result", "nvrtc::result", "is_culib_present"].iter().any(|name| line.contains(name))
    };
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.split("//").next().unwrap()));
    lines
        .filter(|(_, line)| calls(line))
        .map(|(number, line)| format!("{file}:{number}: {}", line.trim()))
        .collect()
}

#[test]
fn drivers_are_called_through_tables_of_their_calls() {
    let found: Vec<String> = all().iter().flat_map(|(file, text)| untabled(file, text)).collect();
    assert_eq!(found, [""; 0]);
    let text = "sys::cuInit(0);\nuse cudarc::driver::sys::CUdevice;\n// sys::cuInit\nsys::nvrtcVersion();\n";
    assert_eq!(untabled("a", text), ["a:1: sys::cuInit(0);", "a:4: sys::nvrtcVersion();"]);
}

/// The files of the code generator with an arm for a transport of messages.
fn with_arms_for_transports() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("codegen/src");
    let mut found = vec![];
    sources(&root, &mut found);
    let has_arm = |text: &str| {
        let arms = text.lines().filter(|line| line.contains("=>") || line.trim_start().starts_with('|'));
        arms.into_iter().any(|line| line.contains("Transport::Packets") || line.contains("Transport::Ll"))
    };
    found.retain(|path| has_arm(&std::fs::read_to_string(path).unwrap()));
    let name = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
    // Channels choose among other ways as well.
    found.iter().map(name).filter(|file| !file.starts_with("dsl/channel/")).collect()
}

#[test]
fn the_ir_the_simulator_and_the_printers_match_on_transports_in_one_file_each() {
    let files = ["ir/transport.rs", "print/transport/mod.rs", "sim/transport/mod.rs"];
    assert_eq!(with_arms_for_transports(), files);
}

/// The branches on the configuration in the bodies of MoE's kernels, callees included: a file and a condition each.
///
/// A body is a function whose signature has parameters of a kernel or a value of the device, in a file of `kernels/` that is not about configurations alone. A branch
/// is an `if`, a `match` or a `.then`. It is on the configuration if its condition reads a field or a choice of it, or a number made of
/// these, and is not a comparison that the device makes. Parameters that are there or not are none: `if let Some(..)`.
fn branches_of_moe() -> Vec<String> {
    const CONFIGURATIONS: [&str; 3] = ["config.rs", "limits.rs", "layout.rs"];
    const DEVICE: [&str; 7] = ["Args", "Val<", "Tile<", "AnyTile", "Group", "Launch<", "Epoch"];
    const CHOSEN: [&str; 12] =
        ["c", "map", "room", "self", "coming", "out", "phase", "then", "count", "records", "rest", "whole"];
    const COMPARED: [&str; 5] = [" < ", ".any()", ".get(", "expert)", "Some("];
    let kernels = all().into_iter().filter(|(file, _)| file.starts_with("src/families/moe/kernels/"));
    let mut found = vec![];
    for (file, text) in kernels.filter(|(file, _)| !CONFIGURATIONS.iter().any(|end| file.ends_with(end))) {
        let mut signature = String::new();
        for line in text.lines().take(before_tests(&file, &text)).map(str::trim) {
            if line.starts_with("//") || line.starts_with('#') {
                continue;
            }
            if line.starts_with("fn ") || (line.starts_with("pub") && line.contains(" fn ")) {
                signature.clear();
            }
            if !signature.ends_with('{') {
                signature += line;
            } else if DEVICE.iter().any(|of| signature.contains(of)) {
                let opened =
                    ["if ", "match "].iter().find_map(|word| line.split_once(word)).map(|(_, rest)| rest);
                let condition = opened.or_else(|| line.split_once(".then").map(|(before, _)| before));
                let condition = condition.unwrap_or_default().split(" {").next().unwrap_or_default();
                let mut words = condition.split(|c: char| !c.is_alphanumeric() && c != '_');
                let chosen = words.any(|word| CHOSEN.contains(&word));
                if chosen && !COMPARED.iter().any(|of| condition.contains(of)) {
                    found.push(format!("{file}: {condition}"));
                }
            }
        }
    }
    found
}

/// The number only falls: what a configuration decides belongs into a rule of the plan, or into a value that is chosen once.
#[test]
fn kernels_of_moe_seldom_branch_on_their_configuration() {
    let found = branches_of_moe();
    assert!(found.len() <= 25, "{} branches on the configuration:\n{}", found.len(), found.join("\n"));
}

#[test]
fn both_are_seen_where_they_are() {
    let text = "use crate::harness::suite;\nuse crate::{input, cli};\n// crate::cli is fine in a comment\n";
    assert_eq!(
        upward("src/runtime/x.rs", text),
        ["src/runtime/x.rs:1: runtime uses harness", "src/runtime/x.rs:2: runtime uses cli",]
    );
    assert_eq!(upward("src/cli/x.rs", text), [""; 0]);
    assert_eq!(
        upward("src/harness/x.rs", "let x = crate::families::moe::MoeShape::of();"),
        ["src/harness/x.rs:1: harness uses families"]
    );
    let tests = "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::{cli, harness};\n}\n";
    assert_eq!(upward("src/runtime/x.rs", tests), ["src/runtime/x.rs:4: runtime uses cli"]);
    assert_eq!(upward("src/runtime/x_tests.rs", "use crate::harness::trace;"), [""; 0]);
    assert_eq!(
        upward("src/runtime/x/tests/y.rs", "use crate::families::moe;"),
        ["src/runtime/x/tests/y.rs:1: runtime uses families"]
    );
    let words = "/// Runs the experts.\nfn dispatcher() {}\nfn moe_only() { DISPATCH }";
    assert_eq!(said(words), [(1, "experts".into()), (3, "moe".into()), (3, "dispatch".into())]);
}
