//! What families say of themselves so that every command works on them.
//!
//! A family gets runs, protocol checks, benchmarks and timelines without a word: its inputs are random then, and nothing is
//! compared. With a [`Workload`], which says what goes in and what must come out, results are compared, limits are known
//! and other libraries timed beside. Families that make sense only together, or that have options of their own, are a
//! [`Suite`]. Simulator and GPUs run the same [`Problem`].

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use peerwarp_codegen::family::{DynKernel, Family, FamilyEntry, FamilyError, Registry, Variant};
use peerwarp_codegen::ir::Const;
use peerwarp_codegen::sim::SimError;
use peerwarp_codegen::threads::ThreadsRefused;
use serde::{Deserialize, Serialize};

use super::bench::Limits;
use super::request::Request;
use super::tune::{Components, CostModel};
use super::verdict::{Expected, Verdict};
use crate::input::{InputError, from_family};
use crate::runtime::RuntimeError;
use crate::runtime::op::{BufferSpec, LaunchSpec, buffers};

/// A prediction in words and tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// What is predicted, for what.
    pub title: String,
    /// What the model leaves out, and how far it is from what is known.
    pub notes: Vec<String>,
    /// The figures.
    pub tables: Vec<PredictedTable>,
}

/// A table of a prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictedTable {
    /// What it shows.
    pub title: String,
    /// The heads of its columns.
    pub head: Vec<String>,
    /// Its rows, a cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// Why a problem cannot be made or run.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The inputs cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The kernel is wrong, or cannot be put on the simulator.
    #[error("{0}")]
    Kernel(String),
    /// The GPUs.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl From<FamilyError> for WorkloadError {
    fn from(error: FamilyError) -> WorkloadError {
        match error {
            FamilyError::Trace(e) => WorkloadError::Kernel(e.to_string()),
            other => WorkloadError::Input(from_family(other)),
        }
    }
}

impl From<ThreadsRefused> for WorkloadError {
    fn from(error: ThreadsRefused) -> WorkloadError {
        WorkloadError::Runtime(error.into())
    }
}

impl From<SimError> for WorkloadError {
    fn from(error: SimError) -> WorkloadError {
        WorkloadError::Kernel(error.to_string())
    }
}

/// What was given of a suite's options, by their names: of a switch `true`. What was given of the common options `ranks` and
/// `seed` is there too.
pub type Given = BTreeMap<String, String>;

/// What kernels are run on.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Decides everything that is random about the inputs.
    pub seed: u64,
    /// How many rounds, one right after the other. At least 1.
    pub rounds: u32,
    /// Whether the seed shall vary sizes that are not given, down to nothing at all on some ranks.
    pub ragged: bool,
    /// What was given of the suite's own options.
    pub given: Given,
}

impl Default for Inputs {
    fn default() -> Inputs {
        Inputs { seed: 0, rounds: 1, ragged: false, given: Given::new() }
    }
}

/// A rank in one round of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Turn {
    /// Decides everything random.
    pub seed: u64,
    /// The rank.
    pub rank: u32,
    /// The round, from 0 on.
    pub round: u32,
}

/// What a part of a buffer holds before the first launch of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// The buffer: the name of a kernel's parameter.
    pub buffer: String,
    /// First byte.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether the bytes are repeated up to the buffer's end.
    pub repeated: bool,
}

impl Contents {
    /// A whole buffer, or the first bytes of it.
    pub fn new(buffer: &str, bytes: Vec<u8>) -> Contents {
        Contents { buffer: buffer.to_owned(), at: 0, bytes, repeated: false }
    }

    /// A buffer that holds these bytes over and over.
    pub fn repeated(buffer: &str, bytes: Vec<u8>) -> Contents {
        Contents { repeated: true, ..Contents::new(buffer, bytes) }
    }

    /// A whole buffer, or the first values of it.
    pub fn of<T: bytemuck::NoUninit>(buffer: &str, values: &[T]) -> Contents {
        Contents::new(buffer, bytemuck::cast_slice(values).to_vec())
    }
}

/// One rank's memory, simulated or a GPU's, by the names of buffers. The host's steps between launches read and write it.
pub trait RankMemory {
    /// Whose it is.
    fn rank(&self) -> u32;
    /// `bytes` bytes of a buffer from byte `at` on.
    fn read(&mut self, buffer: &str, at: u64, bytes: usize) -> Result<Vec<u8>, String>;
    /// Whether a buffer has these bytes from byte `at` on.
    fn holds(&mut self, buffer: &str, at: u64, bytes: &[u8]) -> Result<bool, String> {
        Ok(self.read(buffer, at, bytes.len())? == bytes)
    }
    /// Overwrites a part of a buffer from byte `at` on.
    fn write(&mut self, buffer: &str, at: u64, bytes: &[u8]) -> Result<(), String>;
    /// Size of a buffer in bytes.
    fn size(&self, buffer: &str) -> Result<u64, String>;
    /// The byte that fills all memory that a round has not written; none where reading such memory is an error anyway.
    fn poison(&self) -> Option<u8>;
}

