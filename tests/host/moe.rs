//! MoE problems as jobs: rounds of dispatch, expert and combine on every rank, back to back, and what must come out.

use std::collections::BTreeMap;

use peerwarp::codegen::dsl::ParamSpec;
use peerwarp::codegen::family::Family;
use peerwarp::codegen::ir::verify;
use peerwarp::codegen::print::{EmitInfo, emit, emit_with_timeline};
use peerwarp::families::moe::MoeProblem;
use peerwarp::families::moe::kernels::RoundTrip;
use peerwarp::families::moe::run::{Expected, MoeTuning, Round};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, Run, WAIT_BUDGET_NS};

/// Combine counts its own epochs.
const COMBINE_EPOCH: &str = "combine_epoch";

/// A problem ready to run in one language.
#[derive(Clone, Debug)]
pub struct MoeHost {
    pub job: Job,
    /// The emitted sources, dispatch's first.
    pub texts: Vec<Text>,
    pub emitted: Vec<Emitted>,
    /// By rank, what its reads have to read, each with what it is.
    expected: Vec<Vec<(String, Vec<u8>)>>,
}

/// What a problem's job is made with.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub language: Language,
    pub rounds: u32,
    /// Dispatch and combine begin in the epochs after this one.
    pub start_after: u32,
    /// A rank that launches nothing: the others dispatch, and that is all.
    pub silent: Option<u32>,
    /// Records that each warp has room for, with a timeline.
    pub timeline: Option<u32>,
}

impl Plan {
    pub fn new(language: Language, rounds: u32) -> Plan {
        Plan { language, rounds, start_after: 0, silent: None, timeline: None }
    }
}

