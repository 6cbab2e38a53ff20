//! Indices computed in 32 bits, exactly: what wraps is found where it is used as an index.
//!
//! A scalar register has 64 bits. Sums, differences and products of `U32` scalars keep all of them there, and the value of such
//! a register is its low half, which is all that other operations look at. An access looks at the whole: where that does not
//! fit 32 bits, the index has wrapped. A difference that is below zero for a while does no harm, and neither does a hash that is
//! cut to size: remainders, bitwise operations and shifts that leave less than half of the bits start from the value again. Ends
//! and steps of loops, comparisons, minima, maxima, quotients, shorter shifts to the right and conversions look at the whole of a
//! product, too. A sum that wraps there, as an epoch does, is its value.
//!
//! Tiles keep such numbers beside their elements, and only if an element has wrapped.

use super::memory::{Fault, place_name};
use crate::ir::{BinaryOp, Dtype, Kernel, OpKind, Place, ReduceOp, ValueId};
use crate::sim::findings::FindingKind;
use crate::sim::schedule::{Agent, World};
use crate::sim::values::{Tile, arith::Trap};

/// The exact result of an operation on `U32` operands, modulo 2^64; none of an operation that begins from values again.
#[inline(always)]
pub(crate) const fn exact(op: BinaryOp, a: u64, b: u64) -> Option<u64> {
    match op {
        BinaryOp::Add => Some(a.wrapping_add(b)),
        BinaryOp::Sub => Some(a.wrapping_sub(b)),
        BinaryOp::Mul => Some(product(a, b)),
        BinaryOp::Shl if b < 32 => Some(product(a, 1 << b)),
        any!(quotients, extremes, bits, shifts) => None,
    }
}

/// Whether an operation with this second operand depends on the size of the first, so that one that has wrapped gives another
/// result. What keeps the high half of a product is a hash.
const fn orders(op: BinaryOp, b: u64) -> bool {
    match op {
        BinaryOp::Min | BinaryOp::Max | BinaryOp::Div => true,
        BinaryOp::Shr => b < 16,
        any!(sums, bits) | BinaryOp::Rem | BinaryOp::Shl => false,
    }
}

/// Marks what is computed from a product that does not fit: the bit below the sign.
const WRAPPED: u64 = 1 << 62;

/// A product, marked if it does not fit. Factors below zero are differences that wrap on purpose.
#[inline(always)]
pub(crate) const fn product(a: u64, b: u64) -> u64 {
    let product = a.wrapping_mul(b);
    if (a | b | product) >> 32 == 0 || (a | b) as i64 >> 63 != 0 {
        return product;
    }
    product & (WRAPPED - 1) | WRAPPED
}

/// Whether a number is computed from a product that does not fit.
#[inline(always)]
pub(crate) const fn too_large(exact: u64) -> bool {
    exact >> 62 == 1
}

/// A number without its mark.
pub(crate) const fn unmarked(exact: u64) -> u64 {
    if too_large(exact) { exact & (WRAPPED - 1) } else { exact }
}

/// Operands of one of the operations of [`orders`] on `U32`, or of a comparison, must fit.
#[inline(always)]
pub(crate) fn ordered(a: u64, b: u64) -> Result<(), Trap> {
    if (a | b) >> 62 == 0 {
        return Ok(());
    }
    match [a, b].into_iter().find(|&exact| too_large(exact)) {
        Some(exact) => Err(Trap::Wrapped(exact)),
        None => Ok(()),
    }
}

/// As [`ordered`], for the result of an operation.
pub(crate) fn ordered_by(op: BinaryOp, a: u64, b: u64) -> Result<(), Trap> {
    if orders(op, b) { ordered(a, b) } else { Ok(()) }
}

/// As [`ordered`], for a number that is converted to another type.
#[inline(always)]
pub(crate) fn converted(a: u64) -> Result<(), Trap> {
    ordered(a, 0)
}

/// The same of the elements of tiles.
pub(crate) fn ordered_tiles<'t>(tiles: impl IntoIterator<Item = &'t Tile>) -> Result<(), Trap> {
    let mut wrapped = tiles.into_iter().filter_map(Tile::exact).flatten();
    wrapped.find(|&&exact| too_large(exact)).map_or(Ok(()), |&exact| Err(Trap::Wrapped(exact)))
}

/// The same of the result of an operation.
pub(crate) fn ordered_tiles_by(op: BinaryOp, a: &Tile, b: &Tile) -> Result<(), Trap> {
    if a.exact().is_none() && b.exact().is_none() {
        return Ok(());
    }
    if b.view::<u32>().iter().any(|&b| orders(op, b.into())) { ordered_tiles([a, b]) } else { Ok(()) }
}

/// The same of the tile of a reduction to one of its elements.
pub(crate) fn reduced(op: ReduceOp, dtype: Dtype, a: &Tile) -> Result<(), Trap> {
    match op {
        ReduceOp::Min | ReduceOp::Max if dtype == Dtype::U32 => ordered_tiles([a]),
        ReduceOp::Min | ReduceOp::Max | ReduceOp::Sum | ReduceOp::And | ReduceOp::Or => Ok(()),
    }
}

const fn fits(exact: u64) -> bool {
    exact >> 32 == 0
}