/// What a timed part of a round moves, from which its limit and its bandwidth follow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Bytes that go from rank to rank, `[from][to]`; the diagonal, what a rank moves to itself, crosses no link.
    pub bytes: Vec<Vec<u64>>,
    /// The same for the least bytes that solve the problem, if kernels may send more than these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<Vec<Vec<u64>>>,
    /// Messages between ranks that wait for each other: 1 where every rank sends and receives once.
    pub hops: u32,
    /// Floating-point operations of the busiest rank.
    #[serde(default)]
    pub flops: u64,
    /// What else has to happen one after the other, in microseconds, and what it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<(String, f64)>,
}

impl Work {
    /// The same number of bytes from every rank to every other one, and one hop.
    pub fn all_to_all(ranks: u32, bytes: u64) -> Work {
        let to = |from: u32| (0..ranks).map(|to| if from == to { 0 } else { bytes }).collect();
        Work { bytes: (0..ranks).map(to).collect(), hops: 1, ..Work::default() }
    }

    /// Both, one after the other.
    #[must_use]
    pub fn then(&self, next: &Work) -> Work {
        let sum = |a: &[Vec<u64>], b: &[Vec<u64>]| -> Vec<Vec<u64>> {
            let row = |(a, b): (&Vec<u64>, &Vec<u64>)| a.iter().zip(b).map(|(a, b)| a + b).collect();
            a.iter().zip(b).map(row).collect()
        };
        let least = |w: &Work| w.least.clone().unwrap_or_else(|| w.bytes.clone());
        let either = self.least.is_some() || next.least.is_some();
        Work {
            bytes: sum(&self.bytes, &next.bytes),
            least: either.then(|| sum(&least(self), &least(next))),
            hops: self.hops + next.hops,
            flops: self.flops + next.flops,
            steps: self.steps.iter().chain(&next.steps).cloned().collect(),
        }
    }
}

/// A part of a round that is timed by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// What it is called, in reports and in JSON: `all_gather`.
    pub name: String,
    /// Which launches.
    pub launches: Range<usize>,
    /// What they move.
    pub work: Work,
}

/// Another library that does the same, timed by Python scripts beside ours.
#[derive(Clone, Copy, Debug)]
pub struct Baseline {
    /// File names and contents of the scripts, the first of which is run: by torchrun, one process a rank, with two arguments, the
    /// file to read what to time from and the file to write times to.
    pub scripts: &'static [(&'static str, &'static str)],
}