pub fn traced<F: Family>(config: &F, language: Language, timeline: Option<u32>) -> Emitted {
    let target = language.target();
    let name = config.variant_name();
    let kernel = config.trace(target.warp_size()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let kernel = verify(kernel).unwrap_or_else(|e| panic!("{name}: {e}"));
    let info = EmitInfo { command: format!("peerwarp show {name} --target {target}") };
    let source = match timeline {
        None => emit(&kernel, target, &info),
        Some(slots) => emit_with_timeline(&kernel, target, &info, slots),
    };
    Emitted { kernel: kernel.into_kernel(), source: source.unwrap_or_else(|e| panic!("{name}: {e}")) }
}

/// A buffer of the caller's with so many rows and not a byte more.
pub fn of_rows(name: &str, there: u32) -> String {
    format!("{name}_of_{there}_rows")
}

/// What a launch is passed by value.
#[derive(Clone, Copy)]
struct Numbers {
    there: u32,
    empty_id: i32,
}

/// The parameters of which a launch has as many rows as `rows_there` says, by name.
struct Rows(BTreeMap<String, ParamSpec>);

impl Rows {
    fn of(params: &[ParamSpec]) -> Rows {
        let of_rows = params.iter().filter(|p| p.rows.is_some());
        Rows(of_rows.map(|p| (p.name.clone(), p.clone())).collect())
    }

    fn and(mut self, other: Rows) -> Rows {
        self.0.extend(other.0);
        self
    }

    /// A launch with so many rows, and its buffers.
    fn launch(&self, job: &mut Job, e: &Emitted, passed: Numbers, renamed: impl Fn(&str) -> String) -> usize {
        let Numbers { there, empty_id } = passed;
        let name = |param: &str| match self.0.contains_key(param) {
            true => of_rows(param, there),
            false => renamed(param),
        };
        for (param, spec) in &self.0 {
            job.buffer(&of_rows(param, there), spec.bytes_of_rows(there.into()), None);
        }
        job.buffers_of(&e.kernel, name);
        let number = |scalar: &str| match scalar {
            "rows_there" => there.to_le_bytes().to_vec(),
            "empty_id" => empty_id.to_le_bytes().to_vec(),
            other => panic!("no kernel of MoE takes a number `{other}`"),
        };
        job.launch(e, name, number, WAIT_BUDGET_NS)
    }
}

impl MoeHost {
    pub fn new(problem: &MoeProblem, tuning: &MoeTuning, plan: Plan) -> MoeHost {
        problem.check().and_then(|()| tuning.check(&problem.shape)).unwrap_or_else(|e| panic!("{e}"));
        let (language, timeline) = (plan.language, plan.timeline);
        let dispatch = tuning.dispatch_launches().into_iter().map(|c| traced(&c, language, timeline));
        let combine = tuning.combine_launches().into_iter().map(|c| traced(&c, language, timeline));
        let (dispatch, combine) = (dispatch.collect::<Vec<_>>(), combine.collect::<Vec<_>>());
        let way = tuning.semantics();
        let of_combine = move |name: &str| -> String {
            match name {
                "epoch" => COMBINE_EPOCH.into(),
                "y" if way.y_is_rows() => "rows".into(),
                _ => name.into(),
            }
        };
        let mut job = Job::new(plan.language, problem.shape.ranks);
        let rows = Rows::of(&tuning.dispatch().into_variant().params());
        let rows = rows.and(Rows::of(&tuning.combine().into_variant().params()));
        // What a launch is passed by value is its own: one for each number of rows, and for each id of no expert.
        let mut launches = BTreeMap::new();
        for there in 0..=problem.shape.tokens {
            for empty_id in [-1, problem.shape.experts as i32] {
                let passed = Numbers { there, empty_id };
                let dispatch = dispatch.iter().map(|e| rows.launch(&mut job, e, passed, str::to_owned));
                let dispatch: Vec<usize> = dispatch.collect();
                let combine = combine.iter().map(|e| rows.launch(&mut job, e, passed, of_combine));
                launches.insert((there, empty_id), [dispatch, combine.collect()]);
            }
        }
        let emitted: Vec<Emitted> = dispatch.into_iter().chain(combine).collect();
        let texts = emitted.iter().map(|e| Text::of(&e.source, plan.language)).collect();
        let mut expected = vec![vec![]; problem.shape.ranks as usize];
        for rank in 0..problem.shape.ranks {
            for epoch in ["epoch", COMBINE_EPOCH] {
                job.write(rank, epoch, 0, &[plan.start_after, 0]);
            }
        }
        for round in (0..plan.rounds).map(|i| Round::new(problem, way, i)) {
            for rank in (0..problem.shape.ranks).filter(|r| plan.silent != Some(*r)) {
                let expected = &mut expected[rank as usize];
                let [dispatch, combine] = &launches[&(round.rows_there(rank), round.empty_id())];
                add_dispatch(&mut job, &round, rank, dispatch);
                if plan.silent.is_none() {
                    expect_dispatched(&mut job, &round, rank, expected);
                    add_combine(&mut job, &round, rank, combine, expected);
                }
            }
        }
        MoeHost { job, texts, emitted, expected }
    }

    /// The same rounds, each in one launch.
    pub fn fused(problem: &MoeProblem, config: &RoundTrip, plan: Plan) -> MoeHost {
        let emitted = traced(config, plan.language, plan.timeline);
        let mut job = Job::new(plan.language, problem.shape.ranks);
        let rows = Rows::of(&config.clone().into_variant().params());
        let launches = (0..=problem.shape.tokens)
            .map(|there| rows.launch(&mut job, &emitted, Numbers { there, empty_id: -1 }, str::to_owned))
            .collect::<Vec<_>>();
        let mut expected = vec![vec![]; problem.shape.ranks as usize];
        for rank in 0..problem.shape.ranks {
            job.write(rank, "epoch", 0, &[plan.start_after, 0]);
        }
        for round in (0..plan.rounds).map(|i| Round::new(problem, config.semantics(), i)) {
            for rank in 0..problem.shape.ranks {
                let there = round.rows_there(rank);
                add_dispatch(&mut job, &round, rank, &[launches[there as usize]]);
                let out = round.out[rank as usize].clone();
                let expected = &mut expected[rank as usize];
                expect(&mut job, rank, expected, &of_rows("out", there), 0, "combined rows".into(), out);
            }
        }
        let texts = vec![Text::of(&emitted.source, plan.language)];
        MoeHost { job, texts, emitted: vec![emitted], expected }
    }

    /// Compiles the sources as they were emitted.
    pub fn program(&self, mode: Mode) -> Program {
        Program::new(&self.texts, mode)
    }

    /// What is wrong about a run: what was found, and the first result of each rank that is not the reference's.
    pub fn wrong(&self, run: &Run) -> Vec<String> {
        let mut all = run.findings.clone();
        for (rank, expected) in self.expected.iter().enumerate() {
            all.extend(
                first_wrong(&run.read[rank], expected).map(|w| format!("wrong result: rank {rank}, {w}")),
            );
        }
        all
    }

    /// Runs it under schedules of several seeds, and panics with everything that is wrong.
    #[track_caller]
    pub fn run_clean(&self, program: &Program, seeds: std::ops::Range<u64>) {
        for run in self.job.run(program, seeds) {
            let wrong = self.wrong(&run);
            let names: Vec<&str> = self.texts.iter().map(|t| t.entry.as_str()).collect();
            assert!(wrong.is_empty(), "{names:?}, seed {}:\n{}", run.seed, wrong.join("\n"));
        }
    }
}

fn first_wrong(read: &[u8], expected: &[(String, Vec<u8>)]) -> Option<String> {
    let mut rest = read;
    for (what, want) in expected {
        let Some((got, after)) = rest.split_at_checked(want.len()) else {
            return Some(format!("{what} was not reached"));
        };
        if let Some(i) = got.iter().zip(want).position(|(g, w)| g != w) {
            return Some(format!("{what}: byte {i} is {:#04x}, {:#04x} is right", got[i], want[i]));
        }
        rest = after;
    }
    None
}

fn add_dispatch(job: &mut Job, round: &Round, rank: u32, launches: &[usize]) {
    let sent = round.inputs(rank);
    let name = |name| of_rows(name, sent.rows_there);
    job.write(rank, "n", 0, &[sent.n]);
    job.write(rank, &name("x"), 0, &sent.x);
    if !sent.x_scale.is_empty() {
        job.write(rank, &name("x_scale"), 0, &sent.x_scale);
    }
    if let Some(scale) = sent.tensor_scale {
        job.write(rank, "tensor_scale", 0, &[scale]);
    }
    job.write(rank, &name("ids"), 0, &sent.ids);
    job.write(rank, &name("weights"), 0, &sent.weights);
    launches.iter().for_each(|&launch| job.run_on(rank, launch));
}

/// Runs the expert, unless dispatch did, and combine.
fn add_combine(
    job: &mut Job,
    round: &Round,
    rank: u32,
    launches: &[usize],
    expected: &mut Vec<(String, Vec<u8>)>,
) {
    for (at, y) in round.experts_outputs(rank) {
        job.write(rank, "y", at, &y);
    }
    launches.iter().for_each(|&launch| job.run_on(rank, launch));
    let out = round.out[rank as usize].clone();
    let name = of_rows("out", round.rows_there(rank));
    expect(job, rank, expected, &name, 0, "combined rows".into(), out);
}

/// Reads all that dispatch yields.
fn expect_dispatched(job: &mut Job, round: &Round, rank: u32, expected: &mut Vec<(String, Vec<u8>)>) {
    for Expected { buffer, at, what, bytes } in round.dispatched(rank) {
        expect(job, rank, expected, buffer, at, what, bytes.into_owned());
    }
}

fn expect(
    job: &mut Job,
    rank: u32,
    expected: &mut Vec<(String, Vec<u8>)>,
    buffer: &str,
    at: u64,
    what: String,
    want: Vec<u8>,
) {
    if !want.is_empty() {
        job.read(rank, buffer, at..at + want.len() as u64);
        expected.push((what, want));
    }
}
