//! Values of the device: scalars, tiles, variables, their element types and operators.

pub(super) mod any;
pub(super) mod element;
pub(super) mod ops;
pub(super) mod select;
pub(super) mod tile;
pub(super) mod unary;
pub(super) mod val;
pub(super) mod var;

pub(super) use any::AnyTile;
pub(super) use element::Element;
pub(super) use tile::{IntoTile, Tile};
pub(super) use val::{FromRaw, IntoVal, Operand, Raw, Val};
