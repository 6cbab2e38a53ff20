//! MoE dispatch and combine, and round trips in one launch, on GPUs: constructed once, launched any number of times.

use std::collections::BTreeMap;
use std::sync::Arc;

use peerwarp_codegen::family::{DynConfig, Family, Variant};

use super::plan::{INPUTS, Kernel, OUTPUTS, Plan};
use crate::families::moe::MoeShape;
use crate::families::moe::kernels::{Dispatch, Layout};
use crate::families::moe::run::MoeTuning;
use crate::runtime::Recording;
use crate::runtime::gpu::{DevicePtr, Gpu, RawStream};
use crate::runtime::handles::{Buffer, LoadedKernel};
use crate::runtime::image::Images;
use crate::runtime::op::LaunchSpec;
use crate::runtime::{KernelArgs, Member, Recorder, RuntimeError, Slot, Symmetric, World};

impl MoeTuning {
    /// The launches of a round, dispatch's and then combine's, which share buffers by name. Each of the two counts epochs of its
    /// own. Where dispatch's hook makes the experts' outputs, combine's `y` is dispatch's `rows`.
    pub fn launch_specs(&self) -> Vec<LaunchSpec> {
        self.specs(self.way().y_is_rows())
    }

    fn specs(&self, y_is_rows: bool) -> Vec<LaunchSpec> {
        let label =
            |name: &str, half: &str| if self.split { format!("{name} {half}") } else { name.to_owned() };
        let halves = || ["send", "recv"].into_iter();
        let dispatch = self.dispatch_launches().into_iter().zip(halves());
        let dispatch =
            dispatch.map(|(config, half)| LaunchSpec::new(label("dispatch", half), config.into_variant()));
        let combine = self.combine_launches().into_iter().zip(halves()).map(|(config, half)| {
            let spec = LaunchSpec::new(label("combine", half), config.into_variant());
            let spec = spec.with_buffer("epoch", "combine_epoch");
            if y_is_rows { spec.with_buffer("y", "rows") } else { spec }
        });
        dispatch.chain(combine).collect()
    }
}

/// Where a rank's tokens are on its GPU. They must not change until combine has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Rows, `[token][hidden]`, aligned to 16 bytes.
    pub x: DevicePtr,
    /// fp8 only: scales, `f32[token][ceil(hidden / 128)]`; else null.
    pub x_scale: DevicePtr,
    /// How many tokens there are, `u32[1]`; what exceeds the variant's most is not sent.
    pub n: DevicePtr,
    /// Expert ids, `i32[token][topk]`; an id of no expert masks its entry.
    pub ids: DevicePtr,
    /// Weights, `f32[token][topk]`.
    pub weights: DevicePtr,
}

/// A dispatch that is under way. Combine wants it back, so that it brings home what this dispatch sent out.
#[derive(Debug)]
#[must_use = "combine needs it"]
pub struct Routed {
    tokens: Tokens,
    /// Which of its rank's dispatches it is.
    serial: u64,
}

/// A dispatch that has sent and not yet received.
#[derive(Debug)]
#[must_use = "what other ranks send is to be received"]
pub struct Sending {
    tokens: Tokens,
    serial: u64,
}

/// A combine that has sent and not yet received.
#[derive(Debug)]
#[must_use = "the rows that come back are to be received"]
pub struct Returning {
    tokens: Tokens,
    serial: u64,
}

/// MoE dispatch and combine for one shape, on the ranks of this process.
///
/// Buffers, modules and argument structs are made when it is constructed. After that no call allocates, waits for a GPU or
/// reads from one, so that all of them may be captured in a graph and replayed.
#[derive(Debug)]
pub struct MoeAllToAll {
    ranks: Vec<MoeRank>,
    world: Arc<World>,
}

