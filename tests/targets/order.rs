//! Machine code of AMD's GPUs, release by release and acquire by acquire: what docs/explanation/memory-model.md promises of each stands
//! there, in order.
//!
//! Line tables say which call of which device primitive an instruction comes from. They change no instruction.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use peerwarp::build::toolchain::{Tool, find_for};
use peerwarp::codegen::ir::verify;
use peerwarp::codegen::print::{EmitInfo, Source, emit};
use rayon::prelude::*;

use super::amd::{folder_with_prelude, read, target};
use super::shipped::{KERNELS, emitted};
use super::{distinct, output, tool};

#[path = "../../codegen/tests/printed/signals.rs"]
mod fixtures;

/// How far an access, a write-back or an invalidation reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scope {
    Agent,
    System,
}

impl Scope {
    fn bits(self) -> &'static str {
        match self {
            Scope::Agent => " sc1",
            Scope::System => " sc0 sc1",
        }
    }

    /// Of what a primitive stores with a release, or adds: its function, and whether it adds.
    fn of_release(function: &str, adds: bool) -> Option<Scope> {
        match (function, adds) {
            ("store_release_system", false) | ("add_release_system", true) => Some(Scope::System),
            ("store_release_device", false) | ("comes_last", true) => Some(Scope::Agent),
            _ => None,
        }
    }

    /// Of what a primitive loads to acquire by.
    fn of_load(function: &str) -> Option<Scope> {
        match function {
            "load_relaxed_system" => Some(Scope::System),
            "load_relaxed_device" | "comes_last" => Some(Scope::Agent),
            _ => None,
        }
    }

    /// Whether an access has it. Additions at agent scope have no bit, those at system scope have `sc1`; `sc0` says that they return
    /// what was there.
    fn is_of(self, text: &str) -> bool {
        match (self, adds(text)) {
            (Scope::Agent, true) => !text.contains(" sc1"),
            (Scope::System, true) => text.contains(" sc1"),
            (Scope::Agent, false) => text.contains(" sc1") && !text.contains(" sc0"),
            (Scope::System, false) => text.contains(" sc0 sc1"),
        }
    }
}

/// Primitives whose accesses of a scope order nothing (section A of the memory model).
const RELAXED: [&str; 11] = [
    "begin_epoch",
    "comes_last",
    "end_world",
    "fetch_and",
    "fetch_max",
    "fetch_min",
    "fetch_or",
    "fetch_sum",
    "next_command",
    "send_ll",
    "store_packet",
];
/// The same of stores: a count that was taken is zero again.
const RELAXED_STORES: [&str; 1] = ["take_count"];

/// A function that an instruction comes from, and a line in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Frame {
    /// Its name, without what it is in and what it takes.
    function: String,
    /// The group that it is for, if its type says so.
    group: Option<String>,
    line: usize,
}

/// A call of a primitive: its name, and where that stands.
type Call<'c> = (&'c str, &'c [Frame]);

#[derive(Clone, Debug)]
struct Instruction {
    text: String,
    /// The innermost function first.
    frames: Vec<Frame>,
}

impl Instruction {
    fn is_from(&self, call: Call) -> bool {
        let here = |at: usize| self.frames[at].function == call.0 && self.frames[at + 1..] == *call.1;
        (0..self.frames.len()).any(here)
    }

    fn function(&self, depth: usize) -> &str {
        self.frames.get(depth).map_or("", |frame| &frame.function)
    }
}

/// A kernel's machine code.
#[derive(Clone)]
struct Code {
    all: Vec<Instruction>,
    next: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
    /// The lines of its source.
    lines: Vec<String>,
}

fn is_memory(text: &str) -> bool {
    ["global_", "flat_", "scratch_"].iter().any(|kind| text.starts_with(kind))
}
fn adds(text: &str) -> bool {
    text.contains("_atomic_")
}
fn stores(text: &str) -> bool {
    is_memory(text) && (text.contains("_store_") || adds(text))
}
fn loads(text: &str) -> bool {
    is_memory(text) && text.contains("_load_")
}
/// A wait for all of a wave's accesses to memory. On these GPUs stores count as loads do.
fn waits(text: &str) -> bool {
    text.starts_with("s_waitcnt") && text.contains("vmcnt(0)")
}
fn writes_back(text: &str) -> bool {
    text.starts_with("buffer_wbl2")
}
fn invalidates(text: &str) -> bool {
    text.starts_with("buffer_inv")
}
/// A call of what stands out of line: it ends the world.
fn calls(text: &str) -> bool {
    text.starts_with("s_swappc")
}