/// Notes what elements of a `U32` tile would be if they had not wrapped.
pub(crate) fn note_binary(op: BinaryOp, a: &Tile, b: &Tile, out: &mut Tile) {
    if a.exact().is_none() && b.exact().is_none() && !wraps(op, a.view(), b.view()) {
        return;
    }
    let (x, y) = (Lanes::of(a), Lanes::of(b));
    let lanes = || (0..x.values.len()).filter_map(|i| exact(op, x.at(i), y.at(i)));
    if !lanes().all(fits) {
        out.set_exact(lanes());
    }
}

/// Whether an element of the result does not fit.
fn wraps(op: BinaryOp, a: &[u32], b: &[u32]) -> bool {
    // Without branches in the loop, so that it vectorises.
    fn any(a: &[u32], b: &[u32], f: impl Fn(u64, u64) -> u64) -> bool {
        !fits(a.iter().zip(b).fold(0, |all, (&a, &b)| all | f(a.into(), b.into())))
    }
    match op {
        BinaryOp::Add => any(a, b, |a, b| a + b),
        BinaryOp::Sub => any(a, b, u64::wrapping_sub),
        BinaryOp::Mul => any(a, b, |a, b| a * b),
        BinaryOp::Shl => any(a, b, |a, b| a << (b & 31)),
        any!(quotients, extremes, bits) | BinaryOp::Shr => false,
    }
}

/// The same of a tile that is full of one number.
pub(crate) fn note_splat(bits: u64, len: usize, out: &mut Tile) {
    if !fits(bits) {
        out.set_exact(std::iter::repeat_n(bits, len));
    }
}

/// The same of a choice.
pub(crate) fn note_select(cond: &Tile, a: &Tile, b: &Tile, out: &mut Tile) {
    if a.exact().is_some() || b.exact().is_some() {
        let (x, y) = (Lanes::of(a), Lanes::of(b));
        let pick = |(i, &c): (usize, &u8)| if c != 0 { x.at(i) } else { y.at(i) };
        out.set_exact(cond.view::<u8>().iter().enumerate().map(pick));
    }
}

/// The same of signed numbers that are taken as unsigned ones: a sum with such an offset does not wrap.
pub(crate) fn note_signed(a: &Tile, out: &mut Tile) {
    let signed = a.view::<i32>();
    if signed.iter().any(|&v| v < 0) {
        out.set_exact(signed.iter().map(|&v| i64::from(v) as u64));
    }
}

/// A signed scalar that is taken as an unsigned one.
pub(crate) const fn signed(bits: u64) -> u64 {
    bits as u32 as i32 as i64 as u64
}

/// Exact elements of a `U32` tile.
struct Lanes<'t> {
    values: &'t [u32],
    exact: Option<&'t [u64]>,
}

impl Lanes<'_> {
    fn of(tile: &Tile) -> Lanes<'_> {
        Lanes { values: tile.view(), exact: tile.exact() }
    }

    fn at(&self, i: usize) -> u64 {
        self.exact.map_or_else(|| self.values[i].into(), |e| e[i])
    }
}

impl World<'_> {
    /// Indices of a tile, where the mask holds, must not have wrapped.
    pub fn check_indices(
        &mut self,
        agent: &Agent,
        place: Place,
        index: &Tile,
        mask: Option<&Tile>,
    ) -> Result<(), Fault> {
        let Some(exact) = index.exact() else { return Ok(()) };
        let chosen = |i: &usize| mask.is_none_or(|m| m.view::<u8>()[*i] != 0);
        // What is below zero is outside of every buffer, too, and told so.
        let wrapped = |i: &usize| !fits(exact[*i]) && exact[*i] as i64 >= 0;
        match (0..exact.len()).filter(chosen).find(wrapped) {
            Some(i) => Err(self.wrapped_index(agent, place, exact[i])),
            None => Ok(()),
        }
    }

    /// An index outside of a buffer that did not fit 32 bits.
    pub fn wrapped_index(&mut self, agent: &Agent, place: Place, exact: u64) -> Fault {
        let name = place_name(agent, place);
        let (value, exact) = (exact as u32, unmarked(exact));
        let message = format!(
            "the index of `{name}` is computed in 32 bits and comes to {exact}, which wraps to {value}: compute it in 64 bits, \
             with `.to_u64()` before the multiplication"
        );
        let at = agent.event(&self.sites);
        let elements = (u64::from(value), u64::from(value) + 1);
        self.find_at(FindingKind::WrappedIndex, message, at, None, &name, elements);
        Fault
    }

    /// Whether the index of what an agent does now is a `U32` scalar.
    pub fn has_narrow_index(agent: &Agent) -> bool {
        let kernel = agent.compiled.kernel();
        let op = agent.role_code().ops[agent.pc as usize];
        index_of(kernel, &kernel.op(op).kind).is_some_and(|v| kernel.ty(v).dtype == Dtype::U32)
    }
}

/// The scalar that says which element an operation accesses first; rows and columns are no indices.
fn index_of(kernel: &Kernel, kind: &OpKind) -> Option<ValueId> {
    let last = kind.accesses().pop().filter(|_| !matches!(kind, OpKind::Matrix(_)))?;
    last.index.filter(|index| !kernel.ty(*index).is_tile())
}
