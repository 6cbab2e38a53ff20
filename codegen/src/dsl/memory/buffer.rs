//! Accesses to a buffer without its element type; the typed handles of [`mem`](super::mem) sit on top.

use std::marker::PhantomData;

use super::args::{Bound, is_identifier};
use super::index::{Index, Part};
use crate::dsl::comm::Arrived;
use crate::dsl::trace::{
    Pure, Thing, Trace, TraceError,
    scope::require_role,
    tracer::{InboxRead, attempt},
};
use crate::dsl::values::{
    FromRaw, Raw, Tile,
    tile::{check_len, spread},
    val::{length_mismatch, pure},
};
use crate::ir::{Const, Dtype, Loc, MemoryOp, ParamKind, Place, ReceiptId, ReduceOp, Type, ValueId};

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
    pub(crate) fn placed(self, place: Place) -> Buf {
        Buf { place, ..self }
    }

    /// The author's name for it.
    pub(crate) fn name(&self, t: &Trace) -> String {
        match self.place {
            Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => {
                t.builder.kernel.params[p.index()].name.clone()
            }
            Place::Shared(s) => t.builder.kernel.shared[s.index()].name.clone(),
        }
    }

    /// Fails unless the buffer can be used here.
    pub(crate) fn check(&self, t: &Trace, loc: Loc) -> Result<(), TraceError> {
        t.same_trace(self.trace, Thing::Buffer, loc)?;
        match self.place {
            Place::Param(_) | Place::Peer(..) | Place::All(..) => Ok(()),
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
        let id = self.wide(t, t.use_value(index.raw.trace, index.raw.id, loc)?, loc)?;
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
    pub(crate) fn receipt(
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
            let (place, ty) = (self.place, Type { len, ..Type::scalar(self.dtype) });
            let Some(mask) = index.part.mask(t, len, loc)? else {
                let index = self.at(t, index, len.unwrap_or(1).into(), loc)?;
                let receipt = self.receipt(t, receipt, loc)?;
                let out = t.emit(ty, loc, |out| MemoryOp::Load { out, place, index, receipt });
                return Ok(t.raw(out));
            };
            // How much of it is touched depends on the mask: only the first element's index can be checked.
            let index = self.at(t, index, 0, loc)?;
            let other = zeros(t, ty, loc)?;
            let receipt = self.receipt(t, receipt, loc)?;
            let out = t.emit(ty, loc, |out| MemoryOp::LoadMasked { out, place, index, mask, other, receipt });
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
            let part = index.part;
            let index = self.at(t, index, 0, loc)?;
            let mask = part.and(t, mask, loc)?;
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

    /// As [`Buf::gather`], of any floats as `f32`.
    pub(crate) fn gather_f32(
        &self,
        index: Raw,
        mask: Raw,
        other: Raw,
        receipt: Option<&Arrived>,
        loc: Loc,
    ) -> Tile<f32> {
        let there = self.gather(index, mask, cast(other, self.dtype, loc), receipt, loc);
        Tile::from_raw(cast(there, Dtype::F32, loc))
    }

    pub(crate) fn store(&self, index: Index, value: Raw, mask: Option<Raw>, loc: Loc) {
        require_role(loc, "a store");
        attempt(loc, |t| {
            let (value, mask) = index.part.masked(t, value, mask, loc)?;
            let count = if mask.is_some() { 0 } else { t.ty(value).len.unwrap_or(1).into() };
            let index = self.at(t, index, count, loc)?;
            t.push(MemoryOp::Store { place: self.place, index, value, mask }, loc);
            Ok(())
        });
    }

    pub(crate) fn scatter(&self, index: Raw, value: Raw, mask: Raw, adds: bool, loc: Loc) {
        require_role(loc, "a scatter");
        let mask = spread(mask, index.len.unwrap_or(1), loc);
        attempt(loc, |t| {
            self.check(t, loc)?;
            if adds {
                self.updatable(t, loc)?;
            }
            if index.len != value.len {
                return Err(length_mismatch(loc, index.len.unwrap_or(1), value.len.unwrap_or(1)));
            }
            let index = t.use_value(index.trace, index.id, loc)?;
            let always = t.uniform(t.use_value(mask.trace, mask.id, loc)?) == Some(Const::Bool(true));
            let (value, mask) = Part::default().masked(t, value, (!always).then_some(mask), loc)?;
            t.push(MemoryOp::Scatter { place: self.place, index, value, mask, adds }, loc);
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
            Place::Param(_) | Place::Shared(_) | Place::Peer(..) | Place::All(..) => Ok(()),
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

/// A tile of zeros: what is loaded where nothing is.
fn zeros(t: &mut Trace, ty: Type, loc: Loc) -> Result<ValueId, TraceError> {
    let zero = match ty.dtype {
        Dtype::Bool => Const::Bool(false),
        Dtype::I32 => Const::I32(0),
        Dtype::U32 => Const::U32(0),
        Dtype::U64 => Const::U64(0),
        Dtype::F32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => Const::F32(0),
    };
    let zero = t.host(zero, loc);
    let zeros = t.pure(Pure::Splat(zero, ty.len.unwrap_or(1).into()), loc)?;
    t.pure(Pure::Cast(ty.dtype, zeros), loc)
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
