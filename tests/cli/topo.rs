//! `peerwarp topo`, as far as it goes without GPUs.

use super::support::Place;

/// Two GPUs joined by four links, one of them only there.
const MACHINE: &str = r#"
schema = 1
name = "bench-top"
gpu = "a GPU"
gpus = 2

[times]
first_node_us = 4.0
next_node_us = 1.0
tail_us = 0.5

[[link]]
kind = "xgmi"
links = 4
gbps = 10.0
latency_us = 1.0
between = [["gpu0", "gpu1"]]
"#;

#[test]
fn machines_are_explained() {
    let place = Place::new();
    for (name, args) in [
        ("cube-mesh", "topo --machine dgx-1-cube-mesh --copy 200MiB --from 0 --to 1,2,4 --explain"),
        ("h200", "topo --machine h200-nvswitch-8"),
        ("pcie-pairs", "topo --machine pcie-pairs --explain"),
        ("mi300x", "topo --machine mi300x-xgmi-8"),
    ] {
        let ran = place.say(args);
        assert_eq!(ran.code, 0, "{}", ran.report());
        insta::assert_snapshot!(format!("topo-{name}"), ran.stdout);
    }
}

#[test]
fn nodes_of_a_machine_are_explained() {
    let place = Place::new();
    let ran = place.say("topo --machine h200-cx7-nodes");
    let (_, section) = ran.stdout.split_once("\nBetween ").unwrap_or_default();
    let lines: Vec<&str> = section.lines().take(6).map(str::trim).collect();
    assert_eq!(lines[0], "2 nodes of 8 GPUs: 8 rails, 1 ConnectX-7 a GPU", "{}", ran.report());
    let cells: Vec<&str> = lines[5].split_whitespace().collect();
    assert_eq!(cells, ["1.0", "MiB", "30.7", "39.1", "30.7"], "{}", ran.report());
    let json = place.say("topo --machine h200-cx7-nodes --json").json();
    assert_eq!((&json["nodes"]["count"], &json["nodes"]["nic"]["gbps"]), (&2.into(), &46.9.into()));
    assert!(place.say("topo --machine h200-nvswitch-8 --json").json()["nodes"].is_null());
}

#[test]
fn a_file_describes_a_machine_in_text_in_json_and_as_a_report() {
    let place = Place::new();
    place.write("m.toml", MACHINE);
    let ran = place.say("topo --machine m.toml --copy 40MB --to 1 --html out.html --json");
    assert_eq!(ran.code, 0, "{}", ran.report());
    let json = ran.json();
    assert_eq!(
        (&json["ok"], &json["machine"], &json["links"][0]["class"]),
        (&true.into(), &"bench-top".into(), &"XG4".into())
    );
    // A thousand microseconds of bytes, and one of latency.
    assert_eq!(json["copies"]["copies"][0]["alone_us"], 1001.0);
    let html = std::fs::read_to_string(place.path("out.html")).unwrap();
    assert!(
        html.contains("<h1>peerwarp topo: bench-top</h1>") && html.contains(r#""class":"XG4""#),
        "{html}"
    );
}

/// What was measured stands beside what is described.
#[test]
fn a_profile_is_shown_beside_a_machine() {
    let place = Place::new();
    place.write("m.toml", MACHINE);
    let pair = |from: u32, to: u32, stores: f64| {
        format!(
            "[[pair]]\nfrom = {from}\nto = {to}\nclass = \"XG4\"\npeer_access = true\npacket_us = 1.5\n\
             gbps = {{ stores = {stores:.1} }}\n"
        )
    };
    let gpu = "[[gpu]]\nname = \"a GPU\"\none_to_all = { stores = 38.0 }\nall_to_all = { stores = 37.0 }\n";
    let head = "schema = 1\ndriver = \"d\"\npeerwarp = \"0\"\nbytes = 1\n[times]\nfirst_node_us = 4.0\nnext_node_us = 1.0\ntail_us = 0.5\n";
    place.write("p.toml", format!("{head}{gpu}{gpu}{}{}", pair(0, 1, 38.0), pair(1, 0, 20.0)));
    insta::assert_snapshot!("topo-measured", place.say("topo --machine m.toml --profile p.toml").stdout);
    let alone = place.say("topo --profile p.toml");
    assert!(
        alone.stdout.contains("note     GPU 1 to GPU 0 gets 20.0 GB/s, and others of its class (XG4) 38.0"),
        "{}",
        alone.stdout
    );
    let ran = place.say("topo --machine h200-nvswitch-8 --profile p.toml");
    let said = "--machine = h200-nvswitch-8, of 8 GPUs: contradicts --profile p.toml, of 2 GPUs";
    assert!(ran.code == 2 && ran.stderr.contains(said), "{}", ran.report());
    // Other commands look at it before they look for GPUs.
    place.write("bad.toml", head);
    for command in ["bench --model glm-4.5 --ranks 2", "tune --model glm-4.5 --ranks 2"] {
        let ran = place.say(&format!("{command} --profile bad.toml"));
        assert!(ran.code == 2 && ran.stderr.contains("missing field `gpu`"), "{}", ran.report());
        let ran = place.say(&format!("{command} --profile none.toml"));
        assert!(ran.code == 2 && ran.stderr.contains("--profile = none.toml: "), "{}", ran.report());
    }
}

/// Cards that were listed stand in a profile, and a profile of before is read.
#[test]
fn cards_of_a_profile_are_shown() {
    let place = Place::new();
    let pair = |from: u32, to: u32| {
        format!(
            "[[pair]]\nfrom = {from}\nto = {to}\nclass = \"PIX\"\npeer_access = true\ngbps = {{ stores = 20.0 }}\n"
        )
    };
    let gpu = "[[gpu]]\nname = \"a GPU\"\none_to_all = { stores = 20.0 }\nall_to_all = { stores = 20.0 }\n";
    let head = "schema = 1\ndriver = \"d\"\npeerwarp = \"0\"\nbytes = 1\n[times]\nfirst_node_us = 4.0\nnext_node_us = 1.0\ntail_us = 0.5\n";
    let old = format!("{head}{gpu}{gpu}{}{}", pair(0, 1), pair(1, 0));
    let card = "[[card]]\nname = \"mlx5_0\"\ngbit = 400.0\nlayer = \"InfiniBand\"\nis_active = true\nto_gpus = [\"PIX\", \"SYS\"]\n";
    place.write("old.toml", &old);
    place.write("p.toml", old.clone() + card);
    assert!(!place.say("topo --profile old.toml").stdout.contains("Network cards"));
    let ran = place.say("topo --profile p.toml");
    let row = ran.stdout.lines().find(|line| line.starts_with("mlx5_0")).unwrap_or_default();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["mlx5_0", "400", "InfiniBand", "active", "PIX", "SYS"], "{}", ran.report());
    assert_eq!(place.say("topo --profile p.toml --json").json()["measured"]["card"][0]["gbit"], 400.0);
}

