//! One rank's part of an operation.

mod making;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use peerwarp_codegen::ir::Const;

use super::call::{Call, LaunchArgs, Passed, Scalar, enough_rows, no_such_scalar, operands_apart, passed};
use super::plan::{BufferSpec, ScalarSpec};
use super::stream::{Kept, StreamRef};
use crate::runtime::args::Place;
use crate::runtime::gpu::{DevicePtr, Gpu, RawStream};
use crate::runtime::handles::LoadedKernel;
use crate::runtime::{KernelArgs, Recorder, Recording, RuntimeError, Slot, World};

pub(super) use making::Making;
use making::Memory;

/// The error for a window that is not symmetric memory.
fn unreachable_by_peers(spec: &BufferSpec, ptr: DevicePtr) -> RuntimeError {
    let allowed =
        format!("{} bytes of a `SymmetricPart` of this world, as peers read it", spec.param.bytes());
    RuntimeError::invalid(format!("memory of {}", spec.name), format!("{ptr:#x}"), allowed)
}

/// One kernel with its arguments, and the places of those that change.
#[derive(Debug)]
struct Launch {
    kernel: LoadedKernel,
    args: KernelArgs,
    /// Number of an operand, and where it is put.
    slots: Vec<(usize, Slot)>,
    /// Number of an operand that peers read, and where it is put, that of each rank.
    windows: Vec<(usize, Slot)>,
    /// Number of a scalar, and where it is put.
    scalars: Vec<(usize, Place)>,
    /// Where its epoch is counted.
    epoch: Option<DevicePtr>,
    recorder: Option<Recorder>,
}

impl Launch {
    /// The operands that it takes.
    fn operands(&self) -> impl Iterator<Item = &(usize, Slot)> {
        self.slots.iter().chain(&self.windows)
    }
}

/// An operation on one rank of this process.
#[derive(Debug)]
pub struct RankOp {
    // Modules go before the memory that their kernels use.
    launches: Vec<Launch>,
    rank: u32,
    /// Its number among the members of the world.
    index: usize,
    gpu: Arc<dyn Gpu>,
    world: Arc<World>,
    pub(super) operands: Vec<BufferSpec>,
    /// What the launch that is being made is given for each of them.
    pub(super) passed: Vec<Passed>,
    scalars: Vec<ScalarSpec>,
    /// Bytes of its memory.
    bytes: u64,
    /// What each of them says, if it says how many rows there are.
    rows: Vec<u32>,
    /// Numbers of the operands that have rows, and of the scalar that says how many, if launches take it.
    by_rows: Vec<(usize, Option<usize>)>,
    /// The stream of checked launches.
    stream: Option<Kept>,
    /// Whether anything may be running.
    launched: AtomicBool,
    /// How many launches the driver was asked for.
    begun: u64,
    /// First byte and size of the operation's own buffers.
    buffers: BTreeMap<String, (DevicePtr, u64)>,
    /// First byte and size of what launches write before they read it.
    payload: Vec<(DevicePtr, u64)>,
    memory: Arc<Memory>,
}

impl Drop for RankOp {
    /// Waits for its kernels, whose waits are bounded: nothing that they use may be freed before they have ended.
    fn drop(&mut self) {
        if self.launched.load(Ordering::Relaxed) && self.gpu.synchronize().is_err() {
            // Whether they have ended is unknown.
            std::mem::forget((Arc::clone(&self.memory), std::mem::take(&mut self.launches)));
        }
    }
}

impl RankOp {
    /// Its number in the world.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// The world that it is in.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// How many launches it has.
    pub fn launches(&self) -> usize {
        self.launches.len()
    }

    /// What the caller passes to launches, in this order.
    pub fn operands(&self) -> &[BufferSpec] {
        &self.operands
    }

    /// The number of an operand by its name; none if no launch takes it.
    pub fn operand(&self, name: &str) -> Option<usize> {
        self.operands.iter().position(|o| o.name == name)
    }