/// One thing to run: launches, what goes in, and what must come out. Both backends drive it.
pub trait Problem: Any + fmt::Debug + Send + Sync {
    /// World size.
    fn ranks(&self) -> u32;
    /// Nodes that the ranks are on.
    fn nodes(&self) -> u32 {
        self.launches().first().map_or(1, |launch| launch.variant.nodes())
    }
    /// How many rounds.
    fn rounds(&self) -> u32;
    /// The launches of a round, in order.
    fn launches(&self) -> &[LaunchSpec];
    /// What is written before the first launch of a round: the same buffers in all rounds, of which some may get nothing.
    fn inputs(&self, rank: u32, round: u32) -> Vec<Contents>;
    /// The numbers that a rank passes by value in a round, by name. One that says how many rows there are
    /// ([`Rows`](peerwarp_codegen::dsl::Rows)) says that there are as many as can be, unless the result says it.
    fn numbers(&self, _rank: u32, _round: u32) -> Vec<(String, Const)> {
        vec![]
    }
    /// Whether the host has something to do after launches: [`Problem::after_launch`].
    fn has_host_steps(&self) -> bool {
        false
    }
    /// Whether it writes there what a later launch reads: a graph of all launches computes something else then.
    fn host_writes(&self) -> bool {
        self.has_host_steps()
    }
    /// The host's work right after a launch, by its number: checks what is there so far, writes what the next one takes.
    ///
    /// # Errors
    /// What is wrong, in words.
    fn after_launch(&self, _launch: usize, _round: u32, _memory: &mut dyn RankMemory) -> Result<(), String> {
        Ok(())
    }
    /// What a rank has to hold after a round.
    fn expected(&self, rank: u32, round: u32) -> Vec<Expected>;
    /// The same in a world that goes on without some ranks, a mask of them. `None` if what comes out there is not known: the protocol
    /// alone is checked then.
    fn without(&self, _inactive: u64) -> Option<Arc<dyn Problem>> {
        None
    }
    /// Compares what was found in the place of one of [`Problem::expected`].
    fn compare(&self, rank: u32, round: u32, expected: &Expected, found: &[u8], verdict: &mut Verdict) {
        expected.compare(found, &format!("round {round}, rank {rank}"), verdict);
    }
    /// What is timed by itself. The whole round is timed too, if there are several launches.
    fn metrics(&self) -> Vec<Metric>;
    /// What a whole round is called: `round trip`.
    fn round_name(&self) -> String {
        self.metrics().first().map_or_else(|| "round".to_owned(), |m| m.name.clone())
    }
    /// What is written once before times are taken. Values may be any of the right size: times do not depend on them.
    fn timing_inputs(&self, rank: u32) -> Vec<Contents> {
        self.inputs(rank, 0)
    }
    /// The numbers that go with it.
    fn timing_numbers(&self, rank: u32) -> Vec<(String, Const)> {
        self.numbers(rank, 0)
    }
    /// What is asked of baselines, as their scripts take it.
    fn baseline_case(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
    /// What it is, in one line.
    fn title(&self) -> String;
    /// The same where there is little room.
    fn short_title(&self) -> String {
        self.title()
    }
    /// Columns of numbers worth knowing, one a rank.
    fn per_rank(&self) -> Vec<(String, Vec<u64>)> {
        vec![]
    }
    /// Whatever else is worth knowing, by name.
    fn facts(&self) -> Vec<(String, serde_json::Value)> {
        vec![]
    }

    /// The buffers of all launches.
    ///
    /// # Errors
    /// Launches disagree on one.
    fn buffers(&self) -> Result<Vec<BufferSpec>, RuntimeError> {
        buffers(self.launches())
    }
    /// Names of the kernels in the order of their launches.
    fn variants(&self) -> Vec<String> {
        self.launches().iter().map(|l| l.variant.variant_name()).collect()
    }
}

/// An option that a suite adds to the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// Its name, without dashes. One that is also the name of a field sets that field where a family or a variant is selected
    /// by its name.
    pub name: &'static str,
    /// What stands for its value in the help; none for a switch. A `BOOL` may be left out, and is `true` then.
    pub value: Option<&'static str>,
    /// What it means.
    pub help: &'static str,
    /// Which commands have it.
    pub on: On,
    /// Whether `bench` and `tune` take a list of values, `1,8,32`: one problem for each. Those of the option that comes first
    /// vary slowest.
    pub list: bool,
}

/// Which commands have an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// All that select kernels.
    Selection,
    /// All that run kernels on inputs.
    Inputs,
    /// `bench` alone.
    Bench,
    /// `bench`, `run` and `trace`, where kernels are run on GPUs.
    Gpu,
}

