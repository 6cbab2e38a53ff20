//! Names of variants and fields.

use peerwarp_codegen::family::{Family, FieldRole, Fields, Registry};

use super::odd::*;

#[test]
fn a_name_has_the_family_the_keys_and_the_tuning_in_order() {
    let odd = Odd::with_defaults(&key()).unwrap();
    assert_eq!(
        odd.variant_name(),
        "odd_jobs_h7168_r8_fp8_om4_longseed7__w16_s24_nodedup_f_byexpert_rbyexpert"
    );
    assert_eq!(
        Odd::name_form(),
        "odd_jobs_h<hidden>_r<ranks>_<rows>_o<offset>_longseed<long_seed>__w<warps>_s<send_blocks>_[no]dedup_[no]f_<order>_r<post>"
    );
    assert_eq!((Family::ranks(&odd), odd.block_warps()), (8, 16));
    assert_eq!(odd.key(), key());
    let bare = Bare { ranks: 4 };
    assert_eq!(bare.variant_name(), "odd_ranks4");
    assert_eq!(bare.block_warps(), 4);
}

#[test]
fn a_name_leaves_out_fields_that_are_as_they_are_by_default() {
    let of = |most, step| Sparing { ranks: 4, most, step, drawn: false, warps: 8, stages: 1 };
    let named = |most, step| of(most, step).variant_name();
    assert_eq!(named(0, 1), "sparing_r4__w8");
    assert_eq!(named(64, 1), "sparing_m64_r4__w8");
    assert_eq!(named(64, 2), "sparing_m64_r4_st2__w8");
    for (most, step) in [(0, 1), (0, 2), (64, 1), (8, 4)] {
        assert_eq!(Sparing::parse_variant(&named(most, step)).unwrap(), of(most, step));
    }
    for (drawn, stages, name) in
        [(true, 1, "sparing_r4__by_w8"), (false, 2, "sparing_r4__w8_s2"), (true, 8, "sparing_r4__by_w8_s8")]
    {
        let tuned = Sparing { drawn, stages, ..of(0, 1) };
        assert_eq!(tuned.variant_name(), name);
        assert_eq!(Sparing::parse_variant(name).unwrap(), tuned);
    }
    assert_eq!(Sparing::name_form(), "sparing[_m<most>]_r<ranks>[_st<step>][__[no]by]_w<warps>[_s<stages>]");
    let said = |name: &str| Sparing::parse_variant(name).unwrap_err().to_string();
    // One name for each variant: what is left out is never there.
    assert!(said("sparing_m0_r4__w8").contains("`m0`"), "{}", said("sparing_m0_r4__w8"));
    assert!(said("sparing_m64_r4_st2_x__w8").contains("4 key values, before `__`, where there are 1 to 3"));
    assert!(said("sparing_r4_m64__w8").contains("`m64`"), "{}", said("sparing_r4_m64__w8"));
    assert!(said("sparing__w8").contains("0 key values, before `__`, where there are 1 to 3"));
    assert!(said("sparing_r4__noby_w8").contains("`noby`"), "{}", said("sparing_r4__noby_w8"));
    assert!(said("sparing_m12__w8").contains("it must be a multiple of 8"), "{}", said("sparing_m12__w8"));
}

#[test]
fn fields_know_their_words() {
    let lines: Vec<String> = Odd::fields()
        .iter()
        .map(|f| {
            format!(
                "{:?} --{} {}: {} [{}] {}",
                f.role,
                f.long(),
                f.short.unwrap_or("-"),
                f.allowed,
                f.default,
                f.help
            )
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
    assert!(Odd::key_fields().iter().all(|f| f.role == FieldRole::Key));
    assert!(Odd::tune_fields().iter().all(|f| f.role == FieldRole::Tune));
    assert_eq!(Odd::key_fields().len(), 5);
    assert_eq!(Odd::fields().iter().filter(|f| f.ranks).map(|f| f.name).collect::<Vec<_>>(), ["ranks"]);
}

#[test]
fn wrong_names_are_told_which_part_and_what_stands_there() {
    let registry = Registry::new([Bare::entry(), Odd::entry()]);
    let good = Odd::with_defaults(&key()).unwrap().variant_name();
    let said = |name: &str| match registry.parse(name) {
        Ok(v) => format!("{} of {}", v.variant_name(), v.family().name()),
        Err(e) => e.to_string(),
    };
    let all = [
        said(&good),
        said("odd_ranks4"),
        said("odd_ranks1"),
        said("odd"),
        said(""),
        said("od_jobs_h7168"),
        said("odd_jobs_h7168"),
        said(&good.replace("__", "_")),
        said(&good.replace("h7168", "h07168")),
        said(&good.replace("h7168", "h7169")),
        said(&good.replace("h7168", "7168")),
        said(&good.replace("om4", "om0")),
        said(&good.replace("om4", "o+4")),
        said(&good.replace("fp8", "fp16")),
        said(&good.replace("nodedup", "dodup")),
        said(&good.replace("w16", "w12")),
        said(&good.replace("r8", "r16")),
        said(&format!("{good}_x")),
        said(&format!("{good} ")),
    ];
    insta::assert_snapshot!(all.join("\n"));
}
