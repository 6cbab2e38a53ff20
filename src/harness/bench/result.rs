//! What a benchmark yields.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::baselines::{BaselineTimes, BaselineTiming};
use super::limit::{Known, Limit};
use super::links::RankBytes;
use super::stats::Stats;
use crate::harness::workload::Given;

/// The version of the JSON form: 2 has metrics by name, of any family.
pub const SCHEMA: u32 = 2;

/// What was timed, on which machine, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The machine.
    pub machine: Machine,
    /// How times were taken.
    pub method: Method,
    /// A graph of a kernel that does nothing, timed in the same way: the floor under all times.
    pub floor_us: Stats,
    /// What limits were computed from; none if nothing is known of this machine's links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Known>,
    /// Why nothing is known of this machine's links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_limits: Option<String>,
    /// The problems.
    pub cases: Vec<CaseTimes>,
    /// Other libraries on the same GPUs, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<BaselineTimes>,
}

impl Bench {
    /// What baselines take for a metric of a case, by the case's number.
    pub fn baseline_times(
        &self,
        case: usize,
        metric: &str,
        rounds: u32,
    ) -> impl Iterator<Item = (&BaselineTimes, &BaselineTiming)> {
        let of = move |t: &BaselineTiming| (t.case, t.metric.as_str(), t.rounds) == (case, metric, rounds);
        let all = self.baselines.iter().flat_map(|b| b.times.iter().map(move |t| (b, t)));
        all.filter(move |(_, t)| of(t))
    }
}

/// A metric as people say it: `all_gather`, or `all_gather, one of 10` where it is a part of a graph of ten.
pub fn in_words(metric: &str, rounds: u32) -> String {
    if rounds > 1 { format!("{metric}, one of {rounds}") } else { metric.to_owned() }
}

/// The machine that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Names of the ranks' GPUs.
    pub gpus: Vec<String>,
    /// The driver.
    pub driver: String,
    /// How memory is shared.
    pub sharing: String,
    /// Version of this program.
    pub peerwarp: String,
}

/// How times were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// Iterations that count; a few before them do not.
    pub iterations: u32,
    /// Rounds of the graph of many.
    pub rounds: u32,
    /// Whether 256 MiB were written before each iteration, so that no input is in a cache.
    pub l2_flushed: bool,
    /// What was given of the suite's options, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub given: Given,
    /// Seed of everything random about the inputs.
    pub seed: u64,
    /// Whether every rank was a process of its own; if not, one process had all of them.
    #[serde(default)]
    pub process_per_rank: bool,
    /// Whether blocks of other kernels could run on the same SMs.
    #[serde(default)]
    pub sms_shared: bool,
    /// The most ranks that were on one GPU: with more than one, times say nothing about links.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub ranks_per_gpu: u32,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_one(number: &u32) -> bool {
    *number == 1
}

/// What is known about the results of kernels that were timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Nothing: they were not to be checked.
    Skipped,
    /// Nothing: the family has no reference.
    NoReference,
    /// They were right, in a run of one round before.
    Right {
        /// Whether every bit was compared; else there is a tolerance.
        exact: bool,
        /// The largest difference to the reference.
        max_abs_err: f64,
    },
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseTimes {
    /// What it is, in one line.
    pub title: String,
    /// The same where there is little room.
    pub short_title: String,
    /// Key fields of the first kernel, by name: cases that differ in one number stand in one plot.
    pub key: BTreeMap<String, Value>,
    /// Whatever else the problem says about itself, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, Value>,
    /// Numbers worth knowing, one a rank, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub per_rank: BTreeMap<String, Vec<u64>>,
    /// Names of the kernels in the order of their launches in a round.
    pub variants: Vec<String>,
    /// Whether results are right.
    pub check: Check,
    /// What goes over the links, `[rank]` by metric; of metrics with known work.
    pub wire: BTreeMap<String, Vec<RankBytes>>,
    /// The times.
    pub times: Vec<Timing>,
}

impl CaseTimes {
    /// The time of a metric in a graph of so many rounds.
    pub fn time(&self, metric: &str, rounds: u32) -> Option<&Timing> {
        self.times.iter().find(|t| (t.metric.as_str(), t.rounds) == (metric, rounds))
    }
}

/// The time of one metric. A value is an iteration's: the slowest rank's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Of what: a metric of the problem, or its whole round.
    pub metric: String,
    /// How many of them were launched as one graph, right after each other; the time is that of one.
    pub rounds: u32,
    /// The time.
    pub us: Stats,
    /// How far the fastest rank is from the slowest, in the median.
    pub rank_spread_us: f64,
    /// Bytes of the busiest rank, in the direction that has more of them; none if the family does not say.
    pub bytes: Option<u64>,
    /// These bytes over the median.
    pub gbps: Option<f64>,
    /// The least that it can take; none on a machine of which nothing is known, or if the family does not say what it does.
    pub limit: Option<Limit>,
}

impl Timing {
    /// The median over the limit: 1 is as fast as the machine allows.
    pub fn over_limit(&self) -> Option<f64> {
        self.limit.map(|limit| self.us.median / limit.us)
    }
}
