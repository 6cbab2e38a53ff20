//! Where tiles can begin, and when two of them surely don't touch each other's elements in different lanes.
//!
//! The index of a tile is written as a number in mixed radix: `row * 7168 + piece * 2048 + 6`, each digit with the
//! largest value it can have. If a tile together with all lower digits ends before the next step of a digit
//! (`piece * 2048 + 6 + len <= 7168`), then an element's position tells that digit: two tiles that share an element
//! agree in it. Going down from the largest step, they agree in all digits, so that they begin at the same element, and
//! with the same layout the shared element belongs to the same lane in both, whose own accesses are in order: no barrier is
//! needed. This holds for digits read from memory and between any two rounds of
//! any loop, where comparing indices says nothing.

use super::{Program, bounds};
use crate::ir::{BinaryOp, OpKind, ValueId, ValueOp};

/// The values that an index can have: `constant` plus any multiple of each digit's step, up to its most.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reach {
    digits: Vec<Digit>,
    constant: u128,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Digit {
    step: u128,
    most: u128,
}

impl Reach {
    /// The reach of an unsigned scalar.
    pub fn of(p: &Program, v: ValueId) -> Reach {
        if let Some(constant) = p.int(v).and_then(|c| u128::try_from(c).ok()) {
            return Reach { digits: vec![], constant };
        }
        let exact = match p.def(v) {
            Some(OpKind::Value(op)) => Reach::exact(p, op),
            Some(OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_)) | None => None,
        };
        // What wraps has no digits any more, but for the zero bits that wrapping keeps.
        exact.filter(|r| r.most() <= bounds::type_most(p.kernel, v)).unwrap_or_else(|| {
            let step = u128::from(p.divisor(v, 1 << 31));
            Reach { digits: vec![Digit { step, most: p.most(v) / step }], constant: 0 }
        })
    }

    /// The reach of what an operation computes, if it never wraps.
    fn exact(p: &Program, op: &ValueOp) -> Option<Reach> {
        match op {
            ValueOp::Binary { op, a, b, .. } => match op {
                BinaryOp::Add => Some(Reach::of(p, *a).plus(Reach::of(p, *b))),
                BinaryOp::Mul => match (p.int(*a), p.int(*b)) {
                    (_, Some(by)) => Reach::of(p, *a).scaled(by),
                    (Some(by), None) => Reach::of(p, *b).scaled(by),
                    (None, None) => None,
                },
                BinaryOp::Shl => {
                    let by = p.int(*b).filter(|by| (0..64).contains(by))?;
                    Reach::of(p, *a).scaled(1 << by)
                }
                any!(quotients, extremes, bits) | BinaryOp::Sub | BinaryOp::Shr => None,
            },
            ValueOp::Cast { a, .. } if bounds::is_unsigned(p.kernel, *a) => Some(Reach::of(p, *a)),
            any!(given, casts, pointwise, spreads, reductions) | ValueOp::Select { .. } => None,
        }
    }

    /// Whether of two tiles, wherever they begin, no lane of one touches what another lane of the other touches.
    /// `agree`: elements at the same distance from the start are the same lane's.
    pub fn never_crosses(&self, other: &Reach, len: i128, other_len: i128, agree: bool) -> bool {
        let (len, other_len) = (len as u128, other_len as u128);
        if self.most() + len <= other.constant || other.most() + other_len <= self.constant {
            return true;
        }
        let Some(step) = self.digits.iter().chain(&other.digits).map(|d| d.step).max() else {
            return agree && self.constant == other.constant;
        };
        let (a, b) = (self.below(step), other.below(step));
        a.most() + len <= step
            && b.most() + other_len <= step
            && a.never_crosses(&b, len as i128, other_len as i128, agree)
    }

    /// The largest.
    pub fn most(&self) -> u128 {
        self.digits.iter().fold(self.constant, |sum, d| sum.saturating_add(d.step.saturating_mul(d.most)))
    }

    /// What is left of the number below the digit of this step.
    fn below(&self, step: u128) -> Reach {
        let digits = self.digits.iter().filter(|d| !d.step.is_multiple_of(step)).copied().collect();
        Reach { digits, constant: self.constant % step }
    }

    fn plus(mut self, other: Reach) -> Reach {
        self.constant += other.constant;
        self.digits.extend(other.digits);
        self
    }

    fn scaled(mut self, by: i128) -> Option<Reach> {
        let by = u128::try_from(by).ok().filter(|by| *by > 0)?;
        self.constant *= by;
        self.digits.iter_mut().for_each(|d| d.step *= by);
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(digits: &[(u128, u128)], constant: u128) -> Reach {
        Reach { digits: digits.iter().map(|&(step, most)| Digit { step, most }).collect(), constant }
    }

    /// Whether what is derived holds for every pair of starts, element by element; lanes hold two elements each.
    fn holds(a: &Reach, b: &Reach, len_a: u128, len_b: u128, agree: bool) -> bool {
        fn starts(r: &Reach) -> Vec<u128> {
            r.digits.iter().fold(vec![r.constant], |all, d| {
                all.iter().flat_map(|s| (0..=d.most).map(move |n| s + n * d.step)).collect()
            })
        }
        starts(a).iter().all(|&s| {
            starts(b)
                .iter()
                .all(|&t| (0..len_a).all(|i| (0..len_b).all(|j| s + i != t + j || (agree && i == j))))
        })
    }

    #[test]
    fn digits_that_overflow_are_refused() {
        let row = reach(&[(10, 9)], 0);
        assert!(row.never_crosses(&row, 10, 10, true), "whole rows");
        assert!(!row.never_crosses(&row, 11, 11, true), "rows that overlap");
        assert!(!row.never_crosses(&row, 10, 10, false), "another layout");
        assert!(row.never_crosses(&reach(&[(10, 9)], 4), 4, 6, false), "parts of a row that are apart");
        let pieces = reach(&[(10, 9), (4, 1)], 0);
        assert!(pieces.never_crosses(&pieces, 4, 4, true));
        assert!(pieces.never_crosses(&reach(&[(10, 9)], 8), 4, 2, true), "the last, shorter piece");
        let more = reach(&[(10, 9), (4, 2)], 0);
        assert!(!more.never_crosses(&more, 4, 4, true), "the third piece reaches into the next row");
        assert!(!pieces.never_crosses(&reach(&[(3, 9)], 0), 2, 2, true), "steps that don't nest");
    }

    #[test]
    fn what_is_claimed_holds_for_every_start() {
        let mut claimed = 0;
        let steps = [1u128, 2, 3, 4, 6, 8, 12];
        for (i, &big) in steps.iter().enumerate() {
            for &small in &steps[..=i] {
                for (constant, most, len, other_len) in
                    [(0, 1, 2, 2), (1, 2, 2, 4), (3, 2, 1, 3), (2, 1, 4, 2), (4, 0, 3, 3), (0, 3, 2, 1)]
                {
                    let a = reach(&[(big, 2), (small, most)], 0);
                    let b = reach(&[(big, 2)], constant);
                    for (x, y) in [(&a, &b), (&b, &a), (&a, &a), (&b, &b)] {
                        for agree in [false, true] {
                            if x.never_crosses(y, len, other_len, agree) {
                                claimed += 1;
                                assert!(
                                    holds(x, y, len as u128, other_len as u128, agree),
                                    "{x:?} {y:?} {len} {other_len} {agree}"
                                );
                            }
                        }
                    }
                }
            }
        }
        assert!(claimed > 50, "{claimed} claims say little");
    }
}
