//! What a program is to run: buffers on every rank, and for every rank a list of writes, launches and reads.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use peerwarp_codegen::ir::{FarPart, Kernel, ParamKind};
use peerwarp_codegen::print::{ArgField, LaunchShape, Source};

use super::build::{Language, Mode, Program};

/// Name of the buffer with each rank's status record, and its bytes.
pub const STATUS: &str = "status";
const STATUS_BYTES: u64 = 64;
/// Where it has the mask of ranks that are not active.
const INACTIVE_AT: u64 = 56;

/// How long a wait may last, by a clock that stands while any thread can go on.
pub const WAIT_BUDGET_NS: u64 = 10_000_000;

/// Name of the buffer that a kernel's timeline is recorded in.
pub fn timeline_of(entry: &str) -> String {
    format!("timeline_of_{entry}")
}

/// A kernel as a program has it.
#[derive(Clone, Debug)]
pub struct Emitted {
    pub kernel: Kernel,
    pub source: Source,
}

#[derive(Clone, Debug)]
struct Buffer {
    name: String,
    bytes: u64,
    /// The byte it is filled with; none when no kernel may read it before it is written.
    fill: Option<u8>,
    /// Whether puts read or write it.
    is_put: bool,
}

/// What a member of the argument struct is; the numbers are those of `runtime/machine.h`.
#[derive(Clone, Debug)]
enum Field {
    Local(usize),
    Symmetric(usize),
    /// All ranks' instances at once.
    Everyone(usize),
    Value(Vec<u8>),
    /// Its number among the ranks of its node.
    Rank,
    /// That of its node.
    Node,
    /// A matrix of which boxes are brought: the buffer, its rows and columns, the rows of a box, and the bytes of an element.
    Map(usize, [u64; 4]),
}

#[derive(Clone, Debug)]
struct Launch {
    entry: String,
    shape: LaunchShape,
    /// Ranks of a node.
    near: u32,
    args_bytes: u32,
    fields: Vec<(u32, Field)>,
}

/// Where a rank that runs by itself has what it shares with its proxy: places in a file, in bytes, alike on every rank.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct EngineFile {
    pub channels: u64,
    pub ring_at: u64,
    pub words_at: u64,
    /// How many commands the kernel has given.
    pub sent_at: u64,
    /// The memory of puts goes up to the end.
    pub memory_at: u64,
    pub bytes: u64,
}

/// Slots of the ring, as a power of two: few, so that it fills up.
pub const LOG_SLOTS: u32 = 2;
/// Parts of an engine's file begin at pages.
const PAGE: u64 = 4096;
/// Buffers of the engine of far channels, as the crate peerwarp-fabric lays them out: ring, words, memory of puts, number of commands.
const ENGINE: [&str; 4] = ["far ring", "far words", "far memory", "far sent"];

#[derive(Clone, Debug)]
enum Step {
    Write(usize, u64, Vec<u8>),
    Read(usize, Range<u64>),
    Run(usize),
}

/// Buffers and programs.
#[derive(Clone, Debug)]
pub struct Job {
    language: Language,
    ranks: u32,
    buffers: Vec<Buffer>,
    launches: Vec<Launch>,
    programs: Vec<Vec<Step>>,
    /// Ranks that are not active, as a mask.
    inactive: u64,
    /// Channels of the engine, if a kernel has far ones.
    engine: Option<u64>,
    /// The first channel of each kernel that has some, by the first of its counters' buffers.
    first_channels: BTreeMap<String, u64>,
}

/// What a run left behind.
#[derive(Clone, Debug)]
pub struct Run {
    pub seed: u64,
    /// What is wrong, in words.
    pub findings: Vec<String>,
    /// By rank, the bytes that its program read, one read after the other.
    pub read: Vec<Vec<u8>>,
}

impl Job {
    pub fn new(language: Language, ranks: u32) -> Job {
        let programs = vec![vec![]; ranks as usize];
        let mut job = Job {
            language,
            ranks,
            buffers: vec![],
            launches: vec![],
            programs,
            inactive: 0,
            engine: None,
            first_channels: BTreeMap::new(),
        };
        job.buffer(STATUS, STATUS_BYTES, Some(0));
        job
    }

    /// The same where some ranks, a mask of them, are not active: the others share zeros.
    pub fn without(language: Language, ranks: u32, inactive: u64) -> Job {
        let mut job = Job { inactive, ..Job::new(language, ranks) };
        (0..ranks).for_each(|rank| job.write(rank, STATUS, INACTIVE_AT, &[inactive]));
        job
    }

