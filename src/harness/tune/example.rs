//! Families for tests: a pair whose variants have to go together, with a cost model and a problem, and one by itself.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{
    Choice, CudaArch, Family, FamilyEntry, FieldRole, Illegal, Legal, Target, Value, Variant,
};
use peerwarp_codegen::ir::Dtype;

use super::record::{Made, Record, Refusal, Timed, names, revisions};
use super::{Candidate, Components, CostModel, Key, Task};
use crate::harness::verdict::Expected;
use crate::harness::workload::{Contents, Given, Inputs, Metric, Problem, Suite, Work, WorkloadError};
use crate::runtime::op::LaunchSpec;

/// What tests are for.
pub(crate) const TARGET: Target = Target::Cuda(CudaArch::Sm90a);

/// How rows stand.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    Rows,
    Slots,
}

/// How rows travel.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    Packets,
    Flags,
}

/// The first of the pair.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "put", kernel = put, args = PutArgs, warps = warps)]
pub(crate) struct Put {
    /// Elements of a row.
    #[key(short = "h", range = 8..=65536, multiple_of = 8)]
    pub hidden: u32,
    /// Rows at most.
    #[key(short = "t", range = 1..=65536, covers)]
    pub tokens: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Type of the elements.
    #[key(values = [Dtype::F32, Dtype::Bf16])]
    pub dtype: Dtype,
    /// How rows stand.
    #[key]
    pub layout: Layout,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16], default = 8)]
    pub warps: u32,
    /// Blocks.
    #[tune(short = "b", values = [1, 2, 4, 8, 16, 32], default = 8)]
    pub blocks: u32,
    /// Vectors in flight.
    #[tune(short = "v", values = [1, 2, 4, 8], default = 2)]
    pub vectors: u32,
    /// Rows that go together.
    #[tune(short = "c", values = [1, 2, 4, 8, 16, 32], default = |key| if key.tokens < 4 { 1 } else { 4 })]
    pub chunk: u32,
    /// Whether rows go once.
    #[tune(default = true)]
    pub dedup: bool,
    /// How rows travel.
    #[tune]
    pub protocol: Protocol,
}

impl Legal for Put {
    fn legal(&self) -> Result<(), Illegal> {
        Illegal::unless(self.chunk <= self.tokens, "chunk", self.chunk, || "at most the tokens")?;
        let dedup = self.dedup || self.layout == Layout::Rows;
        Illegal::unless(dedup, "dedup", self.dedup, || "true where rows stand in slots")
    }
}

/// Parameters of [`put`].
#[derive(KernelArgs)]
#[args(config = Put)]
pub(crate) struct PutArgs {
    /// What goes in.
    #[input]
    #[len(|c| c.padded())]
    pub x: Ptr<u32>,
    /// What is between the two.
    #[output]
    #[len(|_| 64)]
    pub mid: Ptr<u32>,
}

impl Put {
    /// Elements that whole rounds of many vectors may read.
    fn padded(&self) -> u64 {
        (16 * u64::from(self.vectors)).max(64)
    }
}

/// Copies.
#[kernel]
pub(crate) fn put(c: &Put, a: &PutArgs) {
    role("copy", c.blocks, |b| {
        for i in b.strided(64) {
            a.mid.set(i, a.x.get(i));
        }
    });
}

/// The second of the pair.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "get", kernel = get, args = GetArgs, warps = warps)]
pub(crate) struct Get {
    /// Elements of a row.
    #[key(short = "h", range = 8..=65536, multiple_of = 8)]
    pub hidden: u32,
    /// Rows at most.
    #[key(short = "t", range = 1..=65536, covers)]
    pub tokens: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Type of the elements.
    #[key(values = [Dtype::F32])]
    pub dtype: Dtype,
    /// How rows stand.
    #[key]
    pub layout: Layout,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16], default = 8)]
    pub warps: u32,
    /// Blocks.
    #[tune(short = "b", values = [1, 2, 4, 8, 16, 32], default = 8)]
    pub blocks: u32,
    /// Vectors in flight.
    #[tune(short = "v", values = [1, 2, 4, 8], default = 4)]
    pub vectors: u32,
    /// Whether rows came once.
    #[tune(default = true)]
    pub dedup: bool,
    /// How rows travel.
    #[tune]
    pub protocol: Protocol,
}

impl Legal for Get {
    fn legal(&self) -> Result<(), Illegal> {
        let most = 128;
        let allowed = || format!("at most {most} warps in all");
        Illegal::unless(self.blocks * self.warps <= most, "blocks", self.blocks, allowed)
    }
}

/// Parameters of [`get`].
#[derive(KernelArgs)]
#[args(config = Get)]
pub(crate) struct GetArgs {
    /// What is between the two.
    #[input]
    #[len(|_| 64)]
    pub mid: Ptr<u32>,
    /// What comes out.
    #[output]
    #[len(|_| 64)]
    pub y: Ptr<u32>,
}

/// Copies.
#[kernel]
pub(crate) fn get(c: &Get, a: &GetArgs) {
    role("copy", c.blocks, |b| {
        for i in b.strided(64) {
            a.y.set(i, a.mid.get(i));
        }
    });
}

