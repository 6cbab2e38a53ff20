//! What callers pass to launches: slices of cudarc, and memory of any other library.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr as _, DevicePtrMut as _, DeviceSlice, SyncOnDrop,
};
use half::{bf16, f16};
use peerwarp_codegen::ir::Dtype;

use super::StreamRef;
use crate::runtime::RuntimeError;
use crate::runtime::gpu::DevicePtr;

/// A host type whose values stand in tensors.
///
/// # Safety
/// Every bit pattern of its size is a value of it, as kernels may write any. It has no padding.
pub unsafe trait Element: 'static {
    /// The element types of kernels that it can be. Bytes, `u8`, can be any of them.
    const DTYPES: &'static [Dtype];
}

macro_rules! elements {
    ($($ty:ty => $dtypes:expr),+ $(,)?) => {$(
        // SAFETY: numbers, of which every bit pattern is one.
        unsafe impl Element for $ty {
            const DTYPES: &'static [Dtype] = &$dtypes;
        }
    )+};
}
elements! {
    f32 => [Dtype::F32],
    bf16 => [Dtype::Bf16],
    f16 => [Dtype::Fp16],
    // The bits of either, for programs without a type for them.
    u16 => [Dtype::Bf16, Dtype::Fp16],
    i32 => [Dtype::I32],
    u32 => [Dtype::U32],
    u64 => [Dtype::U64],
    u8 => Dtype::ALL,
}

/// What is known of a tensor before a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of its GPU, among those that this process sees.
    pub device: u32,
    /// The element types that it can be of; empty if unknown.
    pub dtypes: &'static [Dtype],
}

/// A hold on a tensor while a launch that uses it is put on a stream. When it is dropped, the tensor's owner learns up to which
/// point of the stream it is in use.
#[derive(Debug, Default)]
#[must_use = "it is held until the launch is on its stream"]
pub struct Held<'a> {
    _sync: Option<SyncOnDrop<'a>>,
}

/// A tensor that a kernel can read: cudarc's slices and views, and [`RawTensor`].
///
/// # Safety
/// The address is valid on the GPU for as many bytes as [`Readable::info`] says until what is on the stream when the hold is
/// dropped has ended. If the stream is being captured, the capturing side sees to that.
pub unsafe trait Readable {
    /// What is known of it.
    fn info(&self) -> TensorInfo;
    /// Its address, for what is put on a stream next.
    ///
    /// # Errors
    /// It cannot be used on such a stream.
    fn read<'a>(&'a self, stream: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError>;
}

/// A tensor that a kernel can write: cudarc's slices and mutable views, and [`RawTensor`].
///
/// # Safety
/// As for [`Readable`], and nothing else uses its memory in that time but what is on the stream before or after.
pub unsafe trait Writable: Readable {
    /// Its address, for what is put on a stream next.
    ///
    /// # Errors
    /// It cannot be used on such a stream.
    fn write<'a>(&'a mut self, stream: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError>;
}

/// Memory of any library on a GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawTensor {
    ptr: DevicePtr,
    info: TensorInfo,
}

impl RawTensor {
    /// `bytes` bytes from `ptr` on, of the GPU with this number.
    ///
    /// # Safety
    /// They are memory of that GPU until every launch that is given them has ended, also those that a graph repeats. What else
    /// uses them is ordered before or after these launches.
    pub const unsafe fn new(ptr: DevicePtr, bytes: u64, device: u32) -> RawTensor {
        RawTensor { ptr, info: TensorInfo { bytes, device, dtypes: &[] } }
    }

    /// The same with an element type, which launches then compare with the kernel's.
    #[must_use]
    pub const fn of<T: Element>(self) -> RawTensor {
        RawTensor { info: TensorInfo { dtypes: T::DTYPES, ..self.info }, ..self }
    }
}

impl fmt::Debug for RawTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RawTensor { ptr, info } = self;
        write!(f, "RawTensor({} bytes at {ptr:#x} of GPU {})", info.bytes, info.device)
    }
}

// SAFETY: as its maker says.
unsafe impl Readable for RawTensor {
    fn info(&self) -> TensorInfo {
        self.info
    }
    fn read<'a>(&'a self, _: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError> {
        Ok((self.ptr, Held::default()))
    }
}

