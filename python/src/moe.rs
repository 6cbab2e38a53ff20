//! MoE dispatch and combine on simulated ranks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use peerwarp::codegen::family::Choice;
use peerwarp::codegen::ir::{Const, Dtype};
use peerwarp::families::moe::kernels::{
    CombineDtype, Hook, IdType, Layout, Quantise, ReturnDtype, ScaleLayout, ScaleRoom, ScaleRounding,
};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeShape, RowDtype};
use peerwarp::harness::session::{HostSteps, SimLaunches, SimRanks};
use peerwarp::harness::workload::RankMemory;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{Failure, detached};
use crate::simulated::{lock, one_each};
use crate::world::SimulatedWorld;

/// A layout by its name, and what the first rows of experts are multiples of.
fn layout_of((name, align): (&str, u32)) -> Result<Layout, Failure> {
    match (name, align) {
        ("rank_major", 1) => Ok(Layout::RankMajor),
        ("expert_major", 1) => Ok(Layout::ExpertMajor),
        ("expert_major", 8) => Ok(Layout::ExpertMajor8),
        ("expert_major", 16) => Ok(Layout::ExpertMajor16),
        ("expert_major", 128) => Ok(Layout::ExpertMajor128),
        ("expert_strided", 1) => Ok(Layout::ExpertStrided),
        ("expert_major", other) => Err(Failure::invalid("expert_align", other, "1, 8, 16 or 128")),
        ("rank_major" | "expert_strided", other) => Err(Failure::invalid(
            "expert_align",
            other,
            format!("1: experts' rows of {name} are where they are"),
        )),
        (other, _) => Err(Failure::invalid("layout", other, "rank_major, expert_major or expert_strided")),
    }
}

/// What rows travel as, and what they are combined in, if not in what follows from that: by name; whether dispatch quantises rows of
/// the latter, whether combine applies the weights to rank-major rows, the name of what rows travel back as, and of scales their layout
/// and rounding.
pub type Rows<'a> = (&'a str, Option<&'a str>, bool, bool, &'a str, (&'a str, &'a str));

/// How scales stand after dispatch, and how dispatch rounds them.
pub fn scales_of(rows: Rows<'_>) -> Result<(ScaleLayout, ScaleRounding), Failure> {
    let (layout, rounding) = rows.5;
    let known = ScaleLayout::from_name(layout);
    let layout = known.ok_or_else(|| Failure::invalid("scale_layout", layout, "row, column or 128x4"))?;
    let known = ScaleRounding::from_name(rounding);
    Ok((layout, known.ok_or_else(|| Failure::invalid("scale_rounding", rounding, "floor or up"))?))
}

/// The matrices of scales that a dispatch leaves, the rows of each without and with those that fill it, and the words of a row.
pub type ScaleShape = (u64, u64, u64, u64);

/// How many scales a dispatch leaves, in the order of their layout.
pub fn scale_shape(tuning: &MoeTuning) -> ScaleShape {
    tuning.dispatch().scale_room().shape().into()
}

/// What rows travel back as.
pub fn combine_dtype_of(rows: Rows<'_>) -> Result<ReturnDtype, Failure> {
    ReturnDtype::from_name(rows.4)
        .ok_or_else(|| Failure::invalid("combine_dtype", rows.4, "combined, fp8, fp8-token or nvfp4"))
}

/// What rows travel as, are combined in, and are quantised from.
pub fn types_of(
    (dtype, combined, quantise, ..): Rows<'_>,
) -> Result<(RowDtype, CombineDtype, Quantise), Failure> {
    let dtype: RowDtype = dtype.parse()?;
    let known = |name| {
        CombineDtype::from_name(name).ok_or_else(|| Failure::invalid("combined", name, "bf16 or fp16"))
    };
    let combined = combined.map_or_else(|| Ok(dtype.into()), known)?;
    let quantise = match combined {
        _ if !quantise => Quantise::None,
        CombineDtype::Bf16 => Quantise::Bf16,
        CombineDtype::Fp16 => Quantise::Fp16,
    };
    Ok((dtype, combined, quantise))
}

/// Bytes of a row that callers give.
fn given_bytes(shape: &MoeShape, quantise: Quantise) -> u32 {
    quantise.from().map_or_else(|| shape.row_bytes(), |from| shape.hidden * from.bytes())
}