impl Code {
    fn new(listing: &str, symbols: &str, source: &str) -> Code {
        let texts = read(listing);
        let frames = symbols.split("\n\n").map(frames);
        let all: Vec<Instruction> = texts
            .iter()
            .zip(frames)
            .map(|((_, text), frames)| Instruction { text: text.clone(), frames })
            .collect();
        assert_eq!(all.len(), texts.len(), "each instruction has its functions");
        let places: HashMap<i64, usize> = texts.iter().enumerate().map(|(at, text)| (text.0, at)).collect();
        let follow = |(at, (address, text)): (usize, &(i64, String))| {
            let ends = ["s_branch", "s_endpgm", "s_setpc"].iter().any(|op| text.starts_with(op));
            let on = (!ends && at + 1 < texts.len()).then_some(at + 1);
            on.into_iter().chain(target(*address, text).and_then(|to| places.get(&to)).copied()).collect()
        };
        let next: Vec<Vec<usize>> = texts.iter().enumerate().map(follow).collect();
        let mut before = vec![vec![]; next.len()];
        for (at, ways) in next.iter().enumerate() {
            ways.iter().for_each(|&to: &usize| before[to].push(at));
        }
        Code { all, next, before, lines: source.lines().map(str::to_owned).collect() }
    }

    /// Whether a group's warps meet here: all of a block, or some of its warps, each of which looks at how many have arrived.
    fn meets(&self, at: usize) -> bool {
        let one = &self.all[at];
        one.text.starts_with("s_barrier") || one.text.starts_with("ds_read") && one.function(0) == "arrivals"
    }

    fn line(&self, frame: &Frame) -> &str {
        frame.line.checked_sub(1).and_then(|at| self.lines.get(at)).map_or("", String::as_str)
    }

    /// Where flags are stored, or counts added to, by a primitive that releases.
    fn releases(&self) -> Vec<(usize, Scope)> {
        let release = |at: usize| {
            let one = &self.all[at];
            let scope = Scope::of_release(one.function(0), adds(&one.text));
            Some((at, scope.filter(|_| stores(&one.text))?))
        };
        (0..self.all.len()).filter_map(release).collect()
    }

    /// Where flags are polled, or tickets drawn, with the calls that acquire by them.
    fn polls(&self) -> Vec<(usize, Scope, Call<'_>)> {
        let poll = |at: usize| {
            let one = &self.all[at];
            let scope = Scope::of_load(one.function(0)).filter(|_| loads(&one.text) || adds(&one.text))?;
            // Whether the world has ended is looked at in the same way, and orders nothing.
            let caller = if adds(&one.text) { 0 } else { 1 };
            let frame = one.frames.get(caller)?;
            let acquires = adds(&one.text) || self.line(frame).contains("seen");
            acquires.then_some((at, scope, (&*frame.function, &one.frames[caller + 1..])))
        };
        (0..self.all.len()).filter_map(poll).collect()
    }

    /// What is wrong, each time behind the name of what is missing.
    fn complaints(&self) -> BTreeSet<String> {
        let mut said = BTreeSet::new();
        for (at, scope) in self.releases() {
            if !scope.is_of(&self.all[at].text) {
                said.insert(format!("flag: `{}` does not reach {scope:?} scope", self.all[at].text));
            }
            said.extend(self.release(at, scope));
        }
        for (at, scope, call) in self.polls() {
            if !scope.is_of(&self.all[at].text) {
                said.insert(format!("load: `{}` does not reach {scope:?} scope", self.all[at].text));
            }
            said.extend(self.acquire(at, scope, call));
        }
        let all = self.all.iter().filter(|one| stores(&one.text));
        for one in all.filter(|one| one.text.contains(" sc1") || adds(&one.text)) {
            let (function, adds) = (one.function(0), adds(&one.text));
            let relaxed = RELAXED.contains(&function) || !adds && RELAXED_STORES.contains(&function);
            if Scope::of_release(function, adds).is_none() && !relaxed {
                said.insert(format!("primitive: none is known to have `{}` in `{function}`", one.text));
            }
        }
        said.extend(self.absent());
        said
    }

