//! The points around a pair of kernels.

use peerwarp_codegen::family::{Allowed, Family, FamilyError, Value};

use super::key::Key;
use crate::families::moe::MoeShape;
use crate::families::moe::kernels::{Combine, Dispatch};
use crate::families::moe::run::MoeTuning;

/// How far along the list of a field's values a step goes.
const REACH: u128 = 2;

/// A pair in which a field of one kernel has another value; of both, where one alone would not go with the other.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// Where it leads.
    pub to: MoeTuning,
    /// Whether dispatch is another one.
    pub dispatch: bool,
    /// Whether combine is another one.
    pub combine: bool,
}

/// Every legal pair that is one step away, with the same key, and how many of the steps lead nowhere legal.
pub(super) fn steps(from: &MoeTuning) -> (Vec<Step>, u32) {
    let shape = from.dispatch.shape();
    let mut all: Vec<Step> = vec![];
    let mut illegal = 0;
    let mut add = |step: Option<Step>| match step {
        Some(step) if !all.contains(&step) => all.push(step),
        Some(_) => {}
        None => illegal += 1,
    };
    for (field, value) in changes(&from.dispatch) {
        let dispatch = with(&from.dispatch, field, value);
        add(dispatch.and_then(|d| completed(from, &shape, (Some(d), None), (field, value))));
    }
    for (field, value) in changes(&from.combine) {
        let combine = with(&from.combine, field, value);
        add(combine.and_then(|c| completed(from, &shape, (None, Some(c)), (field, value))));
    }
    (all, illegal)
}

/// The step to one changed kernel or, where that does not go with the other, with the same change of the other.
fn completed(
    from: &MoeTuning,
    shape: &MoeShape,
    (dispatch, combine): (Option<Dispatch>, Option<Combine>),
    (field, value): (&str, Value),
) -> Option<Step> {
    let to = MoeTuning {
        dispatch: dispatch.unwrap_or_else(|| from.dispatch.clone()),
        combine: combine.unwrap_or_else(|| from.combine.clone()),
        split: from.split,
        round_trip: None,
    };
    let step = |to: MoeTuning| {
        to.check(shape).ok()?;
        let (dispatch, combine) = (to.dispatch != from.dispatch, to.combine != from.combine);
        Some(Step { to, dispatch, combine })
    };
    step(to.clone()).or_else(|| {
        let dispatch = with(&to.dispatch, field, value)?;
        let combine = with(&to.combine, field, value)?;
        step(MoeTuning { dispatch, combine, ..to.clone() })
    })
}

/// The values near its own that each tuning field of a configuration may have; of those without an order, all.
fn changes<F: Family>(config: &F) -> Vec<(&'static str, Value)> {
    let mut all = vec![];
    for field in F::tune_fields() {
        let Some(own) = config.value(field.name) else { continue };
        let at = field.allowed.position(own);
        let reach = match own {
            Value::Int(_) => REACH,
            Value::Bool(_) | Value::Name(_) => field.allowed.count(),
        };
        let near =
            (at.saturating_sub(reach)..=at.saturating_add(reach)).filter_map(|n| nth(&field.allowed, n));
        all.extend(near.filter(|value| *value != own).map(|value| (field.name, value)));
    }
    all
}

fn nth(allowed: &Allowed, n: u128) -> Option<Value> {
    if n < allowed.count() { allowed.nth(n) } else { None }
}

/// A configuration with another value of a field; none if it has no such field, or is not legal.
fn with<F: Family>(config: &F, field: &str, value: Value) -> Option<F> {
    let at = F::fields().iter().position(|f| f.name == field)?;
    let mut values = config.values();
    values[at] = value;
    F::from_values(&values).ok().filter(|changed| changed.check().is_ok())
}

