use super::super::measure::tests::measured;
use super::*;
use crate::harness::bench::H200;

fn text() -> String {
    measured("h200-nvswitch-8").text()
}

#[test]
fn a_profile_is_read_as_it_was_written() {
    for name in super::super::builtin() {
        let profile = measured(name);
        assert_eq!(Profile::parse(&profile.text(), "p.toml").unwrap(), profile, "{name}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    let profile = measured("h200-nvswitch-8");
    std::fs::write(&path, profile.text()).unwrap();
    assert_eq!(Profile::read("--profile", &path).unwrap(), profile);
}

#[test]
fn a_profile_of_before_there_were_cards_is_read() {
    let mut old = measured("h200-nvswitch-8");
    old.cards.clear();
    assert!(!old.text().contains("card"), "{}", old.text());
    assert_eq!(Profile::parse(&old.text(), "p.toml").unwrap(), old);
}

#[test]
fn mistakes_are_named_with_field_value_and_what_is_allowed() {
    let text = text();
    for (part, other, said) in [
        ("schema = 1", "schema = 3", "p.toml: schema = 3: not allowed"),
        (
            "from = 0\nto = 1\n",
            "from = 0\nto = 0\n",
            "p.toml: pair 1 = 0 to 0: not allowed\n  allowed: two of 8 GPUs, once",
        ),
        ("from = 0\nto = 2\n", "from = 0\nto = 1\n", "p.toml: pair 2 = 0 to 1: not allowed"),
        ("from = 0\nto = 2\n", "from = 0\nto = 8\n", "p.toml: pair 2 = 0 to 8: not allowed"),
        ("packet_us = 0.8", "packet_us = -0.8", "p.toml: pair 1.packet_us = -0.8: not allowed"),
        ("signal_us = 1.4", "signal_us = inf", "p.toml: pair 1.signal_us = inf: not allowed"),
        ("first_node_us = 4.4", "first_node_us = nan", "p.toml: times.first_node_us = NaN: not allowed"),
        ("next_node_us = 0.7", "next_node_us = -1.0", "p.toml: times.next_node_us = -1: not allowed"),
        ("tail_us = 0.5", "tail_us = -1.0", "p.toml: times.tail_us = -1: not allowed"),
        ("name = \"mlx5_0\"", "name = \"\"", "p.toml: card 1.name = \"\": not allowed"),
        ("gbit = 400.0", "gbit = -1.0", "p.toml: card 1.gbit = -1: not allowed"),
        (
            "\"PIX\", \"SYS\"",
            "\"PIX\"",
            "p.toml: card 1.to_gpus = 7: not allowed\n  allowed: 8, one for each GPU",
        ),
        ("class = \"NVS18\"", "class = \"NVS99\"", "is no class of links, which are NV1"),
        ("driver = ", "drivers = ", "unknown field `drivers`"),
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
        let error = Profile::parse(&text.replacen(part, other, 1), "p.toml").unwrap_err().to_string();
        assert!(error.contains(said), "{error}\n\nlacks\n\n{said}");
    }
    let mut profile = measured("h200-nvswitch-8");
    profile.pairs.pop();
    let error = Profile::parse(&profile.text(), "p.toml").unwrap_err().to_string();
    assert!(
        error.contains("p.toml: pair = 55: not allowed\n  allowed: 56, all ordered pairs of 8 GPUs"),
        "{error}"
    );
    profile.pairs[3].gbps.bulk = Some(0.0);
    let error = Profile::parse(&profile.text(), "p.toml").unwrap_err().to_string();
    assert!(error.contains("p.toml: pair 4.gbps.bulk = 0: not allowed"), "{error}");
    profile.gpus[1].all_to_all.stores = Some(-1.0);
    let error = Profile::parse(&profile.text(), "p.toml").unwrap_err().to_string();
    assert!(error.contains("p.toml: gpu 1.all_to_all.stores = -1: not allowed"), "{error}");
    profile.gpus.truncate(1);
    let error = Profile::parse(&profile.text(), "p.toml").unwrap_err().to_string();
    assert!(error.contains("p.toml: gpu = 1: not allowed\n  allowed: 2 to 64 GPUs"), "{error}");
}

#[test]
fn limits_are_the_best_that_kernels_reach() {
    let mut profile = measured("h200-nvswitch-8");
    for (at, pair) in profile.pairs.iter_mut().enumerate() {
        pair.gbps = Rates {
            stores: Some(340.0),
            bulk: Some(350.0 + at as f64 / 10.0),
            copies: Some(380.0),
            loads: None,
        };
        pair.packet_us = Some(0.9 - at as f64 / 1000.0);
    }
    profile
        .gpus
        .iter_mut()
        .for_each(|g| g.all_to_all = Rates { stores: Some(343.0), copies: Some(377.0), ..Rates::default() });
    let limits = profile.limits("--profile").unwrap();
    assert!(
        (limits.one_peer_gbps - 355.5).abs() < 1e-9 && (limits.hop_us - 0.845).abs() < 1e-9,
        "{limits:?}"
    );
    let rest = (limits.first_node_us, limits.next_node_us, limits.tail_us, limits.all_peers_gbps);
    assert_eq!(rest, (H200.first_node_us, H200.next_node_us, H200.tail_us, 343.0));
    let error = measured("dgx-1-cube-mesh").limits("--profile").unwrap_err().to_string();
    assert!(error.contains("--profile = no rates of kernels: not allowed"), "{error}");
}

#[test]
fn a_profile_is_of_gpus_of_the_same_names() {
    let profile = measured("h200-nvswitch-8");
    profile.check_ranks("--profile", 8).unwrap();
    let error = profile.check_ranks("--profile", 9).unwrap_err().to_string();
    assert_eq!(error, "--profile = 8 GPUs: not allowed\n  allowed: a profile of 9 GPUs or more");
    profile.check_gpu("--profile", 7, "NVIDIA H200").unwrap();
    profile.check_gpu("--profile", 8, "NVIDIA H200").unwrap_err();
    let error = profile.check_gpu("--profile", 1, "NVIDIA H100").unwrap_err().to_string();
    assert!(
        error.contains("--profile = NVIDIA H200: contradicts rank 1, whose GPU is NVIDIA H100"),
        "{error}"
    );
}