/// What launches there are: whether halves of operations are launches of their own, whether combine counts what is missing, and what
/// dispatch knows of experts.
pub type Launches = (bool, bool, Placing);

/// Where experts are: slots of a rank that a table places them in, 0 without one, and the replicas of an expert that it has room for;
/// whether their entries are counted, and whether ids have 64 bits.
pub type Placing = (u32, u32, bool, bool);

/// The operation with launches of this kind.
pub fn with_launches(tuning: MoeTuning, launches: Launches) -> Result<MoeTuning, Failure> {
    let (split, missing, (expert_slots, replicas, expert_load, wide)) = launches;
    let tuning = tuning.with_split(split).with_missing(missing).with_expert_load(expert_load);
    let ids = if wide { IdType::I64 } else { IdType::I32 };
    Ok(tuning.with_ids(ids).with_placement(expert_slots, replicas)?)
}

/// How rows stand: a layout's name, what first rows of experts are multiples of, and how many rows by expert have a place, 0 for all.
pub type Standing<'a> = (&'a str, u32, u32);

/// The layout of how rows stand, and for how many there are places in a shape: no more than there can be.
pub fn places_of(standing: Standing<'_>, shape: &MoeShape) -> Result<(Layout, u32), Failure> {
    let (name, align, max_rows) = standing;
    let layout = layout_of((name, align))?;
    // A smaller capacity may have fewer rows than there are places for.
    let most = u32::try_from(layout.most_rows(shape)).unwrap_or(u32::MAX);
    Ok((layout, if layout.by_expert() { max_rows.min(most) } else { max_rows }))
}

/// What callers have to know of a shape's rows: the bytes of one, of its scales, and whether these are f32; else they are bytes.
pub fn row_sizes(shape: &MoeShape) -> (u32, u32, bool) {
    (shape.row_bytes(), shape.scale_bytes(), shape.dtype.moved_scales() == Dtype::F32)
}

/// What a rank sends: its rows, ids, weights and scales, where some travel, and its tables, by the names of their buffers.
type Sent =
    (PyBackedBytes, PyBackedBytes, PyBackedBytes, Option<PyBackedBytes>, Vec<(String, PyBackedBytes)>);

/// What a buffer of some name holds that a rank ends up with.
type Buffers = BTreeMap<&'static str, Vec<u8>>;

/// Dispatch and combine for one shape, traced once.
#[pyclass(frozen)]
pub struct MoeAllToAll {
    ranks: Arc<SimRanks>,
    op: Arc<Op>,
}

/// A dispatch's inputs, which its combine runs on again.
#[pyclass(frozen)]
pub struct Round {
    op: Arc<Op>,
    sent: Arc<[Tokens]>,
}

struct Op {
    /// Where a table places experts, with slots in their stead.
    shape: MoeShape,
    layout: Layout,
    combined: CombineDtype,
    quantise: Quantise,
    /// Whether there may be more rows than places.
    drops: bool,
    /// Whether combine counts entries that are missing, and dispatch those of each expert.
    counts: (bool, bool),
    /// The buffers in which rows and their scales arrive.
    rows: [&'static str; 2],
    /// The order of scales that come, their shape, and whether callers give one for all rows.
    of_scales: (ScaleLayout, ScaleRoom, bool),
    /// How many launches a dispatch has.
    dispatches: usize,
    launches: SimLaunches,
}

/// The tokens of a rank, in buffers that end with the last of them.
struct Tokens {
    n: u32,
    x: Vec<u8>,
    /// What kernels call the scales that are given.
    scales_name: &'static str,
    x_scale: Vec<u8>,
    ids: Vec<u8>,
    weights: Vec<u8>,
    tables: Vec<(String, Vec<u8>)>,
}

impl Tokens {
    fn new(row_bytes: u32, scales_name: &'static str, (x, ids, weights, scales, tables): &Sent) -> Tokens {
        Tokens {
            n: (x.len() / row_bytes as usize) as u32,
            x: x.to_vec(),
            scales_name,
            x_scale: scales.as_ref().map_or_else(Vec::new, |scales| scales.to_vec()),
            ids: ids.to_vec(),
            weights: weights.to_vec(),
            tables: tables.iter().map(|(name, bytes)| (name.clone(), bytes.to_vec())).collect(),
        }
    }

