//! Streams of anybody, as launches take them.

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstreamCaptureStatus;

use crate::runtime::gpu::RawStream;
use crate::runtime::handles::Stream;
use crate::runtime::{RuntimeError, remedy};

/// A stream for launches: of cudarc, of [`handles`](crate::runtime::handles), or of any other library.
#[derive(Clone, Copy, Debug)]
pub struct StreamRef<'a> {
    raw: RawStream<'a>,
    /// The number of its GPU, among those that this process sees.
    device: u32,
    source: Source<'a>,
    /// Where the events of cudarc's slices wait instead of it.
    aside: Option<&'a CudaStream>,
    /// Whether it is being captured by a caller that promised to order what is on it.
    captured: bool,
}

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    Cudarc(&'a Arc<CudaStream>),
    Own(&'a Stream),
    Raw,
}

/// Handle of the stream that is another one on each thread, CUDA's and HIP's.
const PER_THREAD: u64 = 2;

/// The stream of earlier launches, kept alive: after its end the driver might give its handle to another stream.
#[derive(Debug)]
pub(super) struct Kept {
    raw: u64,
    _alive: Option<Arc<dyn Any + Send + Sync>>,
}

impl Kept {
    /// Whether a stream is that one.
    pub fn is(&self, stream: &StreamRef<'_>) -> bool {
        self.raw == stream.raw().raw()
    }
}

impl<'a> StreamRef<'a> {
    /// A stream of any library, of the GPU with this number.
    ///
    /// # Safety
    /// It is such a stream, and alive for `'a`. No other stream gets its handle as long as an operation is alive that was
    /// launched on it. If it is being captured, the operations that are launched on it, their world and
    /// the tensors that are passed stay as they are until the graph is launched for the last time and has ended; that graph is
    /// launched in order with other launches of these operations, and by one thread at a time.
    pub const unsafe fn from_raw(raw: RawStream<'a>, device: u32) -> StreamRef<'a> {
        StreamRef { raw, device, source: Source::Raw, aside: None, captured: false }
    }

    /// The driver's stream.
    pub fn raw(&self) -> RawStream<'a> {
        self.raw
    }

    /// The number of its GPU, among those that this process sees.
    pub fn device(&self) -> u32 {
        self.device
    }

    /// What keeps it, to compare later launches with.
    pub(super) fn keep(&self) -> Kept {
        let alive = match self.source {
            Source::Cudarc(stream) => Some(Arc::clone(stream) as _),
            Source::Own(stream) => Some(Arc::clone(stream.owned()) as _),
            Source::Raw => None,
        };
        Kept { raw: self.raw.raw(), _alive: alive }
    }

    /// Whether it is another stream on each thread, so that its handle does not tell which.
    pub(super) fn is_per_thread(&self) -> bool {
        !matches!(self.source, Source::Own(_)) && self.raw.raw() == PER_THREAD
    }

    pub(super) fn cudarc(&self) -> Option<&'a CudaStream> {
        match self.source {
            Source::Cudarc(stream) => Some(stream),
            Source::Own(_) | Source::Raw => None,
        }
    }

    /// The stream whose order cudarc's slices are told of.
    pub(super) fn ordering(&self) -> Option<&'a CudaStream> {
        self.aside.or(self.cudarc())
    }

    /// The same while it is being captured, with slices of cudarc told of another stream.
    pub(super) fn aside(self, aside: Option<&'a CudaStream>) -> StreamRef<'a> {
        StreamRef { aside, captured: true, ..self }
    }

    /// Whether it is being captured by a caller that promised to order what is on it.
    pub(super) fn captured(&self) -> bool {
        self.captured
    }

    /// Whether it is of cudarc, and so of an NVIDIA GPU.
    pub(super) fn is_cudarc(&self) -> bool {
        self.cudarc().is_some()
    }

    /// Whether what is launched on it is recorded instead, as far as that is not its maker's business.
    pub(super) fn capturing(&self) -> Result<bool, RuntimeError> {
        match self.source {
            Source::Raw => Ok(false),
            Source::Own(stream) => Ok(stream.capturing()),
            Source::Cudarc(stream) => match stream.capture_status() {
                Ok(status) => Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
                Err(e) => Err(RuntimeError::Driver {
                    call: "cuStreamIsCapturing",
                    gpu: Some(self.device),
                    reason: format!("{e}: {}", remedy::cuda(e.0 as i32)),
                }),
            },
        }
    }
}

impl<'a> From<&'a Arc<CudaStream>> for StreamRef<'a> {
    fn from(stream: &'a Arc<CudaStream>) -> StreamRef<'a> {
        // SAFETY: a stream that is borrowed for as long.
        let raw = unsafe { RawStream::from_raw(stream.cu_stream() as u64) };
        StreamRef {
            raw,
            device: stream.context().ordinal() as u32,
            source: Source::Cudarc(stream),
            aside: None,
            captured: false,
        }
    }
}

impl<'a> From<&'a Stream> for StreamRef<'a> {
    fn from(stream: &'a Stream) -> StreamRef<'a> {
        let (raw, device) = (stream.raw(), stream.gpu().info().ordinal);
        StreamRef { raw, device, source: Source::Own(stream), aside: None, captured: false }
    }
}
