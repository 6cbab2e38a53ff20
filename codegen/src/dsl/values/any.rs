//! Tiles whose element type a config chooses, moved as they are.

use super::element::Element;
use super::tile::{IntoTile, Tile, check_len, spread};
use super::val::{FromRaw, IntoVal, Operand, Raw, host};
use crate::dsl::comm::{Arrived, Parcel};
use crate::dsl::memory::{
    Buf, Index, IntoIndex,
    buffer::cast,
    inbox::AnyInbox,
    mem::{AnyPtr, AnySym},
};
use crate::dsl::trace::{TraceError, tracer::attempt};
use crate::ir::{Dtype, Loc};

/// A tile of a buffer whose element type the config chooses. It can be moved to a buffer of the same type, bit for bit,
/// and looked into as [`f32`](AnyTile::to_f32).
#[derive(Clone, Copy, Debug)]
pub struct AnyTile {
    raw: Raw,
}

impl AnyTile {
    pub(crate) fn new(raw: Raw) -> AnyTile {
        AnyTile { raw }
    }

    /// The elements as `f32`.
    #[track_caller]
    pub fn to_f32(self) -> Tile<f32> {
        Tile::from_raw(cast(self.raw, Dtype::F32, Loc::caller()))
    }

    /// `f32` elements rounded to a type that the config chooses.
    #[track_caller]
    pub fn rounded(tile: Tile<f32>, dtype: Dtype) -> AnyTile {
        AnyTile { raw: cast(tile.to_raw(), dtype, Loc::caller()) }
    }

    /// The elements as they are.
    ///
    /// # Errors
    /// Ends the trace unless they are of this type.
    #[track_caller]
    pub fn typed<T: Element>(self) -> Tile<T> {
        let loc = Loc::caller();
        Tile::from_raw(attempt(loc, |t| {
            let dtype = t.ty(t.use_value(self.raw.trace, self.raw.id, loc)?).dtype;
            let (found, wanted) = (format!("a tile of {dtype}"), format!("a tile of {}", T::DTYPE));
            if dtype == T::DTYPE { Ok(self.raw) } else { Err(TraceError::new(loc, found, wanted)) }
        }))
    }

    /// The tile, for a buffer that must have its element type.
    pub(crate) fn for_buffer(self, buf: &Buf, loc: Loc) -> Raw {
        attempt(loc, |t| {
            let dtype = t.ty(t.use_value(self.raw.trace, self.raw.id, loc)?).dtype;
            if dtype == buf.dtype {
                return Ok(self.raw);
            }
            let name = buf.name(t);
            Err(TraceError::new(
                loc,
                format!("a tile of {dtype} for `{name}`, which is of {}", buf.dtype),
                "give both buffers the same `#[dtype(..)]`, or convert: `.to_f32()` and the method that ends in `_f32`",
            ))
        })
    }
}

impl<T: Element> From<Tile<T>> for AnyTile {
    /// The tile, to be put or stored where its element type goes.
    fn from(tile: Tile<T>) -> AnyTile {
        AnyTile { raw: tile.to_raw() }
    }
}

impl FromRaw for AnyTile {
    fn from_raw(raw: Raw) -> Self {
        AnyTile { raw }
    }
    fn to_raw(self) -> Raw {
        self.raw
    }
}

/// As a load, but zeros unless `cond` holds; memory is not touched then.
pub(crate) fn load_if(
    buf: &Buf,
    i: Index,
    len: u32,
    cond: Raw,
    receipt: Option<&Arrived>,
    loc: Loc,
) -> AnyTile {
    check_len(loc, len);
    let zero = cast(spread(host(0f32, loc).to_raw(), len, loc), buf.dtype, loc);
    AnyTile { raw: buf.load_masked(i, spread(cond, len, loc), zero, receipt, loc) }
}

impl AnyPtr {
    /// The `len` elements from element `i` on, as they are, where `cond` holds; else zeros, and memory is not touched.
    /// Unlike loads in branches, several of these are in flight together.
    #[track_caller]
    pub fn load_if(&self, i: impl IntoIndex, len: u32, cond: impl IntoVal<bool>) -> AnyTile {
        let (i, cond) = (i.index(), cond.val().to_raw());
        load_if(&self.buf, i, len, cond, None, Loc::caller())
    }

    /// The `len` elements from element `i` on, as they are.
    #[track_caller]
    pub fn load(&self, i: impl IntoIndex, len: u32) -> AnyTile {
        AnyTile { raw: self.buf.load(i.index(), Some(len), None, Loc::caller()) }
    }

    /// The elements from element `i` on where `mask` holds, as they are; else zeros, and memory is not touched.
    #[track_caller]
    pub fn load_where(&self, i: impl IntoIndex, mask: impl IntoTile<bool>) -> AnyTile {
        let (loc, i, mask) = (Loc::caller(), i.index(), mask.tile().to_raw());
        let zero = cast(host(0f32, loc).to_raw(), self.buf.dtype, loc);
        AnyTile { raw: self.buf.load_masked(i, mask, zero, None, loc) }
    }

    /// Writes a tile to the elements from element `i` on where `mask` holds, as it is.
    #[track_caller]
    pub fn store_where(&self, i: impl IntoIndex, tile: AnyTile, mask: impl IntoTile<bool>) {
        let (loc, i, mask) = (Loc::caller(), i.index(), mask.tile().to_raw());
        self.buf.store(i, tile.for_buffer(&self.buf, loc), Some(mask), loc);
    }

    /// Writes `tile[k]` to element `index[k]` for each `k` where `mask` holds, as it is. Those indices must be distinct.
    #[track_caller]
    pub fn scatter(&self, index: impl IntoTile<u32>, tile: AnyTile, mask: impl Operand<bool>) {
        let (loc, index, mask) = (Loc::caller(), index.tile().to_raw(), mask.raw());
        self.buf.scatter(index, tile.for_buffer(&self.buf, loc), mask, false, loc);
    }

    /// Writes a tile to the elements from element `i` on, as it is.
    #[track_caller]
    pub fn store(&self, i: impl IntoIndex, tile: AnyTile) {
        let loc = Loc::caller();
        let i = i.index();
        self.buf.store(i, tile.for_buffer(&self.buf, loc), None, loc);
    }
}

impl AnySym {
    /// As [`AnyPtr::load_if`] from this rank's own instance, covered by the receipt of a wait.
    #[track_caller]
    pub fn load_if(
        &self,
        receipt: &Arrived,
        i: impl IntoIndex,
        len: u32,
        cond: impl IntoVal<bool>,
    ) -> AnyTile {
        let (i, cond) = (i.index(), cond.val().to_raw());
        load_if(&self.buf, i, len, cond, Some(receipt), Loc::caller())
    }

    /// The `len` elements from element `i` on of this rank's own instance, as they are, covered by the receipt of a wait.
    #[track_caller]
    pub fn load(&self, receipt: &Arrived, i: impl IntoIndex, len: u32) -> AnyTile {
        AnyTile { raw: self.buf.load(i.index(), Some(len), Some(receipt), Loc::caller()) }
    }
}

impl Parcel {
    /// Stores a tile of the buffer's element type to the elements from element `i` on, as it is.
    ///
    /// # Orders
    /// As [`Parcel::put`].
    #[track_caller]
    pub fn put_any(&mut self, buffer: &impl AnyInbox, i: impl IntoIndex, tile: AnyTile) {
        let loc = Loc::caller();
        let (i, buffer) = (i.index(), buffer.inbox());
        self.store(&buffer, i, tile.for_buffer(&buffer, loc), None, loc);
    }
}
