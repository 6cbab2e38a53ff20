//! Choices that rules make: each of their values, where it is legal, runs and is right.

use std::collections::{BTreeMap, BTreeSet};

use peerwarp::codegen::family::{Family, FieldInfo, Fields, Value};
use peerwarp::families::moe::kernels::{
    Combine, CombineKey, Copies, Count, Dispatch, DispatchKey, Hook, Layout, Own, Protocol, RoundTrip,
    Schedule, Then,
};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeProblem, MoeShape};

use crate::support::{in_one_launch, run, run_sim, shape, small};

/// The same configuration with each value of each field that a rule chooses, with the field and the value in words.
fn with_each_choice<F: Family>(config: &F) -> Vec<(String, F)> {
    let fields = F::fields().iter().enumerate().filter(|(_, f)| f.by_rule);
    let one = |(at, field): (usize, &FieldInfo)| {
        let values = (0..).map_while(|n| field.allowed.nth(n)).filter(|v| *v != Value::Name("auto"));
        let with = |value| {
            let mut values = config.values();
            values[at] = value;
            (format!("{} = {value}", field.name), F::from_values(&values).unwrap())
        };
        values.map(with).collect::<Vec<_>>()
    };
    fields.flat_map(one).collect()
}

/// What fields and values there are.
fn all_choices<F: Family>(config: &F) -> BTreeSet<String> {
    with_each_choice(config).into_iter().map(|(words, _)| words).collect()
}

#[test]
fn every_choice_runs_somewhere_and_is_right() {
    let mut ran: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for ranks in [2, 3] {
        let shape = shape(72, 6, 3, 9, ranks);
        let problem = MoeProblem::uniform(shape, &[9, 4, 7][..ranks as usize], 3).unwrap();
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            for protocol in [Protocol::Flags, Protocol::Packets] {
                let mut base = small(&shape).with_layout(layout).with_protocol(protocol);
                base.plan.dispatch.chunk = 4;
                for (words, dispatch) in with_each_choice(&base.dispatch()) {
                    // Blocks send rows after records only if groups draw rows.
                    let drawn = dispatch.after_route == Some(Then::Send);
                    let schedule = if drawn { Some(Schedule::Dynamic) } else { dispatch.schedule };
                    let dispatch = Dispatch { schedule, ..dispatch };
                    if dispatch.check().is_ok() {
                        run(&problem, &with_dispatch(&base, dispatch), 3);
                        ran.entry("dispatch").or_default().insert(words);
                    }
                }
                for (words, combine) in with_each_choice(&base.combine()) {
                    let own = if combine.own_first == Some(true) { Some(Own::InPlace) } else { combine.own };
                    let combine = Combine { own, ..combine };
                    if combine.check().is_ok() {
                        let mut tuning = base.clone();
                        tuning.plan.combine = combine.plan();
                        run(&problem, &tuning, 3);
                        ran.entry("combine").or_default().insert(words);
                    }
                }
            }
        }
        let base = RoundTrip::defaults(&shape).unwrap().small();
        for (words, config) in with_each_choice(&base) {
            config.check().unwrap();
            run_sim(&in_one_launch(&problem, &config, 3), problem.seed);
            ran.entry("round trip").or_default().insert(words);
        }
    }
    let shape = shape(72, 6, 3, 9, 2);
    let base = small(&shape);
    assert_eq!(ran["dispatch"], all_choices(&base.dispatch()));
    assert_eq!(ran["combine"], all_choices(&base.combine()));
    assert_eq!(ran["round trip"], all_choices(&RoundTrip::defaults(&shape).unwrap()));
}

fn with_dispatch(base: &MoeTuning, dispatch: Dispatch) -> MoeTuning {
    let mut tuning = base.clone();
    tuning.plan.dispatch = dispatch.plan();
    tuning
}

/// The keys of a large problem, for which rules choose otherwise than for few tokens.
fn keys(tokens: u32) -> (DispatchKey, CombineKey) {
    let shape = MoeShape { tokens, ..shape(7168, 256, 8, tokens, 2) };
    let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor);
    let tuning = tuning.unwrap();
    (tuning.dispatch().key(), tuning.combine().key())
}

#[test]
fn a_choice_is_named_told_and_read_back_and_a_rule_follows_the_rest() {
    let (dispatch, combine) = keys(4096);
    let by_rule = Dispatch::with_defaults(&dispatch).unwrap();
    let told = |config: &Dispatch, field: &str| {
        config.describe().into_iter().find(|(name, _)| name == field).map(|(_, value)| value)
    };
    assert_eq!(told(&by_rule, "own").as_deref(), Some("in-place"), "what the rule chooses is reported");
    assert!(!by_rule.variant_name().contains("own"), "and not named: {}", by_rule.variant_name());

    let chosen = Dispatch { own: Some(Own::Moved), ..by_rule.clone() };
    assert!(chosen.variant_name().ends_with("_ownmoved"), "{}", chosen.variant_name());
    assert!(chosen.variant_name().len() <= 160);
    assert_eq!(Dispatch::parse_variant(&chosen.variant_name()).unwrap(), chosen);
    assert_eq!(told(&chosen, "own").as_deref(), Some("moved"));
    assert_ne!(
        by_rule.trace(32).unwrap().to_string(),
        chosen.trace(32).unwrap().to_string(),
        "the choice is the kernel's"
    );
    let set: Vec<(String, String)> = Dispatch::fields()
        .iter()
        .zip(chosen.values())
        .map(|(f, v)| (f.name.to_owned(), v.to_string()))
        .collect();
    assert_eq!(Dispatch::from_settings(&set).unwrap(), chosen);

    let packets = |tokens| Dispatch { protocol: Protocol::Packets, tokens, chunk: 1, ..by_rule.clone() };
    assert_eq!([1, 4096].map(|tokens| packets(tokens).copies()), [Copies::Apart, Copies::Together]);
    assert_eq!(Combine::with_defaults(&combine).unwrap().own(), Own::InPlace);
}

#[test]
fn what_does_not_go_together_is_refused_by_its_name() {
    let (dispatch, combine) = keys(4096);
    let flags = Dispatch { protocol: Protocol::Flags, ..Dispatch::with_defaults(&dispatch).unwrap() };
    let said = |config: Dispatch| config.check().unwrap_err().to_string();
    let counted = Dispatch { count: Some(Count::Receiver), ..flags.clone() };
    let apart = Dispatch { copies: Some(Copies::Apart), ..flags.clone() };
    let helped = Dispatch { after_index: Some(Then::Receive), ..flags };
    let first =
        Combine { own: Some(Own::Moved), own_first: Some(true), ..Combine::with_defaults(&combine).unwrap() };
    insta::assert_snapshot!(
        [said(counted), said(apart), said(helped), first.check().unwrap_err().to_string()].join("\n")
    );
}
