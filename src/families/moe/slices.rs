//! Dispatch and combine on cudarc's slices: as [`MoeRank::dispatch_raw`](crate::families::moe::MoeRank::dispatch_raw) and its
//! like, with lengths, element types, GPU and stream checked.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};

use peerwarp_codegen::ir::Dtype;

use crate::families::moe::{MoeRank, Routed};
use crate::runtime::RuntimeError;
use crate::runtime::op::{Call, Element, Held, LaunchArgs, RawTensor, Readable, Writable};

/// Where a rank's tokens are. There are as many rows as `x` has, at most as many as the variant takes; of the other slices, as many
/// or more.
pub struct TokenSlices<'a, T> {
    /// Rows, `[token][hidden]`; of formats whose rows are bytes to kernels, those.
    pub x: &'a CudaSlice<T>,
    /// Scales, `[token][scale]`, where some travel: f32, or bytes. The scale of all rows, f32, where dispatch quantises them to nvfp4.
    pub x_scale: Option<&'a dyn Readable>,
    /// How many of the rows are tokens, one number; all of them if it says more, or there is none.
    pub n: Option<&'a CudaSlice<u32>>,
    /// Expert ids, `[token][topk]`; an id of no expert masks its entry.
    pub ids: &'a CudaSlice<i32>,
    /// Weights, `[token][topk]`.
    pub weights: &'a CudaSlice<f32>,
}

impl<T> fmt::Debug for TokenSlices<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSlices").field("elements", &self.x.len()).finish_non_exhaustive()
    }
}

impl<T> Clone for TokenSlices<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TokenSlices<'_, T> {}

/// A dispatch that is under way, with a hold on what combine reads once more.
#[must_use = "combine needs it"]
pub struct RoutedSlices<'a> {
    routed: Routed,
    stream: &'a Arc<CudaStream>,
    route: Route<'a>,
}

impl fmt::Debug for RoutedSlices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutedSlices").field("routed", &self.routed).finish_non_exhaustive()
    }
}

/// What dispatch and combine read.
#[derive(Clone, Copy)]
struct Route<'a> {
    n: Option<&'a dyn Readable>,
    /// Instead of `n`.
    all_rows: RawTensor,
    rows_there: u32,
    ids: &'a dyn Readable,
    weights: &'a dyn Readable,
}

impl<'a> Route<'a> {
    fn pass<'h>(&'h self, call: &mut Call<'_, 'h>) -> Result<[Held<'h>; 3], RuntimeError> {
        call.scalar("rows_there", self.rows_there)?;
        let n = self.n.unwrap_or(&self.all_rows);
        Ok([call.input("n", n)?, call.input("ids", self.ids)?, call.input("weights", self.weights)?])
    }
}

/// What dispatch takes. Rows may move as words of another type: theirs is compared with the shape's before.
struct Sent<'a> {
    x: &'a dyn Readable,
    x_scale: Option<&'a dyn Readable>,
    /// What kernels call it.
    scales: &'static str,
    route: Route<'a>,
}

// SAFETY: every hold is returned.
unsafe impl LaunchArgs for Sent<'_> {
    type Args = ();
    type Held<'h>
        = ([Held<'h>; 2], [Held<'h>; 3])
    where
        Self: 'h;

    fn pass<'h>(&'h mut self, call: &mut Call<'_, 'h>) -> Result<Self::Held<'h>, RuntimeError> {
        let rows = [call.input_words("x", self.x)?, call.optional_input(self.scales, self.x_scale)?];
        Ok((rows, self.route.pass(call)?))
    }
}

/// What combine takes.
struct Summed<'a> {
    y: &'a dyn Readable,
    out: &'a mut dyn Writable,
    route: Route<'a>,
}

// SAFETY: every hold is returned.
unsafe impl LaunchArgs for Summed<'_> {
    type Args = ();
    type Held<'h>
        = ([Held<'h>; 2], [Held<'h>; 3])
    where
        Self: 'h;

    fn pass<'h>(&'h mut self, call: &mut Call<'_, 'h>) -> Result<Self::Held<'h>, RuntimeError> {
        let rows = [call.input("y", self.y)?, call.output("out", &mut *self.out)?];
        Ok((rows, self.route.pass(call)?))
    }
}

