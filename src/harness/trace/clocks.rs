//! How far the clocks of a world's GPUs are apart.

use std::sync::Arc;

use peerwarp_codegen::family::{DynConfig, Family};
use peerwarp_codegen::ir::ParamKind;

use crate::harness::trace::clock::{self, ClockError, ClockOffset};
use crate::harness::trace::sync::ClockSync;
use crate::runtime::Recording;
use crate::runtime::handles::{Buffer, LoadedKernel, Stream};
use crate::runtime::image::Images;
use crate::runtime::{KernelArgs, Recorder, RuntimeError, Symmetric, World};

/// Rounds between rank 0 and each other rank in a measurement.
const ROUNDS: u32 = 64;

/// Buffers start at multiples of this.
const ALIGN: u64 = 256;

/// Why clocks were not compared.
#[derive(Debug, thiserror::Error)]
pub enum ClocksError {
    /// The GPUs.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// What they recorded does not go together.
    #[error(transparent)]
    Clock(#[from] ClockError),
}

/// Compares the clocks of all ranks, which are in this process.
#[derive(Debug)]
pub struct Clocks {
    // Streams and modules go before the memory that is used on them.
    places: Vec<Place>,
    world: Arc<World>,
    _alive: Arc<dyn std::any::Any + Send + Sync>,
    _shared: Symmetric,
}

#[derive(Debug)]
struct Place {
    stream: Stream,
    kernel: LoadedKernel,
    args: KernelArgs,
    recorder: Recorder,
    _epoch: Buffer,
}

impl Clocks {
    /// The kernel that it launches in a world of so many ranks.
    pub fn variant(ranks: u32) -> ClockSync {
        ClockSync { ranks, rounds: ROUNDS }
    }

    /// Room for records that images need for it.
    pub fn slots(ranks: u32) -> u32 {
        Clocks::variant(ranks).records()
    }

    /// `images` are compiled with a timeline of [`Clocks::slots`].
    pub fn new(world: &Arc<World>, images: &dyn Images) -> Result<Clocks, RuntimeError> {
        let (here, ranks) = (world.members().len() as u32, world.ranks());
        if here != ranks {
            return Err(RuntimeError::invalid("ranks of this process", here, format!("all {ranks}")));
        }
        let variant = Clocks::variant(ranks).into_variant();
        let (mut symmetric, mut bytes) = (vec![], 0);
        for p in variant.params().iter().filter(|p| p.kind != ParamKind::EpochWord) {
            symmetric.push((p.name.clone(), bytes));
            bytes += (p.len * u64::from(p.dtype.bytes())).next_multiple_of(ALIGN);
        }
        let (shared, alive) = (world.allocate(bytes)?, Arc::new(()) as Arc<dyn std::any::Any + Send + Sync>);
        let place = |index| Place::new(world, index, &*variant, images, &shared, &symmetric, &alive);
        let places = (0..world.members().len()).map(place).collect::<Result<_, _>>()?;
        Ok(Clocks { places, world: Arc::clone(world), _alive: alive, _shared: shared })
    }

    /// Measures how far every rank's clock is ahead of rank 0's. Waits until it is done.
    pub fn measure(&mut self) -> Result<Vec<ClockOffset>, ClocksError> {
        self.world.usable()?;
        // The first launch finds the kernel not yet in the GPU's caches.
        for _ in 0..2 {
            for place in &self.places {
                // SAFETY: the struct is laid out as the image says, and filled.
                unsafe { place.kernel.launch(place.args.ready()?, place.stream.raw())? };
            }
            self.world.finish_all(self.places.iter().map(|p| p.stream.raw()))?;
        }
        let recordings = self.places.iter().map(|p| p.recorder.read());
        Ok(clock::offsets(&recordings.collect::<Result<Vec<Recording>, _>>()?)?)
    }
}

impl Place {
    fn new(
        world: &Arc<World>,
        index: usize,
        variant: &dyn DynConfig,
        images: &dyn Images,
        shared: &Symmetric,
        symmetric: &[(String, u64)],
        alive: &Arc<dyn std::any::Any + Send + Sync>,
    ) -> Result<Place, RuntimeError> {
        let member = &world.members()[index];
        let image = images.image(variant, member.gpu.info().target)?;
        let epoch = Buffer::new(&member.gpu, 8)?;
        world.clear(index, (epoch.ptr(), epoch.bytes()), 0, alive)?;
        world.clear(index, (shared.bases(index)[member.rank as usize], shared.bytes()), 0, alive)?;
        member.gpu.synchronize()?;
        let mut args = world.kernel_args(index, &image)?;
        for (name, at) in symmetric {
            args.set_pointers(name, &shared.pointers(index, *at))?;
        }
        args.set_u64("epoch", epoch.ptr())?;
        let recorder = Recorder::new(&member.gpu, &image, "clocks", member.rank, &mut args)?;
        let Some(recorder) = recorder else {
            return Err(RuntimeError::invalid("images", &image.variant, "images with a timeline"));
        };
        let (stream, kernel) = (Stream::new(&member.gpu)?, world.load(&member.gpu, &image)?);
        Ok(Place { stream, kernel, args, recorder, _epoch: epoch })
    }
}