    /// First byte and size in bytes of a buffer of the operation's own.
    ///
    /// # Errors
    /// It has none of this name.
    pub fn buffer(&self, name: &str) -> Result<(DevicePtr, u64), RuntimeError> {
        self.buffers.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.buffers.keys().map(String::as_str).collect();
            RuntimeError::invalid("buffer", name, format!("one of {}", known.join(", ")))
        })
    }

    /// Whether kernels take a number of this name by value.
    pub fn has_scalar(&self, name: &str) -> bool {
        self.scalars.iter().any(|scalar| scalar.name == name)
    }

    /// Sets a number that kernels take by value, for all launches from here on.
    ///
    /// # Errors
    /// No kernel takes it, it is of another type there, or it says that there are more rows than can be.
    pub fn set_scalar<T: Scalar>(&mut self, name: &str, value: T) -> Result<(), RuntimeError> {
        let found = self.scalars.iter().position(|s| s.name == name && s.dtype == T::DTYPE);
        let number = found.ok_or_else(|| no_such_scalar(name, T::DTYPE, &self.scalars))?;
        if let Some(most) = self.scalars[number].most_rows {
            let rows: u32 = bytemuck::pod_read_unaligned(bytemuck::bytes_of(&value));
            if rows > most {
                return Err(RuntimeError::invalid(name, rows, format!("at most {most}")));
            }
            self.rows[number] = rows;
        }
        for launch in &mut self.launches {
            for &(_, place) in launch.scalars.iter().filter(|(at, _)| *at == number) {
                launch.args.put(place, bytemuck::bytes_of(&value));
            }
        }
        Ok(())
    }

    /// [`RankOp::set_scalar`] of a number whose type is known at run time.
    ///
    /// # Errors
    /// As there, or it is a truth value.
    pub fn set_number(&mut self, name: &str, value: Const) -> Result<(), RuntimeError> {
        match value {
            Const::I32(n) => self.set_scalar(name, n),
            Const::U32(n) => self.set_scalar(name, n),
            Const::U64(n) => self.set_scalar(name, n),
            Const::F32(bits) => self.set_scalar(name, f32::from_bits(bits)),
            Const::Bool(b) => Err(RuntimeError::invalid(name, b, "a number")),
        }
    }

    /// Lets waits of launches from here on last so long before the world is aborted, instead of
    /// [`WorldOptions::wait_budget`](crate::runtime::WorldOptions::wait_budget). A graph keeps what it was captured with. Ranks may
    /// have budgets of their own: the first whose wait runs out ends the launches of all.
    ///
    /// # Errors
    /// It is no time at all, or more nanoseconds than 64 bits count.
    pub fn set_wait_budget(&mut self, budget: Duration) -> Result<(), RuntimeError> {
        let ns = u64::try_from(budget.as_nanos()).ok().filter(|ns| *ns > 0);
        let ns = ns.ok_or_else(|| {
            let allowed = format!("1 ns to {:?}", Duration::from_nanos(u64::MAX));
            RuntimeError::invalid("wait_budget", format!("{budget:?}"), allowed)
        })?;
        self.launches.iter_mut().try_for_each(|launch| launch.args.set_u64("wait_budget_ns", ns))
    }

    /// Bytes of memory that it has on its GPU, its part of symmetric memory included.
    pub fn memory_bytes(&self) -> u64 {
        self.bytes
    }

    /// Launches one of its kernels. `operands` has an address for each of [`RankOp::operands`]; those that the launch does not
    /// take are not looked at.
    ///
    /// # Errors
    /// The world was aborted, there is no such launch, a number that it takes has not been set, a window is not a
    /// [`SymmetricPart`](super::SymmetricPart)'s memory, or the driver refuses it.
    ///
    /// # Safety
    /// `stream` is of this rank's GPU. The addresses that the launch takes are valid on it for as many bytes as their
    /// [`BufferSpec`] says, until it has ended; outputs overlap no other operand. Launches of a rank are in order: all on one
    /// stream, or ordered by events. If the stream is being captured, all of this holds for every launch of the graph, and this
    /// operation outlives them.
    pub unsafe fn launch_raw(
        &mut self,
        launch: usize,
        operands: &[DevicePtr],
        stream: RawStream<'_>,
    ) -> Result<(), RuntimeError> {
        self.ready_for(launch, operands.len())?;
        self.passed.iter_mut().zip(operands).for_each(|(passed, &ptr)| passed.ptr = ptr);
        // SAFETY: as the caller says.
        unsafe { self.launch_passed(launch, stream) }
    }

    /// As [`RankOp::launch_raw`], of memory whose size is known: `operands` has the address and the bytes of each of
    /// [`RankOp::operands`].
    ///
    /// # Errors
    /// As there. An operand is shorter than what the kernels use, its address is not aligned, or an output overlaps another operand.
    ///
    /// # Safety
    /// As there, but for sizes and overlaps.
    pub unsafe fn launch_sized(
        &mut self,
        launch: usize,
        operands: &[(DevicePtr, u64)],
        stream: RawStream<'_>,
    ) -> Result<(), RuntimeError> {
        self.ready_for(launch, operands.len())?;
        for (at, &(ptr, bytes)) in operands.iter().enumerate() {
            self.passed[at] = passed(&self.operands[at], ptr, bytes)?;
        }
        self.rows_fit()?;
        operands_apart(&self.operands, &self.passed)?;
        // SAFETY: as the caller says, and what has been looked at here.
        unsafe { self.launch_passed(launch, stream) }
    }

    /// Whether there is such a launch, with as many operands, in a world that can be used.
    fn ready_for(&self, launch: usize, operands: usize) -> Result<(), RuntimeError> {
        self.usable()?;
        self.there_are(launch..launch + 1)?;
        let taken = self.operands.len();
        match operands == taken {
            true => Ok(()),
            false => Err(RuntimeError::invalid("operands", operands, format!("{taken} addresses"))),
        }
    }

    /// Launches kernels with what is passed to all of them together, on the stream of earlier launches.
    pub(crate) fn launch_args<L: LaunchArgs>(
        &mut self,
        launches: Range<usize>,
        stream: StreamRef<'_>,
        args: L,
    ) -> Result<(), RuntimeError> {
        self.check_gpu(&stream)?;
        if stream.capturing()? {
            let allowed = "one that is not, or `capture`: a graph outlives what is borrowed here";
            return Err(RuntimeError::invalid("stream", "being captured", allowed));
        }
        if stream.is_per_thread() {
            let allowed = "one that is the same on every thread";
            return Err(RuntimeError::invalid("stream", "the default one of each thread", allowed));
        }
        if self.stream.as_ref().is_some_and(|used| !used.is(&stream)) {
            let (raw, allowed) = (stream.raw().raw(), "the one of the earlier launches of rank");
            return Err(RuntimeError::invalid(
                "stream",
                format!("{raw:#x}"),
                format!("{allowed} {}", self.rank),
            ));
        }
        let before = self.begun;
        let launched = self.launch_held(launches, stream, args);
        if self.begun > before && self.stream.is_none() {
            self.stream = Some(stream.keep());
        }
        launched
    }

    /// The same on a stream that is being captured.
    ///
    /// # Safety
    /// As of [`super::OpRank::capture`].
    pub(crate) unsafe fn capture_args<L: LaunchArgs>(
        &mut self,
        launches: Range<usize>,
        stream: StreamRef<'_>,
        args: L,
    ) -> Result<(), RuntimeError> {
        self.check_gpu(&stream)?;
        // Events of cudarc's slices are of no use in a graph, and may not be waited for in one: they wait on another stream.
        let aside = stream.cudarc().map(|stream| stream.context().default_stream());
        self.launch_held(launches, stream.aside(aside.as_deref()), args)
    }

    fn launch_held<L: LaunchArgs>(
        &mut self,
        launches: Range<usize>,
        stream: StreamRef<'_>,
        mut args: L,
    ) -> Result<(), RuntimeError> {
        self.usable()?;
        self.there_are(launches.clone())?;
        let _held = args.pass(&mut Call::new(self, stream))?;
        for &(at, _) in self.launches[launches.clone()].iter().flat_map(Launch::operands) {
            if !self.passed[at].there {
                return Err(RuntimeError::invalid(&self.operands[at].name, "nothing", "a tensor"));
            }
        }
        self.rows_fit()?;
        operands_apart(&self.operands, &self.passed)?;
        for launch in launches {
            // SAFETY: tensors are checked and held, and the stream is of this GPU and in order with what it ran before.
            unsafe { self.launch_passed(launch, stream.raw())? };
        }
        Ok(())
    }

    /// Whether this rank may launch.
    fn usable(&self) -> Result<(), RuntimeError> {
        self.world.usable()?;
        match self.world.is_active(self.rank) {
            true => Ok(()),
            false => Err(RuntimeError::Inactive { rank: self.rank }),
        }
    }

    /// Whether operands that were passed have as many rows as their numbers say, and how many bytes they are.
    fn rows_fit(&mut self) -> Result<(), RuntimeError> {
        for &(at, number) in &self.by_rows {
            let passed = &mut self.passed[at];
            if passed.there {
                let rows = number.map(|number| u64::from(self.rows[number]));
                passed.bytes = enough_rows(&self.operands[at], rows, passed.bytes)?;
            }
        }
        Ok(())
    }

    fn there_are(&self, launches: Range<usize>) -> Result<(), RuntimeError> {
        match launches.end <= self.launches.len() {
            true => Ok(()),
            false => {
                let allowed = format!("less than {}", self.launches.len());
                Err(RuntimeError::invalid("launch", launches.end - 1, allowed))
            }
        }
    }

    fn check_gpu(&self, stream: &StreamRef<'_>) -> Result<(), RuntimeError> {
        let own = self.gpu.info();
        match stream.device() == own.ordinal && (own.target.backend() == "cuda" || !stream.is_cudarc()) {
            true => Ok(()),
            false => {
                let allowed = format!("that of rank {}, {}", self.rank, own.ordinal);
                Err(RuntimeError::invalid("GPU of the stream", stream.device(), allowed))
            }
        }
    }

    /// # Safety
    /// As of [`RankOp::launch_raw`], of what has been passed.
    unsafe fn launch_passed(&mut self, launch: usize, stream: RawStream<'_>) -> Result<(), RuntimeError> {
        let launch = &mut self.launches[launch];
        for &(at, slot) in &launch.slots {
            launch.args.write(slot, self.passed[at].ptr);
        }
        for &(at, slot) in &launch.windows {
            let (ptr, spec) = (self.passed[at].ptr, &self.operands[at]);
            let Some((memory, from)) = self.world.shared(self.index, ptr, spec.param.bytes()) else {
                return Err(unreachable_by_peers(spec, ptr));
            };
            launch.args.write_all(slot, memory.bases(self.index).iter().map(|base| base + from));
        }
        launch.args.map_matrices(&*self.gpu)?;
        let args = launch.args.ready()?;
        self.launched.store(true, Ordering::Relaxed);
        self.begun += 1;
        // SAFETY: the struct is laid out as the image says, and filled; the rest is as the caller says.
        unsafe { launch.kernel.launch(args, stream) }
    }

    /// How many launches the driver was asked for, whether it took them or not.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// What the last launch of each kernel recorded: nothing unless images have a timeline. The launches have to have ended.
    pub fn recordings(&self) -> Result<Vec<Recording>, RuntimeError> {
        self.launches.iter().filter_map(|l| l.recorder.as_ref()).map(Recorder::read).collect()
    }

    /// Lets all kernels begin in the epochs after `epoch`, as if so many had gone before. Before the first launch, on all
    /// ranks.
    pub(crate) fn start_after(&self, epoch: u32) -> Result<(), RuntimeError> {
        let words = self.launches.iter().filter_map(|l| l.epoch);
        // SAFETY: words of this operation.
        words.into_iter().try_for_each(|word| unsafe { self.gpu.upload(word, &epoch.to_ne_bytes()) })
    }

    /// Sets every byte that launches write before they read it, in the order of a stream. No rank may be within a round.
    pub(crate) fn fill_payload(&self, value: u8, stream: RawStream<'_>) -> Result<(), RuntimeError> {
        self.launched.store(true, Ordering::Relaxed);
        // SAFETY: memory of this operation.
        let fill = |&(ptr, bytes): &(DevicePtr, u64)| unsafe { self.gpu.fill(ptr, bytes, value, stream) };
        self.payload.iter().try_for_each(fill)
    }
}
