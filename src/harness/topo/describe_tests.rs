use peerwarp_codegen::device::Device;

use super::*;

/// Two GPUs under a switch.
pub(in crate::harness::topo) const SMALL: &str = r#"
schema = 1
name = "small"
gpu = "a GPU"
gpus = 2

[times]
first_node_us = 4.0
next_node_us = 1.0
tail_us = 0.5

[[hub]]
kind = "pcie-switch"
names = ["s"]

[[link]]
kind = "pcie"
gbps = 10.0
latency_us = 0.5
between = [["gpu0", "s"], ["gpu1", "s"]]
"#;

#[test]
fn machines_that_come_with_the_program_are_read() {
    for name in builtin() {
        let machine = Description::named("--machine", name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((machine.name.as_str(), machine.gpus), (name, 8));
    }
    assert!(Description::parse(SMALL, "small.toml").is_ok());
}

/// The table of devices and the description of eight of them have the same links.
#[test]
fn links_of_mi300x_are_those_of_the_table() {
    let machine = Description::named("--machine", "mi300x-xgmi-8").unwrap();
    let mesh = Device::of("hip:gfx942".parse().unwrap()).mesh.unwrap();
    let own = |links: &&Links| links.kind == LinkKind::Xgmi;
    let links: Vec<&Links> = machine.links.iter().filter(own).collect();
    assert_eq!(links.len(), 1);
    let of_one = links[0].between.iter().filter(|(a, b)| a == "gpu0" || b == "gpu0").count();
    assert_eq!((of_one as u32, links[0].nominal_gbps), (mesh.peers, Some(mesh.sold_gbps)));
    assert_eq!(Some(links[0].gbps), mesh.seen_gbps);
    assert_eq!(links[0].between.len() as u32, machine.gpus * mesh.peers / 2);
}

/// What is said when a part of the small machine is something else.
fn refused(part: &str, other: &str) -> String {
    assert!(SMALL.contains(part), "{part}");
    Description::parse(&SMALL.replace(part, other), "m.toml").unwrap_err().to_string()
}

#[test]
fn mistakes_are_named_with_field_value_and_what_is_allowed() {
    for (part, other, said) in [
        ("schema = 1", "schema = 2", "m.toml: schema = 2: not allowed\n  allowed: 1, the version"),
        ("schema = 1\n", "", "m.toml: schema is missing\n  allowed: 1"),
        ("gpus = 2", "gpus = 1", "m.toml: gpus = 1: not allowed\n  allowed: 2 to 64"),
        ("gpus = 2", "gpus = 65", "m.toml: gpus = 65: not allowed"),
        ("\"small\"", "\" \"", "m.toml: name = \" \": not allowed"),
        ("\"a GPU\"", "\"a\\nb\"", "m.toml: gpu = \"a\\nb\": not allowed"),
        (
            "tail_us = 0.5",
            "tail_us = -1.0",
            "m.toml: times.tail_us = -1: not allowed\n  allowed: 0 to 1000000 micro",
        ),
        ("tail_us = 0.5", "tail_us = nan", "m.toml: times.tail_us = NaN: not allowed"),
        ("gbps = 10.0", "gbps = 0.0", "m.toml: link 1.gbps = 0: not allowed\n  allowed: 0.001 to"),
        ("gbps = 10.0", "gbps = inf", "m.toml: link 1.gbps = inf: not allowed"),
        ("gbps = 10.0", "gbps = 1.0\nstaged_gbps = -2.0", "m.toml: link 1.staged_gbps = -2: not allowed"),
        ("gbps = 10.0", "gbps = 1.0\nnominal_gbps = 0.0", "m.toml: link 1.nominal_gbps = 0: not allowed"),
        ("gbps = 10.0", "gbps = 1.0\nlinks = 0", "m.toml: link 1.links = 0: not allowed\n  allowed: 1 to 64"),
        ("latency_us = 0.5", "latency_us = -0.5", "m.toml: link 1.latency_us = -0.5: not allowed"),
        (
            "\"gpu1\", \"s\"",
            "\"gpu2\", \"s\"",
            "m.toml: link 1.between = gpu2: no such name\n  allowed: gpu0, gpu1, s",
        ),
        (
            "\"gpu1\", \"s\"",
            "\"gpu1\", \"gpu0\"",
            "m.toml: link 1.between = gpu1, gpu0: not allowed\n  allowed: GPUs, PCIe",
        ),
        (
            "\"gpu1\", \"s\"",
            "\"s\", \"gpu0\"",
            "m.toml: link 1.between = s, gpu0: not allowed\n  allowed: two ends",
        ),
        (
            "\"gpu1\", \"s\"",
            "\"s\", \"s\"",
            "m.toml: link 1.between = s, s: not allowed\n  allowed: two ends",
        ),
        (
            "kind = \"pcie\"",
            "kind = \"nvlink\"",
            "m.toml: link 1.between = gpu0, s: not allowed\n  allowed: two GPUs, or",
        ),
        ("kind = \"pcie\"", "kind = \"xgmi\"", "allowed: two GPUs, for xgmi"),
        ("kind = \"pcie\"", "kind = \"socket\"", "allowed: two hubs of kind socket"),
        ("names = [\"s\"]", "names = [\"s\", \"s\"]", "m.toml: hub.names = s: contradicts another hub"),
        ("names = [\"s\"]", "names = [\"gpu7\", \"s\"]", "m.toml: hub.names = \"gpu7\": not allowed"),
        ("name = ", "nmae = ", "unknown field `nmae`"),
        ("gpus = 2", "gpus = ", "m.toml: TOML parse error"),
    ] {
        let error = refused(part, other);
        assert!(error.contains(said), "{error}\n\nlacks\n\n{said}");
    }
}

#[test]
fn names_and_files_are_told_from_each_other() {
    let said = |name: &str| Description::named("--machine", name).unwrap_err().to_string();
    let error = said("dgx1-cube-mesh");
    assert!(
        error.contains("--machine = dgx1-cube-mesh: no such name")
            && error.contains("did you mean: dgx-1-cube-mesh")
    );
    assert!(error.contains("or a FILE.toml"), "{error}");
    assert!(said("there-is-no.toml").starts_with("--machine = there-is-no.toml: "));
}
