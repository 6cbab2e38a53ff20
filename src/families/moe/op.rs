//! MoE dispatch and combine on GPUs: constructed once, launched any number of times.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::families::moe::kernels::{CombineDtype, Layout, Quantise};
use crate::families::moe::nodes::NODE_ROWS;
use crate::families::moe::{MoeKey, MoeShape, MoeTuning};
use crate::runtime::gpu::{DevicePtr, Gpu, RawStream};
use crate::runtime::handles::Buffer;
use crate::runtime::image::Images;
use crate::runtime::op::{LaunchArgs, Operation, RankOp, RawTensor, StreamRef};
use crate::runtime::{Recording, RuntimeError, World};

/// Where a rank's tokens are on its GPU. They must not change until combine has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Rows, `[token][hidden]`, aligned to 16 bytes: as they are sent, or of what they are quantised from.
    pub x: DevicePtr,
    /// Scales of the rows, `[token][scale]`, where some travel that are not worked out here: of fp8 `f32[token][ceil(hidden / 128)]`.
    /// Where dispatch quantises to nvfp4, the scale of all rows, `f32[1]`. Else null.
    pub x_scale: DevicePtr,
    /// How many rows there are of tokens, at most the variant's `tokens`: so many are in `x`, `x_scale`, `ids`, `weights` and in
    /// combine's `out`, and no kernel touches more. Where there are none, addresses may be null.
    pub rows_there: u32,
    /// How many of them are tokens, `u32[1]`; all of them if it says more, or is null: a host that knows needs no word on the GPU.
    pub n: DevicePtr,
    /// Expert ids, `i32[token][topk]`; an id of no expert masks its entry.
    pub ids: DevicePtr,
    /// Weights, `f32[token][topk]`.
    pub weights: DevicePtr,
}

/// What dispatch reads and counts that lasts from round to round, on a rank's GPU: null for what its variants have not. Contents may
/// change between rounds, in the order of the stream: a table as soon as dispatch, or its sending half, has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The slot of each expert's replicas, `i32[expert][replica]`, as [`Placement::place`](super::Placement::place). This rank's entries
    /// alone go by it.
    pub place: DevicePtr,
    /// How many replicas each expert has, `u32[expert]`, where there may be several.
    pub replicas: DevicePtr,
    /// Counts of each expert's entries, `u32[expert]`, to which each dispatch adds.
    pub expert_load: DevicePtr,
}

/// Those of [`OPERANDS`] that are tables.
const TABLES: [&str; 3] = ["place", "replicas", "expert_load"];

/// Which dispatch something belongs to: of which operation, on which rank, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket {
    operation: u64,
    rank: u32,
    serial: u64,
    /// How often the world had been reset.
    resets: u64,
}

/// A dispatch that is under way. Combine wants it back, so that it brings home what this dispatch sent out.
#[derive(Debug)]
#[must_use = "combine needs it"]
pub struct Routed {
    tokens: Tokens,
    ticket: Ticket,
}

/// A dispatch that has sent and not yet received.
#[derive(Debug)]
#[must_use = "what other ranks send is to be received"]
pub struct Sending {
    tokens: Tokens,
    ticket: Ticket,
}

/// A combine that has sent and not yet received.
#[derive(Debug)]
#[must_use = "the rows that come back are to be received"]
pub struct Returning {
    tokens: Tokens,
    ticket: Ticket,
}

/// MoE dispatch and combine for one shape, on the ranks of this process; or for one of each of several capacities, the most tokens
/// of a rank ([`MoeAllToAll::with_capacities`]).
///
/// Buffers, modules and argument structs are made when it is constructed. After that no call allocates, waits for a GPU or
/// reads from one, so that all of them may be captured in a graph and replayed.
#[derive(Debug)]
pub struct MoeAllToAll {
    /// The ranks of each capacity, the smallest first.
    pub(super) steps: Vec<Vec<MoeRank>>,
    pub(super) world: Arc<World>,
}

/// Numbers of operations, each given once in a process.
static OPERATIONS: AtomicU64 = AtomicU64::new(0);

