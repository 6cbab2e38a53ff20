//! Dispatch and combine on cudarc's slices: as [`MoeRank::dispatch_raw`](crate::families::moe::MoeRank::dispatch_raw) and its
//! like, with lengths, GPU and stream checked.

use std::fmt;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};

use crate::families::moe::{MoeRank, Routed, Tokens};
use crate::runtime::gpu::RawStream;
use crate::runtime::{RuntimeError, gpu::Gpu};

/// Where a rank's tokens are. Each slice is for as many tokens as the variant takes at most; `n` says how many there are.
#[derive(Clone, Copy, Debug)]
pub struct TokenSlices<'a, T> {
    /// Rows, `[token][hidden]`.
    pub x: &'a CudaSlice<T>,
    /// fp8 only: scales, `[token][ceil(hidden / 128)]`.
    pub x_scale: Option<&'a CudaSlice<f32>>,
    /// How many tokens there are, one number.
    pub n: &'a CudaSlice<u32>,
    /// Expert ids, `[token][topk]`; an id of no expert masks its entry.
    pub ids: &'a CudaSlice<i32>,
    /// Weights, `[token][topk]`.
    pub weights: &'a CudaSlice<f32>,
}

/// A dispatch that is under way, with a hold on what it reads.
#[must_use = "combine needs it"]
pub struct RoutedSlices<'a> {
    routed: Routed,
    stream: &'a CudaStream,
    /// Tell cudarc, when they are dropped, up to which point of the stream the slices are in use.
    _reads: [Option<SyncOnDrop<'a>>; 5],
}

impl fmt::Debug for RoutedSlices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutedSlices").field("routed", &self.routed).finish_non_exhaustive()
    }
}

impl MoeRank {
    /// [`MoeRank::dispatch_raw`] on slices. All calls of a rank have to be on one stream.
    ///
    /// # Errors
    /// A slice is too short or another GPU's, or the stream is, or is not that of earlier calls.
    pub fn dispatch<'a, T>(
        &mut self,
        tokens: TokenSlices<'a, T>,
        stream: &'a CudaStream,
    ) -> Result<RoutedSlices<'a>, RuntimeError> {
        let raw = own(self, stream)?;
        let shape = *self.shape();
        let (t, k) = (u64::from(shape.tokens), u64::from(shape.topk));
        fits("x", tokens.x, t * u64::from(shape.row_bytes()), stream)?;
        fits("n", tokens.n, 4, stream)?;
        fits("ids", tokens.ids, 4 * t * k, stream)?;
        fits("weights", tokens.weights, 4 * t * k, stream)?;
        let scales = 4 * t * u64::from(shape.scales());
        match tokens.x_scale {
            Some(x_scale) => fits("x_scale", x_scale, scales, stream)?,
            None if scales > 0 => {
                return Err(RuntimeError::invalid("x_scale", "none", "the scales of fp8 rows"));
            }
            None => {}
        }
        let (x, x_read) = tokens.x.device_ptr(stream);
        let (n, n_read) = tokens.n.device_ptr(stream);
        let (ids, ids_read) = tokens.ids.device_ptr(stream);
        let (weights, weights_read) = tokens.weights.device_ptr(stream);
        let scale = tokens.x_scale.map(|s| s.device_ptr(stream));
        let x_scale = scale.as_ref().map_or(0, |(ptr, _)| *ptr);
        // SAFETY: lengths, GPU and stream have been checked; what is returned keeps the slices until combine is launched.
        let routed = unsafe { self.dispatch_raw(&Tokens { x, x_scale, n, ids, weights }, raw)? };
        let reads =
            [Some(x_read), scale.map(|(_, read)| read), Some(n_read), Some(ids_read), Some(weights_read)];
        Ok(RoutedSlices { routed, stream, _reads: reads })
    }

    /// [`MoeRank::combine_raw`] on slices, on the stream of dispatch: `y` for as many rows as dispatch has places for, and
    /// `out` for as many tokens as the variant takes.
    ///
    /// # Errors
    /// A slice is too short or another GPU's, or `routed` is not this rank's last dispatch.
    pub fn combine<T>(
        &mut self,
        routed: RoutedSlices<'_>,
        y: &CudaSlice<T>,
        out: &mut CudaSlice<T>,
    ) -> Result<(), RuntimeError> {
        let raw = own(self, routed.stream)?;
        let shape = *self.shape();
        let row = u64::from(shape.hidden) * u64::from(shape.dtype.combined().bytes());
        let rows = self.layout().places(shape.ranks * shape.tokens, shape.topk);
        fits("y", y, rows * row, routed.stream)?;
        fits("out", out, u64::from(shape.tokens) * row, routed.stream)?;
        let (y, _y_read) = y.device_ptr(routed.stream);
        let (out, _out_written) = out.device_ptr_mut(routed.stream);
        // SAFETY: lengths, GPU and stream have been checked; cudarc knows of the uses when the guards are dropped.
        unsafe { self.combine_raw(routed.routed, y, out, raw) }
    }
}

/// Whether a slice has that many bytes, on the GPU of the stream.
fn fits<T>(field: &str, slice: &CudaSlice<T>, bytes: u64, stream: &CudaStream) -> Result<(), RuntimeError> {
    let (has, on, own) = (slice.num_bytes() as u64, slice.context().ordinal(), stream.context().ordinal());
    match has >= bytes && on == own {
        true => Ok(()),
        false => {
            let allowed = format!("{bytes} bytes or more, on GPU {own}");
            Err(RuntimeError::invalid(field, format!("{has} bytes on GPU {on}"), allowed))
        }
    }
}

/// The stream, if it is this rank's GPU's, and the one of its earlier calls.
fn own(rank: &mut MoeRank, stream: &CudaStream) -> Result<RawStream, RuntimeError> {
    let gpu: &dyn Gpu = rank.gpu().as_ref();
    let (own, given) = (gpu.info().ordinal as usize, stream.context().ordinal());
    if gpu.info().target.backend() != "cuda" || own != given {
        let allowed = format!("that of rank {}, {own}", rank.rank());
        return Err(RuntimeError::invalid("GPU of the stream", given, allowed));
    }
    // SAFETY: a stream of cudarc, of this GPU, which the caller holds.
    let raw = unsafe { RawStream::from_raw(stream.cu_stream() as u64) };
    rank.on_stream(raw)?;
    Ok(raw)
}
