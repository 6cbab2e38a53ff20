//! Indices as linear forms: how far two of them are apart, whatever their terms are.

use std::collections::BTreeMap;

use super::{Program, bounds};
use crate::ir::{BinaryOp, OpKind, ValueId, ValueOp};

/// `sum of coefficient * value, plus a constant`, which an integer equals modulo `2^bits`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Linear {
    pub terms: BTreeMap<ValueId, i128>,
    pub constant: i128,
    /// Bits of the narrowest type that it was computed in.
    pub bits: u32,
    /// Whether a cast may have dropped bits of it, which the checker does not report.
    pub is_cut: bool,
}

impl Linear {
    pub fn scaled(mut self, by: i128) -> Linear {
        self.constant *= by;
        self.terms.values_mut().for_each(|c| *c *= by);
        self.terms.retain(|_, c| *c != 0);
        self
    }

    pub fn plus(mut self, other: Linear) -> Linear {
        self.constant += other.constant;
        for (v, c) in other.terms {
            *self.terms.entry(v).or_default() += c;
        }
        self.terms.retain(|_, c| *c != 0);
        (self.bits, self.is_cut) = (self.bits.min(other.bits), self.is_cut || other.is_cut);
        self
    }

    /// The same, computed in the type of a value.
    fn within(self, p: &Program, v: ValueId) -> Linear {
        Linear { bits: self.bits.min(bits_of(p, v)), ..self }
    }

    /// The constant, as the least number above zero or zero that it may stand for.
    pub fn least(&self) -> i128 {
        self.constant.rem_euclid(1 << self.bits)
    }
}

/// Bits of an integer's type.
pub(crate) fn bits_of(p: &Program, v: ValueId) -> u32 {
    8 * p.kernel.ty(v).dtype.bytes()
}

/// How far several unsigned scalars are apart, each from the one before, if that is one positive number and nothing wraps.
pub(crate) fn distance(p: &Program, values: &[ValueId]) -> Option<u32> {
    if values.len() < 2 || !values.iter().all(|&v| never_wraps(p, v)) {
        return None;
    }
    let forms: Vec<Linear> = values.iter().map(|&v| form(p, v)).collect();
    let mut apart = forms.windows(2).map(|pair| pair[1].clone().plus(pair[0].clone().scaled(-1)));
    let first = apart.next()?;
    let same =
        first.terms.is_empty() && apart.all(|next| next.constant == first.constant && next.terms.is_empty());
    u32::try_from(first.constant).ok().filter(|&apart| same && apart > 0)
}

/// Whether no operation of those that a linear form sees through can wrap.
fn never_wraps(p: &Program, v: ValueId) -> bool {
    let Some(OpKind::Value(op)) = p.def(v).filter(|_| p.int(v).is_none()) else { return true };
    match op {
        ValueOp::Binary { op: BinaryOp::Add | BinaryOp::Mul, a, b, .. } => {
            let bounded = p.most(v) < bounds::type_most(p.kernel, v);
            bounded && never_wraps(p, *a) && never_wraps(p, *b)
        }
        ValueOp::Binary { op: BinaryOp::Sub | BinaryOp::Shl, .. } => false,
        ValueOp::Cast { a, .. } => !cuts(p, *a, v) && never_wraps(p, *a),
        any!(given, pointwise, spreads, reductions)
        | ValueOp::Binary { .. }
        | ValueOp::Select { .. }
        | ValueOp::Bitcast { .. } => true,
    }
}

/// Whether a cast of an integer may change it.
pub(crate) fn cuts(p: &Program, from: ValueId, to: ValueId) -> bool {
    let unsigned = [from, to].map(|v| bounds::is_unsigned(p.kernel, v));
    match unsigned {
        [true, true] => p.most(from) > bounds::type_most(p.kernel, to),
        [true, false] => p.most(from) > i32::MAX as u128,
        [false, false] => false,
        [false, true] => true,
    }
}

pub(crate) fn form(p: &Program, v: ValueId) -> Linear {
    let of = |terms, constant| Linear { terms, constant, bits: 64, is_cut: false };
    let atom = || of(BTreeMap::from([(v, 1)]), 0);
    if let Some(constant) = p.int(v) {
        return of(BTreeMap::new(), constant);
    }
    let Some(OpKind::Value(op)) = p.def(v) else { return atom() };
    match op {
        ValueOp::Binary { op, a, b, .. } => match op {
            BinaryOp::Add => form(p, *a).plus(form(p, *b)).within(p, v),
            BinaryOp::Sub => form(p, *a).plus(form(p, *b).scaled(-1)).within(p, v),
            BinaryOp::Mul => match (p.int(*a), p.int(*b)) {
                (_, Some(c)) => form(p, *a).scaled(c).within(p, v),
                (Some(c), None) => form(p, *b).scaled(c).within(p, v),
                (None, None) => atom(),
            },
            BinaryOp::Shl => match p.int(*b) {
                Some(c) if (0..32).contains(&c) => form(p, *a).scaled(1 << c).within(p, v),
                Some(_) | None => atom(),
            },
            any!(quotients, extremes, bits) | BinaryOp::Shr => atom(),
        },
        ValueOp::Cast { a, .. } if p.kernel.ty(*a).dtype.is_int() => {
            let form = form(p, *a).within(p, v);
            let is_cut = form.is_cut || cuts(p, *a, v);
            // The narrower of the two types is all that a cast keeps.
            let bits = if is_cut { form.bits.min(bits_of(p, *a)) } else { form.bits };
            Linear { is_cut, bits, ..form }
        }
        any!(given, casts, pointwise, spreads, reductions) | ValueOp::Select { .. } => atom(),
    }
}
