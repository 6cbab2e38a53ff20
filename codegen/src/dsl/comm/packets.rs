//! Packets: data that needs no flag.

use super::messages::{send, whole};
use super::protocol::Peers;
use crate::dsl::memory::{
    Arg, Bound, Buf, Index, IntoIndex, TypedArg,
    args::ErasedArg,
    buffer::cast,
    mem::{buffer_arg, handle, param_of},
};
use crate::dsl::trace::{TraceError, scope::require_role, tracer::attempt};
use crate::dsl::values::{AnyTile, Element, FromRaw, IntoTile, IntoVal, Raw, Tile, tile::check_len};
use crate::ir::{CommOp, Dtype, Loc, ParamKind, ReceiveMessages, Taken, Transport, Type};

handle!(
    /// A symmetric buffer of packets of `T`: 16 bytes each, which arrive at once and need no flag (TensorRT-LLM calls them Lamport
    /// packets). What is sent is there one trip later; [`Parcel`](crate::dsl::Parcel) and [`Flags`](crate::dsl::Flags) take three.
    ///
    /// A packet that has not arrived ends in a word of all ones, and so does every one before the first launch. Data that
    /// ends so is sent without that word's top bit: a NaN stays one in every float type, but integers don't survive it. So `T` is
    /// a float: integers travel as [LL elements](crate::dsl::Ll), or with a flag.
    ///
    /// Each packet that is sent is taken once. Before it is sent again, the sender must know that it was taken. Double-buffer by the
    /// epoch's [parity](crate::dsl::Epoch::parity), and let every taker signal the sender once a launch (through a flag, say). Then what
    /// is sent in one launch comes after what was taken in the last but one. The simulator checks it.
    ///
    /// Lengths and indices are multiples of 16 bytes, and taking orders nothing but the packets' own data. Of the tiles of a
    /// [range](crate::dsl::TileRange::at) whole packets move: those that hold any of its elements. So what a sender has in the
    /// buffer is padded to whole packets, too.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
    /// # let (x, out): (Ptr<f32>, Ptr<f32>) = (p.arg("x", 256), p.arg("out", 2048));
    /// # let inbox: Packets<f32> = p.arg("inbox", 2 * 2048);
    /// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
    /// let bank = epoch.parity() * 2048;
    /// role("send", 1, |_| {
    ///     inbox.send(Peers::all(), bank + rank() * 256, x.load(0, 256));
    /// });
    /// role("receive", 8, |b| {
    ///     let from = b.index();
    ///     out.store(from * 256, inbox.take(bank + from * 256, 256, from));
    /// });
    /// # }).unwrap();
    /// ```
    Packets of Element
);
buffer_arg!(Packets Packets of Element, AnyPackets);

impl<T: Element> Packets<T> {
    /// Sends a tile to the elements from element `i` on of the ranks' instances.
    ///
    /// # Orders
    /// Nothing but the packets' own data.
    ///
    /// # Errors
    /// Ends the trace for integers, and for a length that is not whole packets.
    #[track_caller]
    pub fn send(&self, to: Peers, i: impl IntoIndex, tile: impl IntoTile<T>) {
        let loc = Loc::caller();
        floats(&self.buf, loc);
        send(Transport::Packets, &self.buf, to, i.index(), tile.tile().to_raw(), None, loc);
    }

    /// Waits for the `len` elements from element `i` on, which rank `from` sends, and takes them.
    ///
    /// # Orders
    /// Nothing but the packets' own data.
    ///
    /// # Errors
    /// Ends the trace for a length that is not whole packets. The checker reports a packet that is taken twice.
    #[track_caller]
    pub fn take(&self, i: impl IntoIndex, len: u32, from: impl IntoVal<u32>) -> Tile<T> {
        let taken = take(&self.buf, vec![(i.index(), from.val().to_raw())], len, None, Loc::caller());
        Tile::from_raw(taken[0])
    }

    /// Waits for several tiles at once and takes them: of the given first elements and sending ranks, tiles with their bit set
    /// in `mask`. The others are zero.
    ///
    /// # Orders
    /// As [`Packets::take`].
    ///
    /// # Errors
    /// Ends the trace for no tiles or more than 64.
    #[track_caller]
    pub fn take_each<I: IntoIndex, R: IntoVal<u32>>(
        &self,
        tiles: impl IntoIterator<Item = (I, R)>,
        len: u32,
        mask: impl IntoVal<u64>,
    ) -> Vec<Tile<T>> {
        let tiles = tiles.into_iter().map(|(i, from)| (i.index(), from.val().to_raw())).collect();
        let taken = take(&self.buf, tiles, len, Some(mask.val().to_raw()), Loc::caller());
        taken.into_iter().map(Tile::from_raw).collect()
    }
}

/// A symmetric buffer of packets whose element type the config chooses (`#[dtype(|c| ..)]`); see [`Packets`]. It may be `u32`,
/// for words that hold floats: a NaN may come out as another one.
#[derive(Clone, Copy, Debug)]
pub struct AnyPackets {
    buf: Buf,
}