    fn write(&self, memory: &mut dyn RankMemory) -> Result<(), String> {
        // As many as there are rows.
        memory.write("n", 0, &u32::MAX.to_le_bytes())?;
        memory.write("x", 0, &self.x)?;
        memory.write("ids", 0, &self.ids)?;
        memory.write("weights", 0, &self.weights)?;
        if !self.x_scale.is_empty() {
            memory.write(self.scales_name, 0, &self.x_scale)?;
        }
        self.tables.iter().try_for_each(|(name, bytes)| memory.write(name, 0, bytes))
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

impl Op {
    /// What kernels call the scales that callers give.
    fn given_scales(&self) -> &'static str {
        if self.of_scales.2 { "tensor_scale" } else { "x_scale" }
    }

    /// What dispatch left on a rank. Rows that did not come are zeros, and no kernel reads them.
    fn dispatched(&self, memory: &mut dyn RankMemory) -> Result<Buffers, String> {
        let mut all = Buffers::new();
        for name in ["expert_rows", "expert_start", "n_from"] {
            let bytes = memory.size(name)? as usize;
            all.insert(name, memory.read(name, 0, bytes)?);
        }
        let rows = words(&all["expert_rows"]).iter().sum::<u32>();
        if self.layout == Layout::RankMajor {
            let bytes = memory.size("entry_expert")? as usize;
            all.insert("entry_expert", memory.read("entry_expert", 0, bytes)?);
            all.insert("gather", memory.read("gather", 0, 4 * rows as usize)?);
            let weights = self.weights_from(&words(&all["n_from"]), memory)?;
            all.insert("weight_from", weights);
        }
        if self.counts.1 {
            let bytes = memory.size("expert_load")? as usize;
            all.insert("expert_load", memory.read("expert_load", 0, bytes)?);
        }
        if self.drops {
            for name in ["overflow", "needed"] {
                all.insert(name, memory.read(name, 0, 4)?);
            }
        }
        let places = self.places(&all);
        let [rows, scales] = self.rows;
        all.insert("rows", self.each(rows, self.shape.row_bytes(), &places, memory)?);
        let scales = match self.of_scales.0 {
            ScaleLayout::Row => self.each(scales, self.shape.scale_bytes(), &places, memory)?,
            ScaleLayout::Column | ScaleLayout::Tiles => self.ordered(scales, &places, memory)?,
        };
        all.insert("row_scale", scales);
        Ok(all)
    }

    /// The weights of each source's tokens, `[source][token][k]`.
    fn weights_from(&self, n: &[u32], memory: &mut dyn RankMemory) -> Result<Vec<u8>, String> {
        let source = 4 * u64::from(self.shape.tokens * self.shape.topk);
        let mut all = vec![0; n.len() * source as usize];
        for (&n, at) in n.iter().zip((0..).map(|s| s * source)) {
            let bytes = 4 * (n * self.shape.topk) as usize;
            all[at as usize..at as usize + bytes].copy_from_slice(&memory.read("weight_from", at, bytes)?);
        }
        Ok(all)
    }

    /// Whether there is a row in each of the places that there are.
    fn places(&self, all: &Buffers) -> Vec<bool> {
        if self.layout.by_expert() {
            let (starts, rows) = (words(&all["expert_start"]), words(&all["expert_rows"]));
            let mut here = vec![false; starts.last().map_or(0, |end| *end as usize)];
            for (&start, &rows) in starts.iter().zip(&rows) {
                here[start as usize..(start + rows) as usize].fill(true);
            }
            return here;
        }
        let experts = words(&all["entry_expert"]);
        let is_here = |entries: &[u32]| entries.iter().any(|&expert| expert != u32::MAX);
        experts.chunks(self.shape.topk as usize).map(is_here).collect()
    }

    /// The rows of a buffer that there are, and zeros in the other places.
    fn each(
        &self,
        buffer: &str,
        row: u32,
        places: &[bool],
        memory: &mut dyn RankMemory,
    ) -> Result<Vec<u8>, String> {
        let row = row as usize;
        let mut all = vec![0; places.len() * row];
        if row == 0 {
            return Ok(all);
        }
        for (place, into) in all.chunks_mut(row).enumerate().filter(|(place, _)| places[*place]) {
            into.copy_from_slice(&memory.read(buffer, (place * row) as u64, row)?);
        }
        Ok(all)
    }

    /// The scales of rows that came, where their layout has them, and zeros.
    fn ordered(&self, buffer: &str, places: &[bool], memory: &mut dyn RankMemory) -> Result<Vec<u8>, String> {
        let room = self.of_scales.1;
        let mut all = vec![0; 4 * room.all_words() as usize];
        for (row, _) in (0..).zip(places).filter(|(_, came)| **came) {
            for word in 0..u64::from(self.shape.scales()) {
                let at = 4 * room.place(row, word) as usize;
                all[at..at + 4].copy_from_slice(&memory.read(buffer, at as u64, 4)?);
            }
        }
        Ok(all)
    }

    /// Bytes of an element of combined rows times `hidden`.
    fn combined_row(&self) -> usize {
        (self.shape.hidden * self.combined.dtype().bytes()) as usize
    }

    /// Writes the rows of `y` that there are.
    fn write_y(&self, y: &[u8], memory: &mut dyn RankMemory) -> Result<(), String> {
        let all = self.dispatched(memory)?;
        let places = self.places(&all);
        let row = self.combined_row();
        for (place, y) in y.chunks(row).enumerate().filter(|(place, _)| places.get(*place) == Some(&true)) {
            memory.write("y", (place * row) as u64, y)?;
        }
        Ok(())
    }
}

/// The host's part of a dispatch.
struct Dispatching {
    op: Arc<Op>,
    sent: Arc<[Tokens]>,
    found: Vec<Mutex<Buffers>>,
}

/// The numbers that a rank's launches take.
fn numbers(tokens: &Tokens) -> Vec<(String, Const)> {
    vec![("rows_there".to_owned(), Const::U32(tokens.n)), ("empty_id".to_owned(), Const::I32(-1))]
}

impl HostSteps for Dispatching {
    fn numbers(&self, rank: u32) -> Vec<(String, Const)> {
        numbers(&self.sent[rank as usize])
    }

