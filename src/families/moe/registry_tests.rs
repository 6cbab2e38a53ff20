use super::*;
use peerwarp_codegen::family::Family;

use crate::families::moe::kernels::{Hook, Layout};
use crate::families::moe::{MoeShape, RowDtype};
use crate::harness::tune::{Candidate, Record, Task, example};
use crate::harness::workload::Given;

fn shape(tokens: u32) -> MoeShape {
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens, ranks: 2, dtype: RowDtype::Bf16 }
}

fn tuning(tokens: u32) -> MoeTuning {
    MoeTuning::defaults(&shape(tokens)).unwrap()
}

fn tokens_of(selected: Selected<'_, MoeTuning>) -> Option<u32> {
    match selected {
        Selected::Exact(t) | Selected::Covering(t) => Some(t.key.shape.tokens),
        Selected::Jit => None,
    }
}

#[test]
fn exact_then_the_smallest_that_covers() {
    let registry = MoeRegistry::new([128, 8, 32].map(tuning), false);
    let select = |tokens| registry.select(&MoeKey::new(shape(tokens))).unwrap();
    assert!(matches!(select(32), Selected::Exact(t) if *t == tuning(32)));
    assert!(matches!(select(33), Selected::Covering(t) if *t == tuning(128)));
    let found: Vec<_> = [1, 8, 9, 31, 128].map(|t| tokens_of(select(t)).unwrap()).into();
    assert_eq!(found, [8, 8, 32, 32, 128]);
}

#[test]
fn of_two_for_one_key_the_first_counts() {
    let mut other = tuning(8);
    other.plan.dispatch.vectors = 1;
    let registry = MoeRegistry::new([other.clone(), tuning(8)], false);
    assert_eq!(registry.select(&MoeKey::new(shape(8))).unwrap(), Selected::Exact(&other));
}

#[test]
fn all_but_the_tokens_has_to_be_equal() {
    let registry = MoeRegistry::new([tuning(128)], false);
    let key = MoeKey::new(shape(8));
    registry.select(&key).unwrap();
    let others = [
        MoeKey { split: true, ..key },
        MoeKey { hook: Hook::Expert, ..key },
        MoeKey { layout: Layout::ExpertMajor, ..key },
        MoeKey::new(MoeShape { hidden: 72, ..key.shape }),
        MoeKey::new(MoeShape { experts: 9, ..key.shape }),
        MoeKey::new(MoeShape { topk: 3, ..key.shape }),
        MoeKey::new(MoeShape { ranks: 3, ..key.shape }),
        MoeKey::new(MoeShape { dtype: RowDtype::Fp8, ..key.shape }),
        MoeKey::new(shape(129)),
    ];
    for other in others {
        assert!(registry.select(&other).is_err(), "{other:?}");
    }
}

#[test]
fn what_is_not_compiled_is_compiled_or_the_nearest_are_named() {
    let key =
        MoeKey { split: true, hook: Hook::Expert, layout: Layout::RankMajor, ..MoeKey::new(shape(100)) };
    let with = MoeRegistry::new([tuning(8)], true);
    assert_eq!(with.select(&key).unwrap(), Selected::Jit);
    let made = with.tuning(&key).unwrap();
    let defaults = MoeTuning::defaults_with(&shape(100), Hook::Expert, Layout::RankMajor).unwrap();
    assert_eq!(made, defaults.with_split(true));
    assert_eq!(with.tuning(&MoeKey::new(shape(3))).unwrap(), tuning(8));

    let wide = MoeTuning::defaults(&MoeShape { hidden: 128, ..shape(200) }).unwrap();
    let without = MoeRegistry::new([tuning(8), tuning(64), tuning(200), wide.clone(), tuning(90)], false);
    let error = without.select(&key).unwrap_err();
    let name = |t: &MoeTuning| t.dispatch().variant_name();
    assert_eq!(error.nearest, [name(&tuning(200)), name(&tuning(90)), name(&tuning(64))]);
    assert!(error.to_string().contains("tokens: 100") && error.to_string().contains(&error.nearest[0]));
    let error = without.select(&MoeKey::new(MoeShape { hidden: 128, ..shape(201) })).unwrap_err();
    assert_eq!(error.nearest[0], name(&wide));
}