// SAFETY: as above.
unsafe impl Writable for RawTensor {
    fn write<'a>(&'a mut self, _: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError> {
        Ok((self.ptr, Held::default()))
    }
}

fn info<T: Element>(slice: &impl DeviceSlice<T>) -> TensorInfo {
    let device = slice.stream().context().ordinal() as u32;
    TensorInfo { bytes: slice.num_bytes() as u64, device, dtypes: T::DTYPES }
}

/// The address of a slice of cudarc. Its events order the stream after what uses it now, and later uses and its freeing after
/// the stream.
fn held<'a>(
    stream: &StreamRef<'a>,
    home: &CudaStream,
    take: impl FnOnce(&'a CudaStream) -> (DevicePtr, SyncOnDrop<'a>),
) -> Result<(DevicePtr, Held<'a>), RuntimeError> {
    let allowed = "a stream of cudarc, as the tensor is a slice of cudarc";
    let own =
        stream.ordering().ok_or_else(|| RuntimeError::invalid("stream", "another library's", allowed))?;
    let (ptr, sync) = take(own);
    let order = Order {
        home: home.cu_stream() == own.cu_stream(),
        event: matches!(sync, SyncOnDrop::Record(Some(_))),
        recorded: own.context().is_managing_stream_synchronization(),
        manual: !home.context().is_event_tracking(),
    };
    // In a graph events are of no use: the capturing side sees to the order.
    if stream.captured() || order.is_kept() {
        return Ok((ptr, Held { _sync: Some(sync) }));
    }
    let allowed = "the one that the tensor was allocated on, or a tensor that was allocated after the first stream was made: \
                   cudarc does not order others";
    Err(RuntimeError::invalid("stream", format!("{:#x}", own.cu_stream() as u64), allowed))
}

/// What orders the freeing of a slice of cudarc, and its other uses, after a launch.
#[derive(Clone, Copy, Debug)]
struct Order {
    /// The launch is on the stream that it was allocated on, and is freed on.
    home: bool,
    /// It has an event: slices that were allocated before their context had a stream beside the default one have none.
    event: bool,
    /// The context of the launch's stream records events.
    recorded: bool,
    /// Somebody has told cudarc not to track events, and has promised to order everything: that is unsafe there.
    manual: bool,
}

impl Order {
    fn is_kept(self) -> bool {
        self.home || self.manual || (self.event && self.recorded)
    }
}

macro_rules! readable {
    ($($ty:ty),+) => {$(
        // SAFETY: a slice of cudarc is memory of its GPU, which it frees after what its events tell of.
        unsafe impl<T: Element> Readable for $ty {
            fn info(&self) -> TensorInfo {
                info::<T>(self)
            }
            fn read<'a>(&'a self, stream: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError> {
                held(stream, self.stream(), |own| self.device_ptr(own))
            }
        }
    )+};
}
readable!(CudaSlice<T>, CudaView<'_, T>, CudaViewMut<'_, T>);

macro_rules! writable {
    ($($ty:ty),+) => {$(
        // SAFETY: as above, and not borrowed elsewhere.
        unsafe impl<T: Element> Writable for $ty {
            fn write<'a>(&'a mut self, stream: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError> {
                let home = Arc::clone(self.stream());
                held(stream, &home, |own| self.device_ptr_mut(own))
            }
        }
    )+};
}
writable!(CudaSlice<T>, CudaViewMut<'_, T>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_cudarc_would_free_too_early_are_refused() {
        let order = |home, event, recorded, manual| Order { home, event, recorded, manual }.is_kept();
        assert!(order(true, false, false, false), "freed in the order of its own stream");
        assert!(order(false, true, true, false), "freed after its event");
        assert!(order(false, false, false, true), "somebody has promised to");
        assert!(!order(false, false, true, false), "allocated while there was no other stream");
        assert!(!order(false, true, false, false), "its event would not be recorded");
    }

    #[test]
    fn host_types_are_of_the_size_of_their_element_types() {
        fn sizes<T: Element>() -> bool {
            T::DTYPES.iter().all(|dtype| dtype.bytes() as usize == size_of::<T>())
        }
        assert!(sizes::<f32>() && sizes::<bf16>() && sizes::<f16>() && sizes::<u16>());
        assert!(sizes::<i32>() && sizes::<u32>() && sizes::<u64>());
        assert_eq!(u8::DTYPES, Dtype::ALL);
    }
}
