//! Accesses to a buffer without its element type; the typed handles of [`mem`](super::mem) sit on top.

use std::marker::PhantomData;

use super::args::{Bound, is_identifier};
use super::error::TraceError;
use super::fold::Pure;
use super::protocol::Arrived;
use super::scope::{Thing, require_role};
use super::tile::{check_len, spread};
use super::trace::{InboxRead, Trace, attempt};
use super::val::{FromRaw, Raw, Val, host, length_mismatch, pure};
use super::var::Var;
use crate::ir::{Const, Dtype, Loc, MemoryOp, ParamKind, Place, ReceiptId, ReduceOp, Type, ValueId};

/// Anything that can index a buffer: host `u32`, `u64`, `usize` and non-negative integer literals, and `u32` or `u64`
/// values and variables of the device.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot index a buffer in a kernel",
    label = "expected a host integer, a `Val<u32>` or a `Val<u64>`",
    note = "convert a signed value with `.to_u32()`; use `.to_u64()` for offsets beyond 2^32 elements"
)]
pub trait IntoIndex {
    /// As an index.
    #[doc(hidden)]
    #[track_caller]
    fn index(self) -> Index;
}

/// An element index: a `u32` or `u64` scalar of the device.
#[derive(Clone, Copy, Debug)]
pub struct Index(pub(crate) Raw);

macro_rules! host_index {
    ($($t:ty)*) => {
        $(impl IntoIndex for $t {
            #[track_caller]
            fn index(self) -> Index {
                let loc = Loc::caller();
                match (u32::try_from(self), u64::try_from(self)) {
                    (Ok(i), _) => Index(host(i, loc).to_raw()),
                    (_, Ok(i)) => Index(host(i, loc).to_raw()),
                    _ => super::error::fail_at(
                        loc,
                        format!("element {self} of a buffer"),
                        "indices count from 0",
                    ),
                }
            }
        })*
    };
}
host_index!(i32 u32 u64 usize);

macro_rules! device_index {
    ($($t:ty)*) => {
        $(impl IntoIndex for Val<$t> {
            fn index(self) -> Index {
                Index(self.to_raw())
            }
        }
        impl IntoIndex for Var<$t> {
            #[track_caller]
            fn index(self) -> Index {
                Index(self.get().to_raw())
            }
        }
        impl IntoIndex for &Var<$t> {
            #[track_caller]
            fn index(self) -> Index {
                Index(self.get().to_raw())
            }
        })*
    };
}
device_index!(u32 u64);

/// A buffer parameter or shared-memory array.
#[derive(Clone, Copy, Debug)]
pub struct Buf {
    pub(crate) place: Place,
    pub(crate) trace: u32,
    pub(crate) len: u64,
    pub(crate) dtype: Dtype,
    _here: PhantomData<*const ()>,
}

/// Declares a shared-memory array of the current group.
pub(crate) fn declare_shared(name: &str, dtype: Dtype, len: u32, loc: Loc) -> Buf {
    attempt(loc, |t| {
        let wrong = |message, help: &str| Err(TraceError::new(loc, message, help));
        if !is_identifier(name) {
            return wrong(format!("a shared array named `{name}`"), "use letters, digits and `_`");
        }
        if len == 0 {
            return wrong(
                format!("the shared array `{name}` has no elements"),
                "give it at least one element",
            );
        }
        if dtype == Dtype::Bool {
            return wrong(format!("the shared array `{name}` is of bool"), "use u32 with 0 and 1");
        }
        let role = t.open.get(1).copied();
        let twice =
            t.shared.iter().zip(&t.builder.kernel.shared).find(|(s, k)| s.role == role && k.name == name);
        if let Some((first, _)) = twice {
            let help = "declare it once, before the loop or call that uses it, or give each its own name";
            return Err(TraceError::new(loc, format!("the shared array `{name}` is declared twice"), help)
                .note(first.made.loc, "it is declared here"));
        }
        let id = t.share(name, dtype, len, loc);
        Ok(Buf { place: Place::Shared(id), trace: t.id, len: len.into(), dtype, _here: PhantomData })
    })
}

impl Buf {
    pub(crate) fn param(b: Bound) -> Buf {
        Buf { place: Place::Param(b.param), trace: b.trace, len: b.len, dtype: b.dtype, _here: PhantomData }
    }

    /// The same elements of another instance.
    pub(super) fn placed(self, place: Place) -> Buf {
        Buf { place, ..self }
    }

    /// The author's name for it.
    pub(crate) fn name(&self, t: &Trace) -> String {
        match self.place {
            Place::Param(p) | Place::Peer(p, _) => t.builder.kernel.params[p.index()].name.clone(),
            Place::Shared(s) => t.builder.kernel.shared[s.index()].name.clone(),
        }
    }