impl MoeAllToAll {
    /// Allocates and loads what the variants of `tuning` need, on every rank. In a world of several processes all have to
    /// do so in the same order.
    pub fn new(
        world: &Arc<World>,
        tuning: &MoeTuning,
        images: &dyn Images,
    ) -> Result<MoeAllToAll, RuntimeError> {
        let shape = tuning.dispatch.shape();
        if shape.ranks != world.ranks() {
            let allowed = format!("{}, the size of the world", world.ranks());
            return Err(RuntimeError::invalid("ranks", shape.ranks, allowed));
        }
        tuning.check(&shape).map_err(|e| RuntimeError::invalid("tuning", e, "variants that go together"))?;
        let dispatch = tuning.dispatch_launches().into_iter().map(Family::into_variant).collect::<Vec<_>>();
        let combine = tuning.combine_launches().into_iter().map(Family::into_variant).collect::<Vec<_>>();
        let round_trip = tuning.round_trip.iter().cloned().map(Family::into_variant).collect();
        let kernels =
            [(Kernel::Dispatch, dispatch), (Kernel::Combine, combine), (Kernel::RoundTrip, round_trip)];
        let plan = Plan::new(&kernels);
        let shared = Arc::new(world.allocate(plan.symmetric_bytes.max(1))?);
        let rank = |(index, member)| {
            Making { world, member, index, plan: &plan, shared: &shared, dispatch: &tuning.dispatch, images }
                .rank(&kernels)
        };
        let ranks: Result<Vec<MoeRank>, _> = world.members().iter().enumerate().map(rank).collect();
        // Nobody launches before everybody can.
        Ok(MoeAllToAll { ranks: world.agree(ranks)?, world: Arc::clone(world) })
    }

    /// The ranks of this process, in the order of [`World::members`]. Each may be driven by a thread of its own.
    pub fn ranks_mut(&mut self) -> &mut [MoeRank] {
        &mut self.ranks
    }

    /// The ranks of this process.
    pub fn ranks(&self) -> &[MoeRank] {
        &self.ranks
    }

    /// The world that it runs in.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }
}

/// What the parts of a rank are made of.
struct Making<'a> {
    world: &'a Arc<World>,
    member: &'a Member,
    index: usize,
    plan: &'a Plan,
    shared: &'a Arc<Symmetric>,
    dispatch: &'a Dispatch,
    images: &'a dyn Images,
}

impl Making<'_> {
    fn rank(&self, kernels: &[(Kernel, Vec<Variant>); 3]) -> Result<MoeRank, RuntimeError> {
        let gpu = &self.member.gpu;
        let local = Buffer::new(gpu, self.plan.local_bytes)?;
        gpu.fill(local.ptr(), local.bytes(), 0, RawStream::DEFAULT)?;
        let alive: Arc<dyn std::any::Any + Send + Sync> = Arc::new(());
        let own = self.shared.bases(self.index)[self.member.rank as usize];
        for (name, value) in &self.plan.cleared {
            let at = self.plan.symmetric.get(name).map(|&(at, bytes)| (own + at, bytes));
            let at = at.or_else(|| self.plan.local.get(name).map(|&(at, bytes)| (local.ptr() + at, bytes)));
            let memory = at.expect("what is cleared is in the plan");
            self.world.clear(self.index, memory, *value, &alive)?;
        }
        gpu.synchronize()?;
        let launches = |(kernel, variants): &(Kernel, Vec<Variant>)| {
            let phases = kernel.phases(variants.len()).iter();
            variants
                .iter()
                .zip(phases)
                .map(|(v, label)| self.launch(&**v, *kernel, label, &local))
                .collect::<Result<Vec<_>, _>>()
        };
        let payload = self.plan.payload(own, local.ptr());
        let mut buffers: BTreeMap<_, _> = self
            .plan
            .local
            .iter()
            .map(|(name, &(at, bytes))| (name.clone(), (local.ptr() + at, bytes)))
            .collect();
        if self.dispatch.in_place() {
            // Rows and scales are where they arrive.
            for (name, arrives) in [("rows", "inbox"), ("row_scale", "inbox_scale")] {
                let found = self.plan.symmetric.get(arrives).map(|&(at, bytes)| (own + at, bytes));
                buffers.extend(
                    found.into_iter().flat_map(|at| [name, arrives].map(|name| (name.to_owned(), at))),
                );
            }
        }
        Ok(MoeRank {
            rank: self.member.rank,
            gpu: Arc::clone(gpu),
            world: Arc::clone(self.world),
            dispatch: launches(&kernels[0])?,
            combine: launches(&kernels[1])?,
            round_trip: launches(&kernels[2])?,
            serial: 0,
            shape: self.dispatch.shape(),
            layout: self.dispatch.layout,
            stream: None,
            buffers,
            payload,
            _local: local,
            _alive: alive,
            _shared: Arc::clone(self.shared),
        })
    }

    fn launch(
        &self,
        variant: &dyn DynConfig,
        kernel: Kernel,
        label: &str,
        local: &Buffer,
    ) -> Result<Launch, RuntimeError> {
        let image = self.images.image(variant, self.member.gpu.info().target)?;
        let mut args = self.world.kernel_args(self.index, &image)?;
        let mut slots = BTreeMap::new();
        // Members stand in the order of the parameters, and may be named otherwise where C++ has the word.
        for (p, field) in variant.params().iter().zip(&image.args.fields) {
            let name = kernel.buffer(p);
            if let Some(&(at, _)) = self.plan.symmetric.get(&name) {
                args.set_pointers(&field.name, &self.shared.pointers(self.index, at))?;
            } else if let Some(&(at, _)) = self.plan.local.get(&name) {
                args.set_u64(&field.name, local.ptr() + at)?;
            } else {
                slots.insert(p.name.clone(), args.slot(&field.name)?);
            }
        }
        let recorder = Recorder::new(&self.member.gpu, &image, label, self.member.rank, &mut args)?;
        args.ready()?;
        let kernel = self.world.load(&self.member.gpu, &image)?;
        let slot = |name: &str| slots.get(name).copied();
        let inputs = INPUTS.map(slot);
        let [y, out] = OUTPUTS.map(slot);
        Ok(Launch { kernel, args, inputs, y, out, recorder })
    }
}

