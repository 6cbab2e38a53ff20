//! The DSL: what kernel authors touch.
//!
//! A kernel is an ordinary Rust function. It runs on the host, once for each configuration, and what it does with
//! device values is written down as IR. Whatever is computed from the config alone is plain Rust and gone by then.
//!
//! ```
//! use peerwarp_codegen::dsl::{TraceMeta, prelude::*, trace_args};
//!
//! /// What the kernel is specialised for.
//! struct Shift { ranks: u32, words: u32 }
//!
//! #[derive(KernelArgs)]
//! #[args(config = Shift)]
//! struct ShiftArgs {
//!     #[len(|c| u64::from(c.words))] x: Ptr<u32>,
//!     #[len(|c| u64::from(c.words))] inbox: Sym<u32>,
//!     arrived: Flags,
//!     epoch: EpochWord,
//! }
//!
//! /// Sends each rank's words to the next rank.
//! #[kernel]
//! fn shift(c: &Shift, a: &ShiftArgs) {
//!     let epoch = a.epoch.begin();
//!     role("send", 1, |_| {
//!         let mut parcel = send_to(Peers::rank((rank() + 1) % c.ranks));
//!         parcel.put(&a.inbox, 0, a.x.load(0, c.words));
//!         parcel.signal(&a.arrived, 0, epoch);
//!     });
//!     role("receive", 1, |_| {
//!         let from = (rank() + c.ranks - 1) % c.ranks;
//!         let got = a.arrived.from(from).wait(0, epoch);
//!         let words = a.inbox.load(&got, 0, c.words);
//!         if words.max() > 0 {
//!             a.x.store(0, words);
//!         }
//!     });
//! }
//!
//! let config = Shift { ranks: 8, words: 256 };
//! let kernel = trace_args::<ShiftArgs>(TraceMeta::new("shift", 8, 32, 4), &config, shift)?;
//! println!("{kernel}");
//! # Ok::<(), TraceError>(())
//! ```
//!
//! | what | where it is made |
//! |---|---|
//! | blocks that run a body, groups of their warps | [`role`], [`Group::split`]; [`Group::strided`], [`Group::dynamic`] |
//! | scalars [`Val`], tiles [`Tile`], variables [`Var`] and [`TileVar`] | loads, operators, [`arange`], [`splat`], [`var`] |
//! | memory of this rank | [`Ptr`], [`Shared`] |
//! | memory that peers write to | [`Sym`], with the receipt of a wait |
//! | memory of this rank that peers read | [`Window`], [`Window::signal`]; [`Window::of`], with the receipt of a wait |
//! | sending | [`send_to`], [`Parcel::put`], [`Parcel::signal`]; without data [`Flags::signal`] |
//! | receiving | [`Flags::from`], [`FlagsFrom::wait`], [`Flags::wait_all`], [`Flags::wait_some`], which yield [`Arrived`] |
//! | a request that several blocks complete | [`Counts`]: [`Parcel::count`], [`Counts::add`], [`CountsFrom::take`] |
//! | between blocks of a rank | [`BlockFlags::signal`], [`BlockFlagsFrom::wait`]; [`Group::last`] for the last one to come |
//! | a barrier of all ranks | [`Flags::meet`], [`Flags::meet_at`] |
//! | of all ranks at once, by the switch | [`Window::load_reduce`]; [`multicast`] |
//! | matrices | [`Matrix`], [`SymMatrix`], [`WindowMatrix`], and `Any` in front where the config chooses the type; [`Group::dot`] multiplies rows of two |
//! | both at once, without flags | [`Packets::send`], [`Packets::take`]; [`Ll::send`], [`Ll::gather`] |
//! | sending and receiving, whichever way | [`Channel::open`], [`OpenChannel::to`], [`OpenChannel::from`] |
//! | which launch this is | [`EpochWord::begin`], [`Epoch::parity`] |
//!
//! Mistakes end the trace with a [`TraceError`] at the author's line that says what to do.