    /// Fails unless the buffer can be used here.
    pub(crate) fn check(&self, t: &Trace, loc: Loc) -> Result<(), TraceError> {
        t.same_trace(self.trace, Thing::Buffer, loc)?;
        match self.place {
            Place::Param(_) | Place::Peer(..) => Ok(()),
            Place::Shared(s) => t.reachable(t.shared[s.index()].made, Thing::Shared, loc),
        }
    }

    /// Checks an access to `count` elements from `index` on, and returns the index.
    pub(crate) fn at(
        &self,
        t: &mut Trace,
        index: Index,
        count: u64,
        loc: Loc,
    ) -> Result<ValueId, TraceError> {
        self.check(t, loc)?;
        let id = self.wide(t, t.use_value(index.0.trace, index.0.id, loc)?, loc)?;
        let first = match t.constant(id) {
            Some(Const::U32(i)) => i.into(),
            Some(Const::U64(i)) => i,
            _ => 0,
        };
        if first.checked_add(count).is_some_and(|end| end <= self.len) {
            return Ok(id);
        }
        let what = if count == 1 {
            format!("element {first}")
        } else {
            format!("{count} elements from element {first} on")
        };
        let name = self.name(t);
        Err(TraceError::new(
            loc,
            format!("{what} of `{name}`, which has {} elements", self.len),
            format!("indices of `{name}` end at {}: check the length it is declared with", self.len - 1),
        ))
    }

    /// An index that can reach every element: of `u64` when the buffer has more than 2^32.
    fn wide(&self, t: &mut Trace, index: ValueId, loc: Loc) -> Result<ValueId, TraceError> {
        if self.len <= 1 << 32 || t.ty(index).dtype != Dtype::U32 {
            return Ok(index);
        }
        if t.constant(index).is_some() {
            return t.pure(Pure::Cast(Dtype::U64, index), loc);
        }
        let name = self.name(t);
        Err(TraceError::new(
            loc,
            format!("a u32 index into `{name}`, which has {} elements", self.len),
            "u32 arithmetic wraps beyond 2^32 elements: begin the index computation with `.to_u64()`",
        ))
    }

    /// The receipt of a read at `loc`, remembered for the check at the end of the trace.
    fn receipt(
        &self,
        t: &mut Trace,
        receipt: Option<&Arrived>,
        loc: Loc,
    ) -> Result<Option<ReceiptId>, TraceError> {
        let Some(r) = receipt else { return Ok(None) };
        t.same_trace(r.trace, Thing::Receipt, loc)?;
        t.reachable(t.receipts[r.receipt.index()], Thing::Receipt, loc)?;
        if let Some(buffer) = self.place.param() {
            t.reads.push(InboxRead { receipt: r.receipt, buffer, loc });
        }
        Ok(Some(r.receipt))
    }

    pub(crate) fn load(&self, index: Index, len: Option<u32>, receipt: Option<&Arrived>, loc: Loc) -> Raw {
        require_role(loc, "a load");
        if let Some(n) = len {
            check_len(loc, n);
        }
        attempt(loc, |t| {
            let index = self.at(t, index, len.unwrap_or(1).into(), loc)?;
            let receipt = self.receipt(t, receipt, loc)?;
            let place = self.place;
            let ty = Type { dtype: self.dtype, len };
            let out = t.emit(ty, loc, |out| MemoryOp::Load { out, place, index, receipt });
            Ok(t.raw(out))
        })
    }

    pub(crate) fn load_masked(
        &self,
        index: Index,
        mask: Raw,
        other: Raw,
        receipt: Option<&Arrived>,
        loc: Loc,
    ) -> Raw {
        require_role(loc, "a load");
        let other = spread(other, mask.len.unwrap_or(1), loc);
        attempt(loc, |t| {
            // How much of it is touched depends on the mask: only the first element's index can be checked.
            let index = self.at(t, index, 0, loc)?;
            let mask = t.use_value(mask.trace, mask.id, loc)?;
            let other = t.use_value(other.trace, other.id, loc)?;
            let receipt = self.receipt(t, receipt, loc)?;
            let place = self.place;
            let ty = t.ty(other);
            let out = t.emit(ty, loc, |out| MemoryOp::LoadMasked { out, place, index, mask, other, receipt });
            Ok(t.raw(out))
        })
    }