/// A family of somebody else's: two fields to tune, no workload, no model.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "stranger", kernel = stranger, args = StrangerArgs, warps = warps)]
pub(crate) struct Stranger {
    /// Elements.
    #[key(short = "n", range = 1..=65536)]
    pub elements: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16], default = 8)]
    pub warps: u32,
    /// Blocks.
    #[tune(short = "b", values = [1, 2, 4, 8, 16, 32], default = 8)]
    pub blocks: u32,
}

impl Legal for Stranger {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// Parameters of [`stranger`].
#[derive(KernelArgs)]
#[args(config = Stranger)]
pub(crate) struct StrangerArgs {
    /// What goes in.
    #[input]
    #[len(|c| c.elements.into())]
    pub x: Ptr<u32>,
    /// What comes out.
    #[output]
    #[len(|c| c.elements.into())]
    pub y: Ptr<u32>,
}

/// Copies.
#[kernel]
pub(crate) fn stranger(c: &Stranger, a: &StrangerArgs) {
    role("copy", c.blocks, |b| {
        for i in b.strided(c.elements) {
            a.y.set(i, a.x.get(i));
        }
    });
}

/// What a pair of tests is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairKey {
    pub hidden: u32,
    pub tokens: u32,
    pub layout: &'static str,
}

/// The key of most tests.
pub(crate) const KEY: PairKey = PairKey { hidden: 64, tokens: 16, layout: "rows" };

impl PairKey {
    pub fn tokens(self, tokens: u32) -> PairKey {
        PairKey { tokens, ..self }
    }

    pub fn slots(self) -> PairKey {
        PairKey { layout: "slots", ..self }
    }

    /// As tables have it.
    pub fn of(self) -> Key {
        Key::of("pair", pair(self).variants())
    }

    pub fn task(self) -> Task {
        Task { suite: &Pair, defaults: pair(self), start: None, given: Given::new(), limits: None }
    }
}

/// The defaults for a key.
pub(crate) fn pair(key: PairKey) -> Candidate {
    defaults(key, "f32")
}

/// The defaults for a key with a type of the rows that are put.
pub(crate) fn defaults(key: PairKey, dtype: &str) -> Candidate {
    let settings = |dtype: &str| {
        let fields = [("hidden", key.hidden.to_string()), ("tokens", key.tokens.to_string())];
        let rest =
            [("ranks", "2".to_owned()), ("dtype", dtype.to_owned()), ("layout", key.layout.to_owned())];
        fields.into_iter().chain(rest).map(|(f, v)| (f.to_owned(), v)).collect::<Vec<_>>()
    };
    let (put, get) = (Put::entry().build(&settings(dtype)), Get::entry().build(&settings("f32")));
    Candidate::new([put.unwrap(), get.unwrap()])
}

/// The same with other values of fields of one variant.
pub(crate) fn set(candidate: &Candidate, at: usize, fields: &[(&str, &str)]) -> Candidate {
    let variant = &candidate.variants()[at];
    let family = variant.family();
    let value = |(field, own): (&peerwarp_codegen::family::FieldInfo, Value)| {
        let other = fields.iter().find(|(name, _)| *name == field.name).map(|(_, value)| (*value).to_owned());
        (field.name.to_owned(), other.unwrap_or_else(|| own.to_string()))
    };
    let settings: Vec<_> = family.fields().iter().zip(variant.values()).map(value).collect();
    candidate.with(at, family.build(&settings).unwrap())
}

/// A candidate some steps from the defaults.
pub(crate) fn small(candidate: &Candidate) -> Candidate {
    let few = [("warps", "2"), ("blocks", "2")];
    (0..candidate.len()).fold(candidate.clone(), |small, at| set(&small, at, &few))
}

/// The value of a field of a variant.
pub(crate) fn value(variant: &Variant, field: &str) -> Value {
    let at = variant.family().fields().iter().position(|f| f.name == field).unwrap();
    variant.values()[at]
}

/// The task of a stranger's family.
pub(crate) fn stranger_task(elements: u32) -> Task {
    let settings = [("elements", elements), ("ranks", 2)].map(|(f, v)| (f.to_owned(), v.to_string()));
    let default = Stranger::entry().build(&settings).unwrap();
    Task::new(crate::harness::suite::plain::<Stranger>(), [default], Given::new())
}

/// A record of a candidate that wins against the defaults of its task.
pub(crate) fn record_of(task: &Task, winner: &Candidate) -> Record {
    let key = task.key();
    Record {
        suite: key.suite,
        measured: "2026-11-22".into(),
        tried: 31,
        limit_us: Some(7.1),
        us: 18.25,
        key: key.fields,
        variants: names(winner),
        revisions: revisions(winner),
        metrics: [("put".into(), 12.5), ("get".into(), 9.75)].into(),
        default: Timed::of(&task.defaults, Some(20.5)),
        model: Some(Timed::of(&task.defaults, None)),
        made: Made { peerwarp: "0.1.0".into(), driver: "CUDA 13.0".into(), compiler: "nvrtc 13.0".into() },
        pruned: [("illegal".into(), 12), ("registers".into(), 2)].into(),
        refused: vec![Refusal { variant: "put_x".into(), reason: "does not end".into() }],
    }
}

