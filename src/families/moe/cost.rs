//! What dispatch and combine should take, without running it: good enough to rank candidates and to leave out hopeless ones.
//!
//! Times in microseconds, each a sum of what has to happen one after the other:
//!
//! ```text
//! dispatch = node + route + records + hop + publish + max(wire, send) + take + tail + blocks
//! combine  = node                   + hop + publish + max(wire, send) + sum  + tail + blocks
//!
//! records = entries of a record * entry + records of all ranks * record
//! wire    = bytes to other ranks / bandwidth
//! send    = pieces of a rank's rows / groups that send, rounded up, * step
//! take    = pieces that come in / groups that receive, rounded up, * (local + places of a row * load) + slots / groups * look
//! sum     = pieces of a rank's tokens / groups that receive, rounded up, * (local + rows of a token * load)
//! publish = release, for rows with flags; nothing for packets
//! ```
//!
//! A row has a place for each of its entries, by token one. There rows are indexed beside what moves them, and a block that takes
//! packets waits for no record but the row's own:
//!
//! ```text
//! dispatch by token = .. + publish + max(max(wire, send) + take, records of all ranks * record + index) + tail + blocks
//!
//! index = bases + pieces of all entries / warps that index, rounded up, * 3 * look
//! take  = slots / warps that receive * look + rows / warps that receive * look, where rows arrive in place
//! ```
//!
//! With flags the records are waited for before that. Nothing is summed where rows are sent in combine by token.
//!
//! A piece is what the lanes of a group move at once. Rows are those that uniform routing makes, on average. Values of
//! fields are asked for by their names: a field that is not known here makes no difference, so that what differs in it is
//! always measured. [`Costs`] says where the numbers come from.

use peerwarp_codegen::device::Device;
use peerwarp_codegen::family::{Family, Value, Variant};

use super::MoeShape;
use super::kernels::{Combine, Dispatch};
use super::work::ROUTING_US;
use crate::harness::bench::{H200, Limits};
use crate::harness::tune::CostModel;

/// The model for the shape of these variants; none if there is no dispatch among them, which says the shape.
pub fn model(variants: &[Variant]) -> Option<Box<dyn CostModel>> {
    model_on(variants, &H200)
}

/// The same for a machine whose links take this; what its SMs take is that of an H200.
pub fn model_on(variants: &[Variant], limits: &Limits) -> Option<Box<dyn CostModel>> {
    let dispatch = variants.iter().find_map(dispatch)?;
    Some(Box::new(Model { costs: Costs { limits: *limits, ..COSTS }, ..Model::new(dispatch.shape()) }))
}

fn dispatch(variant: &Variant) -> Option<&Dispatch> {
    variant.as_any().downcast_ref()
}

fn combine(variant: &Variant) -> Option<&Combine> {
    variant.as_any().downcast_ref()
}

/// What the parts of a kernel take, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Launches, hops and links.
    pub limits: Limits,
    /// A group loads a piece and stores it to a peer, all lanes at once; and for each vector of a lane. Little's law: 8
    /// blocks of 256 threads with 8 vectors of 16 bytes each reach 154 GB/s, with 512 threads 285: 1.7 us.
    pub step_us: f64,
    /// See above.
    pub step_vector_us: f64,
    /// The same within a GPU: an estimate, between a dependent load (0.16) and a step to a peer.
    pub local_us: f64,
    /// See above.
    pub local_vector_us: f64,
    /// Each row more that is added to a sum, and each place that a row is copied to.
    pub load_us: f64,
    /// A look at a slot that holds nothing for this rank: a dependent local load.
    pub look_us: f64,
    /// A release and the acquire that belongs to it (1.24) instead of relaxed accesses (0.65), and a fence (0.94).
    pub release_us: f64,
    /// An entry of a record, which a block makes and another one reads.
    pub entry_us: f64,
    /// Each record of any rank: a flag that every receiver waits for.
    pub record_us: f64,
    /// The first row of every expert, source and chunk, which the index of rows by token begins with. With one token on eight
    /// ranks the index is done 0.5 us after the rows.
    pub bases_us: f64,
    /// GB/s that an SM stores at most, to peers and to its own rank.
    pub sent_gbps: f64,
    /// Each block of the grid: breaks ties in favour of fewer SMs.
    pub block_us: f64,
    /// Registers of a thread beside those of its pieces.
    pub registers: u32,
    /// Registers that a vector in flight takes where rows are moved, and where they are summed in f32.
    pub moved_registers: u32,
    /// See above.
    pub summed_registers: u32,
}

/// H200s: the raw limits of [`H200`], and costs of records fitted to chunks of 4 to 128 tokens on two GPUs
/// (`bench/results/what-was-tried.md`, what did not pay: chunks).md`, chunks).
pub const COSTS: Costs = Costs {
    limits: H200,
    step_us: 0.8,
    step_vector_us: 0.11,
    local_us: 0.6,
    local_vector_us: 0.1,
    load_us: 0.3,
    look_us: 0.16,
    release_us: 1.5,
    entry_us: 0.07,
    record_us: 0.33,
    bases_us: 1.5,
    sent_gbps: 40.0,
    block_us: 0.003,
    registers: 40,
    moved_registers: 8,
    summed_registers: 12,
};