impl MoeRank {
    /// [`MoeRank::dispatch_raw`] on slices. All calls of a rank have to be on one stream.
    ///
    /// # Errors
    /// A slice is too short, of another element type or another GPU's, or the stream is, or is not that of earlier calls or is
    /// being captured.
    pub fn dispatch<'a, T: Element>(
        &mut self,
        tokens: TokenSlices<'a, T>,
        stream: &'a Arc<CudaStream>,
    ) -> Result<RoutedSlices<'a>, RuntimeError> {
        let from = self.quantise().from();
        rows_of::<T>("x", from.or(self.shape().dtype.dispatched()))?;
        let TokenSlices { x, x_scale, n, ids, weights } = tokens;
        let row_bytes = from.map_or(self.shape().row_bytes(), |from| self.shape().hidden * from.bytes());
        let rows_there = rows_in::<T>(x.len(), row_bytes, self.shape().tokens)?;
        let n = n.map(|n| n as &dyn Readable);
        let scales = if self.has_tensor_scale() { "tensor_scale" } else { "x_scale" };
        let route = Route { n, all_rows: self.all_rows(), rows_there, ids, weights };
        let routed = self.dispatch_args(stream.into(), Sent { x, x_scale, scales, route })?;
        Ok(RoutedSlices { routed, stream, route })
    }

    /// [`MoeRank::combine_raw`] on slices, on the stream of dispatch: `y` for as many rows as dispatch has places for, and
    /// `out` for as many tokens as there were rows in `x`.
    ///
    /// # Errors
    /// A slice is too short, of another element type or another GPU's, `out` overlaps what is read, or `routed` is not this rank's
    /// last dispatch.
    pub fn combine<T: Element>(
        &mut self,
        routed: RoutedSlices<'_>,
        y: &CudaSlice<T>,
        out: &mut CudaSlice<T>,
    ) -> Result<(), RuntimeError> {
        let RoutedSlices { routed, stream, route } = routed;
        self.combine_args(routed, stream.into(), Summed { y, out, route })
    }
}

/// How many rows of so many bytes so many elements are: whole ones, of which a variant takes no more than it has tokens.
fn rows_in<T: Element>(elements: usize, row_bytes: u32, tokens: u32) -> Result<u32, RuntimeError> {
    let row = row_bytes as usize / size_of::<T>();
    if !elements.is_multiple_of(row) {
        let allowed = format!("a multiple of {row}, the elements of a row");
        return Err(RuntimeError::invalid("elements of x", elements, allowed));
    }
    Ok(u32::try_from(elements / row).map_or(tokens, |rows| rows.min(tokens)))
}

/// Whether values of a host type can be a row's, of elements of a type or of opaque bytes.
fn rows_of<T: Element>(field: &str, dtype: Option<Dtype>) -> Result<(), RuntimeError> {
    let (fits, allowed) = match dtype {
        Some(dtype) => (T::DTYPES.contains(&dtype), format!("{dtype:?}")),
        None => (T::DTYPES == u8::DTYPES, "u8: the rows' bytes".to_owned()),
    };
    let given = std::any::type_name::<T>();
    if fits { Ok(()) } else { Err(RuntimeError::invalid(format!("elements of {field}"), given, allowed)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::{MoeShape, RowDtype};

    const SHAPE: MoeShape =
        MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Bf16 };

    #[test]
    fn rows_are_whole_and_no_more_than_a_variant_takes() {
        let rows = [0, 64, 256, 320].map(|elements| rows_in::<u16>(elements, SHAPE.row_bytes(), 4).unwrap());
        assert_eq!(rows, [0, 1, 4, 4]);
        let said = rows_in::<u16>(65, SHAPE.row_bytes(), 4).unwrap_err().to_string();
        assert_eq!(said, "elements of x = 65: a multiple of 64, the elements of a row");
        // The same as bytes, and rows that are bytes.
        assert_eq!(rows_in::<u8>(256, SHAPE.row_bytes(), 4).unwrap(), 2);
        assert_eq!(rows_in::<u8>(96, RowDtype::Nvfp4.row_bytes(64), 4).unwrap(), 3);
    }

    #[test]
    fn rows_are_of_the_shape_s_type() {
        for dtype in [RowDtype::Bf16, RowDtype::Fp16] {
            rows_of::<u16>("x", dtype.dispatched()).unwrap();
        }
        for dtype in [RowDtype::Bf16, RowDtype::Fp8, RowDtype::Nvfp4] {
            rows_of::<u8>("x", dtype.dispatched()).unwrap();
        }
        rows_of::<half::bf16>("x", RowDtype::Bf16.dispatched()).unwrap();
        let said = |dtype: RowDtype| rows_of::<f32>("x", dtype.dispatched()).unwrap_err().to_string();
        assert_eq!(said(RowDtype::Bf16), "elements of x = f32: Bf16");
        assert_eq!(said(RowDtype::Mxfp4), "elements of x = f32: u8: the rows' bytes");
    }
}
