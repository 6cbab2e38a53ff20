use super::super::measure::tests::measured;
use super::super::{Description, copies};
use super::*;
use crate::harness::html::tests::{assert_alone, embedded, shown};

#[test]
fn json_has_predictions_beside_measurements() {
    let network = Network::from(&Description::named("--machine", "pcie-pairs").unwrap());
    let mut topo = Topo::new(&network, Some(measured("pcie-pairs")));
    topo.copies = Some(copies(&network, 0, &[1, 4], 1 << 20).unwrap());
    let json = serde_json::to_value(&topo).unwrap();
    let link = &json["links"][3];
    assert_eq!((&link["from"], &link["to"], &link["class"]), (&0.into(), &4.into(), &"SYS".into()));
    assert_eq!(link["gbps"], 20.0);
    let stores = link["measured"]["gbps"]["stores"].as_f64().unwrap();
    assert!((stores - 0.97 * 20.0).abs() < 0.01, "{stores}");
    assert_eq!(json["sums"][2]["world"], 8);
    assert_eq!(json["copies"]["copies"][0]["class"], "NV4");
    assert!(json["notes"][0].as_str().unwrap().starts_with("not measured: loads"), "{}", json["notes"]);
}

#[test]
fn matrices_are_of_the_model_and_of_each_way_that_was_measured() {
    let network = Network::from(&Description::named("--machine", "pcie-pairs").unwrap());
    let profile = measured("pcie-pairs");
    let titles = |topo: &Topo| topo.tables().into_iter().map(|t| t.title).collect::<Vec<_>>();
    let model = ["Links", "GB/s by the model", "Latency by the model, us"];
    assert_eq!(titles(&Topo::new(&network, None)), model);
    let ways = [
        "GB/s measured, stores",
        "GB/s measured, bulk",
        "GB/s measured, copies",
        "Latency measured, us: a packet",
        "Latency measured, us: a word and its flag",
    ];
    assert_eq!(titles(&Topo::new(&network, Some(profile.clone()))), [&model[..], &ways].concat());
    // What was only measured has no other model.
    let own = Topo::new(&Network::from(&profile), Some(profile));
    assert_eq!(titles(&own), [&model[..1], &ways].concat());
    assert_eq!(own.tables()[1].rows[0][..3], ["", "50.8", "24.2"]);
}

#[test]
fn a_report_is_one_file_that_embeds_the_machine_and_draws_it() {
    let network = Network::from(&Description::named("--machine", "dgx-1-cube-mesh").unwrap());
    let mut topo = Topo::new(&network, Some(measured("dgx-1-cube-mesh")));
    topo.copies = Some(copies(&network, 0, &[1, 2, 4], 200 << 20).unwrap());
    topo.about += " </script><b>";
    let page = html(&topo);
    assert_alone(&page);
    let json = embedded(&page);
    assert_eq!(json["topo"], serde_json::to_value(&topo).unwrap());
    assert_eq!(json["tables"], serde_json::to_value(topo.tables()).unwrap());
    let Some(shown) = shown(&page) else { return };
    for text in ["GB/s measured, copies", "Sums over 8 GPUs", "one-shot"] {
        assert!(shown.lines().any(|line| line == text), "{text}: {shown}");
    }
}

#[test]
fn a_report_says_what_puts_between_nodes_take() {
    let network = Network::from(&Description::named("--machine", "h200-cx7-nodes").unwrap());
    let page = html(&Topo::new(&network, None));
    let Some(shown) = shown(&page) else { return };
    for text in ["Between 2 nodes, us", "By the model: no network card was used.", "locally complete"] {
        assert!(shown.lines().any(|line| line == text), "{text}: {shown}");
    }
}