    /// Goes back from a release, on all ways: the write-back is over; nothing was stored meanwhile; it reaches as far as the flag; the
    /// group has met before; each wave's stores were over then.
    fn release(&self, at: usize, scope: Scope) -> BTreeSet<String> {
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        enum Seeks {
            Wait,
            WriteBack,
            Meeting,
            Settled,
        }
        let depth = self.all[at].frames.iter().position(|frame| frame.group.is_some());
        let call = depth.map(|depth| (self.all[at].function(depth), &self.all[at].frames[depth + 1..]));
        let group = depth.and_then(|depth| self.all[at].frames[depth].group.as_deref());
        let written = match group {
            None => None,
            Some("Warp") => Some(Seeks::Settled),
            Some(_) => Some(Seeks::Meeting),
        };
        // What the group's primitive stores itself it stores behind the meeting.
        let own = |at: usize| call.is_some_and(|call| self.all[at].is_from(call));
        let (mut said, mut seen) = (BTreeSet::new(), HashSet::new());
        let mut open: Vec<(usize, Seeks)> = self.before[at].iter().map(|&to| (to, Seeks::Wait)).collect();
        while let Some((at, seeks)) = open.pop() {
            if !seen.insert((at, seeks)) {
                continue;
            }
            let text = &self.all[at].text[..];
            let mut say = |what: &str| _ = said.insert(format!("{what}, at `{text}`"));
            let then = match seeks {
                Seeks::Wait if waits(text) => Some(Seeks::WriteBack),
                Seeks::Wait if writes_back(text) => {
                    say("wait: the flag goes out before the write-back is over");
                    None
                }
                Seeks::Wait if stores(text) || calls(text) => {
                    say("flag: something is stored between the wait and it");
                    None
                }
                Seeks::WriteBack if writes_back(text) => {
                    if text != format!("buffer_wbl2{}", scope.bits()) {
                        say("reach: the write-back does not reach as far as the flag");
                    }
                    written
                }
                Seeks::WriteBack if stores(text) || calls(text) => {
                    say("write-back: there is none behind the last store");
                    None
                }
                Seeks::Meeting if self.meets(at) => Some(Seeks::Settled),
                Seeks::Meeting if stores(text) && !own(at) => {
                    say("meeting: the group does not meet behind its stores");
                    None
                }
                Seeks::Settled if waits(text) => None,
                Seeks::Settled if stores(text) && !own(at) => {
                    say("stores: a wave's are not over when it meets the others");
                    None
                }
                Seeks::Meeting | Seeks::Settled if calls(text) => None,
                Seeks::Wait | Seeks::WriteBack if self.before[at].is_empty() => {
                    say("write-back: there is none");
                    None
                }
                _ => Some(seeks),
            };
            open.extend(then.iter().flat_map(|then| self.before[at].iter().map(|&to| (to, *then))));
        }
        said
    }

