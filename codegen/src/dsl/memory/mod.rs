//! Memory: parameters of kernels, buffers, windows, and where accesses begin.

pub(super) mod args;
pub(super) mod buffer;
pub(super) mod copy;
pub(super) mod inbox;
pub(super) mod index;
pub(super) mod mem;
pub(super) mod window;

pub(super) use args::{Arg, Bound, TypedArg};
pub(super) use buffer::Buf;
pub(super) use index::{Index, IntoIndex};
pub(super) use mem::{Epoch, Flags};
