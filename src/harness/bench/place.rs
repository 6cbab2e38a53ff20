//! What the measuring itself has on each rank, and how an iteration is put on all of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerwarp_codegen::family::{Family, Variant};

use super::align::{Align, AlignKey, Idle, IdleKey};
use crate::runtime::gpu::{DevicePtr, Gpu, LaunchConfig};
use crate::runtime::handles::{Buffer, Event, Graph, LoadedKernel, Stream};
use crate::runtime::image::Images;
use crate::runtime::{KernelArgs, RuntimeError, Slot, Symmetric, World};

/// What is written to leave nothing else in a cache: more than any of them holds. The mock GPUs of tests have none.
const FLUSHED: u64 = if cfg!(test) { 1 << 16 } else { 256 << 20 };

/// Multiplications that keep a GPU busy at first, well under a millisecond, and at most.
const SPINS: u32 = 1 << 16;
const MOST_SPINS: u32 = 1 << 27;

/// Bytes of the align kernel's flags: two for each of 64 ranks.
const FLAGS: u64 = 2 * 64 * 4;

/// Bytes from one of the align kernel's words to the next: kernels' pointers are aligned so.
const WORD: u64 = 16;

/// What the measuring itself has on one rank.
#[derive(Debug)]
pub(crate) struct Place {
    stream: Stream,
    /// Before everything.
    before: Event,
    /// Before and after each graph of an iteration.
    around: Vec<(Event, Event)>,
    align: Kernel,
    spins: Slot,
    idle: Kernel,
    /// The align kernel's: multiplications, 0 of them, where they start, the epoch.
    words: Buffer,
    _idle_words: Buffer,
    flushed: Option<Buffer>,
    /// The align kernel's flags and results.
    _come: Arc<Symmetric>,
}

/// A loaded kernel with its arguments.
#[derive(Debug)]
struct Kernel {
    kernel: LoadedKernel,
    args: KernelArgs,
}

impl Kernel {
    /// With what every kernel takes; the rest is set by `set`.
    fn new(
        world: &World,
        member: usize,
        images: &dyn Images,
        variant: &Variant,
        set: impl FnOnce(&mut KernelArgs) -> Result<(), RuntimeError>,
    ) -> Result<Kernel, RuntimeError> {
        let at = &world.members()[member];
        let image = images.image(&**variant, at.gpu.info().target)?;
        image.serves(at.gpu.info())?;
        let mut args = world.kernel_args(member, &image)?;
        set(&mut args)?;
        args.ready()?;
        let config = LaunchConfig::from(&image.launch);
        // SAFETY: as the implementation of `Images` says.
        let kernel = unsafe { LoadedKernel::new(&at.gpu, &image.module, &image.entry, config)? };
        Ok(Kernel { kernel, args })
    }

    fn launch(&self, stream: &Stream) -> Result<(), RuntimeError> {
        // SAFETY: the struct is laid out as the image says, and its buffers live as long as the kernel.
        unsafe { self.kernel.launch(self.args.ready()?, stream.raw()) }
    }
}

impl Place {
    /// For the ranks of this process: each has its flags.
    pub fn all(world: &World, flush: bool, images: &dyn Images) -> Result<Vec<Place>, RuntimeError> {
        let come = Arc::new(world.allocate(2 * FLAGS)?);
        let places = (0..world.members().len()).map(|m| Place::new(world, m, &come, flush, images));
        world.agree(places.collect())
    }

    fn new(
        world: &World,
        member: usize,
        come: &Arc<Symmetric>,
        flush: bool,
        images: &dyn Images,
    ) -> Result<Place, RuntimeError> {
        let gpu = &world.members()[member].gpu;
        // Nodes are not aligned with each other: what is timed goes between them.
        let ranks = world.teams().local_ranks();
        let fits =
            |e: peerwarp_codegen::family::FamilyError| RuntimeError::invalid("ranks", ranks, e.to_string());
        let align = Align::with_defaults(&AlignKey { ranks }).map_err(fits)?.into_variant();
        let idle = Idle::with_defaults(&IdleKey { ranks }).map_err(fits)?;
        let words = Buffer::new(gpu, 4 * WORD)?;
        words.write(0, &[0u32; WORD as usize])?;
        words.write(0, &[SPINS])?;
        let idle_words = Buffer::new(gpu, u64::from(idle.blocks) * 4)?;
        let mut spins = None;
        let align = Kernel::new(world, member, images, &align, |args| {
            args.set_u64("start", words.ptr() + 2 * WORD)?;
            args.set_u64("epoch", words.ptr() + 3 * WORD)?;
            args.set_pointers("come", &come.pointers(member, 0))?;
            args.set_pointers("came_to", &come.pointers(member, FLAGS))?;
            spins = Some(args.slot("spins")?);
            Ok(())
        })?;
        let idle = Kernel::new(world, member, images, &idle.into_variant(), |args| {
            args.set_u64("word", idle_words.ptr())
        })?;
        Ok(Place {
            stream: Stream::new(gpu)?,
            before: Event::new(gpu)?,
            around: vec![],
            align,
            spins: spins.expect("was set with the arguments"),
            idle,
            words,
            _idle_words: idle_words,
            flushed: flush.then(|| Buffer::new(gpu, FLUSHED)).transpose()?,
            _come: Arc::clone(come),
        })
    }