mod channel;
mod comm;
mod groups;
mod matrix;
mod memory;
mod trace;
mod values;

pub use peerwarp_macros::{KernelArgs, Message};

pub use channel::{
    Any, AnyChannel, AnyField, Batch, BatchSlot, Channel, ChannelShape, Field, FieldSpec, Inbound,
    InboundFar, InboundOthers, InboundSome, Incoming, IncomingEach, IncomingEachField, IncomingField,
    IncomingSome, IncomingSomeField, Message, OpenChannel, Outbound, Outgoing, OutgoingField, Payload,
    Publish, Slots, Spare, Transport,
};
pub use comm::block_flags::{BlockFlags, BlockFlagsFrom};
pub use comm::counts::{Counts, CountsFrom};
pub use comm::ll::LlElement;
pub use comm::protocol::{Arrived, FlagsFrom, Parcel, Peers, multicast, send_to};
pub use comm::transports::*;
pub use groups::dynamic::{Counter, Counters, Dynamic, DynamicIter};
pub use groups::group::{
    DevRange, Group, active_ranks, is_active, local_rank, local_ranks, node, nodes, rank, ranks, role,
    role_beside, role_on,
};
pub use groups::tiles::{GroupTiles, TileRange, Tiles, TilesIter, tiles};
pub use matrix::any::{AnyMatrix, AnySymMatrix, MatrixRows};
pub use matrix::typed::{Matrix, SymMatrix, WindowMatrix};
pub use matrix::window::{AnyPeerMatrix, AnyWindowMatrix};
pub use memory::args::{Arg, Binder, Binding, ErasedArg, KernelArgs, MatrixArg, ParamSpec, Rows, TypedArg};
pub use memory::inbox::{AnyInbox, Inbox};
pub use memory::index::{Index, IntoIndex};
pub use memory::mem::{AnyPtr, AnySym, Epoch, EpochWord, Flags, Ptr, Shared, Sym, shared};
pub use memory::window::{AnyPeerWindow, AnyWindow, PeerWindow, Window};
pub use trace::error::TraceError;
pub use trace::rt;
pub use trace::tracer::{TraceMeta, trace, trace_args};
pub use values::any::AnyTile;
pub use values::element::{Bits, Constant, Element, F8, Int, Num};
pub use values::ops::{BitsOperand, IntOperand, NumOperand, Signed};
pub use values::select::{Alternatives, Chosen, With};
pub use values::tile::{IntoTile, Tile, Word, arange};
pub use values::val::{IntoVal, Operand, Val, bit, splat};
pub use values::var::{IntoVar, TileVar, Var, var};

#[doc(hidden)]
pub use {
    channel::{Fields, without},
    memory::{args::Bound, buffer::Buf},
    values::val::{FromRaw, Raw},
};

/// Everything a kernel needs: `use peerwarp_codegen::dsl::prelude::*;`.
pub mod prelude {
    pub use crate::kernel;

    pub use super::comm::transports::*;
    pub use super::{
        AnyChannel, AnyField, AnyMatrix, AnyPtr, AnySym, AnySymMatrix, AnyTile, AnyWindow, AnyWindowMatrix,
        Arrived, BlockFlags, Channel, ChannelShape, Counter, Counters, Counts, DevRange, Element, Epoch,
        EpochWord, F8, Field, Flags, Group, Incoming, Index, IntoIndex, IntoTile, IntoVal, KernelArgs,
        Matrix, MatrixRows, Message, OpenChannel, Operand, Outgoing, Parcel, Peers, Ptr, Publish, Shared,
        Slots, Sym, SymMatrix, Tile, TileRange, TileVar, Tiles, TraceError, Transport, Val, Var, Window,
        WindowMatrix, active_ranks, arange, bit, is_active, local_rank, local_ranks, multicast, node, nodes,
        rank, ranks, role, role_beside, role_on, send_to, shared, splat, tiles, var,
    };
    pub use crate::ir::ReduceOp;
    pub use half::{bf16, f16};
}

pub mod control;