/// Families that make sense together: their inputs, results and options. One family is a suite too.
pub trait Suite: fmt::Debug + Send + Sync {
    /// What it is called, in lower case. Tables in catalogues have that name.
    fn name(&self) -> &'static str;
    /// Its families, those that are run together first to last.
    fn families(&self) -> Vec<FamilyEntry>;
    /// What these variants are run on. A family that is missing is completed.
    ///
    /// # Errors
    /// The variants do not go together, or the inputs are not for them.
    fn problem(&self, variants: &[Variant], inputs: &Inputs) -> Result<Box<dyn Problem>, WorkloadError>;
    /// The problem of other variants for the same key and inputs as `like`, which this suite has made: what that has computed
    /// may be shared.
    ///
    /// # Errors
    /// As of [`Suite::problem`].
    fn problem_like(
        &self,
        _like: &dyn Problem,
        variants: &[Variant],
        inputs: &Inputs,
    ) -> Result<Box<dyn Problem>, WorkloadError> {
        self.problem(variants, inputs)
    }
    /// Options of its own.
    fn options(&self) -> Vec<OptionSpec> {
        vec![]
    }
    /// The sets of options that one set stands for: itself, or several where an option means a list of problems.
    ///
    /// # Errors
    /// The options contradict each other, or a value cannot be read.
    fn expand(&self, given: &Given) -> Result<Vec<Given>, InputError> {
        Ok(vec![given.clone()])
    }
    /// The requests for variants that its options ask for, one for each family that goes together; none if no option of
    /// [`On::Selection`] is given. What `given` leaves open is as small as shows the protocol if `small`, else as is usual.
    ///
    /// # Errors
    /// The options contradict each other, or a value cannot be read.
    fn select(&self, _given: &Given, _small: bool, _registry: &Registry) -> Result<Vec<Request>, InputError> {
        Ok(vec![])
    }
    /// What its operations should take on machines that were not measured, if a model says it.
    fn predicted(&self) -> Option<Predicted> {
        None
    }
    /// Catalogues that come with it, by name: `("builtin", "..")`.
    fn catalogues(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
    /// What an entry of a catalogue's table `[[name]]` asks for, given the table `[defaults]`: of each problem, a request for
    /// each family that goes together.
    ///
    /// # Errors
    /// The entry cannot be read; `origin` is the file's name for messages.
    fn catalogue_entry(
        &self,
        _entry: &toml::Table,
        _defaults: &toml::Table,
        origin: &str,
        _registry: &Registry,
    ) -> Result<Vec<Vec<Request>>, InputError> {
        let allowed = "[[family]], for a family by its name";
        Err(InputError::not_allowed(format!("{origin}: [[{}]]", self.name()), "", allowed))
    }
    /// How its kernels are tuned: by default each family by itself.
    fn components(&self) -> Components {
        Components::default()
    }
    /// What its kernels should take, without running them; none if nothing is known.
    fn cost_model(&self, _variants: &[Variant]) -> Option<Box<dyn CostModel>> {
        None
    }
    /// The same for a machine whose links were measured; a model that knows nothing of links is the same there.
    fn cost_model_on(&self, variants: &[Variant], _limits: &Limits) -> Option<Box<dyn CostModel>> {
        self.cost_model(variants)
    }
    /// Other libraries to time beside.
    fn baselines(&self) -> Option<Baseline> {
        None
    }
}

/// What launches of a capacity pass for one length, and what they compute.
#[derive(Clone, Debug)]
pub struct OfRows<F> {
    /// The configuration for that length alone, whose inputs and results these launches have.
    pub like: F,
    /// What they pass besides.
    pub words: Vec<Contents>,
    /// The numbers that they pass by value.
    pub numbers: Vec<(String, Const)>,
}

/// A family with inputs and a reference. Everything else has a default.
pub trait Workload: Family {
    /// What a rank passes in a round: all `#[input]` parameters, by name.
    fn inputs(&self, turn: Turn) -> Vec<Contents>;
    /// The numbers that it passes by value: as [`Problem::numbers`].
    fn numbers(&self, _turn: Turn) -> Vec<(String, Const)> {
        vec![]
    }
    /// Whether launches of some configurations say how many rows they have: `--launch-rows` fixes that.
    fn takes_rows() -> bool {
        false
    }
    /// Launches of so many rows.
    ///
    /// # Errors
    /// Launches do not say how many rows they have, or cannot have so many.
    fn of_rows(&self, rows: u32) -> Result<OfRows<Self>, InputError> {
        let allowed = "a family whose launches say how many rows they have";
        Err(InputError::conflict("--launch-rows", rows, Self::NAME, allowed))
    }
    /// What it passes where times are taken: the same, unless [`Workload::work`] is not of what that makes the kernel move.
    fn timing_inputs(&self, turn: Turn) -> Vec<Contents> {
        self.inputs(turn)
    }
    /// The numbers that go with it.
    fn timing_numbers(&self, turn: Turn) -> Vec<(String, Const)> {
        self.numbers(turn)
    }
    /// What a rank has to hold after it.
    fn expected(&self, turn: Turn) -> Vec<Expected>;
    /// The same in a world that goes on without some ranks, a mask of them: the part of such a rank is zeros, and counts for nothing where
    /// parts are reduced. `None` if it is not known.
    fn expected_without(&self, _turn: Turn, _inactive: u64) -> Option<Vec<Expected>> {
        None
    }
    /// What a launch moves; the limit is unknown without.
    fn work(&self) -> Work {
        Work::default()
    }
    /// Other libraries that do the same.
    fn baselines() -> Option<Baseline> {
        None
    }
    /// What the scripts of baselines take: all fields, and the name of the family.
    fn baseline_case(&self) -> serde_json::Value {
        fields_of(self).into()
    }
}

/// All fields of a configuration, and the name of its family, in words.
pub fn fields_of<F: Family>(config: &F) -> serde_json::Map<String, serde_json::Value> {
    let fields = F::fields().iter().zip(config.values()).map(|(f, v)| (f.name, v.to_string()));
    let named = [("family", F::NAME.to_owned())].into_iter().chain(fields);
    named.map(|(name, value)| (name.to_owned(), serde_json::Value::from(value))).collect()
}

/// Names and values of a variant's key fields, in words.
pub fn key_in_words(variant: &dyn DynKernel) -> String {
    let word = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    variant.key().iter().map(|(name, value)| format!("{name} {}", word(value))).collect::<Vec<_>>().join(", ")
}