    /// Goes on from a load by which a call acquires: it is over before the cache is invalidated, as far as it reaches itself, and no data
    /// is loaded meanwhile.
    fn acquire(&self, poll: usize, scope: Scope, call: Call) -> BTreeSet<String> {
        let polls = |at: usize| self.polled(at, call);
        let own = |at: usize| invalidates(&self.all[at].text) && self.all[at].is_from(call);
        let (mut said, mut seen, mut found) = (BTreeSet::new(), HashSet::new(), BTreeSet::new());
        let mut open: Vec<(usize, bool)> = self.next[poll].iter().map(|&to| (to, false)).collect();
        while let Some((at, over)) = open.pop() {
            let text = &self.all[at].text[..];
            if !seen.insert((at, over)) || polls(at) || self.meets(at) {
                continue;
            }
            if own(at) {
                found.insert(at);
                if text != format!("buffer_inv{}", scope.bits()) {
                    said.insert(format!("reach: `{text}` does not reach as far as the load before it"));
                }
                if !over {
                    said.insert(format!("load: it is not over at `{text}`"));
                }
                continue;
            }
            open.extend(self.next[at].iter().map(|&to| (to, over || waits(text))));
        }
        if found.is_empty() {
            said.insert(format!(
                "invalidation: there is none behind `{}` of {}",
                self.all[poll].text, call.0
            ));
        }
        // What lies on a way between the two.
        let (mut back, mut open) = (HashSet::new(), found.into_iter().collect::<Vec<_>>());
        while let Some(at) = open.pop() {
            let earlier = self.before[at].iter().filter(|&&at| !polls(at) && !self.meets(at));
            open.extend(earlier.filter(|&&at| back.insert(at)));
        }
        for &at in back.iter().filter(|&&at| seen.contains(&(at, true)) || seen.contains(&(at, false))) {
            let one = &self.all[at];
            if loads(&one.text) && !one.is_from(call) {
                said.insert(format!("data: `{}` may come before the invalidation", one.text));
            }
        }
        said
    }

    /// Whether an instruction is one of the loads by which a call acquires.
    fn polled(&self, at: usize, call: Call) -> bool {
        let one = &self.all[at];
        loads(&one.text)
            && Scope::of_load(one.function(0)).is_some()
            && one.is_from(call)
            && one.frames.get(1).is_some_and(|frame| self.line(frame).contains("seen"))
    }

    /// Calls of the source that have no release, or no acquire, in machine code.
    fn absent(&self) -> Vec<String> {
        let lines = |at: &usize| self.all[*at].frames.iter().map(|frame| frame.line);
        let released: HashSet<usize> = self.releases().iter().flat_map(|(at, _)| lines(at)).collect();
        let acquired: HashSet<usize> = self.polls().iter().flat_map(|(at, ..)| lines(at)).collect();
        let of = |name: &str, line: &str| {
            ["block", "group"].iter().any(|g| line.contains(&format!("{name}({g},")))
        };
        let called = |line: &str, names: &[&str]| names.iter().any(|name| of(name, line));
        let mut said = vec![];
        for (at, line) in self.lines.iter().enumerate() {
            if called(line, &RELEASING) && !released.contains(&(at + 1)) {
                said.push(format!("absent: line {} has no release: {}", at + 1, line.trim()));
            }
            if called(line, &ACQUIRING) && !acquired.contains(&(at + 1)) {
                said.push(format!("absent: line {} has no acquire: {}", at + 1, line.trim()));
            }
        }
        said
    }
}

/// What kernels release by.
const RELEASING: [&str; 8] = [
    "signal_rank",
    "signal_ranks",
    "signal_blocks",
    "count_rank",
    "count_ranks",
    "comes_last",
    "count_far",
    "put_far",
];
/// What they acquire by.
const ACQUIRING: [&str; 8] = [
    "wait_flag",
    "wait_flags",
    "wait_some_flags",
    "wait_later_flags",
    "wait_for_blocks",
    "take_count",
    "take_far",
    "settle_far",
];

/// The functions of an instruction as a symbolizer lists them: a line for each, and one for where it stands.
fn frames(block: &str) -> Vec<Frame> {
    let lines: Vec<&str> = block.lines().filter(|line| !line.is_empty()).collect();
    let frame = |two: &[&str]| {
        let (full, place) = (two[0], two.get(1).copied().unwrap_or_default());
        let name = full.split(['<', '(']).next().unwrap_or_default();
        let group = full.split_once('<').map(|(_, types)| types.rsplit("::").next().unwrap_or_default());
        let group = group.map(|g| g.split(['<', '>', ',']).next().unwrap_or_default());
        let group = group.filter(|g| ["Block", "Beside", "Warps", "Warp"].contains(g)).map(str::to_owned);
        let line = place.rsplit(':').nth(1).and_then(|line| line.parse().ok()).unwrap_or(0);
        Frame { function: name.rsplit("::").next().unwrap_or_default().to_owned(), group, line }
    };
    lines.chunks(2).map(frame).collect()
}

