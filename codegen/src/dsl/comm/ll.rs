//! LL elements: data and epoch in one word of 8 bytes.

use half::{bf16, f16};

use super::messages::{send, whole};
use super::protocol::Peers;
use crate::dsl::memory::{
    Arg, Bound, Buf, Epoch, Index, IntoIndex, TypedArg,
    args::ErasedArg,
    buffer::cast,
    mem::{buffer_arg, handle, param_of},
};
use crate::dsl::trace::{scope::require_role, tracer::attempt};
use crate::dsl::values::{
    AnyTile, Element, FromRaw, IntoTile, Operand, Raw, Tile, Val,
    tile::{arange_at, check_len, spread},
    val::{binary, host},
};
use crate::ir::{BinaryOp, CommOp, Dtype, Loc, ParamKind, ReceiveMessages, Taken, Transport};

/// A type of which LL elements can be: `i32`, `u32` and `f32`, each in a word of its own, and `f16` and `bf16`, two to a word.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not travel as LL elements",
    note = "a word of LL elements has 4 bytes of data: i32, u32, f32, or two of f16 or bf16"
)]
pub trait LlElement: Element {}
impl LlElement for i32 {}
impl LlElement for u32 {}
impl LlElement for f32 {}
impl LlElement for f16 {}
impl LlElement for bf16 {}

handle!(
    /// A symmetric buffer of LL elements: 4 bytes of data and 4 of epoch, stored as one 8-byte word, as NCCL's LL protocol does with data
    /// and flag. Of types of 16 bits two neighbours share a word, so what is sent begins at an even element and has an even number of
    /// them. A [tile range](crate::dsl::TileRange) may leave out any number of the last ones. Data arrives one trip after it was sent and
    /// needs no flag, as with [`Packets`](crate::dsl::Packets). Half of the bytes on the link are epochs, but any number of readers may
    /// read an element, as often as they like, and nothing has to be cleared. That suits small data that many groups need.
    ///
    /// An epoch orders nothing but its own element. Elements may be sent again, with a later epoch, only after every reader of the last
    /// ones is done. Double-buffer by the epoch's [parity](crate::dsl::Epoch::parity), and let every reader signal the sender once a
    /// launch (through a flag, say). The simulator checks it.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
    /// # let (count, of_all): (Ptr<u32>, Ptr<u32>) = (p.arg("count", 16), p.arg("of_all", 128));
    /// # let counts: Ll<u32> = p.arg("counts", 2 * 128);
    /// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
    /// let bank = epoch.parity() * 128;
    /// role("send", 1, |_| {
    ///     counts.send(Peers::all(), bank + rank() * 16, count.load(0, 16), epoch);
    /// });
    /// role("receive", 1, |_| {
    ///     let i = arange(128);
    ///     of_all.store(0, counts.gather(i + bank, i / 16, true, epoch));
    /// });
    /// # }).unwrap();
    /// ```
    Ll of LlElement
);
buffer_arg!(Ll Ll of LlElement, AnyLl);

impl<T: LlElement> Ll<T> {
    /// Sends a tile to the elements from element `i` on of the ranks' instances, each with the epoch.
    ///
    /// # Orders
    /// Nothing but the elements.
    ///
    /// # Errors
    /// Ends the trace for an odd number of elements of 2 bytes.
    #[track_caller]
    pub fn send(&self, to: Peers, i: impl IntoIndex, tile: impl IntoTile<T>, epoch: Epoch) {
        let loc = Loc::caller();
        let (index, value) = (i.index(), tile.tile().to_raw());
        send(Transport::Ll, &self.buf, to, index, value, Some(epoch), loc);
    }

    /// Waits for elements `index[k]`, which rank `from[k]` sends, for each `k` where `mask` holds, and reads them. The other
    /// ones are 0.
    ///
    /// # Orders
    /// Nothing but the elements.
    #[track_caller]
    pub fn gather(
        &self,
        index: impl IntoTile<u32>,
        from: impl Operand<u32>,
        mask: impl Operand<bool>,
        epoch: Epoch,
    ) -> Tile<T> {
        Tile::from_raw(gather_of(&self.buf, index, [from.raw(), mask.raw()], epoch, Loc::caller()))
    }

    /// Waits for the `len` elements from element `i` on, which rank `from` sends, and reads them.
    ///
    /// # Orders
    /// Nothing but the elements.
    #[track_caller]
    pub fn load(
        &self,
        i: impl Operand<u32, Out = Val<u32>>,
        len: u32,
        from: impl Operand<u32>,
        epoch: Epoch,
    ) -> Tile<T> {
        let (loc, i, from) = (Loc::caller(), Index::whole(i.raw()), from.raw());
        Tile::from_raw(load(&self.buf, i, len, [from, host(true, loc).to_raw()], epoch, loc))
    }
}

