//! Memory: buffers of this rank, symmetric buffers, shared memory, flags and epochs.

use std::marker::PhantomData;

use super::args::{Arg, Bound, ErasedArg, TypedArg};
use super::buffer::{Buf, cast};
use super::index::IntoIndex;
use crate::dsl::comm::Arrived;
use crate::dsl::trace::{Thing, TraceError, scope::require_role, tracer::attempt};
use crate::dsl::values::{Element, FromRaw, IntoTile, IntoVal, Operand, Tile, Val, element::Num};
use crate::ir::{Dtype, Loc, ParamId, ParamKind, ReduceOp, Type, ValueOp};

macro_rules! handle {
    ($(#[$m:meta])* $name:ident of $bound:ident) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<T: $bound> {
            pub(crate) buf: $crate::dsl::memory::buffer::Buf,
            pub(crate) _t: std::marker::PhantomData<T>,
        }
    };
    ($(#[$m:meta])* $name:ident) => {
        handle!($(#[$m])* $name of Element);
        impl<T: Element> $name<T> {
            /// Number of elements.
            #[allow(clippy::len_without_is_empty)] // no buffer is empty
            pub fn len(&self) -> u64 {
                self.buf.len
            }
        }
    };
}
handle!(
    /// A buffer of `T` in this rank's global memory; a field of the kernel's parameters.
    ///
    /// Offsets and lengths count elements. An offset is a host integer or a `u32` or `u64` value of the device; a
    /// length is known when the kernel is traced. Accesses that the offset's and length's constants put out of bounds
    /// end the trace; others are found by the simulator.
    Ptr
);
handle!(
    /// A symmetric buffer of `T`: every rank has one. Write to peers' with a [`Parcel`](crate::dsl::Parcel); read this rank's
    /// own after waiting, with the receipt of the wait.
    ///
    /// Without a receipt there is no reading:
    ///
    /// ```compile_fail
    /// # use peerwarp_codegen::dsl::prelude::*;
    /// fn peek(inbox: Sym<u32>) -> Val<u32> {
    ///     inbox.get(0)
    /// }
    /// ```
    Sym
);
handle!(
    /// An array of `T` in shared memory, one for each group that runs the code that declares it; made by [`shared`].
    Shared
);

macro_rules! buffer_arg {
    ($name:ident $kind:ident of $bound:ident, $any:ident) => {
        impl<T: $bound> Arg for $name<T> {
            const KIND: ParamKind = ParamKind::$kind;
            fn bind(b: Bound) -> Self {
                $name { buf: Buf::param(b), _t: std::marker::PhantomData }
            }
        }
        impl<T: $bound> TypedArg for $name<T> {
            const DTYPE: Dtype = T::DTYPE;
        }
        impl Arg for $any {
            const KIND: ParamKind = ParamKind::$kind;
            fn bind(b: Bound) -> Self {
                $any { buf: Buf::param(b) }
            }
        }
        impl ErasedArg for $any {}
    };
}

/// Makes an array of words that the kernel's own protocol writes a parameter of the kind of its name.
macro_rules! words_arg {
    ($name:ident $(, $len:literal)?) => {
        impl Arg for $name {
            const KIND: ParamKind = ParamKind::$name;
            fn bind(b: Bound) -> Self {
                $name { buf: Buf::param(b) }
            }
        }
        impl TypedArg for $name {
            const DTYPE: Dtype = Dtype::U32;
        }
        $(impl $name {
            #[doc = $len]
            #[allow(clippy::len_without_is_empty)] // no such array is empty
            pub fn len(&self) -> u64 {
                self.buf.len
            }
        })?
    };
}
pub(crate) use {buffer_arg, handle, words_arg};
buffer_arg!(Ptr Local of Element, AnyPtr);
buffer_arg!(Sym Symmetric of Element, AnySym);

/// Declares an array of `len` elements in shared memory. At block level a block has one; inside a split each of its
/// groups has its own. Its contents are undefined until written. `name` is an identifier, used once in a role.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
/// # let (counts, x): (Ptr<u32>, Ptr<u32>) = (p.arg("counts", 64), p.arg("x", 64));
/// role("main", 1, |b| {
///     let base = shared::<u32>("base", 64);
///     base.store(0, counts.load(0, 64).scan_sum(true));
///     b.split(1, |g| {
///         let slot = base.atomic_add(g.in_block(), 1); // the old value
///         x.set(slot, g.index());
///     });
/// });
/// # }).unwrap();
/// ```
///
/// # Errors
/// Ends the trace outside a role, for a name that the role has already, and for no elements.
#[track_caller]
pub fn shared<T: Element>(name: &str, len: u32) -> Shared<T> {
    let loc = Loc::caller();
    require_role(loc, "shared memory");
    Shared { buf: super::buffer::declare_shared(name, T::DTYPE, len, loc), _t: PhantomData }
}

macro_rules! local_memory {
    ($name:ident) => {
        impl<T: Element> $name<T> {
            /// Element `i`.
            #[track_caller]
            pub fn get(&self, i: impl IntoIndex) -> Val<T> {
                Val::from_raw(self.buf.load(i.index(), None, None, Loc::caller()))
            }

            /// Writes element `i`.
            #[track_caller]
            pub fn set(&self, i: impl IntoIndex, value: impl IntoVal<T>) {
                self.buf.store(i.index(), value.val().to_raw(), None, Loc::caller());
            }

            /// The `len` elements from element `i` on.
            #[track_caller]
            pub fn load(&self, i: impl IntoIndex, len: u32) -> Tile<T> {
                Tile::from_raw(self.buf.load(i.index(), Some(len), None, Loc::caller()))
            }

            /// The elements from element `i` on where `mask` holds, else `other`; memory is touched only where the
            /// mask holds. The mask's length is the tile's.
            ///
            /// # Errors
            /// Ends the trace where `other` is a tile of another length than the mask.
            #[track_caller]
            pub fn load_where(
                &self,
                i: impl IntoIndex,
                mask: impl IntoTile<bool>,
                other: impl Operand<T>,
            ) -> Tile<T> {
                let (i, other) = (i.index(), other.raw());
                Tile::from_raw(self.buf.load_masked(i, mask.tile().to_raw(), other, None, Loc::caller()))
            }

            /// Element `index[k]` for each `k` where `mask` holds, else `other`.
            ///
            /// # Errors
            /// The simulator reports an index beyond the end (`out-of-bounds`).
            #[track_caller]
            pub fn gather(
                &self,
                index: impl IntoTile<u32>,
                mask: impl Operand<bool>,
                other: impl Operand<T>,
            ) -> Tile<T> {
                let (mask, other) = (mask.raw(), other.raw());
                Tile::from_raw(self.buf.gather(index.tile().to_raw(), mask, other, None, Loc::caller()))
            }

            /// Writes a tile to the elements from element `i` on.
            #[track_caller]
            pub fn store(&self, i: impl IntoIndex, tile: impl IntoTile<T>) {
                self.buf.store(i.index(), tile.tile().to_raw(), None, Loc::caller());
            }

            /// Writes a tile to the elements from element `i` on, where `mask` holds.
            ///
            /// # Errors
            /// Ends the trace where tile and mask differ in length.
            #[track_caller]
            pub fn store_where(&self, i: impl IntoIndex, tile: impl IntoTile<T>, mask: impl IntoTile<bool>) {
                self.buf.store(i.index(), tile.tile().to_raw(), Some(mask.tile().to_raw()), Loc::caller());
            }

            /// Writes `tile[k]` to element `index[k]` for each `k` where `mask` holds. Those indices must be distinct.
            ///
            /// # Errors
            /// Ends the trace where index and tile differ in length. The simulator reports two equal indices
            /// (`scatter-conflict`).
            #[track_caller]
            pub fn scatter(
                &self,
                index: impl IntoTile<u32>,
                tile: impl IntoTile<T>,
                mask: impl Operand<bool>,
            ) {
                let (tile, mask) = (tile.tile().to_raw(), mask.raw());
                self.buf.scatter(index.tile().to_raw(), tile, mask, false, Loc::caller());
            }
        }

        impl<T: crate::dsl::Int> $name<T> {
            /// Adds `tile[k]` to element `index[k]` for each `k` where `mask` holds, atomically. Indices may be equal; the additions
            /// order nothing else. With ones it counts: `bins.scatter_add(bin, splat(1u32, 128), true)`.
            ///
            /// # Errors
            /// Ends the trace of a window, and where index and tile differ in length.
            #[track_caller]
            pub fn scatter_add(
                &self,
                index: impl IntoTile<u32>,
                tile: impl IntoTile<T>,
                mask: impl Operand<bool>,
            ) {
                let (tile, mask) = (tile.tile().to_raw(), mask.raw());
                self.buf.scatter(index.tile().to_raw(), tile, mask, true, Loc::caller());
            }
        }

        impl $name<f32> {
            /// As `scatter_add` of integers. Floats are added in no order, so sums differ in their last bits from run to run, and
            /// from seed to seed of the simulator.
            #[track_caller]
            pub fn scatter_add_unordered(
                &self,
                index: impl IntoTile<u32>,
                tile: impl IntoTile<f32>,
                mask: impl Operand<bool>,
            ) {
                let (tile, mask) = (tile.tile().to_raw(), mask.raw());
                self.buf.scatter(index.tile().to_raw(), tile, mask, true, Loc::caller());
            }
        }

        impl<T: Num> $name<T> {
            /// Adds to element `i`, atomically, once for the group. Returns the old value.
            ///
            /// # Orders
            /// Only the updates of this element: what else a group did is not seen by the group that reads the new
            /// value.
            ///
            /// # Errors
            /// Ends the trace of a window.
            #[track_caller]
            pub fn atomic_add(&self, i: impl IntoIndex, value: impl IntoVal<T>) -> Val<T> {
                let (i, v) = (i.index(), value.val().to_raw());
                Val::from_raw(self.buf.atomic(ReduceOp::Sum, i, v, Loc::caller()))
            }

            /// Raises element `i` to at least `value`, atomically, once for the group. Returns the old value.
            ///
            /// # Orders
            /// Only the updates of this element: what else a group did is not seen by the group that reads the new
            /// value.
            ///
            /// # Errors
            /// Ends the trace of a window.
            #[track_caller]
            pub fn atomic_max(&self, i: impl IntoIndex, value: impl IntoVal<T>) -> Val<T> {
                let (i, v) = (i.index(), value.val().to_raw());
                Val::from_raw(self.buf.atomic(ReduceOp::Max, i, v, Loc::caller()))
            }

            /// Sets the bits of `value` in element `i`, atomically, once for the group. Returns the old value.
            ///
            /// # Orders
            /// Only the updates of this element: what else a group did is not seen by the group that reads the new
            /// value.
            ///
            /// # Errors
            /// Ends the trace of a window.
            #[track_caller]
            pub fn atomic_or(&self, i: impl IntoIndex, value: impl IntoVal<T>) -> Val<T>
            where
                T: crate::dsl::Int,
            {
                let (i, v) = (i.index(), value.val().to_raw());
                Val::from_raw(self.buf.atomic(ReduceOp::Or, i, v, Loc::caller()))
            }
        }
    };
}
local_memory!(Ptr);
local_memory!(Shared);

impl Shared<u32> {
    /// Counts in order: for each `k` where `mask` holds, one after the other, element `index[k]` grows by one. The result
    /// has, for each `k`, what that element was before; 0 where the mask does not hold.
    ///
    /// With zeros to begin with, the result is the rank of each element of `index` among the equal ones, and the array is
    /// how many there are of each:
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
    /// # let (experts, ranks, rows): (Ptr<u32>, Ptr<u32>, Ptr<u32>) = (p.arg("experts", 64), p.arg("ranks", 64), p.arg("rows", 16));
    /// role("main", 1, |_| {
    ///     let count = shared::<u32>("count", 16);
    ///     count.store(0, splat(0u32, 16));
    ///     let expert = experts.load(0, 64);
    ///     ranks.store(0, count.tally(expert, expert.lt(16)));
    ///     rows.store(0, count.load(0, 16));
    /// });
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn tally(&self, index: impl IntoTile<u32>, mask: impl Operand<bool>) -> Tile<u32> {
        Tile::from_raw(self.buf.tally(index.tile().to_raw(), mask.raw(), Loc::caller()))
    }
}

/// Reads of elements of known type that the receipt of a wait covers. `$name::instance` is the memory that they read.
macro_rules! received {
    ($name:ident, $(#[$get:meta])* get, $(#[$load:meta])* load) => {
        impl<T: Element> $name<T> {
            $(#[$get])*
            #[track_caller]
            pub fn get(&self, receipt: &Arrived, i: impl IntoIndex) -> Val<T> {
                let loc = Loc::caller();
                Val::from_raw(self.instance(receipt, loc).load(i.index(), None, Some(receipt), loc))
            }

            $(#[$load])*
            #[track_caller]
            pub fn load(&self, receipt: &Arrived, i: impl IntoIndex, len: u32) -> Tile<T> {
                let loc = Loc::caller();
                Tile::from_raw(self.instance(receipt, loc).load(i.index(), Some(len), Some(receipt), loc))
            }

            /// The elements from element `i` on where `mask` holds, else `other`.
            #[track_caller]
            pub fn load_where(
                &self,
                receipt: &Arrived,
                i: impl IntoIndex,
                mask: impl IntoTile<bool>,
                other: impl Operand<T>,
            ) -> Tile<T> {
                let loc = Loc::caller();
                let (i, mask, other) = (i.index(), mask.tile().to_raw(), other.raw());
                Tile::from_raw(self.instance(receipt, loc).load_masked(i, mask, other, Some(receipt), loc))
            }

            /// Element `index[k]` for each `k` where `mask` holds, else `other`.
            #[track_caller]
            pub fn gather(
                &self,
                receipt: &Arrived,
                index: impl IntoTile<u32>,
                mask: impl Operand<bool>,
                other: impl Operand<T>,
            ) -> Tile<T> {
                let loc = Loc::caller();
                let (index, mask, other) = (index.tile().to_raw(), mask.raw(), other.raw());
                Tile::from_raw(self.instance(receipt, loc).gather(index, mask, other, Some(receipt), loc))
            }
        }
    };
}

/// The same as `f32`, of elements whose type the config chooses.
macro_rules! received_f32 {
    ($name:ident, $(#[$load:meta])* load_f32) => {
        impl $name {
            $(#[$load])*
            #[track_caller]
            pub fn load_f32(&self, receipt: &Arrived, i: impl IntoIndex, len: u32) -> Tile<f32> {
                let loc = Loc::caller();
                let raw = self.instance(receipt, loc).load(i.index(), Some(len), Some(receipt), loc);
                Tile::from_raw(cast(raw, Dtype::F32, loc))
            }

            /// Element `i` as `f32`.
            #[track_caller]
            pub fn get_f32(&self, receipt: &Arrived, i: impl IntoIndex) -> Val<f32> {
                let loc = Loc::caller();
                let raw = self.instance(receipt, loc).load(i.index(), None, Some(receipt), loc);
                Val::from_raw(cast(raw, Dtype::F32, loc))
            }

            /// Element `index[k]` as `f32` for each `k` where `mask` holds, else `other`, rounded to the element type.
            #[track_caller]
            pub fn gather_f32(
                &self,
                receipt: &Arrived,
                index: impl IntoTile<u32>,
                mask: impl Operand<bool>,
                other: impl Operand<f32>,
            ) -> Tile<f32> {
                let loc = Loc::caller();
                let (index, mask, other) = (index.tile().to_raw(), mask.raw(), other.raw());
                self.instance(receipt, loc).gather_f32(index, mask, other, Some(receipt), loc)
            }
        }
    };
}
pub(crate) use {received, received_f32};

impl<T: Element> Sym<T> {
    fn instance(&self, _: &Arrived, _: Loc) -> Buf {
        self.buf
    }
}
received!(
    Sym,
    /// Element `i` of this rank's own instance, covered by the receipt of a wait.
    ///
    /// # Errors
    /// Ends the trace where the kernel signals the receipt's flag, and no parcel that it publishes puts to this buffer.
    get,
    /// The `len` elements from element `i` on.
    ///
    /// # Errors
    /// As [`Sym::get`].
    load
);

/// A buffer in this rank's global memory whose element type the config chooses (`#[dtype(|c| ..)]`).
#[derive(Clone, Copy, Debug)]
pub struct AnyPtr {
    pub(crate) buf: Buf,
}

/// A symmetric buffer whose element type the config chooses (`#[dtype(|c| ..)]`).
#[derive(Clone, Copy, Debug)]
pub struct AnySym {
    pub(crate) buf: Buf,
}

macro_rules! erased {
    ($name:ident) => {
        impl $name {
            /// Number of elements.
            #[allow(clippy::len_without_is_empty)] // no buffer is empty
            pub fn len(&self) -> u64 {
                self.buf.len
            }

            /// Element type.
            pub fn dtype(&self) -> Dtype {
                self.buf.dtype
            }
        }
    };
}
erased!(AnyPtr);
erased!(AnySym);

impl AnyPtr {
    /// The buffer as one of `T`.
    ///
    /// # Errors
    /// Ends the trace unless its elements are of this type.
    #[track_caller]
    pub fn typed<T: Element>(self) -> Ptr<T> {
        let loc = Loc::caller();
        attempt(loc, |t| {
            let found = format!(
                "`{}`, which is of {}, as a buffer of {}",
                self.buf.name(t),
                self.buf.dtype,
                T::DTYPE
            );
            let wanted = "the type that `#[dtype(..)]` says";
            if self.buf.dtype == T::DTYPE { Ok(()) } else { Err(TraceError::new(loc, found, wanted)) }
        });
        Ptr { buf: self.buf, _t: PhantomData }
    }

    /// The `len` elements from element `i` on, as `f32`.
    #[track_caller]
    pub fn load_f32(&self, i: impl IntoIndex, len: u32) -> Tile<f32> {
        let loc = Loc::caller();
        let raw = self.buf.load(i.index(), Some(len), None, loc);
        Tile::from_raw(cast(raw, Dtype::F32, loc))
    }

    /// Element `i` as `f32`.
    #[track_caller]
    pub fn get_f32(&self, i: impl IntoIndex) -> Val<f32> {
        let loc = Loc::caller();
        let raw = self.buf.load(i.index(), None, None, loc);
        Val::from_raw(cast(raw, Dtype::F32, loc))
    }

    /// Element `index[k]` as `f32` for each `k` where `mask` holds, else `other`, rounded to the element type.
    #[track_caller]
    pub fn gather_f32(
        &self,
        index: impl IntoTile<u32>,
        mask: impl Operand<bool>,
        other: impl Operand<f32>,
    ) -> Tile<f32> {
        self.buf.gather_f32(index.tile().to_raw(), mask.raw(), other.raw(), None, Loc::caller())
    }

    /// Writes `tile[k]`, rounded to the element type, to element `index[k]` for each `k` where `mask` holds. Those indices must be
    /// distinct.
    #[track_caller]
    pub fn scatter_f32(&self, index: impl IntoTile<u32>, tile: impl IntoTile<f32>, mask: impl Operand<bool>) {
        let loc = Loc::caller();
        let tile = cast(tile.tile().to_raw(), self.buf.dtype, loc);
        self.buf.scatter(index.tile().to_raw(), tile, mask.raw(), false, loc);
    }

    /// Writes a tile to the elements from element `i` on, rounded to the element type.
    #[track_caller]
    pub fn store_f32(&self, i: impl IntoIndex, tile: impl IntoTile<f32>) {
        let loc = Loc::caller();
        let (i, tile) = (i.index(), tile.tile().to_raw());
        self.buf.store(i, cast(tile, self.buf.dtype, loc), None, loc);
    }
}

impl AnySym {
    fn instance(&self, _: &Arrived, _: Loc) -> Buf {
        self.buf
    }
}
received_f32!(
    AnySym,
    /// The `len` elements from element `i` on of this rank's own instance, as `f32`, covered by the receipt of a wait.
    load_f32
);

/// A symmetric array of flags: peers signal this rank's, this rank waits on its own. A flag holds the epoch of the last
/// signal, 0 before the first.
#[derive(Clone, Copy, Debug)]
pub struct Flags {
    pub(crate) buf: Buf,
}

words_arg!(Flags, "Number of flags.");

/// A word of this rank's memory that counts the launches of the kernels that share it. It lives on the device, so that
/// a captured graph can be replayed any number of times.
#[derive(Clone, Copy, Debug)]
pub struct EpochWord {
    param: ParamId,
    trace: u32,
}

impl Arg for EpochWord {
    const KIND: ParamKind = ParamKind::EpochWord;
    fn bind(b: Bound) -> Self {
        EpochWord { param: b.param, trace: b.trace }
    }
}
impl TypedArg for EpochWord {
    const DTYPE: Dtype = Dtype::U32;
}

/// The number of this launch, never 0; signals carry it and waits expect it.
#[derive(Clone, Copy, Debug)]
pub struct Epoch {
    pub(crate) value: Val<u32>,
}

impl EpochWord {
    /// This launch's epoch; the word advances when the last block has begun. Before the roles, once.
    ///
    /// # Errors
    /// Ends the trace inside a role, and where this word has begun already.
    #[track_caller]
    pub fn begin(&self) -> Epoch {
        self.epoch(true, Loc::caller())
    }

    /// As [`begin`](EpochWord::begin), while the launch before this one may still run. Where launches overlap, a block that starts early
    /// knows its epoch when that launch ends. The launch after this one may start as early. Nothing else is done before that end.
    ///
    /// It is for a kernel of which two launches never follow each other in a stream, so that the launch before leaves this word alone. A
    /// dispatch comes after a combine, for example, each with a word of its own. The checker reports launches that break this
    /// (`early-epoch`). And the launch does not notice that the one before it has given up: whatever that left behind, it must not make
    /// this one go out of bounds. So what it loads from memory and uses as an index, it compares with a bound.
    ///
    /// It is the kernel's only epoch.
    ///
    /// # Errors
    /// Ends the trace of a kernel with another epoch. The checker reports two such launches in a row (`early-epoch`).
    #[track_caller]
    pub fn begin_early(&self) -> Epoch {
        let loc = Loc::caller();
        let epoch = self.epoch(true, loc);
        attempt(loc, |t| {
            t.builder.kernel.begins_early = true;
            Ok(())
        });
        epoch
    }

    /// This launch's epoch without advancing the word, for the first of two launches that share an epoch. The send phase of a split
    /// operation is one; its receive phase calls [`EpochWord::begin`].
    ///
    /// # Errors
    /// As [`EpochWord::begin`].
    #[track_caller]
    pub fn peek(&self) -> Epoch {
        self.epoch(false, Loc::caller())
    }

    fn epoch(&self, advance: bool, loc: Loc) -> Epoch {
        let word = self.param;
        let raw = attempt(loc, |t| {
            t.same_trace(self.trace, Thing::Buffer, loc)?;
            if t.open.len() > 1 {
                return Err(TraceError::new(
                    loc,
                    "an epoch begun inside a role",
                    "begin it before the roles, once for the launch: `let epoch = a.epoch.begin();`",
                ));
            }
            if let Some(&(_, first)) = t.epochs.iter().find(|e| e.0 == word) {
                return Err(TraceError::new(
                    loc,
                    format!("the epoch `{}` is begun twice", t.builder.kernel.params[word.index()].name),
                    "begin it once and use that value in all roles",
                )
                .note(first, "it is begun here"));
            }
            t.epochs.push((word, loc));
            let out = t.emit(Type::scalar(Dtype::U32), loc, |out| ValueOp::Epoch { out, word, advance });
            Ok(t.raw(out))
        });
        Epoch { value: Val::from_raw(raw) }
    }
}

impl Epoch {
    /// 0 and 1 in turn, from launch to launch: which half of a double-buffered array this launch uses.
    #[track_caller]
    pub fn parity(&self) -> Val<u32> {
        self.value & 1
    }
}

impl<T: Num> Arg for Val<T> {
    const KIND: ParamKind = ParamKind::Scalar;
    fn bind(b: Bound) -> Self {
        let loc = crate::dsl::trace::tracer::last();
        Val::from_raw(attempt(loc, |t| {
            let out = t.emit(Type::scalar(b.dtype), loc, |out| ValueOp::ScalarParam { out, param: b.param });
            t.builder.kernel.values[out.index()].name =
                Some(t.builder.kernel.params[b.param.index()].name.clone());
            Ok(t.raw(out))
        }))
    }
}
impl<T: Num> TypedArg for Val<T> {
    const DTYPE: Dtype = T::DTYPE;
}

/// Where a buffer is.
pub(crate) fn param_of(buf: &Buf) -> Option<ParamId> {
    buf.place.param()
}