/// Entries that a warp indexes at once, and the loads of it that wait for each other: word, base, place.
const INDEXED: u32 = 128;
const INDEX_LOADS: f64 = 3.0;

/// What the costs were measured on.
const MEASURED: Device = Device::measured();

/// The model for one shape.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    shape: MoeShape,
    costs: Costs,
}

/// What the fields of a configuration say, by their names.
struct Fields<'a, F>(&'a F);

impl<F: Family> Fields<'_, F> {
    fn number(&self, name: &str, otherwise: u32) -> f64 {
        match self.0.value(name) {
            Some(Value::Int(n)) => n as f64,
            _ => f64::from(otherwise),
        }
    }

    fn is(&self, name: &str) -> bool {
        self.0.value(name) == Some(Value::Bool(true))
    }

    fn named(&self, name: &str, value: &str) -> bool {
        matches!(self.0.value(name), Some(Value::Name(own)) if own == value)
    }

    fn is_packets(&self) -> bool {
        self.named("protocol", "packets")
    }

    /// Groups of so many blocks.
    fn groups(&self, blocks: &str) -> f64 {
        (self.number(blocks, 1) * self.number("warps", 1) / self.number("group_warps", 1)).max(1.0)
    }

    /// Pieces of `rows` rows of `bytes` bytes that the busiest group of so many blocks has.
    fn turns(&self, rows: f64, bytes: u32, blocks: &str) -> f64 {
        let groups = self.groups(blocks);
        let piece = self.number("group_warps", 1) * 32.0 * self.number("vectors", 1) * 16.0;
        let pieces = (f64::from(bytes) / piece).ceil();
        // Packets are each for itself, so that groups may share a row; a flag is for a whole one.
        match self.is_packets() {
            true => (rows * pieces / groups).ceil(),
            false => (rows / groups).ceil() * pieces,
        }
    }

    /// Registers of a thread that holds its vectors, and how many there are for it.
    fn registers(&self, costs: &Costs, a_vector: u32) -> (f64, f64) {
        let needed = f64::from(costs.registers) + f64::from(a_vector) * self.number("vectors", 1);
        let of_lane = f64::from(MEASURED.sm_registers()) / (32.0 * self.number("warps", 1));
        let there = of_lane.min(MEASURED.thread_registers.into());
        (needed, there)
    }

    fn step_us(&self, costs: &Costs) -> f64 {
        costs.step_us + self.number("vectors", 1) * costs.step_vector_us
    }

    fn local_us(&self, costs: &Costs) -> f64 {
        costs.local_us + self.number("vectors", 1) * costs.local_vector_us
    }

    fn blocks(&self) -> f64 {
        self.number("send_blocks", 0) + self.number("recv_blocks", 0)
    }
}

impl Model {
    /// For a shape, with the costs of an H200: on other devices they rank candidates, and the times are not theirs.
    pub fn new(shape: MoeShape) -> Model {
        Model { shape, costs: COSTS }
    }

    fn dispatch(&self, dispatch: &Dispatch) -> f64 {
        let (c, s, f) = (&self.costs, &self.shape, Fields(dispatch));
        let tokens = f64::from(s.tokens);
        let record = f.number("chunk", s.tokens).min(tokens);
        let made = record * f64::from(s.topk) * c.entry_us;
        let records = f64::from(s.ranks) * (tokens / record).ceil() * c.record_us;
        let slots = if f.is("dedup") { tokens } else { tokens * f64::from(s.topk) };
        let send = f.turns(slots, s.row_bytes(), "send_blocks") * f.step_us(c);
        // A row is loaded once, and stored for each rank that it goes to.
        let stored = self.rows(f.is("dedup")) * f64::from(s.row_bytes());
        let send = send.max(stored / (f.number("send_blocks", 1) * c.sent_gbps * 1e3));
        let wire = self.wire_us(f.is("dedup"), s.row_bytes() + s.scale_bytes());
        let moved = wire.max(send) + self.take(dispatch, slots);
        let arrived = match (dispatch.layout.by_expert(), f.is_packets()) {
            (true, _) => records + moved,
            (false, true) => moved.max(records + self.index(dispatch)),
            (false, false) => records + moved.max(self.index(dispatch)),
        };
        let publish = if f.is_packets() { 0.0 } else { c.release_us };
        self.fixed_us() + ROUTING_US + made + publish + arrived + f.blocks() * c.block_us
    }

    /// What receivers of dispatch do when rows have come, and before: they look for them in the slots of all ranks.
    fn take(&self, dispatch: &Dispatch, slots: f64) -> f64 {
        let (c, s, f) = (&self.costs, &self.shape, Fields(dispatch));
        let (slots, rows) = (f64::from(s.ranks) * slots, self.rows(f.is("dedup")));
        if dispatch.in_place() {
            // A warp waits, whatever a group is, and has nothing to move.
            let warps = f.number("recv_blocks", 1) * f.number("warps", 1);
            return (slots + rows) / warps * c.look_us;
        }
        let places = match dispatch.layout.by_expert() {
            true => f64::from(s.tokens) * f64::from(s.topk) / rows,
            false => 1.0,
        };
        let each = f.local_us(c) + places * c.load_us;
        f.turns(rows, s.row_bytes(), "recv_blocks") * each + slots / f.groups("recv_blocks") * c.look_us
    }

