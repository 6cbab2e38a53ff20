use super::super::describe::tests::SMALL;
use super::*;

fn machine(name: &str) -> Network {
    Network::from(&Description::named("--machine", name).unwrap())
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-6 * want.max(1.0), "{got} is not {want}");
}

fn all(from: usize, to: impl IntoIterator<Item = usize>, bytes: f64) -> Vec<Transfer> {
    to.into_iter().map(|to| Transfer { from, to, bytes }).collect()
}

/// The question that this room is to answer: copies of one tensor from GPU 0 to GPUs 1, 2 and 4 last 4.5, 53.2 and 8.8 ms.
#[test]
fn copies_over_two_links_across_sockets_and_over_one() {
    let mesh = machine("dgx-1-cube-mesh");
    let bytes = f64::from(200 << 20);
    for (to, class, staged, stops, measured) in [
        (1, LinkClass::NvLink(2), false, "gpu0 gpu1", 4.5),
        (2, LinkClass::Sockets, true, "gpu0 switch0 cpu0 cpu1 switch2 gpu2", 53.2),
        (4, LinkClass::NvLink(1), false, "gpu0 gpu4", 8.8),
    ] {
        let route = mesh.route(0, to).unwrap();
        assert_eq!(
            (route.class, route.staged_gbps.is_some(), route.stops.join(" ").as_str()),
            (class, staged, stops)
        );
        let ms = mesh.ends(&all(0, [to], bytes)).unwrap()[0] / 1e3;
        assert!((ms - measured).abs() < 0.03 * measured, "{ms} ms to GPU {to}, and {measured} were measured");
    }
}

#[test]
fn a_cube_mesh_has_six_links_a_gpu_and_three_strangers() {
    let mesh = machine("dgx-1-cube-mesh");
    for from in 0..8 {
        let mut links = [0; 3];
        for to in (0..8).filter(|&to| to != from) {
            let (there, back) = (mesh.route(from, to).unwrap(), mesh.route(to, from).unwrap());
            assert_eq!(there.class, back.class);
            match there.class {
                LinkClass::NvLink(n) => links[n as usize] += 1,
                _ => links[0] += 1,
            }
        }
        assert_eq!(links, [3, 2, 2], "of GPU {from}");
        assert!(matches!(mesh.route(from, (from + 1) % 8).unwrap().class, LinkClass::NvLink(_)), "a ring");
    }
}

#[test]
fn links_that_are_shared_are_shared() {
    // Four GPUs under one switch send to the four under the other one: all go over one link to the CPU.
    let pairs = machine("pcie-pairs");
    let crossing: Vec<Transfer> = (0..4).map(|i| Transfer { from: i, to: i + 4, bytes: 1e6 }).collect();
    let rates =
        |n: &Network, transfers: &[Transfer]| flow::rates(&n.capacities(), &n.flows(transfers).unwrap());
    let crossed = rates(&pairs, &crossing);
    crossed.iter().for_each(|&rate| near(rate, 5.0));
    near(pairs.gbps(0, 4).unwrap(), 20.0);
    assert_eq!([1, 2, 4].map(|to| pairs.route(0, to).unwrap().class.to_string()), ["NV4", "PIX", "SYS"]);
    // A GPU's links to the NVSwitch are for all its peers together; those of a full mesh are each for one.
    let (switched, meshed) = (machine("h200-nvswitch-8"), machine("mi300x-xgmi-8"));
    let sum = |n: &Network| rates(n, &all(0, 1..8, 1e6)).iter().sum::<f64>();
    near(sum(&switched), 360.0);
    near(switched.gbps(0, 5).unwrap(), 360.0);
    near(sum(&meshed), 7.0 * 48.0);
    near(meshed.gbps(0, 5).unwrap(), 48.0);
    near(switched.route(0, 1).unwrap().latency_us, 0.8);
}

#[test]
fn links_for_gpus_come_before_wider_ones_of_the_host() {
    // PCIe 5.0 is wider than one xGMI link, and goes through the CPU.
    assert_eq!(machine("mi300x-xgmi-8").route(0, 1).unwrap().class, LinkClass::Xgmi(1));
}

#[test]
fn directions_are_apart_and_strangers_have_no_path() {
    let one_way = SMALL.replace(
        "between = [[\"gpu0\", \"s\"], [\"gpu1\", \"s\"]]",
        "between = [[\"gpu0\", \"s\"], [\"s\", \"gpu1\"]]\none_way = true",
    );
    let network = Network::from(&Description::parse(&one_way, "m.toml").unwrap());
    near(network.gbps(0, 1).unwrap(), 10.0);
    assert_eq!(network.gbps(1, 0), Err(NoPath { from: 1, to: 0 }));
    assert_eq!(
        network.ends(&all(1, [0], 1.0)).unwrap_err().to_string(),
        "there is no path from GPU 1 to GPU 0"
    );
    // There and back at once, each at full speed.
    let both = Network::from(&Description::parse(SMALL, "m.toml").unwrap());
    let there_and_back = [all(0, [1], 1e6), all(1, [0], 1e6)].concat();
    both.ends(&there_and_back).unwrap().into_iter().for_each(|us| near(us, 101.0));
}