impl MoeAllToAll {
    /// Allocates and loads what the variants of `tuning` need, on every rank. In a world of several processes all have to
    /// do so in the same order.
    ///
    /// # Errors
    /// The variants do not go together or are for another world size, a kernel cannot be had or its blocks cannot be resident at
    /// once, or memory runs out.
    pub fn new(
        world: &Arc<World>,
        tuning: &MoeTuning,
        images: &dyn Images,
    ) -> Result<MoeAllToAll, RuntimeError> {
        let steps = vec![MoeAllToAll::step(world, tuning, images)?];
        Ok(MoeAllToAll { steps, world: Arc::clone(world) })
    }

    /// The ranks of one capacity.
    pub(super) fn step(
        world: &Arc<World>,
        tuning: &MoeTuning,
        images: &dyn Images,
    ) -> Result<Vec<MoeRank>, RuntimeError> {
        let shape = tuning.key.shape;
        if shape.ranks != world.ranks() {
            let allowed = format!("{}, the size of the world", world.ranks());
            return Err(RuntimeError::invalid("ranks", shape.ranks, allowed));
        }
        tuning.check(&shape).map_err(|e| RuntimeError::invalid("tuning", e, "variants that go together"))?;
        // Callers pass `y` also where it is dispatch's `rows`.
        let op = Operation::new(world, &tuning.specs(false), images)?;
        let operation = OPERATIONS.fetch_add(1, Ordering::Relaxed);
        let ranks = op.into_ranks().into_iter().map(|op| MoeRank::new(op, tuning, operation));
        world.agree(ranks.collect::<Result<Vec<_>, _>>())
    }

    /// The ranks of this process, in the order of [`World::members`]. Each may be driven by a thread of its own. Of several
    /// capacities they are those of the largest.
    pub fn ranks_mut(&mut self) -> &mut [MoeRank] {
        self.steps.last_mut().map_or(&mut [], Vec::as_mut_slice)
    }

    /// The ranks of this process, as [`MoeAllToAll::ranks_mut`].
    pub fn ranks(&self) -> &[MoeRank] {
        self.steps.last().map_or(&[], Vec::as_slice)
    }

    /// The world that it runs in.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }
}

/// The default id of an entry that is not this rank's.
const EMPTY_ID: i32 = -1;

/// What callers pass.
const OPERANDS: [&str; 11] =
    ["x", "x_scale", "tensor_scale", "n", "ids", "weights", "y", "out", "place", "replicas", "expert_load"];

/// Dispatch and combine on one rank of this process.
#[derive(Debug)]
pub struct MoeRank {
    op: RankOp,
    /// The numbers of [`OPERANDS`] in `op`.
    operands: [Option<usize>; OPERANDS.len()],
    addresses: Vec<DevicePtr>,
    /// Where experts are, how many replicas each has, and the counts of their entries, as [`Tables`] says; null until they are set.
    tables: Tables,
    /// A word that says that all rows are tokens.
    all_rows: Buffer,
    /// Of the last dispatch.
    ticket: Ticket,
    key: MoeKey,
    /// How many launches a round has up to the ends of its halves: as [`MoeTuning::ends`].
    ends: [usize; 4],
    in_place: bool,
    scales_in_place: bool,
}

impl MoeRank {
    fn new(op: RankOp, tuning: &MoeTuning, operation: u64) -> Result<MoeRank, RuntimeError> {
        let all_rows = Buffer::new(op.gpu(), 4)?;
        all_rows.write(0, &[u32::MAX])?;
        let mut op = op;
        op.set_scalar("empty_id", EMPTY_ID)?;
        if tuning.key.nodes > 1 {
            op.set_scalar(NODE_ROWS, tuning.key.near().tokens)?;
        }
        Ok(MoeRank {
            all_rows,
            operands: OPERANDS.map(|name| op.operand(name)),
            addresses: vec![0; op.operands().len()],
            tables: Tables::default(),
            ticket: Ticket { operation, rank: op.rank(), serial: 0, resets: 0 },
            key: tuning.key,
            ends: tuning.ends(),
            in_place: tuning.dispatch().in_place(),
            scales_in_place: tuning.dispatch().scales_in_place(),
            op,
        })
    }

    /// Its number in the world.
    pub fn rank(&self) -> u32 {
        self.op.rank()
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        self.op.gpu()
    }

    /// The shape that it is for.
    pub fn shape(&self) -> &MoeShape {
        &self.key.shape
    }

    /// How rows stand after dispatch.
    pub fn layout(&self) -> Layout {
        self.key.layout
    }

