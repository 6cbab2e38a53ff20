//! The tuning space, defaults, and settings as users write them.

use std::collections::HashSet;

use peerwarp_codegen::family::Family;

use super::odd::*;

#[test]
fn candidates_are_all_legal_points_once_and_no_others() {
    let small = OddKey { hidden: 64, ranks: 16, ..key() };
    let all: Vec<Odd> = Odd::candidates(&small).collect();
    // 4 warps, send blocks 4 and 8, dedup only, fused or not, 2 orders, 1 post.
    assert_eq!(all.len(), 4 * 2 * 2 * 2);
    let names: HashSet<String> = all.iter().map(Odd::variant_name).collect();
    assert_eq!(names.len(), all.len());
    for odd in &all {
        odd.check().unwrap();
        assert_eq!(odd.key(), small);
    }
    assert_eq!(Odd::candidates(&OddKey { hidden: 7, ..small }).count(), 0);
    assert_eq!(Bare::candidates(&BareKey { ranks: 3 }).collect::<Vec<_>>(), [Bare { ranks: 3 }]);
    assert_eq!(Bare::candidates(&BareKey { ranks: 9 }).count(), 0);
}

#[test]
fn candidates_are_made_when_they_are_asked_for() {
    let names: Vec<String> =
        Huge::candidates(&HugeKey { ranks: 3 }).take(2).map(|h| h.variant_name()).collect();
    assert_eq!(names, ["huge_ranks3__type1_seed0", "huge_ranks3__type1_seed1"]);
    // A search that cannot succeed ends.
    let why = Huge::with_defaults(&HugeKey { ranks: 2 }).unwrap_err();
    assert_eq!(why.to_string(), "huge: `ranks` = 2 is not allowed: it must be above 2");
    assert_eq!(Huge { ranks: 3, r#type: 1, seed: 0 }.params()[0].name, "in");
}

#[test]
fn defaults_that_do_not_go_together_give_way_as_little_as_possible() {
    // Default: 48 send blocks and no dedup. This key has room for 8 send blocks and needs dedup.
    let tight = OddKey { hidden: 64, ranks: 16, ..key() };
    let odd = Odd::with_defaults(&tight).unwrap();
    assert!(odd.dedup && odd.fused && odd.warps == 16 && odd.order == Order::ByExpert);
    assert_eq!(odd.send_blocks, 8, "the legal value next to 48");
    // What the user says stays as it is.
    let mut settings =
        vec![("hidden", "64"), ("r", "16"), ("rows", "bf16"), ("offset", "0"), ("long-seed", "1")];
    settings.push(("send-blocks", "4"));
    assert_eq!(Odd::from_settings(&settings).unwrap().send_blocks, 4);
    settings.push(("dedup", "false"));
    let why = Odd::from_settings(&settings).unwrap_err().to_string();
    assert_eq!(
        why,
        "odd_jobs: `dedup` = false is not allowed: it must be true with more than 8 ranks, here 16"
    );
}

#[test]
fn a_text_has_settings_and_nothing_else() {
    let text = "hidden=7168 ranks=8\n  rows=fp8 offset=-8 long_seed=3";
    let pairs = text.split_whitespace().map(|word| word.split_once('=').unwrap());
    assert_eq!(Odd::from_text(text), Odd::from_settings(&pairs.collect::<Vec<_>>()));
    let said = Odd::from_text(&format!("{text} dedup")).unwrap_err().to_string();
    assert!(said.contains("`dedup` is no setting: FIELD=VALUE"), "{said}");
}

#[test]
fn wrong_settings_are_told_with_field_value_and_what_is_allowed() {
    let full = [("hidden", "7168"), ("ranks", "8"), ("rows", "fp8"), ("offset", "-8"), ("long_seed", "3")];
    let said = |change: &[(&str, &str)]| {
        let kept = full.iter().filter(|(n, _)| !change.iter().any(|(c, _)| c == n));
        let all: Vec<_> = kept.chain(change).filter(|(_, v)| *v != "-").copied().collect();
        Odd::from_settings(&all)
            .map(|odd| odd.variant_name())
            .map_err(|e| e.to_string())
            .unwrap_or_else(|e| e)
    };
    let all = [
        said(&[]),
        said(&[("hidden", "7170")]),
        said(&[("hidden", "99999999999999999999999999999999999999999999")]),
        said(&[("hidden", "many")]),
        said(&[("hidden", "")]),
        said(&[("ranks", "1"), ("offset", "17")]),
        said(&[("rows", "fp16")]),
        said(&[("rows", "bf61")]),
        said(&[("warps", "12")]),
        said(&[("warp", "16")]),
        said(&[("banana", "16")]),
        said(&[("dedup", "yes")]),
        said(&[("w", "8"), ("warps", "16")]),
        said(&[("hidden", "-"), ("rows", "-")]),
    ];
    insta::assert_snapshot!(all.join("\n"));
}