/// One kernel with its arguments, and the places of those that change.
#[derive(Debug)]
struct Launch {
    kernel: LoadedKernel,
    args: KernelArgs,
    /// In the order of [`INPUTS`].
    inputs: [Option<Slot>; 5],
    y: Option<Slot>,
    out: Option<Slot>,
    recorder: Option<Recorder>,
}

impl Launch {
    /// # Safety
    /// The pointers have to be valid for the kernel.
    unsafe fn run(
        &mut self,
        t: &Tokens,
        y: Option<DevicePtr>,
        out: Option<DevicePtr>,
        stream: RawStream,
    ) -> Result<(), RuntimeError> {
        let inputs = [t.x, t.x_scale, t.n, t.ids, t.weights].map(Some);
        let slots = self.inputs.into_iter().chain([self.y, self.out]);
        for (slot, ptr) in slots.zip(inputs.into_iter().chain([y, out])) {
            if let (Some(slot), Some(ptr)) = (slot, ptr) {
                self.args.write(slot, ptr);
            }
        }
        // SAFETY: the struct is laid out as the image says, and filled.
        unsafe { self.kernel.launch(self.args.ready()?, stream) }
    }
}

/// Dispatch and combine on one rank of this process.
#[derive(Debug)]
pub struct MoeRank {
    rank: u32,
    gpu: Arc<dyn Gpu>,
    world: Arc<World>,
    // Modules go before the memory that their kernels use.
    dispatch: Vec<Launch>,
    combine: Vec<Launch>,
    round_trip: Vec<Launch>,
    serial: u64,
    shape: MoeShape,
    layout: Layout,
    /// The stream that calls on slices have used.
    stream: Option<RawStream>,
    /// First byte and size of what there is for callers.
    buffers: BTreeMap<String, (DevicePtr, u64)>,
    /// First byte and size of what a round writes before it reads it.
    payload: Vec<(DevicePtr, u64)>,
    _local: Buffer,
    _alive: Arc<dyn std::any::Any + Send + Sync>,
    _shared: Arc<Symmetric>,
}

impl MoeRank {
    /// Its number in the world.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// The shape that it is for.
    pub fn shape(&self) -> &MoeShape {
        &self.shape
    }

