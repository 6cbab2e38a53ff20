//! Copies from this rank's memory to others'.

use super::buffer::Buf;
use super::index::{Index, IntoIndex};
use super::mem::{AnyPtr, AnySym, Ptr, Sym, param_of};
use crate::dsl::comm::Parcel;
use crate::dsl::trace::{Trace, TraceError, tracer::attempt};
use crate::dsl::values::{Element, tile::check_len};
use crate::ir::{BulkCopy, CommOp, Dtype, Loc, SharedId};

impl Parcel {
    /// Puts the `len` elements of `source` from element `from` on to the elements from element `i` on, as they are.
    ///
    /// It is a load and a put, but on GPUs that copy in bulk nothing goes through registers. A group brings all of it to shared memory at
    /// once, and the hardware copies it on to each target. So few groups keep a link busy, each with room in shared memory for what it
    /// copies. Indices and `len` are multiples of 16 bytes, and known to be.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
    /// # let x: Ptr<u32> = p.arg("x", 8 * 1024);
    /// # let (inbox, flag): (Sym<u32>, Flags) = (p.arg("inbox", 8 * 1024), p.arg("flag", 8));
    /// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
    /// role("send", 8, |b| {
    ///     let mut row = send_to(Peers::rank(b.index()));
    ///     row.copy(&inbox, rank() * 1024, &x, b.index() * 1024, 1024);
    ///     row.signal(&flag, rank(), epoch);
    /// });
    /// # }).unwrap();
    /// ```
    ///
    /// # Orders
    /// Nothing by itself: the parcel's signal says that the data is there.
    ///
    /// # Errors
    /// Ends the trace for buffers of two types, and under a mask.
    #[track_caller]
    pub fn copy<T: Element>(
        &mut self,
        buffer: &Sym<T>,
        i: impl IntoIndex,
        source: &Ptr<T>,
        from: impl IntoIndex,
        len: u32,
    ) {
        self.copy_between((&buffer.buf, i.index()), (&source.buf, from.index()), len, Loc::caller());
    }

    /// As [`Parcel::copy`], between buffers whose element type the config chooses: the same for both.
    ///
    /// # Orders
    /// As [`Parcel::copy`].
    #[track_caller]
    pub fn copy_any(
        &mut self,
        buffer: &AnySym,
        i: impl IntoIndex,
        source: &AnyPtr,
        from: impl IntoIndex,
        len: u32,
    ) {
        self.copy_between((&buffer.buf, i.index()), (&source.buf, from.index()), len, Loc::caller());
    }

    pub(crate) fn copy_between(
        &self,
        (buf, i): (&Buf, Index),
        (source, from): (&Buf, Index),
        len: u32,
        loc: Loc,
    ) {
        check_len(loc, len);
        attempt(loc, |t| {
            self.check(t, loc)?;
            if buf.dtype != source.dtype {
                let (from, to) = (source.name(t), buf.name(t));
                let message = format!("a copy of `{from}` to `{to}`: {} to {}", source.dtype, buf.dtype);
                let help = "give both buffers the same `#[dtype(..)]`: what is copied is not converted";
                return Err(TraceError::new(loc, message, help));
            }
            i.part.all(t, len, "a copy", loc)?;
            from.part.all(t, len, "a copy", loc)?;
            let index = buf.at(t, i, len.into(), loc)?;
            let from = source.at(t, from, len.into(), loc)?;
            let buffer = param_of(buf).expect("symmetric memory is a parameter");
            let room = room(t, &format!("{}_room", buf.name(t)), buf.dtype, len, loc);
            let source = param_of(source).expect("memory of a rank is a parameter");
            let made = t.made(loc);
            let parcel = self.id();
            t.parcels[parcel.index()].puts.push((buffer, made));
            t.push(CommOp::BulkCopy(BulkCopy { parcel, buffer, index, source, from, len, room }), loc);
            Ok(())
        });
    }
}

/// A shared array of the current group for `len` elements. What a role does with one of this name, one after the other, shares it.
pub(crate) fn room(t: &mut Trace, name: &str, dtype: Dtype, len: u32, loc: Loc) -> SharedId {
    let (role, copies) = (t.open.get(1).copied(), t.groups());
    let mut there = t.shared.iter().zip(&t.builder.kernel.shared);
    if let Some(at) = there.position(|(made, s)| made.role == role && s.name == name && s.copies == copies) {
        let room = &mut t.builder.kernel.shared[at];
        room.len = room.len.max(len);
        return SharedId(at as u32);
    }
    t.share(name, dtype, len, loc)
}