    /// What experts' outputs and combined rows are.
    pub fn combined(&self) -> CombineDtype {
        self.key.combined
    }

    /// What rows are given as that dispatch quantises.
    pub fn quantise(&self) -> Quantise {
        self.key.quantise
    }

    /// Whether dispatch quantises rows with one scale for all of them, which callers pass as scales.
    pub fn has_tensor_scale(&self) -> bool {
        self.key.has_tensor_scale()
    }

    /// Sets the id of no expert: dispatch writes it to `entry_expert` for each entry that is not this rank's, from the next dispatch
    /// on. The default is -1.
    ///
    /// # Errors
    /// The id is that of an expert.
    pub fn set_empty_id(&mut self, empty_id: i32) -> Result<(), RuntimeError> {
        let experts = self.key.map().experts;
        if u32::try_from(empty_id).is_ok_and(|id| id < experts) {
            let allowed = format!("negative, or {experts} or more: no expert");
            return Err(RuntimeError::invalid("empty_id", empty_id, allowed));
        }
        self.op.set_scalar("empty_id", empty_id)
    }

    /// Sets the tables of dispatches from the next one on; graphs keep those that they were captured with.
    ///
    /// # Safety
    /// They are valid on this GPU until the last round that has them has ended, with as many elements as the variants say.
    pub unsafe fn set_tables(&mut self, tables: Tables) {
        self.tables = tables;
    }

    /// The former name of [`MoeRank::set_empty_id`].
    ///
    /// # Errors
    /// As there.
    #[deprecated(since = "0.1.0", note = "use `set_empty_id`")]
    pub fn set_nobody(&mut self, empty_id: i32) -> Result<(), RuntimeError> {
        self.set_empty_id(empty_id)
    }

    /// Lets waits of launches from here on last so long before the world is aborted; graphs keep what they were captured with.
    ///
    /// # Errors
    /// It is no time at all, or more nanoseconds than 64 bits count.
    pub fn set_wait_budget(&mut self, budget: Duration) -> Result<(), RuntimeError> {
        self.op.set_wait_budget(budget)
    }

    /// Bytes of memory that it has on its GPU, symmetric memory included. Callers have their rows, `y` and `out` beside.
    pub fn memory_bytes(&self) -> u64 {
        self.op.memory_bytes() + self.all_rows.bytes()
    }

    /// What the last launch of each kernel recorded: dispatch, combine. Empty unless images have a timeline. The launches have to
    /// have ended.
    ///
    /// # Errors
    /// The driver's, or a launch has not ended.
    pub fn recordings(&self) -> Result<Vec<Recording>, RuntimeError> {
        self.op.recordings()
    }