/// The figures, and that they are called a prediction; the model's own tests say which they are.
#[test]
fn what_is_predicted_is_called_so() {
    let place = Place::new();
    let ran = place.say("topo --predict");
    assert_eq!(ran.code, 0, "{}", ran.report());
    assert!(
        ran.stdout.starts_with("Prediction: MoE of DeepSeek-V3 between nodes, 128 tokens"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("note     a prediction: no network card was used"), "{}", ran.stdout);
    let json = place.say("topo --predict --json").json();
    let tables = &json["predicted"][0]["tables"];
    assert_eq!((tables[0]["rows"].as_array().unwrap().len(), json["ok"].as_bool()), (9, Some(true)));
}

#[test]
fn mistakes_are_told_with_what_is_allowed() {
    let place = Place::new();
    place.write("m.toml", MACHINE.replace("links = 4", "links = 0"));
    for (args, said) in [
        (
            "topo --machine dgx",
            "--machine = dgx: no such name\n  allowed: dgx-1-cube-mesh, h200-cx7-nodes, h200-nvswitch-8, mi300x-xgmi-8, pcie-pairs or a FILE.toml",
        ),
        ("topo --machine m.toml", "m.toml: link 1.links = 0: not allowed\n  allowed: 1 to 64"),
        ("topo --machine none.toml", "--machine = none.toml: No such file"),
        ("topo --machine pcie-pairs --copy 1XB --to 1", "--copy = 1XB: not allowed\n  allowed: 1 to "),
        (
            "topo --machine pcie-pairs --copy 1MB --to 8",
            "--to = 8: not allowed\n  allowed: 0 to 7, the GPUs of pcie-pairs",
        ),
        ("topo --machine pcie-pairs --copy 1MB --from 9 --to 1", "--from = 9: not allowed"),
        (
            "topo --machine pcie-pairs --copy 1MB --from 1 --to 1",
            "--to = 1: not allowed\n  allowed: GPUs other than --from 1",
        ),
        ("topo --machine pcie-pairs --copy 1MB --to 1,1", "--to = 1: not allowed"),
        (
            "topo --machine pcie-pairs --save p.toml",
            "--save = p.toml: contradicts --machine, for nothing is measured",
        ),
        ("topo --machine pcie-pairs --html no/folder.html", "--html = no/folder.html: "),
        ("topo --predict --machine pcie-pairs", "'--predict' cannot be used with '--machine"),
        ("topo --bytes 1GiB", "--bytes = 1GiB: not allowed\n  allowed: 4 to 268435456 bytes"),
        ("topo --wait-budget 0", "--wait-budget = 0: not allowed"),
    ] {
        let ran = place.say(args);
        assert!(
            ran.code == 2 && ran.stdout.is_empty() && ran.stderr.contains(said),
            "{said}\n{}",
            ran.report()
        );
    }
}

#[test]
fn without_gpus_the_error_says_what_is_missing() {
    if peerwarp::runtime::cuda::gpus().is_ok() {
        return eprintln!("skipped: there are GPUs");
    }
    let place = Place::new();
    let ran = place.say("topo --save p.toml");
    assert_eq!((ran.code, ran.stdout.as_str(), place.names().len()), (2, "", 0), "{}", ran.report());
    assert!(ran.stderr.contains("driver"), "{}", ran.stderr);
}