/// A compiler, a disassembler and a symbolizer.
struct Tools {
    arch: &'static str,
    compiler: PathBuf,
    objdump: PathBuf,
}

impl Tools {
    /// Of clang for gfx942, of zig for gfx950. None where the test is to be skipped: never in CI.
    fn of(arch: &'static str) -> Option<Tools> {
        let found = find_for(Tool::Objdump, format!("hip:{arch}").parse().unwrap());
        let objdump = match found {
            Ok(found) => found.path,
            Err(e) if std::env::var_os("CI").is_some() => panic!("{e}"),
            Err(e) => {
                println!("skipped: {e}");
                return None;
            }
        };
        let compiler = tool(if arch == "gfx942" { Tool::Clang } else { Tool::Zig })?;
        Some(Tools { arch, compiler, objdump })
    }

    fn compile(&self, dir: &Path, source: &Source, line_tables: bool) -> PathBuf {
        let arch = self.arch;
        let path = dir.join(format!("{arch}_{line_tables}_{}", source.file_name));
        std::fs::write(&path, &source.text).expect("the target folder is writable");
        let object = path.with_extension("o");
        let mut command = Command::new(&self.compiler);
        if arch != "gfx942" {
            command.arg("clang");
        }
        command.args(["-x", "hip", &format!("--offload-arch={arch}"), "--cuda-device-only", "-nogpuinc"]);
        command
            .args(["-nogpulib", "--no-gpu-bundle-output", "-std=c++17", "-O3", "-fdeclspec", "-I"])
            .arg(dir);
        command.args(line_tables.then_some("-gline-tables-only"));
        output(command.arg("-o").arg(&object).arg(&path));
        object
    }

    fn listing(&self, object: &Path) -> String {
        let mcpu = format!("--mcpu={}", self.arch);
        let text = output(Command::new(&self.objdump).args(["-d", &mcpu]).arg(object));
        // Its head names the file.
        text.split_once("Disassembly").expect("there is code").1.to_owned()
    }

    fn code(&self, dir: &Path, source: &Source) -> Code {
        let object = self.compile(dir, source, true);
        let listing = self.listing(&object);
        let name =
            self.objdump.file_name().expect("a program").to_string_lossy().replace("objdump", "symbolizer");
        let mut command = Command::new(self.objdump.with_file_name(name));
        command.arg("--inlines").arg(format!("--obj={}", object.display()));
        let mut asked =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it is beside objdump");
        let addresses: String = read(&listing).iter().map(|(at, _)| format!("0x{at:x}\n")).collect();
        let mut input = asked.stdin.take().expect("it is piped");
        let writer = std::thread::spawn(move || input.write_all(addresses.as_bytes()));
        let out = asked.wait_with_output().expect("it ends");
        writer.join().expect("it ends").expect("it reads all");
        assert!(out.status.success(), "{command:?}");
        Code::new(&listing, String::from_utf8_lossy(&out.stdout).trim_end(), &source.text)
    }
}

/// A kernel of each family, and those that no family has: of tickets, counts and barriers.
fn sources(target: &str) -> Vec<Source> {
    let others =
        [fixtures::credit, fixtures::meeting, fixtures::hand_over, fixtures::requests, fixtures::pages];
    let others = others.map(|make| {
        let kernel = verify(make(64)).expect("the simulator's tests trace it");
        emit(&kernel, target.parse().unwrap(), &EmitInfo { command: String::new() }).expect("it is emitted")
    });
    distinct(KERNELS.iter().map(|kernel| emitted(kernel, target)).chain(others).collect())
}

/// Instructions of kernels in which mistakes are planted, at most.
const SMALL: usize = 1500;

