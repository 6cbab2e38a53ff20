use super::super::measure::tests::measured;
use super::super::predict::patterns;
use super::super::{Description, Profile};
use super::*;

fn said(network: &Network) -> Vec<String> {
    notes(network, patterns(network).ok().as_ref())
}

fn described(name: &str) -> Network {
    Network::from(&Description::named("--machine", name).unwrap())
}

#[test]
fn nothing_is_said_of_a_machine_that_is_as_it_should_be() {
    for name in ["h200-nvswitch-8", "mi300x-xgmi-8", "pcie-pairs"] {
        assert_eq!(said(&described(name)), [""; 0], "{name}");
    }
}

#[test]
fn gpus_that_do_not_reach_each_other_are_named_with_those_that_do() {
    let notes = said(&described("dgx-1-cube-mesh"));
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("GPUs 0 and 2, 0 and 5, 0 and 6, 1 and 3, "), "{notes:?}");
    assert!(
        notes[0].contains("and 6 more pairs have no access")
            && notes[0].contains("GPUs 0,3,4,7 can form a world"),
        "{notes:?}"
    );
}

#[test]
fn one_slow_link_is_found() {
    let mut profile: Profile = measured("h200-nvswitch-8");
    assert_eq!(said(&Network::from(&profile)), [""; 0]);
    let pair = profile.pairs.iter_mut().find(|p| (p.from, p.to) == (3, 5)).unwrap();
    pair.gbps = super::super::Rates { stores: Some(12.0), ..super::super::Rates::default() };
    let notes = said(&Network::from(&profile));
    assert!(
        notes[0].starts_with("GPU 3 to GPU 5 gets 12.0 GB/s, and others of its class (NVS18) 349."),
        "{notes:?}"
    );
    // All to all ends with it.
    assert!(notes[1].starts_with("while all send to all, GPU 3 gets 84.0 GB/s"), "{notes:?}");
}

#[test]
fn other_kinds_of_gpus_are_named() {
    let mut network = described("h200-nvswitch-8");
    network.gpus[5] = "NVIDIA H100".into();
    let notes = said(&network);
    assert!(notes[0].starts_with("GPU 5 is NVIDIA H100 and GPU 0 is NVIDIA H200: "), "{notes:?}");
}

#[test]
fn pairs_without_a_path_are_listed() {
    let mut network = described("h200-nvswitch-8");
    network.routes[1][2] = None;
    let notes = said(&network);
    assert_eq!(notes[0], "there is no path between GPUs 1 and 2");
}
