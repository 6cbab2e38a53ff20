//! The memory that a kernel records its timeline in.

use std::sync::Arc;

use peerwarp_codegen::print::Timeline;

use super::Recording;
use super::RuntimeError;
use super::args::KernelArgs;
use super::gpu::Gpu;
use super::handles::Buffer;
use super::image::KernelImage;

/// Where one kernel of one rank records its timeline.
#[derive(Debug)]
pub(crate) struct Recorder {
    label: String,
    kernel: String,
    rank: u32,
    timeline: Timeline,
    buffer: Buffer,
}

impl Recorder {
    /// Memory for the timeline of a kernel that was emitted with one, passed to it; none for any other.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        image: &KernelImage,
        label: &str,
        rank: u32,
        args: &mut KernelArgs,
    ) -> Result<Option<Recorder>, RuntimeError> {
        let Some(timeline) = &image.timeline else { return Ok(None) };
        let buffer = Buffer::new(gpu, timeline.bytes)?;
        buffer.clear(0)?;
        args.set_u64("timeline", buffer.ptr())?;
        let (label, kernel) = (label.to_owned(), image.variant.clone());
        Ok(Some(Recorder { label, kernel, rank, timeline: timeline.clone(), buffer }))
    }

    /// What the last launch, which has ended, recorded.
    pub fn read(&self) -> Result<Recording, RuntimeError> {
        let bytes: Vec<u8> = self.buffer.read(0, self.timeline.bytes as usize)?;
        Ok(Recording::read(&self.label, &self.kernel, self.rank, &self.timeline, &bytes)?)
    }
}
