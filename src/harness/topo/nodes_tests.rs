use super::super::describe::Description;
use super::super::describe::tests::SMALL;
use super::*;

/// Three nodes of two GPUs, which share two cards.
const NODES: &str = r#"
[nodes]
count = 3
rails = 1

[nodes.nic]
name = "a card"
per_rail = 2
gbps = 10.0
put_us = 3.0
count_us = 1.5
puts_per_us = 4.0
"#;

fn described(nodes: &str) -> Result<Description, String> {
    Description::parse(&format!("{SMALL}{nodes}"), "m.toml").map_err(|e| e.to_string())
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-9 * want.abs(), "{got} is not {want}");
}

#[test]
fn gpus_share_the_cards_of_their_rail() {
    let nodes = described(NODES).unwrap().nodes.unwrap();
    near(nodes.cards_a_gpu(2), 1.0);
    let (alone, all) = (nodes.path_alone(), nodes.path(2));
    assert_eq!((alone.gbps, alone.puts_per_us, all.gbps, all.puts_per_us), (20.0, 8.0, 10.0, 4.0));
    let between = Between::new(&nodes, 2);
    let large = between.puts.last().unwrap();
    let bytes = f64::from(64 << 20);
    near(large.arrive_us, bytes / 20e3 + 4.5);
    near(large.settle_us, bytes / 20e3 + 6.0);
    near(large.all_arrive_us, bytes / 10e3 + 4.5);
    near(between.credit_us, 1.0 / 8.0 + 4.5);
}

#[test]
fn a_description_without_nodes_is_read_as_before() {
    assert_eq!(described("").unwrap().nodes, None);
    // A card of each rail is what is meant where nothing is said.
    let nodes = described(&NODES.replace("per_rail = 2\n", "")).unwrap().nodes.unwrap();
    assert_eq!(nodes.nic.per_rail, 1);
}

#[test]
fn mistakes_are_named_with_field_value_and_what_is_allowed() {
    for (part, other, said) in [
        ("count = 3", "count = 1", "m.toml: nodes.count = 1: not allowed\n  allowed: 2 to 512"),
        ("count = 3", "count = 513", "m.toml: nodes.count = 513: not allowed\n  allowed: 2 to 512"),
        ("rails = 1", "rails = 0", "m.toml: nodes.rails = 0: not allowed\n  allowed: a number that divides"),
        ("rails = 1", "rails = 3", "m.toml: nodes.rails = 3: not allowed"),
        ("\"a card\"", "\"\"", "m.toml: nodes.nic.name = \"\": not allowed"),
        ("per_rail = 2", "per_rail = 17", "m.toml: nodes.nic.per_rail = 17: not allowed\n  allowed: 1 to 16"),
        ("gbps = 10.0", "gbps = 0.0", "m.toml: nodes.nic.gbps = 0: not allowed"),
        ("put_us = 3.0", "put_us = -1.0", "m.toml: nodes.nic.put_us = -1: not allowed"),
        ("count_us = 1.5", "count_us = nan", "m.toml: nodes.nic.count_us = NaN: not allowed"),
        (
            "puts_per_us = 4.0",
            "puts_per_us = inf",
            "m.toml: nodes.nic.puts_per_us = inf: not allowed\n  allowed: 0.001",
        ),
        ("count_us = 1.5\n", "", "missing field `count_us`"),
        ("rails = 1", "rails = 1\nswitches = 2", "unknown field `switches`"),
    ] {
        assert!(NODES.contains(part), "{part}");
        let error = described(&NODES.replacen(part, other, 1)).unwrap_err();
        assert!(error.contains(said), "{error}\n\nlacks\n\n{said}");
    }
}
