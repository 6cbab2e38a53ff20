//! The points of a tuning space, one after the other.

use super::{Allowed, Family, FieldRole, Value};

/// The legal points of a family's tuning space for one key; made by [`Family::candidates`]. The last field varies fastest, and
/// fields with a rule stay `auto`. Nothing is computed before it is asked for.
#[derive(Clone, Debug)]
pub struct Candidates<F> {
    values: Vec<Value>,
    free: Vec<Free>,
    done: bool,
    family: std::marker::PhantomData<fn() -> F>,
}

/// A field that varies.
#[derive(Clone, Debug)]
struct Free {
    field: usize,
    allowed: &'static Allowed,
    next: u128,
}

impl<F: Family> Candidates<F> {
    /// All points with the given values; fields without a value vary.
    pub(super) fn new(fixed: &[Option<Value>]) -> Candidates<F> {
        let mut all = Candidates { values: vec![], free: vec![], done: false, family: Default::default() };
        for (field, (info, value)) in F::fields().iter().zip(fixed).enumerate() {
            match (*value, info.allowed.nth(0)) {
                (Some(value), _) => all.values.push(value),
                (None, Some(first)) if info.role == FieldRole::Tune => {
                    all.values.push(first);
                    if info.by_rule {
                        continue;
                    }
                    all.free.push(Free { field, allowed: &info.allowed, next: 1 });
                }
                // A field without any value leaves no point.
                (None, _) => all.done = true,
            }
        }
        all
    }

    /// Goes to the next point, legal or not.
    fn advance(&mut self) {
        for free in self.free.iter_mut().rev() {
            if let Some(value) = free.allowed.nth(free.next) {
                self.values[free.field] = value;
                free.next += 1;
                return;
            }
            free.next = 0;
            if let Some(first) = free.allowed.nth(0) {
                self.values[free.field] = first;
                free.next = 1;
            }
        }
        self.done = true;
    }
}

impl<F: Family> Iterator for Candidates<F> {
    type Item = F;
    fn next(&mut self) -> Option<F> {
        while !self.done {
            let point = F::from_values(&self.values).ok().filter(|point| point.check().is_ok());
            self.advance();
            if point.is_some() {
                return point;
            }
        }
        None
    }
}