/// LL elements whose type the config chooses (`#[dtype(|c| ..)]`); see [`Ll`].
#[derive(Clone, Copy, Debug)]
pub struct AnyLl {
    buf: Buf,
}

impl AnyLl {
    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.buf.dtype
    }

    /// Sends a tile of the buffer's element type as it is; see [`Ll::send`].
    ///
    /// # Orders
    /// As [`Ll::send`].
    #[track_caller]
    pub fn send(&self, to: Peers, i: impl IntoIndex, tile: AnyTile, epoch: Epoch) {
        let (loc, i) = (Loc::caller(), i.index());
        send(Transport::Ll, &self.buf, to, i, tile.for_buffer(&self.buf, loc), Some(epoch), loc);
    }

    /// Sends an `f32` tile, rounded to the buffer's element type.
    ///
    /// # Orders
    /// As [`Ll::send`].
    #[track_caller]
    pub fn send_f32(&self, to: Peers, i: impl IntoIndex, tile: impl IntoTile<f32>, epoch: Epoch) {
        let (loc, i) = (Loc::caller(), i.index());
        let value = cast(tile.tile().to_raw(), self.buf.dtype, loc);
        send(Transport::Ll, &self.buf, to, i, value, Some(epoch), loc);
    }

    /// Waits for the `len` elements from element `i` on, which rank `from` sends, and reads them as they are.
    ///
    /// # Orders
    /// As [`Ll::load`].
    #[track_caller]
    pub fn load(&self, i: impl IntoIndex, len: u32, from: impl Operand<u32>, epoch: Epoch) -> AnyTile {
        let (loc, i, from) = (Loc::caller(), i.index(), from.raw());
        AnyTile::new(load(&self.buf, i, len, [from, host(true, loc).to_raw()], epoch, loc))
    }

    /// Waits for elements `index[k]`, which rank `from[k]` sends, for each `k` where `mask` holds, and reads them as they are. The
    /// other ones are 0.
    ///
    /// # Orders
    /// As [`Ll::load`].
    #[track_caller]
    pub fn gather(
        &self,
        index: impl IntoTile<u32>,
        from: impl Operand<u32>,
        mask: impl Operand<bool>,
        epoch: Epoch,
    ) -> AnyTile {
        AnyTile::new(gather_of(&self.buf, index, [from.raw(), mask.raw()], epoch, Loc::caller()))
    }
}

/// Reads elements of a tile of indices, all from one rank or each from its own, and all or those of a mask.
fn gather_of(buf: &Buf, index: impl IntoTile<u32>, each: [Raw; 2], epoch: Epoch, loc: Loc) -> Raw {
    let index = index.tile().to_raw();
    let [from, mask] = each.map(|value| spread(value, index.len.unwrap_or(1), loc));
    gather(buf, index, from, mask, epoch, loc)
}

/// Reads elements of a tile of indices.
pub(crate) fn gather(buf: &Buf, index: Raw, from: Raw, mask: Raw, epoch: Epoch, loc: Loc) -> Raw {
    require_role(loc, "reading");
    let epoch = epoch.value.to_raw();
    attempt(loc, |t| {
        whole(Transport::Ll, buf, index.len.unwrap_or(1), &buf.name(t), loc)?;
        let index = t.use_value(index.trace, index.id, loc)?;
        let from = t.use_value(from.trace, from.id, loc)?;
        let mask = t.use_value(mask.trace, mask.id, loc)?;
        let epoch = t.use_value(epoch.trace, epoch.id, loc)?;
        let buffer = param_of(buf).expect("LL buffers are parameters");
        let ty = t.ty(index).with_dtype(buf.dtype);
        let out = t.emit(ty, loc, |out| {
            let (transport, tiles) = (Transport::Ll, vec![Taken { out, index, from }]);
            let epoch = Some(epoch);
            CommOp::ReceiveMessages(ReceiveMessages { transport, buffer, mask, tiles, epoch, count: None })
        });
        Ok(t.raw(out))
    })
}

/// Reads the `len` elements from an index on, which rank `from` sends, if `there` holds.
pub(crate) fn load(
    buf: &Buf,
    first: Index,
    len: u32,
    [from, there]: [Raw; 2],
    epoch: Epoch,
    loc: Loc,
) -> Raw {
    check_len(loc, len);
    let index = binary::<Tile<u32>>(BinaryOp::Add, arange_at(len, loc).to_raw(), first.raw, loc).to_raw();
    let there = first.part.spread(there, len, loc);
    gather(buf, index, spread(from, len, loc), there, epoch, loc)
}
