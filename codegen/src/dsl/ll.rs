//! LL elements: data and epoch in one 8-byte word.

use std::marker::PhantomData;

use super::args::{Arg, Bound, TypedArg};
use super::buffer::Buf;
use super::index::{Index, IntoIndex};
use super::mem::{Epoch, param_of};
use super::protocol::Peers;
use super::scope::require_role;
use super::tile::{IntoTile, Tile, Word, arange, arange_at, spread};
use super::trace::attempt;
use super::val::{FromRaw, Operand, Raw, binary};
use crate::ir::{BinaryOp, CommOp, Dtype, Loc, ParamKind, ReadLl, SendLl};

/// A symmetric buffer of LL elements: 4 bytes of data and 4 of epoch, stored as one 8-byte word, as NCCL's LL protocol does
/// with data and flag. Data arrives one trip after it was sent and needs no flag, as with [`Packets`](super::Packets). Half of
/// the bytes on the link are epochs, but any number of readers may read an element, as often as they like, and nothing has to
/// be cleared. That suits small data that many groups need.
///
/// An epoch orders nothing but its own element. Elements may be sent again, with a later epoch, only after every reader of
/// the last ones is done: double-buffer by the epoch's [parity](super::Epoch::parity), and let every reader signal the sender
/// once a launch (through a flag, say). The simulator checks it.
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
#[derive(Debug)]
pub struct Ll<T: Word> {
    buf: Buf,
    _t: PhantomData<T>,
}

impl<T: Word> Clone for Ll<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Word> Copy for Ll<T> {}
impl<T: Word> Arg for Ll<T> {
    const KIND: ParamKind = ParamKind::Ll;
    fn bind(b: Bound) -> Self {
        Ll { buf: Buf::param(b), _t: PhantomData }
    }
}
impl<T: Word> TypedArg for Ll<T> {
    const DTYPE: Dtype = T::DTYPE;
}

impl<T: Word> Ll<T> {
    /// Sends a tile to the elements from element `i` on of the ranks' instances, each with the epoch.
    #[track_caller]
    pub fn send(&self, to: Peers, i: impl IntoIndex, tile: impl IntoTile<T>, epoch: Epoch) {
        let loc = Loc::caller();
        let (index, value) = (i.index(), tile.tile().to_raw());
        send(&self.buf, to, index, value, epoch, loc);
    }

    /// Waits for elements `index[k]`, which rank `from[k]` sends, for each `k` where `mask` holds, and reads them. The other
    /// ones are 0.
    #[track_caller]
    pub fn gather(
        &self,
        index: impl IntoTile<u32>,
        from: impl Operand<u32>,
        mask: impl Operand<bool>,
        epoch: Epoch,
    ) -> Tile<T> {
        let loc = Loc::caller();
        let index = index.tile().to_raw();
        let len = index.len.unwrap_or(1);
        let (from, mask) = (spread(from.raw(), len, loc), spread(mask.raw(), len, loc));
        Tile::from_raw(gather(&self.buf, index, from, mask, epoch, loc))
    }

    /// Waits for the `len` elements from element `i` on, which rank `from` sends, and reads them.
    #[track_caller]
    pub fn load(
        &self,
        i: impl Operand<u32, Out = super::Val<u32>>,
        len: u32,
        from: impl Operand<u32>,
        epoch: Epoch,
    ) -> Tile<T> {
        let first = super::Val::<u32>::from_raw(i.raw());
        self.gather(arange(len) + first, from, true, epoch)
    }
}

/// Sends a tile to the elements from an index on of the ranks' instances.
pub(super) fn send(buf: &Buf, to: Peers, index: Index, value: Raw, epoch: Epoch, loc: Loc) {
    let epoch = epoch.value.to_raw();
    require_role(loc, "sending");
    attempt(loc, |t| {
        let len = value.len.unwrap_or(1);
        let count = index.part.first_only(t, len, "LL elements", loc)?;
        let index = buf.at(t, index, if count.is_some() { 0 } else { len.into() }, loc)?;
        let value = t.use_value(value.trace, value.id, loc)?;
        let epoch = t.use_value(epoch.trace, epoch.id, loc)?;
        let target = to.target(t, loc)?;
        let ll = param_of(buf).expect("LL buffers are parameters");
        t.push(CommOp::SendLl(SendLl { ll, target, index, value, epoch, count }), loc);
        Ok(())
    });
}

/// Reads elements of a tile of indices.
pub(super) fn gather(buf: &Buf, index: Raw, from: Raw, mask: Raw, epoch: Epoch, loc: Loc) -> Raw {
    require_role(loc, "reading");
    let epoch = epoch.value.to_raw();
    attempt(loc, |t| {
        let index = t.use_value(index.trace, index.id, loc)?;
        let from = t.use_value(from.trace, from.id, loc)?;
        let mask = t.use_value(mask.trace, mask.id, loc)?;
        let epoch = t.use_value(epoch.trace, epoch.id, loc)?;
        let ll = param_of(buf).expect("LL buffers are parameters");
        let ty = t.ty(index).with_dtype(buf.dtype);
        let out = t.emit(ty, loc, |out| CommOp::ReadLl(ReadLl { out, ll, index, from, mask, epoch }));
        Ok(t.raw(out))
    })
}

/// Reads the `len` elements from an index on, which rank `from` sends, if `there` holds.
pub(super) fn load(
    buf: &Buf,
    first: Index,
    len: u32,
    [from, there]: [Raw; 2],
    epoch: Epoch,
    loc: Loc,
) -> Raw {
    let index = binary::<Tile<u32>>(BinaryOp::Add, arange_at(len, loc).to_raw(), first.raw, loc).to_raw();
    let there = first.part.spread(there, len, loc);
    gather(buf, index, spread(from, len, loc), there, epoch, loc)
}