    /// How rows stand after dispatch.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// What the last launch of each kernel recorded: dispatch, combine, round trip. Empty unless images have a timeline. The
    /// launches have to have ended.
    pub fn recordings(&self) -> Result<Vec<Recording>, RuntimeError> {
        let launches = self.dispatch.iter().chain(&self.combine).chain(&self.round_trip);
        launches.filter_map(|l| l.recorder.as_ref()).map(Recorder::read).collect()
    }

    /// Holds all calls on slices to one stream.
    pub(super) fn on_stream(&mut self, stream: RawStream) -> Result<(), RuntimeError> {
        match *self.stream.get_or_insert(stream) == stream {
            true => Ok(()),
            false => {
                let allowed = format!("the one of the earlier calls of rank {}", self.rank);
                Err(RuntimeError::invalid("stream", format!("{:#x}", stream.raw()), allowed))
            }
        }
    }

    /// Where a buffer that dispatch fills is, and its size in bytes: `rows`, `row_scale`, `expert_start`, `expert_rows`,
    /// `n_from`, `weight_from`; with rows by expert `pos`, with rows by token `gather` and `entry_expert`.
    pub fn buffer(&self, name: &str) -> Result<(DevicePtr, u64), RuntimeError> {
        self.buffers.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.buffers.keys().map(String::as_str).collect();
            RuntimeError::invalid("buffer", name, format!("one of {}", known.join(", ")))
        })
    }

    /// Lets all kernels begin in the epochs after `epoch`, as if so many had gone before. Before the first
    /// launch, on all ranks.
    pub(crate) fn start_after(&self, epoch: u32) -> Result<(), RuntimeError> {
        let words = [Kernel::Dispatch, Kernel::Combine, Kernel::RoundTrip].map(Kernel::epoch);
        words.into_iter().filter(|word| self.buffers.contains_key(*word)).try_for_each(|word| {
            let (word, _) = self.buffer(word)?;
            self.gpu.upload(word, &epoch.to_ne_bytes())
        })
    }

    /// Sets every byte that a round writes before it reads it, in the order of a stream. No rank may be within a round.
    pub(crate) fn fill_payload(&self, value: u8, stream: RawStream) -> Result<(), RuntimeError> {
        self.payload.iter().try_for_each(|&(ptr, bytes)| self.gpu.fill(ptr, bytes, value, stream))
    }

    /// Sends this rank's tokens and receives those for its experts, on the caller's stream.
    ///
    /// # Safety
    /// `stream` is of this rank's GPU, and the pointers of `tokens` are valid on it for as many tokens as `n` says there,
    /// until combine has ended. Calls of one rank are in order: all on one stream, or ordered by events.
    pub unsafe fn dispatch_raw(
        &mut self,
        tokens: &Tokens,
        stream: RawStream,
    ) -> Result<Routed, RuntimeError> {
        self.world.usable()?;
        for launch in &mut self.dispatch {
            // SAFETY: as the caller says.
            unsafe { launch.run(tokens, None, None, stream)? };
        }
        self.serial += 1;
        Ok(Routed { tokens: *tokens, serial: self.serial })
    }

    /// The first half of [`MoeRank::dispatch_raw`], for a tuning that is split: sends, and waits for nobody.
    ///
    /// # Safety
    /// As for [`MoeRank::dispatch_raw`].
    pub unsafe fn dispatch_send_raw(
        &mut self,
        tokens: &Tokens,
        stream: RawStream,
    ) -> Result<Sending, RuntimeError> {
        self.world.usable()?;
        let [send, _] = halves(&mut self.dispatch)?;
        // SAFETY: as the caller says.
        unsafe { send.run(tokens, None, None, stream)? };
        self.serial += 1;
        Ok(Sending { tokens: *tokens, serial: self.serial })
    }

    /// The second half: receives what other ranks sent.
    ///
    /// # Safety
    /// As for [`MoeRank::dispatch_raw`].
    pub unsafe fn dispatch_receive_raw(
        &mut self,
        sending: Sending,
        stream: RawStream,
    ) -> Result<Routed, RuntimeError> {
        self.last(sending.serial)?;
        let [_, receive] = halves(&mut self.dispatch)?;
        let Sending { tokens, serial } = sending;
        // SAFETY: as the caller says.
        unsafe { receive.run(&tokens, None, None, stream)? };
        Ok(Routed { tokens, serial })
    }

    /// Brings the experts' outputs back and sums them with the weights: `y` in the order of dispatch's `rows`, to
    /// `out[token][hidden]`. With rows by token, `y` has what this rank's experts made of each token, summed with the weights.
    ///
    /// # Safety
    /// As for [`MoeRank::dispatch_raw`]; `y` and `out` are valid until it has ended.
    pub unsafe fn combine_raw(
        &mut self,
        routed: Routed,
        y: DevicePtr,
        out: DevicePtr,
        stream: RawStream,
    ) -> Result<(), RuntimeError> {
        self.world.usable()?;
        self.last(routed.serial)?;
        for launch in &mut self.combine {
            // SAFETY: as the caller says.
            unsafe { launch.run(&routed.tokens, Some(y), Some(out), stream)? };
        }
        Ok(())
    }

    /// The first half of [`MoeRank::combine_raw`], for a tuning that is split: sends, and waits for nobody.
    ///
    /// # Safety
    /// As for [`MoeRank::combine_raw`].
    pub unsafe fn combine_send_raw(
        &mut self,
        routed: Routed,
        y: DevicePtr,
        stream: RawStream,
    ) -> Result<Returning, RuntimeError> {
        self.world.usable()?;
        self.last(routed.serial)?;
        let [send, _] = halves(&mut self.combine)?;
        let Routed { tokens, serial } = routed;
        // SAFETY: as the caller says.
        unsafe { send.run(&tokens, Some(y), None, stream)? };
        Ok(Returning { tokens, serial })
    }

    /// The second half: sums what comes back.
    ///
    /// # Safety
    /// As for [`MoeRank::combine_raw`].
    pub unsafe fn combine_receive_raw(
        &mut self,
        returning: Returning,
        out: DevicePtr,
        stream: RawStream,
    ) -> Result<(), RuntimeError> {
        self.last(returning.serial)?;
        let [_, receive] = halves(&mut self.combine)?;
        // SAFETY: as the caller says.
        unsafe { receive.run(&returning.tokens, None, Some(out), stream) }
    }

    /// A whole round in one launch, for a tuning with a round trip: sends this rank's tokens through the experts' hook at their
    /// owners and sums what comes back, to `out[token][hidden]`. It has nothing to do with dispatches and combines, which may
    /// stand between two of these.
    ///
    /// # Safety
    /// As for [`MoeRank::dispatch_raw`]; `tokens` and `out` are valid until it has ended.
    pub unsafe fn round_trip_raw(
        &mut self,
        tokens: &Tokens,
        out: DevicePtr,
        stream: RawStream,
    ) -> Result<(), RuntimeError> {
        self.world.usable()?;
        let [launch] = &mut self.round_trip[..] else {
            return Err(RuntimeError::invalid("round_trip", "none", "a tuning that has one"));
        };
        // SAFETY: as the caller says.
        unsafe { launch.run(tokens, None, Some(out), stream) }
    }

    /// Whether a dispatch is this rank's last one: buffers hold nothing of those before.
    fn last(&self, serial: u64) -> Result<(), RuntimeError> {
        match serial == self.serial {
            true => Ok(()),
            false => {
                let allowed = format!("that of the last dispatch of rank {}, {}", self.rank, self.serial);
                Err(RuntimeError::invalid("routed", serial, allowed))
            }
        }
    }
}

/// The sending and the receiving launch of an operation that is split.
fn halves(launches: &mut [Launch]) -> Result<&mut [Launch; 2], RuntimeError> {
    launches.try_into().map_err(|_| {
        RuntimeError::invalid("split", false, "true in the tuning, for launches that send or receive only")
    })
}

#[cfg(test)]
#[path = "op_tests.rs"]
mod tests;