    /// Gives every rank a buffer, filled with a byte or with what no kernel may read.
    pub fn buffer(&mut self, name: &str, bytes: u64, fill: Option<u8>) {
        if self.buffers.iter().all(|b| b.name != name) {
            self.buffers.push(Buffer { name: name.into(), bytes, fill, is_put: false });
        }
    }

    /// Gives every rank the buffers of a kernel's parameters; `renamed` says which have another name.
    pub fn buffers_of(&mut self, kernel: &Kernel, renamed: impl Fn(&str) -> String) {
        if kernel.far_channel().is_some() {
            self.engine_of(kernel, &renamed);
        }
        for p in &kernel.params {
            let fill = match p.kind {
                ParamKind::Flags
                | ParamKind::Counts
                | ParamKind::BlockFlags
                | ParamKind::EpochWord
                | ParamKind::Counters
                | ParamKind::Far(FarPart::Counts) => Some(0),
                ParamKind::Messages(transport) => Some(transport.traits().empty),
                ParamKind::Symmetric if self.inactive != 0 => Some(0),
                ParamKind::Local
                | ParamKind::Symmetric
                | ParamKind::Window
                | ParamKind::Far(FarPart::Outbox | FarPart::Inbox)
                | ParamKind::Scalar => None,
            };
            let bytes = match p.kind {
                ParamKind::Scalar => continue,
                ParamKind::EpochWord => 8 * p.len,
                _ => u64::from(p.element_bytes()) * p.len,
            };
            let name = renamed(&p.name);
            self.buffer(&name, bytes, fill);
            if matches!(p.kind, ParamKind::Far(FarPart::Outbox | FarPart::Inbox)) {
                let buffer = self.find(&name);
                self.buffers[buffer].is_put = true;
            }
        }
    }

    /// Gives every rank an engine for a kernel's far channels, behind those of kernels before, or with those of one that has the same
    /// counters. The memory of puts begins with the unit of credits, and goes on over what is placed behind it, which is alike on all
    /// ranks.
    fn engine_of(&mut self, kernel: &Kernel, renamed: impl Fn(&str) -> String) {
        let counts = kernel.params.iter().find(|p| p.kind == ParamKind::Far(FarPart::Counts));
        let counts = counts.map(|p| renamed(&p.name)).expect("a far channel has counters");
        if self.first_channels.contains_key(&counts) {
            return;
        }
        let first = self.engine.unwrap_or(0);
        self.first_channels.insert(counts, first);
        let channels = first + kernel.far_channels();
        let words = 16 + channels * u64::from(self.ranks);
        let bytes = [8 * (32 + (2 << LOG_SLOTS)), 8 * words, 16, 8];
        for (name, bytes) in ENGINE.into_iter().zip(bytes) {
            self.buffer(name, bytes, Some(0));
            let own = self.find(name);
            self.buffers[own].bytes = bytes;
        }
        self.engine = Some(channels);
    }

    /// Adds a write to a rank's program.
    pub fn write<T: bytemuck::Pod>(&mut self, rank: u32, name: &str, at: u64, content: &[T]) {
        let content: &[u8] = bytemuck::cast_slice(content);
        if !content.is_empty() {
            let step = Step::Write(self.find(name), at, content.to_vec());
            self.programs[rank as usize].push(step);
        }
    }

    /// Adds a write before all else in a rank's program.
    pub fn write_first(&mut self, rank: u32, name: &str, content: &[u8]) {
        let step = Step::Write(self.find(name), 0, content.to_vec());
        self.programs[rank as usize].insert(0, step);
    }

    /// Adds a read of bytes to a rank's program.
    pub fn read(&mut self, rank: u32, name: &str, bytes: Range<u64>) {
        let step = Step::Read(self.find(name), bytes);
        self.programs[rank as usize].push(step);
    }

