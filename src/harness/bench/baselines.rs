//! Other libraries on the same GPUs, timed by scripts in the same way.
//!
//! A family's scripts ([`Baseline`]) are part of the program. They are run by torchrun, one process a rank, read what to time
//! from a file and write times to another one.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::result::{Bench, SCHEMA, in_words};
use super::stats::Stats;
use super::{BenchOptions, Case};
use crate::harness::workload::Baseline;

/// The part of baselines' scripts that is any family's: it times fairly, reads the request and writes the reply.
pub const TIMING: (&str, &str) = ("timing.py", include_str!("../../../bench/baselines/timing.py"));

/// Lines of a script's errors that stand in ours.
const LINES: usize = 6;

/// What a line of a script's errors begins with that says what is going on.
const PROGRESS: &str = "progress: ";

/// Another way to do the same, and its times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaselineTimes {
    /// What it is called.
    pub name: String,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What it does and what that includes.
    pub about: String,
    /// Why it was not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    /// Whether its results were compared with what they have to be, before it was timed. What is wrong is absent.
    #[serde(default)]
    pub checked: bool,
    /// Its times.
    pub times: Vec<BaselineTiming>,
}

/// The time that a baseline takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BaselineTiming {
    /// Number of the case, from 0.
    pub case: usize,
    /// Of what: a metric of the problem, or its whole round.
    pub metric: String,
    /// How many of them were launched right after each other; the time is that of one.
    pub rounds: u32,
    /// Whether it was launched as a graph; if not, the host's work may be part of the time.
    pub graph: bool,
    /// Iterations before which the host had not launched everything: their times have the host's part in them.
    pub host_behind: u32,
    /// The time.
    pub us: Stats,
    /// How far the fastest rank is from the slowest, in the median.
    pub rank_spread_us: f64,
    /// Its median over ours; none if ours is 0.
    pub over_ours: Option<f64>,
}

/// What a script is to time.
#[derive(Debug, Serialize)]
struct Request {
    schema: u32,
    iterations: u32,
    rounds: u32,
    flush_l2: bool,
    seed: u64,
    /// As [`Problem::baseline_case`](crate::harness::workload::Problem::baseline_case) says.
    cases: Vec<Value>,
}

/// What a script found.
#[derive(Debug, Deserialize)]
struct Reply {
    baselines: Vec<ReplyBaseline>,
}

#[derive(Debug, Deserialize)]
struct ReplyBaseline {
    name: String,
    version: Option<String>,
    about: String,
    absent: Option<String>,
    #[serde(default)]
    checked: bool,
    times: Vec<ReplyTimes>,
}

#[derive(Debug, Deserialize)]
struct ReplyTimes {
    case: usize,
    metric: String,
    rounds: u32,
    graph: bool,
    host_behind: u32,
    /// `[rank][iteration]`.
    times_us: Vec<Vec<f64>>,
}

/// Runs a family's scripts with a Python that has PyTorch, and puts what they find into `bench`, whose cases are `cases`.
/// Baselines that are not installed are absent, all of them if the scripts cannot be run. `tell` hears what is going on: some
/// libraries compile for minutes before they are used first.
pub fn compare(
    bench: &mut Bench,
    baseline: &Baseline,
    cases: &[Case],
    options: &BenchOptions,
    python: &str,
    tell: &mut dyn FnMut(&str),
) {
    let request = asked(cases, options, bench.method.seed);
    let replied = run(baseline, bench.machine.gpus.len(), &request, python, tell);
    if let Err(why) = replied.and_then(|reply| merge(bench, &reply)) {
        let (name, about) = ("all baselines".into(), format!("the scripts, run by {python}"));
        let (version, absent) = (None, Some(why));
        bench.baselines.push(BaselineTimes { name, version, about, absent, checked: false, times: vec![] });
    }
}