/// Kernels of an architecture hold what is promised, and of some of them nothing can be taken away.
fn check(arch: &'static str) {
    let Some(tools) = Tools::of(arch) else { return };
    let dir = folder_with_prelude(&format!("order_{arch}"));
    let sources = sources(&format!("hip:{arch}"));
    let checked = |source: &Source| {
        let code = tools.code(&dir, source);
        let wrong = code.complaints().into_iter().map(|said| format!("{}: {said}", source.entry));
        let plants =
            PLANTS.iter().filter(|plant| code.all.len() < SMALL && is_found(&source.entry, &code, plant));
        (wrong.collect(), plants.map(|plant| plant.name).collect())
    };
    let found: Vec<(Vec<String>, BTreeSet<&str>)> = sources.par_iter().map(checked).collect();
    let (wrong, planted): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    assert_eq!(wrong.concat(), Vec::<String>::new(), "{arch}");
    for plant in PLANTS {
        let kernels = planted.iter().filter(|names| names.contains(plant.name)).count();
        assert!(kernels >= plant.kernels, "{arch}: {} is planted in {kernels} kernels", plant.name);
    }
    // Line tables change no instruction.
    let compiled = |tables| tools.listing(&tools.compile(&dir, &sources[0], tables));
    let [with, without] = [compiled(true), compiled(false)];
    assert_eq!(with, without, "{arch}");
}

#[test]
fn gfx942_orders_each_release_and_acquire() {
    check("gfx942");
}

#[test]
fn gfx950_orders_each_release_and_acquire() {
    check("gfx950");
}

/// A mistake at one release or acquire of a kernel, all others being right.
struct Plant {
    name: &'static str,
    /// How the complaint that it brings up begins.
    complaint: &'static str,
    /// In how many kernels there is a place for it, at least.
    kernels: usize,
    /// Makes it, or returns false if there is no place for it.
    make: fn(&mut Code) -> bool,
}

/// Makes a mistake in a kernel; whether there is a place for it. The complaint comes up.
fn is_found(kernel: &str, code: &Code, plant: &Plant) -> bool {
    let mut code = code.clone();
    if !(plant.make)(&mut code) {
        return false;
    }
    let said = code.complaints();
    let begins = format!("{}: ", plant.complaint);
    assert!(
        said.iter().any(|s| s.starts_with(&begins)),
        "{kernel}: {} was planted, but: {said:#?}",
        plant.name
    );
    true
}

impl Code {
    /// The last signal of a scope by a group of several warps.
    fn last_release(&self, scope: Scope) -> Option<usize> {
        let by_warps = |at: usize| {
            let signal = self.all[at].frames.get(1).filter(|frame| frame.function.starts_with("signal"));
            signal.and_then(|frame| frame.group.as_deref()).is_some_and(|group| group != "Warp")
        };
        self.releases().into_iter().rev().find(|&(at, of)| of == scope && by_warps(at)).map(|(at, _)| at)
    }

    /// The last load of a scope that is polled, and the invalidation behind it.
    fn last_acquire(&self, scope: Scope) -> Option<(usize, usize)> {
        let polls = self.polls();
        let (poll, _, call) = polls.iter().rev().find(|(_, of, _)| *of == scope)?;
        let own = |at: &usize| invalidates(&self.all[*at].text) && self.all[*at].is_from(*call);
        Some((*poll, (0..self.all.len()).find(own)?))
    }

    /// The last instruction before a place, in the listing, that is `what`.
    fn back(&self, at: usize, what: fn(&str) -> bool) -> Option<usize> {
        (0..at).rev().find(|&at| what(&self.all[at].text))
    }

    fn put(&mut self, at: usize, text: &str) {
        self.all[at].text = text.to_owned();
    }

    /// Takes away all instructions of a range that are `what`.
    fn drop(&mut self, range: std::ops::Range<usize>, what: fn(&str) -> bool) {
        range.for_each(|at| {
            if what(&self.all[at].text) {
                self.put(at, "s_nop 0");
            }
        });
    }
}

const DATA: &str = "global_store_dwordx4 v[0:1], v[2:5], off";

/// A plant at the last release of a scope.
macro_rules! release {
    ($name:literal, $complaint:literal, $kernels:literal, $scope:ident, |$code:ident, $flag:ident, $wbl2:ident| $make:expr) => {
        Plant {
            name: $name,
            complaint: $complaint,
            kernels: $kernels,
            make: |$code| {
                let Some($flag) = $code.last_release(Scope::$scope) else { return false };
                let $wbl2 = $code.back($flag, writes_back).expect("it is written back");
                $make;
                true
            },
        }
    };
}