    fn step(&self, launches: usize, memory: &mut dyn RankMemory) -> Result<(), String> {
        let rank = memory.rank() as usize;
        if launches == 0 {
            return self.sent[rank].write(memory);
        }
        if launches == self.op.dispatches {
            *lock(&self.found[rank]) = self.op.dispatched(memory)?;
        }
        Ok(())
    }
}

/// The host's part of a dispatch, the experts and a combine.
struct Combining {
    op: Arc<Op>,
    sent: Arc<[Tokens]>,
    y: Vec<PyBackedBytes>,
    /// Of each rank its combined rows, and what is missing of each, if that is counted.
    out: Vec<Mutex<[Vec<u8>; 2]>>,
}

impl HostSteps for Combining {
    fn numbers(&self, rank: u32) -> Vec<(String, Const)> {
        numbers(&self.sent[rank as usize])
    }

    fn step(&self, launches: usize, memory: &mut dyn RankMemory) -> Result<(), String> {
        let (op, rank) = (&self.op, memory.rank() as usize);
        match launches {
            0 => self.sent[rank].write(memory)?,
            _ if launches == op.dispatches => op.write_y(&self.y[rank], memory)?,
            _ if launches == 2 * op.dispatches => {
                let n = self.sent[rank].n as usize;
                let missing = op.counts.0.then(|| memory.read("missing", 0, 4 * n)).transpose()?;
                let out = memory.read("out", 0, n * op.combined_row())?;
                *lock(&self.out[rank]) = [out, missing.unwrap_or_default()];
            }
            _ => {}
        }
        Ok(())
    }
}

#[pymethods]
impl MoeAllToAll {
    #[new]
    fn new(
        py: Python<'_>,
        world: &Bound<'_, SimulatedWorld>,
        hidden_experts_topk_tokens: (u32, u32, u32, u32),
        rows: Rows<'_>,
        standing: Standing<'_>,
        launches: Launches,
    ) -> Result<MoeAllToAll, Failure> {
        let (hidden, experts, topk, tokens) = hidden_experts_topk_tokens;
        let ranks = Arc::clone(&world.get().ranks);
        let (dtype, combined, quantise) = types_of(rows)?;
        let (combine_dtype, (scale_layout, scale_rounding)) = (combine_dtype_of(rows)?, scales_of(rows)?);
        let shape = MoeShape { hidden, experts, topk, tokens, ranks: ranks.ranks(), dtype };
        shape.check()?;
        let slots = shape.with_slots(launches.2.0);
        let (layout, max_rows) = places_of(standing, &slots)?;
        let op = detached(py, || {
            let tuning = MoeTuning::defaults_with(&shape, Hook::None, layout)?;
            let tuning = tuning
                .with_quantise(quantise)?
                .with_combine_dtype(combine_dtype)?
                .with_max_rows(max_rows)
                .with_combined(combined)
                .with_weighted(rows.3)
                .with_scale_layout(scale_layout)
                .with_scale_rounding(scale_rounding);
            let tuning = with_launches(tuning, launches)?;
            tuning.check(&shape)?;
            let drops = tuning.dispatch().room().drops;
            let (rows, dispatches) = (tuning.semantics().rows(), tuning.dispatch_launches().len());
            let (scales, has_tensor_scale) = (tuning.dispatch().scale_room(), tuning.key.has_tensor_scale());
            let launches = SimLaunches::new(&tuning.launch_specs())?;
            let counts = (tuning.key.missing, tuning.key.expert_load);
            let of_scales = (scale_layout, scales, has_tensor_scale);
            Ok(Arc::new(Op {
                shape: slots,
                layout,
                combined,
                quantise,
                drops,
                counts,
                rows,
                of_scales,
                dispatches,
                launches,
            }))
        })?;
        Ok(MoeAllToAll { ranks, op })
    }

