//! One rank's part of an operation.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::plan::{BufferSpec, LaunchSpec, Plan};
use crate::runtime::gpu::{DevicePtr, Gpu, RawStream};
use crate::runtime::handles::{Buffer, LoadedKernel};
use crate::runtime::image::Images;
use crate::runtime::{KernelArgs, Recorder, Recording, RuntimeError, Slot, Symmetric, World};

/// What the parts of a rank are made of.
pub(super) struct Making<'a> {
    pub world: &'a Arc<World>,
    /// Which member of the world.
    pub index: usize,
    pub plan: &'a Plan,
    pub shared: &'a Arc<Symmetric>,
    pub launches: &'a [LaunchSpec],
    pub images: &'a dyn Images,
}

/// The memory of one rank's part.
#[derive(Debug)]
struct Memory {
    local: Buffer,
    _shared: Arc<Symmetric>,
}

impl Making<'_> {
    pub fn rank(&self) -> Result<RankOp, RuntimeError> {
        let member = &self.world.members()[self.index];
        let gpu = &member.gpu;
        let local = Buffer::new(gpu, self.plan.local_bytes)?;
        local.fill(0, RawStream::DEFAULT)?;
        let memory = Arc::new(Memory { local, _shared: Arc::clone(self.shared) });
        let own = self.shared.bases(self.index)[member.rank as usize];
        let buffers = self.plan.placed(own, memory.local.ptr());
        let owner: Arc<dyn Any + Send + Sync> = Arc::clone(&memory) as _;
        for (name, value) in &self.plan.cleared {
            self.world.clear(self.index, buffers[name], *value, &owner)?;
        }
        gpu.synchronize()?;
        let launches = self.launches.iter().map(|launch| self.launch(launch, &memory, &buffers));
        let launches = launches.collect::<Result<_, RuntimeError>>()?;
        let written = buffers.iter().filter(|(name, _)| !self.plan.lasts(name));
        let payload = written.map(|(_, place)| *place).collect();
        Ok(RankOp {
            launches,
            rank: member.rank,
            gpu: Arc::clone(gpu),
            world: Arc::clone(self.world),
            operands: self.plan.operands.clone(),
            buffers,
            payload,
            _memory: memory,
        })
    }

    fn launch(
        &self,
        spec: &LaunchSpec,
        memory: &Memory,
        buffers: &BTreeMap<String, (DevicePtr, u64)>,
    ) -> Result<Launch, RuntimeError> {
        let member = &self.world.members()[self.index];
        let image = self.images.image(&*spec.variant, member.gpu.info().target)?;
        let mut args = self.world.kernel_args(self.index, &image)?;
        let mut slots = vec![];
        let mut epoch = None;
        // Members stand in the order of the parameters, and may be named otherwise where C++ has the word.
        for (p, field) in spec.variant.params().iter().zip(&image.args.fields) {
            let name = spec.buffer(&p.name);
            let everywhere = p.kind.is_symmetric();
            if let (true, Some(&(at, _))) = (everywhere, self.plan.symmetric.get(name)) {
                args.set_pointers(&field.name, &self.shared.pointers(self.index, at))?;
            } else if let Some(&(ptr, _)) = buffers.get(name) {
                args.set_u64(&field.name, ptr)?;
            } else if let Some(at) = self.plan.operands.iter().position(|o| o.name == name) {
                slots.push((at, args.slot(&field.name)?));
            }
            if p.kind == peerwarp_codegen::ir::ParamKind::EpochWord {
                epoch = buffers.get(name).map(|place| place.0);
            }
        }
        let recorder = Recorder::new(&member.gpu, &image, &spec.label, member.rank, &mut args)?;
        args.ready()?;
        debug_assert!(memory.local.bytes() >= self.plan.local_bytes);
        let kernel = self.world.load(&member.gpu, &image)?;
        Ok(Launch { kernel, args, slots, epoch, recorder })
    }
}

/// One kernel with its arguments, and the places of those that change.
#[derive(Debug)]
struct Launch {
    kernel: LoadedKernel,
    args: KernelArgs,
    /// Number of an operand, and where it is put.
    slots: Vec<(usize, Slot)>,
    /// Where its epoch is counted.
    epoch: Option<DevicePtr>,
    recorder: Option<Recorder>,
}

/// An operation on one rank of this process.
#[derive(Debug)]
pub struct RankOp {
    // Modules go before the memory that their kernels use.
    launches: Vec<Launch>,
    rank: u32,
    gpu: Arc<dyn Gpu>,
    world: Arc<World>,
    operands: Vec<BufferSpec>,
    /// First byte and size of the operation's own buffers.
    buffers: BTreeMap<String, (DevicePtr, u64)>,
    /// First byte and size of what launches write before they read it.
    payload: Vec<(DevicePtr, u64)>,
    _memory: Arc<Memory>,
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

    /// Launches one of its kernels. `operands` has an address for each of [`RankOp::operands`]; those that the launch does not
    /// take are not looked at.
    ///
    /// # Errors
    /// The world was aborted, there is no such launch, or the driver refuses it.
    ///
    /// # Safety
    /// `stream` is of this rank's GPU. The addresses that the launch takes are valid on it for as many bytes as their
    /// [`BufferSpec`] says, until it has ended; outputs overlap no other operand. Launches of a rank are in order: all on one
    /// stream, or ordered by events. All ranks launch the same, in the same order.
    pub unsafe fn launch_raw(
        &mut self,
        launch: usize,
        operands: &[DevicePtr],
        stream: RawStream,
    ) -> Result<(), RuntimeError> {
        self.world.usable()?;
        let (launches, taken) = (self.launches.len(), self.operands.len());
        let Some(launch) = self.launches.get_mut(launch) else {
            return Err(RuntimeError::invalid("launch", launch, format!("less than {launches}")));
        };
        if operands.len() != taken {
            return Err(RuntimeError::invalid("operands", operands.len(), format!("{taken} addresses")));
        }
        for &(at, slot) in &launch.slots {
            launch.args.write(slot, operands[at]);
        }
        // SAFETY: the struct is laid out as the image says, and filled; the rest is as the caller says.
        unsafe { launch.kernel.launch(launch.args.ready()?, stream) }
    }

    /// What the last launch of each kernel recorded: nothing unless images have a timeline. The launches have to have ended.
    pub fn recordings(&self) -> Result<Vec<Recording>, RuntimeError> {
        self.launches.iter().filter_map(|l| l.recorder.as_ref()).map(Recorder::read).collect()
    }

    /// Lets all kernels begin in the epochs after `epoch`, as if so many had gone before. Before the first launch, on all
    /// ranks.
    pub(crate) fn start_after(&self, epoch: u32) -> Result<(), RuntimeError> {
        let words = self.launches.iter().filter_map(|l| l.epoch);
        words.into_iter().try_for_each(|word| self.gpu.upload(word, &epoch.to_ne_bytes()))
    }

    /// Sets every byte that launches write before they read it, in the order of a stream. No rank may be within a round.
    pub(crate) fn fill_payload(&self, value: u8, stream: RawStream) -> Result<(), RuntimeError> {
        self.payload.iter().try_for_each(|&(ptr, bytes)| self.gpu.fill(ptr, bytes, value, stream))
    }
}
