//! Structured IR to the linear code that agents run, and that code's instructions.

pub(super) mod code;
pub(super) mod comm;
pub(super) mod insns;
pub(super) mod matrix;
pub(super) mod regions;
pub(super) mod registers;
pub(super) mod values;

pub(super) use code::{Insn, Pc, Reg};
pub(super) use insns::CommInsn;