/// The tuning values of a pair for another shape, with its layout. Those that are not legal there are its defaults.
pub(super) fn for_shape(tuning: &MoeTuning, shape: &MoeShape) -> Option<MoeTuning> {
    let defaults = Key { shape: *shape, layout: tuning.dispatch.layout }.defaults().ok()?;
    let moved = MoeTuning {
        dispatch: onto(&tuning.dispatch, &defaults.dispatch)?,
        combine: onto(&tuning.combine, &defaults.combine)?,
        split: tuning.split,
        round_trip: None,
    };
    moved.check(shape).ok().map(|()| moved)
}

/// The tuning values of one configuration with the key of another, and its values for fields that may not have them.
fn onto<F: Family>(tuned: &F, default: &F) -> Option<F> {
    let keys = F::key_fields().len();
    let defaults = default.values();
    let mut values: Vec<Value> =
        defaults.iter().take(keys).chain(tuned.values().iter().skip(keys)).copied().collect();
    for _ in F::fields() {
        let moved = F::from_values(&values).ok()?;
        let Err(why) = moved.check() else { return Some(moved) };
        let FamilyError::Illegal { source, .. } = why else { return None };
        let at = F::fields().iter().position(|f| f.name == source.field)?;
        values[at] = defaults[at];
    }
    None
}

#[cfg(test)]
mod tests {
    use peerwarp_codegen::family::Fields;

    use super::*;
    use crate::families::moe::RowDtype;
    use crate::families::moe::kernels::Layout;

    const SHAPE: MoeShape =
        MoeShape { hidden: 1024, experts: 32, topk: 4, tokens: 32, ranks: 2, dtype: RowDtype::Bf16 };

    #[test]
    fn steps_are_legal_pairs_one_value_away() {
        let from = MoeTuning::defaults(&SHAPE).unwrap();
        let (steps, illegal) = steps(&from);
        assert!(steps.len() >= 20, "{}", steps.len());
        assert!(illegal > 0);
        let changed = |a: &[Value], b: &[Value]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        for step in &steps {
            step.to.check(&SHAPE).unwrap();
            let d = changed(&step.to.dispatch.values(), &from.dispatch.values());
            let c = changed(&step.to.combine.values(), &from.combine.values());
            assert_eq!((d, c), (usize::from(step.dispatch), usize::from(step.combine)), "{step:?}");
            assert!(d + c > 0);
        }
        // What must be the same in both is changed in both, once.
        let dedup: Vec<_> = steps.iter().filter(|s| !s.to.dispatch.dedup).collect();
        assert!(dedup.len() == 1 && dedup[0].dispatch && dedup[0].combine && !dedup[0].to.combine.dedup);
    }

    #[test]
    fn no_step_and_no_other_shape_changes_the_layout() {
        for layout in [Layout::Experts, Layout::Tokens] {
            let from = Key { shape: SHAPE, layout }.defaults().unwrap();
            let (steps, _) = steps(&from);
            assert!(steps.len() >= 20, "{}", steps.len());
            let moved = for_shape(&from, &MoeShape { tokens: 64, ..SHAPE });
            for to in steps.iter().map(|s| &s.to).chain(&moved) {
                assert_eq!((to.dispatch.layout, to.combine.layout), (layout, layout));
            }
            assert_eq!(moved.unwrap().dispatch.tokens, 64);
        }
    }

    #[test]
    fn values_move_to_shapes_in_which_they_are_legal() {
        let mut from = MoeTuning::defaults(&SHAPE).unwrap().small();
        from.dispatch.chunk = 32;
        from.check(&SHAPE).unwrap();
        let to = |tokens| for_shape(&from, &MoeShape { tokens, ..SHAPE }).unwrap().dispatch;
        assert_eq!((to(64).tokens, to(64).warps, to(64).chunk), (64, from.dispatch.warps, 32));
        // A record is not longer than all of the tokens there: that field has its default, and no other.
        let default = MoeTuning::defaults(&MoeShape { tokens: 4, ..SHAPE }).unwrap().dispatch;
        assert_eq!((to(4).tokens, to(4).warps, to(4).chunk), (4, from.dispatch.warps, default.chunk));
    }
}