    /// A launch, to be added to programs: scalar parameters have the bytes that `scalars` gives.
    pub fn launch(
        &mut self,
        emitted: &Emitted,
        renamed: impl Fn(&str) -> String,
        scalars: impl Fn(&str) -> Vec<u8>,
        wait_budget_ns: u64,
    ) -> usize {
        let Emitted { kernel, source } = emitted;
        let (params, rest) = source.args.fields.split_at(kernel.params.len());
        let mut fields = vec![];
        for (p, field) in kernel.params.iter().zip(params) {
            let what = match p.kind {
                ParamKind::Local
                | ParamKind::EpochWord
                | ParamKind::Counters
                | ParamKind::BlockFlags
                | ParamKind::Far(_) => Field::Local(self.find(&renamed(&p.name))),
                ParamKind::Symmetric
                | ParamKind::Window
                | ParamKind::Flags
                | ParamKind::Counts
                | ParamKind::Messages(_) => Field::Symmetric(self.find(&renamed(&p.name))),
                ParamKind::Scalar => Field::Value(scalars(&p.name)),
            };
            if let Field::Symmetric(buffer) = what
                && field.bytes > 8 * kernel.ranks
            {
                fields.push((field.offset + 8 * kernel.ranks, Field::Everyone(buffer)));
            }
            fields.push((field.offset, what));
        }
        let mut rest = rest.to_vec();
        if let Some(at) = rest.iter().position(|field| field.name == "far") {
            let ArgField { offset, .. } = rest.remove(at);
            let pointers = [0, 8, 16, 24].into_iter().zip(ENGINE);
            fields.extend(pointers.map(|(at, name)| (offset + at, Field::Local(self.find(name)))));
            let counts = kernel.params.iter().find(|p| p.kind == ParamKind::Far(FarPart::Counts));
            let counts = counts.map(|p| renamed(&p.name)).expect("a far channel has counters");
            let first = self.first_channels[&counts] as u32;
            let numbers = [LOG_SLOTS, first].map(u32::to_le_bytes).concat();
            fields.push((offset + 32, Field::Value(numbers)));
            fields.push((offset + 40, Field::Node));
        }
        let mut common = vec![
            Field::Symmetric(self.find(STATUS)),
            Field::Value(wait_budget_ns.to_le_bytes().to_vec()),
            Field::Rank,
        ];
        if let Some(timeline) = &source.timeline {
            let name = timeline_of(&source.entry);
            self.buffer(&name, timeline.bytes, Some(0));
            common.push(Field::Local(self.find(&name)));
        }
        assert_eq!(rest.len(), common.len(), "the argument struct ends in status, budget, rank and timeline");
        fields.extend(rest.iter().map(|f| f.offset).zip(common));
        for map in &source.args.maps {
            let of = kernel.params.iter().zip(params).find(|(_, field)| field.name == map.of);
            let (param, _) = of.expect("maps are of parameters");
            let shape = [map.rows, map.columns, map.box_rows.into(), map.dtype.bytes().into()];
            fields.push((map.offset, Field::Map(self.find(&renamed(&param.name)), shape)));
        }
        self.launches.push(Launch {
            entry: source.entry.clone(),
            shape: source.launch,
            near: kernel.ranks,
            args_bytes: source.args.bytes,
            fields,
        });
        self.launches.len() - 1
    }

    /// Adds a launch to a rank's program.
    pub fn run_on(&mut self, rank: u32, launch: usize) {
        self.programs[rank as usize].push(Step::Run(launch));
    }

    /// By rank, how many bytes its program reads.
    pub fn read_bytes(&self) -> Vec<usize> {
        let bytes = |step: &Step| match step {
            Step::Read(_, range) => (range.end - range.start) as usize,
            Step::Write(..) | Step::Run(_) => 0,
        };
        self.programs.iter().map(|program| program.iter().map(bytes).sum()).collect()
    }

    fn find(&self, name: &str) -> usize {
        self.buffers
            .iter()
            .position(|b| b.name == name)
            .unwrap_or_else(|| panic!("no buffer is called {name}"))
    }

    /// Where each buffer is in the file that a rank shares with its proxy, and, if it is `apart` from the other ranks, with those of its
    /// node; and the file's layout. None without far channels.
    fn places(&self, apart: bool) -> Option<(Vec<Option<u64>>, EngineFile)> {
        let channels = self.engine?;
        let mut places = vec![None; self.buffers.len()];
        let mut bytes = 0u64;
        let mut place = |buffer: usize, align| {
            let at = bytes.next_multiple_of(align);
            bytes = at + self.buffers[buffer].bytes;
            places[buffer] = Some(at);
            at
        };
        // What ranks of a node reach of each other.
        let near = self.launches.iter().filter(|launch| apart && launch.near > 1);
        let mut reached: BTreeSet<usize> = BTreeSet::new();
        for (_, field) in near.flat_map(|launch| &launch.fields) {
            if let Field::Symmetric(buffer) = *field
                && reached.insert(buffer)
            {
                let Buffer { name, fill, .. } = &self.buffers[buffer];
                assert!(fill.is_none_or(|byte| byte == 0), "{name} begins with zeros, as the file does");
                place(buffer, 256);
            }
        }
        // The memory of puts last, with what is put behind it.
        let [ring_at, words_at, sent_at, memory_at] =
            [0, 1, 3, 2].map(|i: usize| place(self.find(ENGINE[i]), PAGE));
        for buffer in (0..self.buffers.len()).filter(|&b| self.buffers[b].is_put) {
            place(buffer, 256);
        }
        let bytes = bytes.next_multiple_of(PAGE);
        Some((places, EngineFile { channels, ring_at, words_at, sent_at, memory_at, bytes }))
    }

