//! The legal configuration next to the defaults.

use super::{Allowed, Family, FamilyError, FieldInfo, Fields, Value};

/// How many points a search looks at: some tens of milliseconds' work, so that a key that no point suits is reported soon
/// even where the tuning space is huge.
const MOST_POINTS: u32 = 1 << 14;

/// The legal configuration with these tuning values where given; where not, with the defaults, or values that differ from
/// them in as few fields as possible and, field by field, by as few steps. The field that is refused changes first.
pub(super) fn nearest_legal<F: Family>(key: &F::Key, given: &[Option<Value>]) -> Result<F, FamilyError> {
    let keys = key.values();
    let tunes = given.iter().zip(F::tuning_defaults(key)).map(|(given, default)| given.unwrap_or(default));
    let values: Vec<Value> = keys.iter().copied().chain(tunes).collect();
    let illegal = |source| FamilyError::Illegal { family: F::NAME, source };
    let defaults = F::from_values(&values).map_err(illegal)?;
    let Err(why) = defaults.check() else { return Ok(defaults) };
    if F::key_fields().iter().zip(&keys).any(|(field, value)| field.check(*value).is_err()) {
        return Err(why); // no tuning will help
    }
    let free = given.iter().enumerate().filter(|(_, v)| v.is_none()).map(|(at, _)| keys.len() + at);
    let mut free: Vec<usize> = free.filter(|&at| !F::fields()[at].by_rule).collect();
    if let FamilyError::Illegal { source, .. } = &why {
        free.sort_by_key(|&at| F::fields()[at].name != source.field);
    }
    let mut search = Search { fields: F::fields(), values, left: MOST_POINTS };
    (1..=free.len()).find_map(|changes| search.change::<F>(&free, changes)).ok_or(why)
}

struct Search {
    fields: &'static [FieldInfo],
    values: Vec<Value>,
    left: u32,
}

impl Search {
    /// The first legal point with another value in exactly `changes` of the free fields.
    fn change<F: Family>(&mut self, free: &[usize], changes: usize) -> Option<F> {
        if changes == 0 {
            self.left = self.left.checked_sub(1)?;
            return F::from_values(&self.values).ok().filter(|point| point.check().is_ok());
        }
        for (i, &at) in free.iter().enumerate() {
            let default = self.values[at];
            for value in others(&self.fields[at].allowed, default) {
                self.values[at] = value;
                let found = self.change(&free[i + 1..], changes - 1);
                if found.is_some() || self.left == 0 {
                    return found;
                }
            }
            self.values[at] = default;
        }
        None
    }
}

/// The other allowed values, those next to `value` first.
fn others(allowed: &Allowed, value: Value) -> impl Iterator<Item = Value> + '_ {
    let (at, count) = (allowed.position(value), allowed.count());
    let pairs = (0..count).flat_map(move |n| [at.checked_add(n), at.checked_sub(n + 1)]);
    pairs.flatten().filter_map(|n| allowed.nth(n)).filter(move |other| *other != value)
}
