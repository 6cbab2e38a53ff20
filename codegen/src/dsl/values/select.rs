//! What a scalar condition can choose from.

use super::any::AnyTile;
use super::element::Element;
use super::tile::Tile;
use super::val::{FromRaw, Operand, Raw, Val, elementwise};
use crate::dsl::trace::{Pure, TraceError, tracer::attempt};
use crate::ir::Loc;

/// Something that [`Val::select`] can choose from, with `B`: scalars and tiles of one element type (`M`), or two tiles
/// whose element type the config chooses.
#[diagnostic::on_unimplemented(
    message = "a condition cannot choose between a `{Self}` and a `{B}`",
    note = "both are scalars or tiles of one element type, or both are an `AnyTile`"
)]
pub trait Alternatives<B, M> {
    /// What is chosen: a tile if either of them is.
    type Out;
    /// This if `cond` holds, else `other`.
    #[doc(hidden)]
    fn choose(self, other: B, cond: Raw, loc: Loc) -> Self::Out;
}

/// The shape of two values together: a tile if either is.
pub trait With<B> {
    /// It.
    type Out: FromRaw;
}

impl<T: Element> With<Val<T>> for Val<T> {
    type Out = Val<T>;
}
impl<T: Element> With<Tile<T>> for Val<T> {
    type Out = Tile<T>;
}
impl<T: Element> With<Val<T>> for Tile<T> {
    type Out = Tile<T>;
}
impl<T: Element> With<Tile<T>> for Tile<T> {
    type Out = Tile<T>;
}

impl<T: Element, A: Operand<T>, B: Operand<T>> Alternatives<B, T> for A
where
    A::Out: With<B::Out>,
{
    type Out = <A::Out as With<B::Out>>::Out;
    #[track_caller]
    fn choose(self, other: B, cond: Raw, loc: Loc) -> Self::Out {
        let (a, b) = (self.raw(), other.raw());
        elementwise(loc, [cond, a, b], |[c, a, b]| Pure::Select(c, a, b))
    }
}

/// In place of the element type of tiles whose type the config chooses.
#[derive(Debug)]
pub struct Chosen;

impl Alternatives<AnyTile, Chosen> for AnyTile {
    type Out = AnyTile;
    fn choose(self, other: AnyTile, cond: Raw, loc: Loc) -> AnyTile {
        let [a, b] = [self, other].map(FromRaw::to_raw);
        attempt(loc, |t| {
            let dtype = |v: Raw| Ok(t.ty(t.use_value(v.trace, v.id, loc)?).dtype);
            let (x, y) = (dtype(a)?, dtype(b)?);
            if x == y {
                return Ok(());
            }
            let message = format!("a choice between a tile of {x} and one of {y}");
            let help = "give both buffers the same `#[dtype(..)]`, or convert both: `.to_f32()`";
            Err(TraceError::new(loc, message, help))
        });
        elementwise(loc, [cond, a, b], |[c, a, b]| Pure::Select(c, a, b))
    }
}