    /// Writes the job for ranks that run by themselves, and tells what each shares with its proxy.
    ///
    /// # Panics
    /// When no kernel has far channels.
    pub fn write_for_processes(&self, path: &Path, seed: u64) -> EngineFile {
        let (_, file) = self.places(true).expect("a kernel has far channels");
        std::fs::write(path, self.bytes(Mode::Fast, vec![seed], true)).expect("the folder is writable");
        file
    }

    /// Runs the job under a schedule for each seed.
    ///
    /// # Panics
    /// When the program does not come to its end.
    pub fn run(&self, program: &Program, seeds: impl IntoIterator<Item = u64>) -> Vec<Run> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host");
        let name = |what| dir.join(format!("{}.{number}.{what}", std::process::id()));
        let (job, result) = (name("job"), name("result"));
        std::fs::write(&job, self.bytes(program.mode, seeds.into_iter().collect(), false))
            .expect("the target folder is writable");
        let out = Command::new(&program.path).arg(&job).arg(&result).output().expect("the program starts");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.success(),
            "{} {} ended with {}: {said}",
            program.path.display(),
            job.display(),
            out.status
        );
        let bytes = std::fs::read(&result).expect("the program wrote its result");
        for file in [job, result] {
            std::fs::remove_file(file).expect("the target folder is writable");
        }
        let mut runs = self.parse(&bytes);
        if program.has_lines {
            name_sites(&program.path, &mut runs);
        }
        runs
    }

    /// Whether the run under one of the seeds is as asked for. No seed after that is run.
    ///
    /// # Panics
    /// When the program does not come to its end.
    pub fn any(
        &self,
        program: &Program,
        seeds: impl IntoIterator<Item = u64>,
        is: impl Fn(&Run) -> bool,
    ) -> bool {
        seeds.into_iter().any(|seed| self.run(program, [seed]).iter().any(&is))
    }

    fn bytes(&self, mode: Mode, seeds: Vec<u64>, apart: bool) -> Vec<u8> {
        let hip = self.language.is_hip();
        let mut out = Writer::default();
        for n in [self.language.target().warp_size(), self.ranks, (mode == Mode::Checked).into(), hip.into()]
        {
            out.number(n.into());
        }
        let (places, file_bytes) =
            self.places(apart).map_or((vec![], 0), |(places, file)| (places, file.bytes));
        let places = places.into_iter().chain(std::iter::repeat(None));
        out.list(&seeds, |out, seed| out.number(*seed));
        out.list(&self.buffers.iter().zip(places).collect::<Vec<_>>(), |out, (b, at)| {
            out.bytes(b.name.as_bytes());
            out.number(b.bytes);
            out.number(b.fill.map_or(0, |byte| 1 + u64::from(byte)));
            out.number(at.map_or(0, |at| 1 + at));
        });
        out.list(&self.launches, |out, l| {
            out.bytes(l.entry.as_bytes());
            for n in [l.shape.grid, l.shape.block_threads, l.shape.shared_bytes, l.near, l.args_bytes] {
                out.number(n.into());
            }
            out.list(&l.fields, |out, (offset, field)| {
                let (kind, buffer, value) = match field {
                    Field::Local(buffer) => (0, *buffer, &[][..]),
                    Field::Symmetric(buffer) => (1, *buffer, &[][..]),
                    Field::Value(value) => (2, 0, &value[..]),
                    Field::Rank => (3, 0, &[][..]),
                    Field::Node => (6, 0, &[][..]),
                    Field::Everyone(buffer) => (4, *buffer, &[][..]),
                    Field::Map(buffer, shape) => (5, *buffer, bytemuck::cast_slice(shape)),
                };
                out.number(kind);
                out.number((*offset).into());
                out.number(buffer as u64);
                out.bytes(value);
            });
        });
        out.list(&self.programs, |out, program| {
            out.list(program, |out, step| {
                let (kind, what, offset, bytes, content) = match step {
                    Step::Write(buffer, at, content) => (0, *buffer, *at, content.len() as u64, &content[..]),
                    Step::Read(buffer, range) => (1, *buffer, range.start, range.end - range.start, &[][..]),
                    Step::Run(launch) => (2, *launch, 0, 0, &[][..]),
                };
                if kind != 2 {
                    let buffer = &self.buffers[what];
                    assert!(offset + bytes <= buffer.bytes, "{} has {} bytes", buffer.name, buffer.bytes);
                }
                for n in [kind, what as u64, offset, bytes] {
                    out.number(n);
                }
                out.bytes(content);
            });
        });
        let slots = self.engine.map_or(0, |_| LOG_SLOTS);
        let buffer = |name| self.engine.map_or(0, |_| self.find(name) as u64);
        let [ring, words, memory, _] = ENGINE.map(buffer);
        for n in [slots.into(), ring, words, memory] {
            out.number(n);
        }
        out.number(file_bytes);
        out.0
    }

    /// What a program has written.
    pub fn parse(&self, bytes: &[u8]) -> Vec<Run> {
        let mut input = Reader(bytes);
        let mut runs = vec![];
        while !input.0.is_empty() {
            let (seed, findings) = (input.number(), input.number());
            let findings =
                (0..findings).map(|_| String::from_utf8_lossy(input.bytes()).into_owned()).collect();
            let read = (0..self.ranks).map(|_| input.bytes().to_vec()).collect();
            runs.push(Run { seed, findings, read });
        }
        runs
    }
}

