//! Instructions carried out: on registers, in memory, between ranks and on matrices.

pub(super) mod comm;
pub(super) mod exact;
pub(super) mod interpreter;
pub(super) mod matrix;
pub(super) mod memory;
pub(crate) mod pairs;
pub(super) mod ring;
pub(super) mod scalar;
pub(super) mod staging;
pub(super) mod window;

pub(super) use memory::Fault;