    /// What indexes rows by token.
    fn index(&self, dispatch: &Dispatch) -> f64 {
        let parts = f64::from(dispatch.records()) * f64::from(dispatch.record_entries().div_ceil(INDEXED));
        let warps = f64::from((dispatch.index_blocks() * dispatch.warps).max(1));
        self.costs.bases_us + (parts / warps).ceil() * INDEX_LOADS * self.costs.look_us
    }

    fn combine(&self, combine: &Combine) -> f64 {
        let (c, s, f) = (&self.costs, &self.shape, Fields(combine));
        let (tokens, bytes) = (f64::from(s.tokens), self.combined_bytes());
        let rows = self.rows(f.is("dedup"));
        // An owner that sums loads the rows that it has of a token, as many at once as are in flight together.
        let here = f64::from(s.topk) / (f64::from(s.ranks) * self.reached());
        let loads = match combine.sums_at_owner() {
            true => (here / f64::from(combine.rows_in_flight())).max(1.0),
            false => 0.0,
        };
        let send = f.turns(rows, bytes, "send_blocks") * (f.step_us(c) + loads * f.local_us(c));
        let returns = rows / tokens;
        let sum = f.turns(tokens, bytes, "recv_blocks") * (f.local_us(c) + returns * c.load_us);
        let wire = self.wire_us(f.is("dedup"), bytes);
        let publish = if f.is_packets() { 0.0 } else { c.release_us };
        let moved = wire.max(send) + sum;
        self.fixed_us() + publish + moved + f.blocks() * c.block_us
    }

    /// The limit formula for rows of so many bytes: no kernel that sends them can be faster.
    fn least_of(&self, dedup: bool, row_bytes: u32) -> f64 {
        self.fixed_us() + self.wire_us(dedup, row_bytes)
    }

    /// What is there whatever is sent.
    fn fixed_us(&self) -> f64 {
        let l = &self.costs.limits;
        l.first_node_us + l.hop_us + l.tail_us
    }

    /// Bytes of a row that comes back.
    fn combined_bytes(&self) -> u32 {
        self.shape.hidden * self.shape.dtype.combined().bytes()
    }

    /// Rows that a rank sends, those that stay included.
    fn rows(&self, dedup: bool) -> f64 {
        let (tokens, ranks) = (f64::from(self.shape.tokens), f64::from(self.shape.ranks));
        if dedup { tokens * ranks * self.reached() } else { tokens * f64::from(self.shape.topk) }
    }

    /// How likely a token goes to a rank.
    fn reached(&self) -> f64 {
        reached(self.shape.experts, self.shape.experts.div_ceil(self.shape.ranks), self.shape.topk)
    }

    fn wire_us(&self, dedup: bool, row_bytes: u32) -> f64 {
        let ranks = f64::from(self.shape.ranks);
        let bytes = self.rows(dedup) * (ranks - 1.0) / ranks * f64::from(row_bytes);
        self.costs.limits.wire_us(self.shape.ranks, bytes as u64)
    }
}

/// How likely one of the `topk` experts of a token is among `own` of all `experts`.
pub(super) fn reached(experts: u32, own: u32, topk: u32) -> f64 {
    let elsewhere = |i: u32| f64::from((experts - own).saturating_sub(i)) / f64::from(experts - i);
    1.0 - (0..topk).map(elsewhere).product::<f64>()
}

impl CostModel for Model {
    fn times(&self, components: &[Variant]) -> Vec<f64> {
        let of = |v: &Variant| match (dispatch(v), combine(v)) {
            (Some(d), _) => self.dispatch(d),
            (_, Some(c)) => self.combine(c),
            (None, None) => 1.0,
        };
        components.iter().map(of).collect()
    }

    fn least(&self, components: &[Variant]) -> Vec<f64> {
        let s = &self.shape;
        let of = |v: &Variant| match (dispatch(v), combine(v)) {
            (Some(d), _) => self.least_of(d.dedup, s.row_bytes() + s.scale_bytes()),
            (_, Some(c)) => self.least_of(c.dedup, self.combined_bytes()),
            (None, None) => 0.0,
        };
        components.iter().map(of).collect()
    }

    fn fits(&self, components: &[Variant]) -> Vec<bool> {
        let of = |v: &Variant| {
            let (needed, there) = match (dispatch(v), combine(v)) {
                (Some(d), _) => Fields(d).registers(&self.costs, self.costs.moved_registers),
                (_, Some(c)) => Fields(c).registers(&self.costs, self.costs.summed_registers),
                (None, None) => return true,
            };
            needed <= there
        };
        components.iter().map(of).collect()
    }
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