    /// The bytes of a row, of its scales, and whether these are float32; else they are bytes.
    fn row_sizes(&self) -> (u32, u32, bool) {
        row_sizes(&self.op.shape)
    }

    /// As [`scale_shape`].
    fn scale_shape(&self) -> ScaleShape {
        self.op.of_scales.1.shape().into()
    }

    /// First expert, or slot, of each rank, and after the last one all of them.
    fn first_experts(&self) -> Vec<u32> {
        self.op.shape.first_experts()
    }

    /// Brings rows to the ranks that own their experts. Of each rank: bytes by the name of the buffer.
    fn dispatch<'py>(
        &self,
        py: Python<'py>,
        sent: Vec<Sent>,
    ) -> Result<(Round, Vec<Bound<'py, PyDict>>), PyErr> {
        let (op, ranks) = (&self.op, &self.ranks);
        let (sent, found) = detached(py, || {
            one_each("ranks of x", sent.len(), ranks.ranks())?;
            let sent: Arc<[Tokens]> = {
                let row_bytes = given_bytes(&op.shape, op.quantise);
                sent.iter().map(|sent| Tokens::new(row_bytes, op.given_scales(), sent)).collect()
            };
            let found = sent.iter().map(|_| Mutex::default()).collect();
            let host = Dispatching { op: Arc::clone(op), sent: Arc::clone(&sent), found };
            let host = ranks.run(&op.launches, op.dispatches, host)?;
            Ok((sent, host))
        })?;
        let of_rank = |found: &Mutex<Buffers>| {
            let all = PyDict::new(py);
            for (name, bytes) in &*lock(found) {
                all.set_item(name, PyBytes::new(py, bytes))?;
            }
            Ok(all)
        };
        let all: PyResult<Vec<_>> = found.found.iter().map(of_rank).collect();
        Ok((Round { op: Arc::clone(op), sent }, all?))
    }

    /// Brings the experts' outputs back. Of each rank: the bytes of its combined rows, and of the counts of what is missing.
    fn combine<'py>(
        &self,
        py: Python<'py>,
        round: &Bound<'py, Round>,
        y: Vec<PyBackedBytes>,
    ) -> Result<Vec<[Bound<'py, PyBytes>; 2]>, Failure> {
        let (op, ranks, round) = (&self.op, &self.ranks, round.get());
        let host = detached(py, || {
            one_each("ranks of y", y.len(), ranks.ranks())?;
            if !Arc::ptr_eq(op, &round.op) {
                let allowed = "what dispatch of the same operation returned";
                return Err(Failure::invalid("d", "a dispatch of another operation", allowed));
            }
            let out = y.iter().map(|_| Mutex::default()).collect();
            let host = Combining { op: Arc::clone(op), sent: Arc::clone(&round.sent), y, out };
            Ok(ranks.run(&op.launches, 2 * op.dispatches, host)?)
        })?;
        let bytes = |out: &Mutex<[Vec<u8>; 2]>| lock(out).each_ref().map(|part| PyBytes::new(py, part));
        Ok(host.out.iter().map(bytes).collect())
    }
}
