use peerwarp_codegen::family::Family;

use super::super::example::{KEY, Pair, differing, pair, set, value};
use super::*;
use crate::families::matmul::Matmul;
use crate::harness::workload::Suite as _;

#[test]
fn steps_are_legal_candidates_one_value_away() {
    let (components, from) = (Pair.components(), pair(KEY));
    let (steps, illegal) = steps(&components, &from);
    assert!(steps.len() >= 20, "{}", steps.len());
    assert!(illegal > 0);
    for step in &steps {
        components.check(step.to.variants()).unwrap();
        let differ = |at: usize| differing(&step.to.variants()[at], &from.variants()[at]);
        let of: Vec<usize> = (0..2).map(|at| usize::from(step.changed.contains(&at))).collect();
        assert_eq!([differ(0), differ(1)], of[..], "{step:?}");
        assert!(!step.changed.is_empty());
    }
    // What must be the same in both is changed in both, once.
    let plain = |step: &&Step| value(&step.to.variants()[0], "dedup") == Value::Bool(false);
    let plain: Vec<&Step> = steps.iter().filter(plain).collect();
    assert!(plain.len() == 1 && plain[0].changed == [0, 1], "{plain:?}");
    assert_eq!(value(&plain[0].to.variants()[1], "dedup"), Value::Bool(false));
}

/// Blocks that share the columns of a tile do not draw tiles, which is the default here.
#[test]
fn a_choice_that_a_value_rules_out_changes_with_it() {
    let config = Matmul::from_text("m=256 n=7168 k=4096 ranks=2 dtype=bf16").unwrap();
    let from = Candidate::new([config.into_variant()]);
    let of = |c: &Candidate| (value(&c.variants()[0], "split"), value(&c.variants()[0], "order"));
    assert_eq!(of(&from), (Value::Int(1), Value::Name("counter")));
    let (steps, _) = steps(&Components::default(), &from);
    let split: Vec<&Step> = steps.iter().filter(|s| of(&s.to).0 != Value::Int(1)).collect();
    let strided = Value::Name("strided");
    assert_eq!(
        split.iter().map(|s| of(&s.to)).collect::<Vec<_>>(),
        [(Value::Int(2), strided), (Value::Int(4), strided)]
    );
    assert!(split.iter().all(|s| differing(&s.to.variants()[0], &from.variants()[0]) == 2));
}

#[test]
fn no_step_and_no_other_key_changes_the_layout() {
    let components = Pair.components();
    for (key, layout) in [(KEY, "rows"), (KEY.slots(), "slots")] {
        let from = pair(key);
        let (steps, _) = steps(&components, &from);
        assert!(steps.len() >= 18, "{}", steps.len());
        let moved = onto(&components, &from, &pair(key.tokens(64)));
        for to in steps.iter().map(|s| &s.to).chain(&moved) {
            assert!(to.variants().iter().all(|v| value(v, "layout") == Value::Name(layout)));
        }
        assert_eq!(value(&moved.unwrap().variants()[0], "tokens"), Value::Int(64));
    }
}

#[test]
fn values_move_to_keys_in_which_they_are_legal() {
    let components = Pair.components();
    let from = set(&pair(KEY), 0, &[("chunk", "16"), ("warps", "2")]);
    let to = |tokens, field: &str| {
        let moved = onto(&components, &from, &pair(KEY.tokens(tokens))).unwrap();
        value(&moved.variants()[0], field)
    };
    let number = Value::Int;
    assert_eq!([to(64, "tokens"), to(64, "warps"), to(64, "chunk")], [number(64), number(2), number(16)]);
    // No more rows go together than there are: that field has its default, and no other.
    let default = value(&pair(KEY.tokens(2)).variants()[0], "chunk");
    assert_eq!([to(2, "tokens"), to(2, "warps"), to(2, "chunk")], [number(2), number(2), default]);
    // What does not go together, or is of other families, is not moved.
    let apart = set(&pair(KEY), 0, &[("dedup", "false")]);
    assert_eq!(onto(&components, &apart, &pair(KEY)), None);
    let other = Candidate::new([from.variants()[1].clone(), from.variants()[0].clone()]);
    assert_eq!(onto(&components, &other, &pair(KEY)), None);
}

#[test]
fn what_a_model_would_take_is_at_least_as_good_by_its_own_measure() {
    let (components, from) = (Pair.components(), pair(KEY));
    let model = Pair.cost_model(from.variants()).unwrap();
    let found = best(&*model, &components, &from);
    let sum = |c: &Candidate| model.times(c.variants()).iter().sum::<f64>();
    components.check(found.variants()).unwrap();
    assert!(sum(&found) < sum(&from) && model.fits(found.variants()).iter().all(|fits| *fits));
    assert_eq!(best(&*model, &components, &found), found);
}