    /// Where everything is launched.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Gets ready for iterations of so many graphs.
    fn fit(&mut self, gpu: &Arc<dyn Gpu>, steps: usize) -> Result<(), RuntimeError> {
        while self.around.len() < steps {
            self.around.push((Event::new(gpu)?, Event::new(gpu)?));
        }
        Ok(())
    }

    /// A graph of a kernel that does next to nothing.
    pub fn idle_graph(&self) -> Result<Graph, RuntimeError> {
        self.idle_graph_of(1)
    }

    /// The same of several, one after the other.
    pub fn idle_graph_of(&self, kernels: u32) -> Result<Graph, RuntimeError> {
        self.stream.capture(|| (0..kernels).try_for_each(|_| self.idle.launch(&self.stream)))
    }

    /// Word of the number of multiplications, or one that is 0.
    fn spins(&self, busy: bool) -> DevicePtr {
        self.words.ptr() + if busy { 0 } else { WORD }
    }

    fn launch(&mut self, step: usize, graph: &Graph) -> Result<(), RuntimeError> {
        let stream = self.stream.raw();
        if step == 0 {
            self.before.record(stream)?;
        }
        if let Some(flushed) = &self.flushed {
            flushed.fill(step as u8, stream)?;
        }
        let spins = self.spins(step == 0);
        self.align.args.write(self.spins, spins);
        self.align.launch(&self.stream)?;
        let (start, end) = &self.around[step];
        start.record(stream)?;
        // SAFETY: the owner of the graph has what it uses, and waits for it.
        unsafe { graph.launch(stream)? };
        end.record(stream)
    }
}

/// Launches `steps`, `[graph][rank]`, in turn, each started by all ranks at once: times `[graph][rank]`, for the ranks of this
/// process.
///
/// The first start lies behind the host's last launch, on every rank: the sleep is made longer until it does.
pub(crate) fn sample(
    world: &World,
    places: &mut [Place],
    steps: &[&[Graph]],
) -> Result<Vec<Vec<Duration>>, RuntimeError> {
    let members = world.members().iter().zip(places.iter_mut());
    members.into_iter().try_for_each(|(member, place)| place.fit(&member.gpu, steps.len()))?;
    loop {
        let begun = Instant::now();
        let launched = launch(places, steps);
        let host = begun.elapsed();
        // Also after an error: what has been launched has to end.
        let ended = launched.and(finish(world, places));
        // An iteration counts on all ranks, or on none.
        let counts = world.gather(ended.and_then(|()| begun_behind(places, host)))?;
        if counts.into_iter().all(|counts| counts) {
            let time = |p: &Place, n: usize| p.around[n].1.since(&p.around[n].0);
            let of = |n| places.iter().map(|p| time(p, n)).collect::<Result<Vec<_>, _>>();
            return (0..steps.len()).map(of).collect();
        }
        sleep_longer(places, host)?;
    }
}

fn launch(places: &mut [Place], steps: &[&[Graph]]) -> Result<(), RuntimeError> {
    for (number, graphs) in steps.iter().enumerate() {
        for (place, graph) in places.iter_mut().zip(graphs.iter()) {
            place.launch(number, graph)?;
        }
    }
    Ok(())
}

/// Whether the first start was later than the host's last launch, which came after so long.
fn begun_behind(places: &[Place], host: Duration) -> Result<bool, RuntimeError> {
    let behind = |p: &Place| p.around[0].0.since(&p.before);
    let behind = places.iter().map(behind).collect::<Result<Vec<_>, _>>()?;
    Ok(behind.iter().all(|slept| *slept > host))
}

/// Doubles the time for which GPUs are kept busy before anything starts.
fn sleep_longer(places: &mut [Place], host: Duration) -> Result<(), RuntimeError> {
    for place in places {
        let spins: Vec<u32> = place.words.read(0, 1)?;
        if spins[0] >= MOST_SPINS {
            let allowed = "less time than GPUs can be kept busy for: is the machine overloaded?";
            return Err(RuntimeError::invalid("time to launch an iteration", format!("{host:?}"), allowed));
        }
        place.words.write(0, &[spins[0] * 2])?;
    }
    Ok(())
}

/// Waits until everything on all ranks has ended.
pub(crate) fn finish(world: &World, places: &[Place]) -> Result<(), RuntimeError> {
    world.finish_all(places.iter().map(|p| p.stream.raw()))
}