/// Numbers and strings as `runtime/main.cc` reads them.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, n: u64) {
        self.0.extend(n.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn list<T>(&mut self, all: &[T], mut one: impl FnMut(&mut Writer, &T)) {
        self.number(all.len() as u64);
        all.iter().for_each(|t| one(self, t));
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn bytes(&mut self) -> &'a [u8] {
        let length = self.number();
        self.take(length as usize)
    }
}

/// Puts functions and lines of the emitted source in the place of addresses, where `addr2line` is installed.
fn name_sites(program: &Path, runs: &mut [Run]) {
    let mut sites = BTreeSet::new();
    for finding in runs.iter().flat_map(|r| &r.findings) {
        sites.extend(finding.split("<@").skip(1).filter_map(|s| s.split_once('>')).map(|s| s.0.to_owned()));
    }
    let names = site_names(program, sites).unwrap_or_default();
    for finding in runs.iter_mut().flat_map(|r| &mut r.findings) {
        for (site, name) in &names {
            *finding = finding.replace(&format!("<@{site}>"), name);
        }
    }
}

/// `inner:line < caller:line < ..` of each site, which is an address after a call. One process names all: it reads the program once.
fn site_names(program: &Path, sites: BTreeSet<String>) -> Option<Vec<(String, String)>> {
    let calls: Vec<u64> =
        sites.iter().map(|s| Some(u64::from_str_radix(s, 16).ok()? - 1)).collect::<Option<_>>()?;
    if calls.is_empty() {
        return None;
    }
    let mut addr2line = Command::new("addr2line");
    addr2line
        .args(["-a", "-i", "-f", "-C", "-e"])
        .arg(program)
        .args(calls.iter().map(|at| format!("{at:x}")));
    let out = addr2line.output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    // An address, then a function and its place for each frame.
    let mut frames: Vec<Vec<&str>> = vec![];
    for line in text.lines() {
        match frames.last_mut() {
            Some(lines) if !line.starts_with("0x") => lines.push(line),
            _ => frames.push(vec![]),
        }
    }
    let named = sites.into_iter().zip(frames).filter_map(|(site, lines)| Some((site, site_name(&lines)?)));
    Some(named.collect())
}

fn site_name(lines: &[&str]) -> Option<String> {
    let frames = lines.chunks(2).filter_map(|frame| {
        let (function, place) = (frame.first()?, frame.get(1)?);
        let line = place.rsplit_once(':')?.1.split_whitespace().next()?;
        let function = match function.strip_prefix("kernel_") {
            Some(inside) => inside.split_once("::").map_or(inside, |f| f.1),
            None => *function,
        };
        let function = function.split(['(', '<']).next()?;
        (!place.contains("/runtime/")).then(|| format!("{function}:{line}"))
    });
    let frames: Vec<String> = frames.collect();
    (!frames.is_empty()).then(|| frames.join(" < "))
}
