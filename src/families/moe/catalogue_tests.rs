use peerwarp_codegen::family::Target;

use super::*;
use crate::families::moe::select::known_of;
use crate::harness::catalogue::parse;
use crate::harness::request::resolve;

fn settings(r: &Request) -> String {
    let known = r.known.iter().map(|(f, v)| format!("{f}={v}"));
    let all: Vec<String> =
        known.chain(r.key.iter().chain(&r.tuning).map(|(f, v)| format!("{f}={v}"))).collect();
    format!("{} {:?} {}", r.label, r.scope, all.join(" "))
}

fn registry() -> Registry {
    Registry::new(MoeSuite.families())
}

fn read(text: &str) -> Result<Catalogue, InputError> {
    parse(text, "c.toml", &[&MoeSuite], &registry())
}

#[test]
fn the_built_in_one_has_every_model_in_four_buckets() {
    let all = builtin();
    assert_eq!(all.problems.len(), models::builtin().len() * 4);
    for model in models::builtin() {
        let own: Vec<_> = all.problems.iter().filter(|r| r[0].label == model.name).collect();
        assert_eq!(own.len(), 4, "{}", model.name);
        assert!(own.iter().all(|pair| pair.len() == 2));
        assert!(own.iter().all(|r| r[0].known == known_of(&model.shape)));
    }
    assert_eq!(all.targets.iter().map(Target::to_string).collect::<Vec<_>>(), ["cuda:sm_90a", "hip:gfx942"]);
}

#[test]
fn the_reviewed_one_is_part_of_the_built_in_one_and_has_all_families() {
    let (all, part) = (builtin(), reviewed());
    assert_eq!(part.targets, all.targets);
    // The built-in one leaves the layout to the default, and has no round trips in one launch.
    let shape = |r: &Request| {
        let key = r.key.iter().filter(|(name, _)| name != "layout").cloned();
        (r.label.clone(), r.known.clone(), key.collect::<Vec<_>>())
    };
    let all: Vec<_> = all.problems.iter().flatten().map(shape).collect();
    let (round_trips, pairs): (Vec<_>, Vec<_>) = part.problems.iter().partition(|p| p.len() == 1);
    let pairs: Vec<_> = pairs.into_iter().flatten().map(shape).collect();
    assert!(pairs.iter().all(|r| all.contains(r)), "{pairs:?}");
    let [round_trip] = round_trips[..] else { panic!("{round_trips:?}") };
    let names = resolve(round_trip, &registry()).unwrap();
    assert!(names[0].variant_name().starts_with("moe_round_trip_h7168_"), "{names:?}");
}

#[test]
fn lists_multiply_and_entries_override_defaults() {
    let text = r#"
        [defaults]
        tokens = [8, 16]
        set = { dedup = true, warps = 8 }
        [[moe]]
        model = "Mixtral-8x7B"
        dtype = ["bf16", "fp8"]
        set = { dedup = false }
        [[moe]]
        hidden = 64
        experts = 4
        topk = 2
        ranks = 2
        tokens = 1
        [[family]]
        family = "add"
        elements = [1, 2]
        fast = true
    "#;
    let all = read(text).unwrap();
    assert_eq!(all.targets, []);
    let report: Vec<String> = all.problems.iter().flatten().map(settings).collect();
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn says_what_is_wrong() {
    let cases = [
        "",
        "[[moe]",
        "[[moe]]\nmodel = 3",
        "[[moe]]\nmodel = \"mixtral\"",
        "[[moe]]\nname = \"x\"\nhidden = 8",
        "[[moe]]\nmodel = \"glm-4.5\"\nhidden = 8",
        "[[moe]]\nmodell = \"glm-4.5\"",
        "[[moe]]\nmodel = \"glm-4.5\"\ntokens = [1, [2]]",
        "[[moe]]\nmodel = \"glm-4.5\"\ntokens = 1.5",
        "[[moe]]\nmodel = \"glm-4.5\"\ntokens = []",
        "[[moe]]\nhidden = -8\nexperts = 1\ntopk = 1",
        "[[mow]]\nmodel = \"glm-4.5\"",
        "[moe]\nmodel = \"glm-4.5\"",
        "[defaults]\nrank = 8\n[[moe]]\nmodel = \"glm-4.5\"",
        "[[family]]\nelements = 3",
        "[[family]]\nfamily = \"--\"",
        "targets = [\"cuda:sm_90a\", \"sm_80\"]",
        "targets = [\"cuda:sm_91\"]",
    ];
    let error = |c: &str| read(c).unwrap_err();
    let report: Vec<String> = cases.iter().map(|c| format!("{c}\n=> {}\n", error(c))).collect();
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn values_stand_for_what_entries_of_catalogues_say() {
    let text = "[[moe]]\nmodel = \"glm-4.5\"\ntokens = [8, 128]\n";
    let instead = [("dtype", "fp8"), ("tokens", "4"), ("ranks", "2"), ("layout", "expert-major")];
    let instead = instead.map(|(field, value)| (field.to_owned(), value.to_owned())).into();
    let parsed = catalogue::parse_with(text, "c.toml", &[&MoeSuite], &registry(), &instead).unwrap();
    let [pair] = &parsed.problems[..] else { panic!("{parsed:?}") };
    let names: Vec<String> = resolve(pair, &registry()).unwrap().iter().map(|v| v.variant_name()).collect();
    let starts = [
        "moe_dispatch_h5120_e160_k8_t4_r2_fp8_raw_expertmajor_",
        "moe_combine_h5120_e160_k8_t4_r2_bf16_expertmajor_",
    ];
    assert!(names.iter().zip(starts).all(|(name, start)| name.starts_with(start)), "{names:?}");
}
