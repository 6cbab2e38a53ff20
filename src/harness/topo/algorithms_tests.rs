use super::super::Description;
use super::*;

fn machine(name: &str) -> Network {
    Network::from(&Description::named("--machine", name).unwrap())
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-6 * want.max(1.0), "{got} is not {want}");
}

/// By hand, for n ranks behind a switch of 360 GB/s each way, 0.8 us a hop, 4.4 us for the first launch, 0.7 for another one.
#[test]
fn times_are_launches_hops_and_bytes_over_the_busiest_link() {
    let network = machine("h200-nvswitch-8");
    let bytes = 360_000_000;
    // Microseconds of all bytes over one link.
    let all = 1000.0;
    let us = |algorithm, world| predict(&network, algorithm, world, bytes).unwrap().us;
    for n in [2, 4, 8] {
        let others = n as f64 - 1.0;
        near(us(Algorithm::OneShot, n), 4.9 + 0.8 + others * all);
        near(us(Algorithm::TwoShot, n), 4.9 + 2.0 * (0.8 + others / n as f64 * all));
        near(us(Algorithm::Ring, n), 4.9 + 2.0 * others * (0.8 + all / n as f64));
        near(us(Algorithm::Tree, n), 4.9 + 2.0 * f64::from(n.ilog2()) * (0.8 + all));
        near(us(Algorithm::ReduceScatterThenAllGather, n), us(Algorithm::TwoShot, n) + 0.7 + 0.5);
        near(us(Algorithm::ReduceThenBroadcast, n), 6.1 + 2.0 * (0.8 + others * all));
    }
    // Five ranks: 1 and 3 meet 0 and 2, then 2 meets 0, then 4 meets 0.
    near(us(Algorithm::Tree, 5), 4.9 + 6.0 * (0.8 + all));
    let shot = predict(&network, Algorithm::TwoShot, 8, 8000).unwrap();
    assert_eq!(
        (shot.steps, shot.launches, shot.busiest.as_str(), shot.staged),
        (2, 1, "gpu0 -> nvswitch", false)
    );
    near(shot.busiest_bytes, 14_000.0);
}

#[test]
fn steps_win_where_bytes_are_few_and_bytes_where_they_are_many() {
    let network = machine("h200-nvswitch-8");
    let ranges = fastest(&network, 8).unwrap();
    let names: Vec<&str> = ranges.iter().map(|r| r.algorithm.name()).collect();
    assert_eq!(names, ["one-shot", "two-shot"]);
    assert_eq!((ranges[0].from, ranges[1].up_to), (1024, None));
    // 0.8 + 7 t = 2 (0.8 + 7/8 t): t = 0.8 / 5.25 us, at 360 GB/s.
    let crossing = 0.8 / 5.25 * 360e3;
    assert!((ranges[1].from as f64 / crossing - 1.0).abs() < 0.02, "{ranges:?}, {crossing}");
    assert!(ranges[0].up_to.is_some_and(|b| b < ranges[1].from));
    // Of two ranks one-shot sends as much as two-shot, in one step.
    assert_eq!(fastest(&network, 2).unwrap().len(), 1);
}

/// Where the links between neighbours are the wide ones, bytes go round.
#[test]
fn a_ring_wins_where_neighbours_have_links_of_their_own() {
    for name in ["dgx-1-cube-mesh", "pcie-pairs"] {
        let network = machine(name);
        let last = fastest(&network, 8).unwrap().pop().unwrap();
        assert_eq!(last.algorithm, Algorithm::Ring, "{name}");
    }
    // No kernel gets from GPU 0 to GPU 2: all but ring are staged there.
    let mesh = machine("dgx-1-cube-mesh");
    let staged = |algorithm| predict(&mesh, algorithm, 8, 1024).unwrap().staged;
    assert_eq!(Algorithm::ALL.map(staged), [true, true, false, true, true, true]);
    assert_eq!(fastest(&mesh, 8).unwrap().len(), 1);
}

#[test]
fn times_grow_with_bytes() {
    for name in super::super::builtin() {
        let network = machine(name);
        for algorithm in Algorithm::ALL {
            let us = |bytes: u64| predict(&network, algorithm, 8, bytes).unwrap().us;
            let times: Vec<f64> = (10..31).map(|power| us(1 << power)).collect();
            assert!(times.windows(2).all(|t| t[0] < t[1]), "{name} {algorithm:?}: {times:?}");
        }
    }
}

#[test]
fn worlds_are_powers_of_two_and_all() {
    assert_eq!(worlds(8), [2, 4, 8]);
    assert_eq!(worlds(6), [2, 4, 6]);
    assert_eq!(worlds(2), [2]);
    assert_eq!(worlds(64), [2, 4, 8, 16, 32, 64]);
}