/// A plant at the last acquire of a scope.
macro_rules! acquire {
    ($name:literal, $complaint:literal, $kernels:literal, $scope:ident, |$code:ident, $load:ident, $inv:ident| $make:expr) => {
        Plant {
            name: $name,
            complaint: $complaint,
            kernels: $kernels,
            make: |$code| {
                let Some(($load, $inv)) = $code.last_acquire(Scope::$scope) else { return false };
                $make;
                true
            },
        }
    };
}

const PLANTS: &[Plant] = &[
    release!("no write-back", "write-back", 5, System, |c, _flag, wbl2| c.put(wbl2, "s_nop 0")),
    release!("no write-back for blocks", "write-back", 1, Agent, |c, _flag, wbl2| c.put(wbl2, "s_nop 0")),
    release!("a write-back for blocks", "reach", 5, System, |c, _flag, wbl2| c.put(wbl2, "buffer_wbl2 sc1")),
    release!("a write-back for its warp", "reach", 1, Agent, |c, _flag, wbl2| c.put(wbl2, "buffer_wbl2 sc0")),
    release!("no wait for the write-back", "wait", 5, System, |c, flag, wbl2| c.drop(wbl2..flag, waits)),
    release!("a write-back behind the flag", "write-back", 5, System, |c, flag, wbl2| c.all.swap(wbl2, flag)),
    release!("data right before the flag", "flag", 5, System, |c, flag, _wbl2| c.put(flag - 1, DATA)),
    release!("a flag for blocks", "flag", 5, System, |c, flag, _wbl2| {
        let text = c.all[flag].text.replace(" sc0 sc1", " sc1");
        c.put(flag, &text)
    }),
    release!("a flag for its warp", "flag", 1, Agent, |c, flag, _wbl2| {
        let text = c.all[flag].text.replace(" sc1", "");
        c.put(flag, &text)
    }),
    release!("no meeting", "meeting", 1, Agent, |c, _flag, wbl2| {
        let at = (0..wbl2).rev().find(|&at| c.meets(at)).expect("it meets");
        c.put(at, "s_nop 0")
    }),
    release!("stores in flight at the meeting", "stores", 1, Agent, |c, _flag, wbl2| {
        let met = (0..wbl2).rev().find(|&at| c.meets(at)).expect("it meets");
        let stored = c.back(met, stores).expect("it stores");
        c.drop(stored..met, waits)
    }),
    release!("no flag", "absent", 5, System, |c, flag, _wbl2| {
        let line = c.all[flag].frames[2].line;
        for (at, _) in c.releases() {
            if c.all[at].frames.iter().any(|frame| frame.line == line) {
                c.put(at, "s_nop 0");
            }
        }
    }),
    acquire!("no invalidation", "invalidation", 5, System, |c, _load, inv| c.put(inv, "s_nop 0")),
    acquire!("no invalidation for blocks", "invalidation", 1, Agent, |c, _load, inv| c.put(inv, "s_nop 0")),
    acquire!("an invalidation for blocks", "reach", 5, System, |c, _load, inv| c.put(inv, "buffer_inv sc1")),
    acquire!("an invalidation for its warp", "reach", 1, Agent, |c, _load, inv| c.put(inv, "buffer_inv sc0")),
    acquire!("a load in flight", "load", 5, System, |c, load, inv| {
        let first = load.min(inv);
        c.drop(first..c.all.len(), waits)
    }),
    acquire!("a load for blocks", "load", 5, System, |c, load, _inv| {
        let text = c.all[load].text.replace(" sc0 sc1", " sc1");
        c.put(load, &text)
    }),
    acquire!("data before the invalidation", "data", 5, System, |c, _load, inv| {
        c.all[inv - 1] =
            Instruction { text: "global_load_dwordx4 v[0:3], v[4:5], off".into(), frames: vec![] }
    }),
    Plant {
        name: "a store of a scope that is no primitive's",
        complaint: "primitive",
        kernels: 5,
        make: |c| {
            let data = |one: &Instruction| one.text.contains("_store_dwordx4") && one.function(0) == "store";
            let Some(at) = c.all.iter().position(data) else { return false };
            c.put(at, &format!("{} sc0 sc1", c.all[at].text));
            true
        },
    },
];
