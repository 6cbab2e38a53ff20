//! Values at run time: tiles as bytes, arithmetic on them, and conversions between element types.

pub(super) mod arith;
pub(super) mod bulk;
pub(super) mod convert;
pub(super) mod pool;
pub(super) mod value;

pub(super) use value::Tile;
