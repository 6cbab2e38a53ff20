//! Other libraries on the same GPUs, timed by scripts in the same way.
//!
//! The scripts (`bench/peers/`) are part of this program. They are run by torchrun, one process a rank, read what to time
//! from a file and write times to another one.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::result::{Bench, What};
use super::stats::Stats;
use super::wire::rows;
use super::{BenchOptions, Case};
use crate::families::moe::MoeShape;

/// File names and contents of the scripts; the first is the one to run.
const SCRIPTS: [(&str, &str); 6] = [
    ("peers.py", include_str!("../../../bench/peers/peers.py")),
    ("timing.py", include_str!("../../../bench/peers/timing.py")),
    ("nccl_peers.py", include_str!("../../../bench/peers/nccl_peers.py")),
    ("deep_ep_peer.py", include_str!("../../../bench/peers/deep_ep_peer.py")),
    ("pplx_peer.py", include_str!("../../../bench/peers/pplx_peer.py")),
    ("flashinfer_peer.py", include_str!("../../../bench/peers/flashinfer_peer.py")),
];

/// Lines of what a script says that stand in an error.
const LINES: usize = 6;

/// Another way to do the same, and its times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Peer {
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
    /// Its times.
    pub times: Vec<PeerTiming>,
}

/// The time that a peer takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerTiming {
    /// Number of the case, from 0.
    pub case: usize,
    /// Of what.
    pub what: What,
    /// Whether it was launched as a graph; if not, the host's work may be part of the time.
    pub graph: bool,
    /// Iterations before which the host had not launched everything: their times have the host's part in them.
    pub host_behind: u32,
    /// The time.
    pub us: Stats,
    /// How far the fastest rank is from the slowest, in the median.
    pub rank_spread_us: f64,
    /// Its median over ours.
    pub over_ours: Option<f64>,
}

/// What a script is to time.
#[derive(Debug, Serialize)]
struct Request<'a> {
    iterations: u32,
    rounds: u32,
    flush_l2: bool,
    seed: u64,
    cases: Vec<RequestCase<'a>>,
}

#[derive(Debug, Serialize)]
struct RequestCase<'a> {
    #[serde(flatten)]
    shape: MoeShape,
    /// `[rank][token * topk + k]`.
    ids: &'a [Vec<i32>],
    /// `[rank][token * topk + k]`.
    weights: &'a [Vec<f32>],
    /// Rows that our dispatch sends, `[from][to]`.
    rows: Vec<Vec<u64>>,
}

/// What a script found.
#[derive(Debug, Deserialize)]
struct Reply {
    peers: Vec<ReplyPeer>,
}

#[derive(Debug, Deserialize)]
struct ReplyPeer {
    name: String,
    version: Option<String>,
    about: String,
    absent: Option<String>,
    times: Vec<ReplyTimes>,
}

#[derive(Debug, Deserialize)]
struct ReplyTimes {
    case: usize,
    what: What,
    graph: bool,
    host_behind: u32,
    /// `[rank][iteration]`.
    times_us: Vec<Vec<f64>>,
}

/// Runs the scripts with a Python that has PyTorch, and puts what they find into `bench`, whose cases are `cases`. Peers
/// that are not installed are absent, all of them if the scripts cannot be run.
pub fn compare(bench: &mut Bench, cases: &[Case], options: &BenchOptions, python: &str) {
    let told = run(bench.machine.gpus.len(), cases, options, python).and_then(|reply| merge(bench, &reply));
    if let Err(why) = told {
        let (name, about) = ("all peers".into(), format!("the scripts, run by {python}"));
        bench.peers.push(Peer { name, version: None, about, absent: Some(why), times: vec![] });
    }
}

/// What the scripts reply.
fn run(ranks: usize, cases: &[Case], options: &BenchOptions, python: &str) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("{python}: {e}");
    let folder = tempfile::tempdir().map_err(failed)?;
    for (name, text) in SCRIPTS {
        std::fs::write(folder.path().join(name), text).map_err(failed)?;
    }
    let [script, request, reply] =
        [SCRIPTS[0].0, "request.json", "reply.json"].map(|name| folder.path().join(name));
    let asked = serde_json::to_vec(&asked(cases, options)).map_err(|e| e.to_string())?;
    std::fs::write(&request, asked).map_err(failed)?;
    let ran = Command::new(python)
        .args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", &ranks.to_string()])
        .args([&script, &request, &reply])
        .output()
        .map_err(failed)?;
    read(&reply, &ran.stderr)
}

/// What the scripts wrote, or else what they said last.
fn read(reply: &Path, stderr: &[u8]) -> Result<String, String> {
    std::fs::read_to_string(reply).map_err(|_| {
        let said = String::from_utf8_lossy(stderr);
        let lines: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
        format!("the scripts failed:\n{}", lines[lines.len().saturating_sub(LINES)..].join("\n"))
    })
}

fn asked<'a>(cases: &'a [Case], options: &BenchOptions) -> Request<'a> {
    let case = |case: &'a Case| {
        let (shape, routing) = (case.problem.shape, case.problem.routing(0));
        let rows = rows(&shape, routing, case.tuning.dispatch.dedup);
        RequestCase { shape, ids: &routing.ids, weights: &routing.weights, rows }
    };
    Request {
        iterations: options.iterations,
        rounds: options.rounds,
        flush_l2: options.flush_l2,
        seed: cases.first().map_or(0, |c| c.problem.seed),
        cases: cases.iter().map(case).collect(),
    }
}

/// Puts what the scripts found into a result.
fn merge(bench: &mut Bench, reply: &str) -> Result<(), String> {
    let reply: Reply = serde_json::from_str(reply).map_err(|e| e.to_string())?;
    for peer in reply.peers {
        let mut times = vec![];
        for found in peer.times {
            let ours = bench.cases.get(found.case).ok_or_else(|| {
                format!("{} has times of case {}, and there are {}", peer.name, found.case, bench.cases.len())
            })?;
            let ours = ours.time(found.what).map(|t| t.us.median);
            let ranks = (found.times_us.len(), bench.machine.gpus.len());
            if ranks.0 != ranks.1 || found.times_us.iter().any(Vec::is_empty) {
                return Err(format!(
                    "{} has times of {} ranks, and there are {}",
                    peer.name, ranks.0, ranks.1
                ));
            }
            let (us, rank_spread_us) = Stats::of_ranks(&found.times_us);
            let over_ours = ours.filter(|ours| *ours > 0.0).map(|ours| us.median / ours);
            let ReplyTimes { case, what, graph, host_behind, .. } = found;
            times.push(PeerTiming { case, what, graph, host_behind, us, rank_spread_us, over_ours });
        }
        let ReplyPeer { name, version, about, absent, .. } = peer;
        bench.peers.push(Peer { name, version, about, absent, times });
    }
    Ok(())
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