    /// Where a buffer that dispatch fills is, and its size in bytes: `rows`, `row_scale`, `expert_start`, `expert_rows`,
    /// `n_from`, `weight_from`; with expert-major rows `pos`, and where there may be more of them than places `overflow` and
    /// `needed`; with rank-major rows `gather` and `entry_expert`, whose expert ids are those of all ranks.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn buffer(&self, name: &str) -> Result<(DevicePtr, u64), RuntimeError> {
        // Rows and scales are where they arrive.
        match name {
            "rows" if self.in_place => self.op.buffer("inbox"),
            "row_scale" if self.scales_in_place => self.op.buffer("inbox_scale"),
            _ => self.op.buffer(name),
        }
    }

    /// Lets all kernels begin in the epochs after `epoch`, as if so many had gone before. Before the first
    /// launch, on all ranks.
    #[cfg(test)]
    pub(crate) fn start_after(&self, epoch: u32) -> Result<(), RuntimeError> {
        self.op.start_after(epoch)
    }

    /// Sets every byte that a round writes before it reads it, in the order of a stream. No rank may be within a round.
    #[cfg(test)]
    pub(crate) fn fill_payload(&self, value: u8, stream: RawStream<'_>) -> Result<(), RuntimeError> {
        self.op.fill_payload(value, stream)
    }

    /// Sends this rank's tokens and receives those for its experts, on the caller's stream.
    ///
    /// # Errors
    /// The world was aborted, or the driver refuses.
    ///
    /// # Safety
    /// `stream` is of this rank's GPU, and the pointers of `tokens` are valid on it for as many rows as `rows_there` says,
    /// until combine has ended. Calls of one rank are in order: all on one stream, or ordered by events. If the stream is being
    /// captured, all of this holds for every launch of the graph, and this operation outlives them.
    pub unsafe fn dispatch_raw(
        &mut self,
        tokens: &Tokens,
        stream: RawStream<'_>,
    ) -> Result<Routed, RuntimeError> {
        let ticket = self.dispatching(|rank| {
            // SAFETY: as the caller says.
            unsafe { rank.launch(0..rank.ends[1], tokens, 0, 0, stream) }
        })?;
        Ok(Routed { tokens: *tokens, ticket })
    }

    /// The first half of [`MoeRank::dispatch_raw`], for a tuning that is split: sends, and waits for no rank.
    ///
    /// # Errors
    /// As there, and if the tuning is not split.
    ///
    /// # Safety
    /// As for [`MoeRank::dispatch_raw`].
    pub unsafe fn dispatch_send_raw(
        &mut self,
        tokens: &Tokens,
        stream: RawStream<'_>,
    ) -> Result<Sending, RuntimeError> {
        self.is_split()?;
        // SAFETY: as the caller says.
        let ticket =
            self.dispatching(|rank| unsafe { rank.launch(0..rank.ends[0], tokens, 0, 0, stream) })?;
        Ok(Sending { tokens: *tokens, ticket })
    }

    /// The second half: receives what other ranks sent.
    ///
    /// # Errors
    /// As there, and if `sending` is not this rank's last dispatch.
    ///
    /// # Safety
    /// As for [`MoeRank::dispatch_raw`].
    pub unsafe fn dispatch_receive_raw(
        &mut self,
        sending: Sending,
        stream: RawStream<'_>,
    ) -> Result<Routed, RuntimeError> {
        let Sending { tokens, ticket } = sending;
        self.last("sending", &ticket)?;
        self.is_split()?;
        // SAFETY: as the caller says.
        unsafe { self.launch(self.ends[0]..self.ends[1], &tokens, 0, 0, stream)? };
        Ok(Routed { tokens, ticket })
    }

    /// Brings the experts' outputs back and sums them with the weights: `y` in the order of dispatch's `rows`, to
    /// `out[token][hidden]`. With rank-major rows, `y` has what this rank's experts made of each token, summed with the weights.
    ///
    /// # Errors
    /// As of [`MoeRank::dispatch_raw`], and if `routed` is not this rank's last dispatch.
    ///
    /// # Safety
    /// As for [`MoeRank::dispatch_raw`]; `y` and `out`, the latter for `rows_there` rows, are valid until it has ended.
    pub unsafe fn combine_raw(
        &mut self,
        routed: Routed,
        y: DevicePtr,
        out: DevicePtr,
        stream: RawStream<'_>,
    ) -> Result<(), RuntimeError> {
        self.last("routed", &routed.ticket)?;
        // SAFETY: as the caller says.
        unsafe { self.launch(self.ends[1]..self.ends[3], &routed.tokens, y, out, stream) }
    }

    /// The first half of [`MoeRank::combine_raw`], for a tuning that is split: sends, and waits for no rank.
    ///
    /// # Errors
    /// As there, and if the tuning is not split.
    ///
    /// # Safety
    /// As for [`MoeRank::combine_raw`].
    pub unsafe fn combine_send_raw(
        &mut self,
        routed: Routed,
        y: DevicePtr,
        stream: RawStream<'_>,
    ) -> Result<Returning, RuntimeError> {
        let Routed { tokens, ticket } = routed;
        self.last("routed", &ticket)?;
        self.is_split()?;
        // SAFETY: as the caller says.
        unsafe { self.launch(self.ends[1]..self.ends[2], &tokens, y, 0, stream)? };
        Ok(Returning { tokens, ticket })
    }

    /// The second half: sums what comes back.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As for [`MoeRank::combine_raw`].
    pub unsafe fn combine_receive_raw(
        &mut self,
        returning: Returning,
        out: DevicePtr,
        stream: RawStream<'_>,
    ) -> Result<(), RuntimeError> {
        self.last("returning", &returning.ticket)?;
        self.is_split()?;
        // SAFETY: as the caller says.
        unsafe { self.launch(self.ends[2]..self.ends[3], &returning.tokens, 0, out, stream) }
    }

    /// Dispatch with what is checked and held.
    pub(super) fn dispatch_args<L: LaunchArgs>(
        &mut self,
        stream: StreamRef<'_>,
        args: L,
    ) -> Result<Routed, RuntimeError> {
        let ticket = self.dispatching(|rank| rank.op.launch_args(0..rank.ends[1], stream, args))?;
        // A caller with slices passes them again to combine.
        let tokens = Tokens { x: 0, x_scale: 0, rows_there: 0, n: 0, ids: 0, weights: 0 };
        Ok(Routed { tokens, ticket })
    }

    /// Combine with what is checked and held.
    pub(super) fn combine_args<L: LaunchArgs>(
        &mut self,
        routed: Routed,
        stream: StreamRef<'_>,
        args: L,
    ) -> Result<(), RuntimeError> {
        self.last("routed", &routed.ticket)?;
        self.op.launch_args(self.ends[1]..self.ends[3], stream, args)
    }

    /// What a caller passes that has no word for the number of tokens.
    pub(super) fn all_rows(&self) -> RawTensor {
        // SAFETY: memory of this rank, which waits for its launches before it goes.
        unsafe { RawTensor::new(self.all_rows.ptr(), 4, self.gpu().info().ordinal) }
    }

    /// # Safety
    /// As for [`MoeRank::dispatch_raw`].
    unsafe fn launch(
        &mut self,
        launches: Range<usize>,
        t: &Tokens,
        y: DevicePtr,
        out: DevicePtr,
        stream: RawStream<'_>,
    ) -> Result<(), RuntimeError> {
        self.op.set_scalar("rows_there", t.rows_there)?;
        let n = if t.n == 0 { self.all_rows.ptr() } else { t.n };
        let Tables { place, replicas, expert_load } = self.tables;
        let given = [t.x, t.x_scale, t.x_scale, n, t.ids, t.weights, y, out, place, replicas, expert_load];
        for ((at, ptr), name) in self.operands.iter().zip(given).zip(OPERANDS) {
            if let Some(at) = *at {
                if ptr == 0 && TABLES.contains(&name) {
                    return Err(RuntimeError::invalid(name, "null", "memory of this GPU, by `set_tables`"));
                }
                self.addresses[at] = ptr;
            }
        }
        // SAFETY: as the caller says.
        launches
            .into_iter()
            .try_for_each(|launch| unsafe { self.op.launch_raw(launch, &self.addresses, stream) })
    }

    /// Launches a dispatch. From its first launch on, whether the others succeed or not, buffers hold nothing of those before.
    fn dispatching(
        &mut self,
        launch: impl FnOnce(&mut MoeRank) -> Result<(), RuntimeError>,
    ) -> Result<Ticket, RuntimeError> {
        let (before, resets) = (self.op.begun(), self.op.world().resets());
        let launched = launch(self);
        if self.op.begun() > before {
            self.ticket.serial += 1;
            self.ticket.resets = resets;
        }
        launched.map(|()| self.ticket)
    }

    /// Whether a dispatch is this rank's last one: buffers hold nothing of those before, of other operations, or of what was
    /// under way when the world was reset.
    fn last(&self, field: &str, ticket: &Ticket) -> Result<(), RuntimeError> {
        let Ticket { operation, rank, serial, resets } = self.ticket;
        if *ticket == self.ticket {
            if resets == self.op.world().resets() {
                return Ok(());
            }
            let value = format!("{serial}, from before the world was reset");
            return Err(RuntimeError::invalid(field, value, "that of a dispatch after it"));
        }
        let value = match (ticket.operation == operation, ticket.rank == rank) {
            (true, true) => ticket.serial.to_string(),
            (true, false) => format!("{} of rank {}", ticket.serial, ticket.rank),
            (false, _) => format!("{} of rank {} of another operation", ticket.serial, ticket.rank),
        };
        Err(RuntimeError::invalid(
            field,
            value,
            format!("that of the last dispatch of rank {rank}, {serial}"),
        ))
    }

    fn is_split(&self) -> Result<(), RuntimeError> {
        let allowed = "true in the tuning, for launches that send or receive only";
        if self.key.split { Ok(()) } else { Err(RuntimeError::invalid("split", false, allowed)) }
    }
}

#[cfg(test)]
#[path = "op_tests.rs"]
mod tests;
