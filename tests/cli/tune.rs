//! `peerwarp tune`, and what takes its tables, as far as it goes without GPUs.

use peerwarp::harness::tune::{Record, Tuned};
use serde_json::Value;

use super::support::Place;

/// What a table of the smallest shape looks like.
const TABLE: &str = r#"
schema = 4
device = "NVIDIA H200"
target = "cuda:sm_90a"

[[record]]
suite = "moe"
measured = "2026-11-22"
tried = 1
us = 20.0
metrics = { dispatch = 12.0, combine = 12.0 }
variants = { moe_dispatch = "DISPATCH", moe_combine = "COMBINE" }
revisions = { moe_dispatch = 1, moe_combine = 1 }
default.variants = { moe_dispatch = "DISPATCH", moe_combine = "COMBINE" }
made = { peerwarp = "0.1.0", driver = "CUDA 13.0", compiler = "nvrtc 13.0" }

[record.key]
hidden = 64
experts = 8
topk = 2
tokens = 4
ranks = 2
dtype = "bf16"
hook = "raw"
layout = "rank-major"
phase = "both"
"#;

const SHAPE: &str = "--hidden 64 --experts 8 --topk 2 --tokens 4 --ranks 2";

/// Names of the variants that are chosen, as `show` says them: `list` says them as well, and all others that there could be.
fn chosen(place: &Place, options: &str) -> Vec<String> {
    of_all(&place.say(&format!("show {SHAPE} {options} --json")).json(), "variant")
}