    pub(crate) fn gather(
        &self,
        index: Raw,
        mask: Raw,
        other: Raw,
        receipt: Option<&Arrived>,
        loc: Loc,
    ) -> Raw {
        require_role(loc, "a gather");
        let len = index.len.unwrap_or(1);
        let (mask, other) = (spread(mask, len, loc), spread(other, len, loc));
        attempt(loc, |t| {
            self.check(t, loc)?;
            let index = t.use_value(index.trace, index.id, loc)?;
            let mask = t.use_value(mask.trace, mask.id, loc)?;
            let other = t.use_value(other.trace, other.id, loc)?;
            let receipt = self.receipt(t, receipt, loc)?;
            let place = self.place;
            let ty = t.ty(other);
            let out = t.emit(ty, loc, |out| MemoryOp::Gather { out, place, index, mask, other, receipt });
            Ok(t.raw(out))
        })
    }

    pub(crate) fn store(&self, index: Index, value: Raw, mask: Option<Raw>, loc: Loc) {
        require_role(loc, "a store");
        attempt(loc, |t| {
            let count = if mask.is_some() { 0 } else { value.len.unwrap_or(1).into() };
            let index = self.at(t, index, count, loc)?;
            let (value, mask) = masked(t, value, mask, loc)?;
            t.push(MemoryOp::Store { place: self.place, index, value, mask }, loc);
            Ok(())
        });
    }

    pub(crate) fn scatter(&self, index: Raw, value: Raw, mask: Raw, loc: Loc) {
        require_role(loc, "a scatter");
        let mask = spread(mask, index.len.unwrap_or(1), loc);
        attempt(loc, |t| {
            self.check(t, loc)?;
            if index.len != value.len {
                return Err(length_mismatch(loc, index.len.unwrap_or(1), value.len.unwrap_or(1)));
            }
            let index = t.use_value(index.trace, index.id, loc)?;
            let always = t.uniform(t.use_value(mask.trace, mask.id, loc)?) == Some(Const::Bool(true));
            let (value, mask) = masked(t, value, (!always).then_some(mask), loc)?;
            t.push(MemoryOp::Scatter { place: self.place, index, value, mask }, loc);
            Ok(())
        });
    }

    /// Fails for a window: peers would see its elements change under their eyes.
    fn updatable(&self, t: &Trace, loc: Loc) -> Result<(), TraceError> {
        match self.place {
            Place::Param(p) if t.builder.kernel.params[p.index()].kind == ParamKind::Window => {
                let message = format!("an atomic on the window `{}`", self.name(t));
                let help = "count in memory of this rank's own, and store the result to the window";
                Err(TraceError::new(loc, message, help))
            }
            Place::Param(_) | Place::Shared(_) | Place::Peer(..) => Ok(()),
        }
    }

    pub(crate) fn tally(&self, index: Raw, mask: Raw, loc: Loc) -> Raw {
        require_role(loc, "a tally");
        let len = index.len.unwrap_or(1);
        let mask = spread(mask, len, loc);
        attempt(loc, |t| {
            self.check(t, loc)?;
            let index = t.use_value(index.trace, index.id, loc)?;
            let mask = t.use_value(mask.trace, mask.id, loc)?;
            let (place, ty) = (self.place, t.ty(index));
            let out = t.emit(ty, loc, |out| MemoryOp::Tally { out, place, index, mask });
            Ok(t.raw(out))
        })
    }

    pub(crate) fn atomic(&self, op: ReduceOp, index: Index, value: Raw, loc: Loc) -> Raw {
        require_role(loc, "an atomic");
        attempt(loc, |t| {
            self.updatable(t, loc)?;
            let index = self.at(t, index, 1, loc)?;
            let value = t.use_value(value.trace, value.id, loc)?;
            let place = self.place;
            let ty = t.ty(value);
            let out = t.emit(ty, loc, |out| MemoryOp::Atomic { out, op, place, index, value });
            Ok(t.raw(out))
        })
    }
}

/// A value to be written and its mask, usable here and of one length.
pub(crate) fn masked(
    t: &Trace,
    value: Raw,
    mask: Option<Raw>,
    loc: Loc,
) -> Result<(ValueId, Option<ValueId>), TraceError> {
    let v = t.use_value(value.trace, value.id, loc)?;
    let Some(mask) = mask else { return Ok((v, None)) };
    if mask.len != value.len {
        return Err(length_mismatch(loc, value.len.unwrap_or(1), mask.len.unwrap_or(1)));
    }
    Ok((v, Some(t.use_value(mask.trace, mask.id, loc)?)))
}

/// A value as another element type that is known only now.
pub(crate) fn cast(raw: Raw, to: Dtype, loc: Loc) -> Raw {
    struct Untyped(Raw);
    impl Clone for Untyped {
        fn clone(&self) -> Self {
            *self
        }
    }
    impl Copy for Untyped {}
    impl FromRaw for Untyped {
        fn from_raw(raw: Raw) -> Self {
            Untyped(raw)
        }
        fn to_raw(self) -> Raw {
            self.0
        }
    }
    pure::<Untyped, 1>(loc, [raw], |[a]| Pure::Cast(to, a)).0
}