/// A record of a key.
pub(crate) fn record(key: PairKey) -> Record {
    record_of(&key.task(), &small(&pair(key)))
}

/// The suite of both.
#[derive(Debug)]
pub(crate) struct Pair;

impl Suite for Pair {
    fn name(&self) -> &'static str {
        "pair"
    }

    fn families(&self) -> Vec<FamilyEntry> {
        vec![Put::entry(), Get::entry()]
    }

    fn problem(&self, variants: &[Variant], _: &Inputs) -> Result<Box<dyn Problem>, WorkloadError> {
        Ok(Box::new(Copying::new(variants, Arc::default())))
    }

    fn problem_like(
        &self,
        like: &dyn Problem,
        variants: &[Variant],
        _: &Inputs,
    ) -> Result<Box<dyn Problem>, WorkloadError> {
        let like = (like as &dyn Any).downcast_ref::<Copying>().unwrap();
        Ok(Box::new(Copying::new(variants, Arc::clone(&like.reference))))
    }

    fn components(&self) -> Components {
        Components { together: Some(together) }
    }

    fn cost_model(&self, _: &[Variant]) -> Option<Box<dyn CostModel>> {
        Some(Box::new(Model))
    }
}

fn together(variants: &[Variant]) -> Result<(), String> {
    let [put, get] = variants else { return Err("not two".into()) };
    let differ = |field: &&&str| value(put, field) != value(get, field);
    match ["hidden", "tokens", "ranks", "layout", "dedup", "protocol"].iter().find(differ) {
        None => Ok(()),
        Some(field) => Err(format!("{field} must be the same in both")),
    }
}

/// Thinks well of many blocks; knows of no link but one on which 100 million elements take a second.
#[derive(Debug)]
struct Model;

fn number(variant: &Variant, field: &str) -> f64 {
    match value(variant, field) {
        Value::Int(n) => n as f64,
        Value::Bool(_) | Value::Name(_) => 0.0,
    }
}

impl CostModel for Model {
    fn times(&self, components: &[Variant]) -> Vec<f64> {
        components.iter().map(|v| 10.0 - number(v, "blocks") / 8.0).collect()
    }

    fn least(&self, components: &[Variant]) -> Vec<f64> {
        components
            .iter()
            .map(|v| number(v, "hidden") * number(v, "tokens") / 100.0)
            .map(|us| us / 10.0)
            .collect()
    }

    fn fits(&self, components: &[Variant]) -> Vec<bool> {
        components.iter().map(|v| number(v, "warps") * number(v, "vectors") < 128.0).collect()
    }
}

/// What is copied twice has to come out.
#[derive(Debug)]
pub(crate) struct Copying {
    launches: [LaunchSpec; 2],
    ranks: u32,
    /// How often the reference was computed, and what it is.
    reference: Arc<(AtomicU32, OnceLock<Vec<u32>>)>,
}

impl Copying {
    fn new(variants: &[Variant], reference: Arc<(AtomicU32, OnceLock<Vec<u32>>)>) -> Copying {
        let spec = |v: &Variant| LaunchSpec::new(v.family().name(), v.clone());
        let launches = [spec(&variants[0]), spec(&variants[1])];
        Copying { launches, ranks: variants[0].ranks(), reference }
    }

    /// How often the reference was computed by all that share it.
    pub fn computed(&self) -> u32 {
        self.reference.0.load(Ordering::SeqCst)
    }
}

impl Problem for Copying {
    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn rounds(&self) -> u32 {
        1
    }

    fn launches(&self) -> &[LaunchSpec] {
        &self.launches
    }

    fn inputs(&self, _: u32, _: u32) -> Vec<Contents> {
        vec![Contents::of("x", &[7u32; 64])]
    }

    fn expected(&self, _: u32, _: u32) -> Vec<Expected> {
        let reference = self.reference.1.get_or_init(|| {
            self.reference.0.fetch_add(1, Ordering::SeqCst);
            vec![7; 64]
        });
        vec![Expected::exactly("y", Dtype::U32, bytemuck::cast_slice(reference).to_vec())]
    }

    fn metrics(&self) -> Vec<Metric> {
        let metric = |name: &str, at| Metric {
            name: name.to_owned(),
            launches: at..at + 1,
            work: Work::all_to_all(self.ranks, 3_600_000),
        };
        vec![metric("put", 0), metric("get", 1)]
    }

    fn title(&self) -> String {
        "copies".into()
    }
}

/// How many tuning fields two variants of a family differ in.
pub(crate) fn differing(a: &Variant, b: &Variant) -> usize {
    let fields = a.family().fields().iter().zip(a.values().into_iter().zip(b.values()));
    fields.filter(|(f, (a, b))| f.role == FieldRole::Tune && a != b).count()
}