/// A member of all objects of a list.
fn of_all(json: &Value, member: &str) -> Vec<String> {
    json.as_array().expect("a list").iter().map(|f| f[member].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn without_gpus_the_error_says_what_is_missing() {
    let place = Place::new();
    if peerwarp::runtime::cuda::gpus().is_ok() {
        return eprintln!("skipped: there are GPUs");
    }
    for args in [
        "tune --model deepseek-v3 --tokens 1,8 --dtype bf16,fp8 --ranks 2",
        "tune --catalogue builtin --tokens 1,2,4 --ranks 2 --budget 60 --out t.toml",
        "tune --catalogue builtin --layout expert-major --ranks 2",
        "tune --model deepseek-v3 --layout rank-major,expert-major --ranks 2",
    ] {
        let ran = place.say(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{}", ran.report());
        assert!(ran.stderr.contains("driver"), "{}", ran.stderr);
    }
    assert_eq!(place.names(), [""; 0]);
}

#[test]
fn tables_that_cannot_be_used_are_refused_before_anything_is_done() {
    let place = Place::new();
    let names = chosen(&place, "");
    let table = TABLE.replace("DISPATCH", &names[0]).replace("COMBINE", &names[1]);
    place.write("schema.toml", table.replace("schema = 4", "schema = 2"));
    place.write("nan.toml", table.replace("us = 20.0", "us = nan"));
    let cases = [
        (format!("tune {SHAPE} --out schema.toml"), ["--out = schema.toml: schema = 2", "must be 3 or 4"]),
        (
            format!("show {SHAPE} --tuned schema.toml"),
            ["--tuned = schema.toml: schema = 2", "must be 3 or 4"],
        ),
        (format!("show {SHAPE} --tuned nan.toml"), ["us = NaN", "a number of microseconds greater than 0"]),
        (format!("check {SHAPE} --tuned nowhere"), ["--tuned = nowhere: no such name", "a FILE.toml"]),
    ];
    for (args, expected) in cases {
        let ran = place.say(&args);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args}: {}", ran.report());
        for text in expected {
            assert!(ran.stderr.contains(text), "{args}: {}", ran.stderr);
        }
    }
}

#[test]
fn layouts_that_do_not_exist_are_refused() {
    let place = Place::new();
    for given in ["token", "expert-major,token", "\"\""] {
        let ran = place.say(&format!("tune {SHAPE} --layout {given}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{given}: {}", ran.report());
        assert!(
            ran.stderr.contains("layout = ") && ran.stderr.contains("rank-major, expert-major,"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn a_named_table_serves_and_says_what_of_it_is_earlier_or_cannot_be_used() {
    let place = Place::new();
    let tuned = chosen(&place, "--set warps=4 --set group_warps=1");
    let table = TABLE.replace("DISPATCH", &tuned[0]).replace("COMBINE", &tuned[1]);
    place.write("earlier.toml", table.replace("moe_combine = 1", "moe_combine = 0"));
    let digest = format!("suite = \"moe\"\ndigest = \"{}\"", "0123".repeat(16));
    let old = table.replace("schema = 4", "schema = 3").replace("suite = \"moe\"", &digest);
    place.write("old.toml", old.replace("revisions = { moe_dispatch = 1, moe_combine = 1 }\n", ""));
    for name in ["earlier.toml", "old.toml"] {
        assert_eq!(chosen(&place, &format!("--tuned {name}")), tuned);
        let ran = place.say(&format!("run {SHAPE} --backend sim --tuned {name} --json"));
        assert!(ran.stderr.contains("1 of 1 records are of an earlier revision"), "{}", ran.stderr);
        assert_eq!(ran.json()["tuned"]["from"], "earlier");
    }
    place.write("gone.toml", TABLE.replace("DISPATCH", "moe_dispatch_h64").replace("COMBINE", &tuned[1]));
    assert_eq!(chosen(&place, "--tuned gone.toml"), chosen(&place, "--tuned none"));
    let ran = place.say(&format!("show {SHAPE} --tuned gone.toml"));
    assert!(
        ran.stderr.contains("moe_dispatch_h64") && ran.stderr.contains("it is skipped"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_table_gives_its_values_to_the_layout_that_they_were_tuned_for() {
    let place = Place::new();
    let (token, expert) = (chosen(&place, ""), chosen(&place, "--layout expert-major"));
    let values = "--set warps=4 --set group_warps=1";
    let of = |layout: &str, names: &[String]| {
        let table = TABLE.replace("DISPATCH", &names[0]).replace("COMBINE", &names[1]);
        table.replace("layout = \"rank-major\"", &format!("layout = \"{layout}\""))
    };
    let tuned = chosen(&place, &format!("--layout expert-major {values}"));
    assert_ne!(tuned, expert);
    place.write("expert.toml", of("expert-major", &tuned));
    assert_eq!(chosen(&place, "--layout expert-major --tuned expert.toml"), tuned);
    assert_eq!(chosen(&place, "--tuned expert.toml"), token);
    place.write("token.toml", of("rank-major", &chosen(&place, values)));
    assert_eq!(chosen(&place, "--layout expert-major --tuned token.toml"), expert);
    // The table that comes with the program is of the kernels as they are.
    let ran = place.say(&format!("show {SHAPE} --tuned h200"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

/// The device that stands for a target has the table that comes with the program.
#[test]
fn offline_commands_choose_for_the_device_of_the_target() {
    let place = Place::new();
    let variants = |options: &str| {
        let shown = place.say(&format!("show --model deepseek-v3 --ranks 2 {options} --json"));
        of_all(&shown.json(), "variant")
    };
    let tuned = Tuned::builtin("NVIDIA H200", "cuda:sm_90a".parse().unwrap()).unwrap();
    let of = |tokens: i64| {
        let is = |record: &&Record| {
            let key = |name: &str| record.key.get(name).map(ToString::to_string);
            key("tokens") == Some(tokens.to_string()) && key("layout").as_deref() == Some("rank-major")
        };
        tuned.table().records.iter().find(is).expect("a record").variants.clone()
    };
    for tokens in [2, 256] {
        let record = of(tokens);
        let expected = ["moe_dispatch", "moe_combine"].map(|family| record[family].clone());
        assert_eq!(variants(&format!("--tokens {tokens}")), expected);
        assert_eq!(variants(&format!("--tokens {tokens} --tuned h200")), expected);
        let default = variants(&format!("--tokens {tokens} --tuned none"));
        assert_ne!(default, expected);
        assert_eq!(variants(&format!("--tokens {tokens} --target cuda:sm_100a")), default);
        // A variant that is named in full is that one.
        let named = place.say(&format!("show {} --json", default[0])).json();
        assert_eq!(of_all(&named, "variant"), default[..1]);
    }
}

#[test]
fn a_table_gives_its_values_and_set_wins() {
    let place = Place::new();
    let default = chosen(&place, "");
    assert_eq!(chosen(&place, "--tuned none"), default);
    // A record of other values than the defaults.
    let tuned = chosen(&place, "--set warps=4 --set group_warps=1");
    assert_ne!(tuned, default);
    place.write("t.toml", TABLE.replace("DISPATCH", &tuned[0]).replace("COMBINE", &tuned[1]));

    assert_eq!(chosen(&place, "--tuned t.toml"), tuned);
    let listed = place.say(&format!("list variants {SHAPE} --tuned t.toml --json")).json();
    assert_eq!(of_all(&listed, "selected"), tuned);
    for family in listed.as_array().unwrap() {
        let others = family["others"].as_array().unwrap();
        assert!(!others.is_empty() && !others.contains(&family["selected"]), "{}", family["family"]);
    }
    let set = chosen(&place, "--set warps=8 --tuned t.toml");
    assert_eq!(set, chosen(&place, "--set warps=8 --set group_warps=1"));
    // What does not go with the tuned values goes with the defaults.
    let with = "--set moe_dispatch.chunk=1";
    assert_eq!(
        chosen(&place, &format!("{with} --tuned t.toml")),
        chosen(&place, &format!("{with} --set warps=4 --set group_warps=1"))
    );
    let emitted = |target: &str, out: &str, tuned: &str| {
        place.say(&format!("generate {SHAPE} --target {target} --out {out} {tuned}"));
        let ran =
            place.say(&format!("generate {SHAPE} --target {target} --out {out} --check {tuned} --json"));
        ran.json()["files"].to_string()
    };
    assert!(emitted("cuda:sm_90a", "a", "--tuned t.toml").contains(&tuned[0]));
    // Of another architecture it says nothing.
    assert!(emitted("cuda:sm_80", "b", "--tuned t.toml").contains(&default[0]));
    assert!(emitted("cuda:sm_90a", "c", "").contains(&default[0]));
}