/// What the scripts reply.
fn run(
    baseline: &Baseline,
    ranks: usize,
    request: &Request,
    python: &str,
    tell: &mut dyn FnMut(&str),
) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("{python}: {e}");
    let (script, _) = baseline.scripts.first().ok_or("the family has no scripts")?;
    let folder = tempfile::tempdir().map_err(failed)?;
    for (name, text) in baseline.scripts {
        std::fs::write(folder.path().join(name), text).map_err(failed)?;
    }
    let [script, request_file, reply] =
        [script, "request.json", "reply.json"].map(|name| folder.path().join(name));
    let asked = serde_json::to_vec(request).map_err(|e| e.to_string())?;
    std::fs::write(&request_file, asked).map_err(failed)?;
    // A path is of the current folder, a bare name is looked for in PATH.
    let program =
        if python.contains('/') { std::path::absolute(python).map_err(failed)? } else { python.into() };
    // Python imports modules of the current folder first, which another user may have filled.
    let mut running = Command::new(program)
        .current_dir(folder.path())
        .args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", &ranks.to_string()])
        .args([&script, &request_file, &reply])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let said = running.stderr.take().map(|errors| last_lines(BufReader::new(errors), tell));
    running.wait().map_err(failed)?;
    read(&reply, &said.unwrap_or_default())
}

/// The last lines of a script's errors, once it is done; those that say what is going on go to `tell` meanwhile.
fn last_lines(errors: impl BufRead, tell: &mut dyn FnMut(&str)) -> Vec<String> {
    let mut last = VecDeque::new();
    for line in errors.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        match line.strip_prefix(PROGRESS) {
            Some(what) => tell(what.trim_end()),
            None if line.trim().is_empty() => {}
            None => last.push_back(line),
        }
        last.drain(..last.len().saturating_sub(LINES));
    }
    last.into()
}

/// What the scripts wrote, or else their last lines of errors.
fn read(reply: &Path, said: &[String]) -> Result<String, String> {
    std::fs::read_to_string(reply).map_err(|_| format!("the scripts failed:\n{}", said.join("\n")))
}

fn asked(cases: &[Case], options: &BenchOptions, seed: u64) -> Request {
    Request {
        schema: SCHEMA,
        iterations: options.iterations,
        rounds: options.rounds,
        flush_l2: options.flush_l2,
        seed,
        cases: cases.iter().map(|case| case.problem.baseline_case()).collect(),
    }
}

/// Puts what the scripts found into a result.
fn merge(bench: &mut Bench, reply: &str) -> Result<(), String> {
    let reply: Reply = serde_json::from_str(reply).map_err(|e| format!("the scripts' reply: {e}"))?;
    for baseline in reply.baselines {
        let ReplyBaseline { name, version, about, absent, checked, times } = baseline;
        let times = times.into_iter().map(|found| timing(bench, &name, found));
        let times = times.collect::<Result<_, _>>()?;
        bench.baselines.push(BaselineTimes { name, version, about, absent, checked, times });
    }
    Ok(())
}

fn timing(bench: &Bench, name: &str, found: ReplyTimes) -> Result<BaselineTiming, String> {
    let ReplyTimes { case, metric, rounds, graph, host_behind, times_us } = found;
    let there = bench.cases.len();
    let ours = bench.cases.get(case);
    let ours = ours.ok_or_else(|| format!("{name} has times of case {case}, and there are {there}"))?;
    let ours = ours.time(&metric, rounds).map(|t| t.us.median).ok_or_else(|| {
        let known: Vec<String> = ours.times.iter().map(|t| in_words(&t.metric, t.rounds)).collect();
        let metric = in_words(&metric, rounds);
        format!("{name} has a time of {metric}, and case {case} has {}", known.join("; "))
    })?;
    let ranks = (times_us.len(), bench.machine.gpus.len());
    if ranks.0 != ranks.1 || times_us.iter().any(Vec::is_empty) {
        return Err(format!("{name} has times of {} ranks, and there are {}", ranks.0, ranks.1));
    }
    let (us, rank_spread_us) = Stats::of_ranks(&times_us);
    let over_ours = (ours > 0.0).then(|| us.median / ours);
    Ok(BaselineTiming { case, metric, rounds, graph, host_behind, us, rank_spread_us, over_ours })
}

#[cfg(test)]
#[path = "baselines_tests.rs"]
mod tests;
