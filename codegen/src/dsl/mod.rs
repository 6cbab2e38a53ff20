//! The DSL: what kernel authors touch.

mod any;
mod args;
mod buffer;
mod check;
mod error;
mod fold;
mod group;
mod mem;
mod ops;
mod protocol;
mod scope;
mod tile;
mod trace;
mod val;
mod values;
mod var;

pub use peerwarp_macros::KernelArgs;

pub use any::AnyTile;
pub use args::{Arg, Binder, Bound, ErasedArg, KernelArgs, ParamSpec, TypedArg};
pub use buffer::{Buf, Index, IntoIndex};
pub use error::TraceError;
pub use group::{DevRange, Group, rank, ranks, role};
pub use mem::{AnyPtr, AnySym, Epoch, EpochWord, Flags, Ptr, Shared, Sym, shared};
pub use ops::Signed;
pub use protocol::{Arrived, FlagsFrom, Parcel, Peers, send_to};
pub use tile::{Tile, Word, arange};
pub use trace::{TraceMeta, trace, trace_args};
pub use val::{Bits, Constant, Element, F8, FromRaw, Int, IntoVal, Num, Operand, Raw, Val, bit, splat};
pub use var::{IntoVar, TileVar, Var, var};

/// Everything a kernel needs: `use peerwarp_codegen::dsl::prelude::*;`.
pub mod prelude {
    pub use crate::kernel;

    pub use super::{
        AnyPtr, AnySym, AnyTile, Arrived, DevRange, Element, Epoch, EpochWord, F8, Flags, Group, IntoIndex,
        IntoVal, KernelArgs, Operand, Parcel, Peers, Ptr, Shared, Sym, Tile, TileVar, TraceError, Val, Var,
        arange, bit, rank, ranks, role, send_to, shared, splat, var,
    };
}

pub mod control;
pub mod rt;