impl AnyPackets {
    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.buf.dtype
    }

    /// Sends a tile of the buffer's element type as it is.
    ///
    /// # Orders
    /// As [`Packets::send`].
    ///
    /// # Errors
    /// As [`Packets::send`].
    #[track_caller]
    pub fn send(&self, to: Peers, i: impl IntoIndex, tile: AnyTile) {
        let loc = Loc::caller();
        send(Transport::Packets, &self.buf, to, i.index(), tile.for_buffer(&self.buf, loc), None, loc);
    }

    /// Sends an `f32` tile, rounded to the buffer's element type.
    ///
    /// # Orders
    /// As [`Packets::send`].
    #[track_caller]
    pub fn send_f32(&self, to: Peers, i: impl IntoIndex, tile: impl IntoTile<f32>) {
        let (loc, i) = (Loc::caller(), i.index());
        let value = cast(tile.tile().to_raw(), self.buf.dtype, loc);
        send(Transport::Packets, &self.buf, to, i, value, None, loc);
    }

    /// Waits for the `len` elements from element `i` on, which rank `from` sends, and takes them as they are.
    ///
    /// # Orders
    /// As [`Packets::take`].
    #[track_caller]
    pub fn take(&self, i: impl IntoIndex, len: u32, from: impl IntoVal<u32>) -> AnyTile {
        let taken = take(&self.buf, vec![(i.index(), from.val().to_raw())], len, None, Loc::caller());
        AnyTile::new(taken[0])
    }

    /// Waits for several tiles at once and takes them, as [`Packets::take_each`].
    ///
    /// # Orders
    /// As [`Packets::take`].
    #[track_caller]
    pub fn take_each<I: IntoIndex, R: IntoVal<u32>>(
        &self,
        tiles: impl IntoIterator<Item = (I, R)>,
        len: u32,
        mask: impl IntoVal<u64>,
    ) -> Vec<AnyTile> {
        let tiles = tiles.into_iter().map(|(i, from)| (i.index(), from.val().to_raw())).collect();
        let taken = take(&self.buf, tiles, len, Some(mask.val().to_raw()), Loc::caller());
        taken.into_iter().map(AnyTile::new).collect()
    }
}

/// Fails if elements are integers, some of which would not arrive as they are.
fn floats(buf: &Buf, loc: Loc) {
    attempt(loc, |t| {
        if buf.dtype.is_float() {
            return Ok(());
        }
        let message = format!(
            "packets of {} in `{}`: a packet that ends in all ones stands for one that has not arrived",
            buf.dtype,
            buf.name(t)
        );
        let help = "send integers as LL elements (`Ll<u32>`), or put them and signal a flag; words that hold floats go \
                    through `AnyPackets`";
        Err(TraceError::new(loc, message, help))
    });
}

/// Takes tiles given by first element and sender; without a mask, all of them.
pub(crate) fn take(buf: &Buf, tiles: Vec<(Index, Raw)>, len: u32, mask: Option<Raw>, loc: Loc) -> Vec<Raw> {
    require_role(loc, "taking");
    check_len(loc, len);
    attempt(loc, |t| {
        whole(Transport::Packets, buf, len, &buf.name(t), loc)?;
        if tiles.is_empty() || tiles.len() > 64 {
            let message = format!("{} tiles taken at once", tiles.len());
            return Err(TraceError::new(loc, message, "take 1 to 64 tiles at once"));
        }
        let mask = match mask {
            Some(m) => t.use_value(m.trace, m.id, loc)?,
            None => t.host(crate::ir::Const::U64(u64::MAX >> (64 - tiles.len())), loc),
        };
        let ty = Type::tile(buf.dtype, len);
        let parts = tiles.iter().map(|(i, _)| i.part.first_only(t, len, "packets", loc));
        let counts: Vec<_> = parts.collect::<Result<_, _>>()?;
        let count = counts[0];
        if counts.iter().any(|&other| other != count) {
            let message = "tiles taken at once, of which more is there of some than of others";
            let help = "take those of one tile range at once: `t.at()` with an offset for each";
            return Err(TraceError::new(loc, message, help));
        }
        let least = if count.is_some() { 0 } else { len.into() };
        let mut taken = vec![];
        for (index, from) in tiles {
            let index = buf.at(t, index, least, loc)?;
            let from = t.use_value(from.trace, from.id, loc)?;
            taken.push((index, from));
        }
        let tiles: Vec<Taken> =
            taken.into_iter().map(|(index, from)| Taken { out: t.fresh(ty, loc), index, from }).collect();
        let outs: Vec<Raw> = tiles.iter().map(|tile| t.raw(tile.out)).collect();
        let (transport, epoch) = (Transport::Packets, None);
        let buffer = param_of(buf).expect("packets are a parameter");
        t.push(
            CommOp::ReceiveMessages(ReceiveMessages { transport, buffer, mask, tiles, epoch, count }),
            loc,
        );
        Ok(outs)
    })
}