#[test]
fn digests_tell_tables_apart() {
    let digest = |all: &[u32], jit| MoeRegistry::new(all.iter().map(|&t| tuning(t)), jit).digest();
    assert_eq!(digest(&[8, 16], false), digest(&[16, 8], false));
    let others = [digest(&[8], false), digest(&[8, 16], true), digest(&[8, 32], false), digest(&[], false)];
    assert!(others.iter().all(|other| *other != digest(&[8, 16], false)));
}

#[test]
fn variants_are_paired_with_those_that_go_with_them() {
    let (eight, split) = (tuning(8), tuning(16).with_split(true));
    let plain = tuning(32).with_dedup(false);
    let dispatch: Vec<Dispatch> =
        [&eight, &split, &plain].into_iter().flat_map(MoeTuning::dispatch_launches).collect();
    let combine: Vec<Combine> =
        [&eight, &split, &plain].into_iter().flat_map(MoeTuning::combine_launches).collect();
    assert_eq!(pairs(&dispatch, &combine), [eight.clone(), split.clone(), plain]);
    // Neither a half alone, nor a dispatch without its combine.
    let lonely = [split.dispatch_launches()[0].clone(), eight.dispatch()];
    assert_eq!(pairs(&lonely, &split.combine_launches()), []);
    assert_eq!(pairs(&split.dispatch_launches(), &split.combine_launches()[1..]), []);
}

/// A record of the small variants of a pair of defaults.
fn record(default: &MoeTuning) -> Record {
    let variants = |tuning: &MoeTuning| [tuning.dispatch().into_variant(), tuning.combine().into_variant()];
    let task = Task::new(&super::super::workload::MoeSuite, variants(default), Given::new());
    example::record_of(&task, &Candidate::new(variants(&default.clone().small())))
}

#[test]
fn what_is_compiled_when_needed_is_as_it_was_tuned() {
    let mut table = crate::harness::tune::Table::new("NVIDIA H200", "cuda:sm_90a".parse().unwrap());
    table.insert(record(&tuning(8)));
    let plain = MoeRegistry::new([], true);
    let tuned = plain.clone().with_tuned(Tuned::new(table.clone()));
    let key = MoeKey::new(shape(8));
    assert_eq!(plain.tuning(&key).unwrap(), tuning(8));
    assert_eq!(tuned.tuning(&key).unwrap(), tuning(8).small());
    // Tables are of whole launches without a hook.
    let split = MoeKey { split: true, ..key };
    assert_eq!(tuned.tuning(&split).unwrap(), tuning(8).with_split(true));
    // And of one layout: the other has its own defaults until it has a record.
    let other = MoeKey { layout: Layout::ExpertMajor, ..key };
    let defaults = MoeTuning::defaults_with(&shape(8), Hook::None, Layout::ExpertMajor).unwrap();
    assert_eq!(tuned.tuning(&other).unwrap(), defaults);
    let mut both = table.clone();
    both.insert(record(&defaults));
    let both = plain.clone().with_tuned(Tuned::new(both));
    assert_eq!(both.tuning(&other).unwrap(), defaults.small());
    assert_eq!(both.tuning(&key).unwrap(), tuning(8).small());
    // Ranks that do not agree on the table would not agree on kernels.
    assert_ne!(plain.digest(), tuned.digest());
    // What is compiled comes first.
    let pack = MoeRegistry { compiled: MoeRegistry::new([tuning(8)], true).compiled, ..tuned };
    assert_eq!(pack.tuning(&key).unwrap(), tuning(8));
}

/// Rows of types that the table that comes with this program has no records of: a combine in bf16 that it has may not go with them.
#[test]
fn tables_yield_pairs_that_go_together() {
    let tuned = Tuned::builtin("NVIDIA H200", "cuda:sm_90a".parse().unwrap()).unwrap();
    let registry = MoeRegistry::new([], true).with_tuned(tuned);
    for &dtype in RowDtype::NAMED {
        for tokens in [1, 64, 4096] {
            let shape = MoeShape { hidden: 7168, experts: 256, topk: 8, tokens, ranks: 8, dtype };
            for layout in [Layout::RankMajor, Layout::ExpertMajor] {
                registry.tuning(&MoeKey { layout, ..MoeKey::new(shape) }).unwrap().check(&shape).unwrap();
            }
        }
    }
}
