use super::*;

fn settings(r: &Request) -> String {
    let all: Vec<String> = r.key.iter().chain(&r.tuning).map(|(f, v)| format!("{f}={v}")).collect();
    format!("{} {:?} {}", r.label, r.scope, all.join(" "))
}

#[test]
fn the_built_in_one_has_every_model_in_four_buckets() {
    let all = builtin();
    assert_eq!(all.requests.len(), models::builtin().len() * 4);
    for model in models::builtin() {
        let own: Vec<_> = all.requests.iter().filter(|r| r.label == model.name).collect();
        assert_eq!(own.len(), 4, "{}", model.name);
        assert!(own.iter().all(|r| r.key.starts_with(&shape_settings(&model.shape))));
    }
    assert_eq!(all.targets.iter().map(Target::to_string).collect::<Vec<_>>(), ["cuda:sm_90a", "hip:gfx942"]);
}

#[test]
fn the_reviewed_one_is_part_of_the_built_in_one() {
    let (all, part) = (builtin(), reviewed());
    assert_eq!(part.targets, all.targets);
    let shape = |r: &Request| (r.label.clone(), r.key.clone());
    let all: Vec<_> = all.requests.iter().map(shape).collect();
    let part: Vec<_> = part.requests.iter().map(shape).collect();
    assert!(part.iter().all(|r| all.contains(r)), "{part:?}");
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
    let all = parse(text, "c.toml").unwrap();
    assert_eq!(all.targets, []);
    let report: Vec<String> = all.requests.iter().map(settings).collect();
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
        "[[family]]\nelements = 3",
        "[[family]]\nfamily = \"--\"",
        "targets = [\"cuda:sm_90a\", \"sm_80\"]",
        "targets = [\"cuda:sm_91\"]",
    ];
    let error = |c: &str| parse(c, "c.toml").unwrap_err();
    let report: Vec<String> = cases.iter().map(|c| format!("{c}\n=> {}\n", error(c))).collect();
    insta::assert_snapshot!(report.join("\n"));
}
