use proptest::prelude::*;

use super::*;

fn flow(path: &[usize], bytes: f64) -> Flow {
    Flow { path: path.to_vec(), most: f64::INFINITY, bytes }
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{got} is not {want}");
}

#[test]
fn a_link_is_shared_evenly_and_what_is_left_goes_to_others() {
    // Two flows over a narrow link, one of which also crosses a wide one with a third.
    let got = rates(&[10.0, 100.0], &[flow(&[0], 1.0), flow(&[0, 1], 1.0), flow(&[1], 1.0)]);
    [5.0, 5.0, 95.0].iter().zip(&got).for_each(|(want, got)| near(*got, *want));
    let bound = Flow { most: 2.0, ..flow(&[0], 1.0) };
    let got = rates(&[10.0], &[bound, flow(&[0], 1.0)]);
    [2.0, 8.0].iter().zip(&got).for_each(|(want, got)| near(*got, *want));
}

#[test]
fn what_one_leaves_the_others_take() {
    // At 5 GB/s each, the shorter one ends at 200 us; the longer one has 1 MB left, at 10 GB/s.
    let got = ends(&[10.0], &[flow(&[0], 1e6), flow(&[0], 2e6), flow(&[0], 0.0)]);
    [200.0, 300.0, 0.0].iter().zip(&got).for_each(|(want, got)| near(*got, *want));
}

prop_compose! {
    fn networks()(capacities in prop::collection::vec(0.5f64..500.0, 1..8))
        (paths in prop::collection::vec((prop::collection::btree_set(0..capacities.len(), 1..=capacities.len()),
            prop_oneof![Just(f64::INFINITY), 0.5f64..200.0], 1e3f64..1e8), 1..12), capacities in Just(capacities))
        -> (Vec<f64>, Vec<Flow>)
    {
        let flow = |(path, most, bytes): (std::collections::BTreeSet<usize>, f64, f64)| {
            Flow { path: path.into_iter().collect(), most, bytes }
        };
        (capacities, paths.into_iter().map(flow).collect())
    }
}

/// What a resource carries.
fn load(resource: usize, flows: &[Flow], rates: &[f64]) -> f64 {
    flows.iter().zip(rates).filter(|(f, _)| f.path.contains(&resource)).map(|(_, rate)| rate).sum()
}

proptest! {
    #[test]
    fn no_link_carries_more_than_it_can((capacities, flows) in networks()) {
        let rates = rates(&capacities, &flows);
        for (r, capacity) in capacities.iter().enumerate() {
            prop_assert!(load(r, &flows, &rates) <= capacity * (1.0 + 1e-6));
        }
        for (flow, rate) in flows.iter().zip(&rates) {
            prop_assert!(*rate > 0.0 && *rate <= flow.most * (1.0 + 1e-6));
        }
    }

    /// Each flow has a reason: its own bound, or a full link on which no flow has more.
    #[test]
    fn no_flow_can_have_more_without_a_poorer_one_having_less((capacities, flows) in networks()) {
        let rates = rates(&capacities, &flows);
        for (flow, rate) in flows.iter().zip(&rates) {
            let bound = *rate >= flow.most * (1.0 - 1e-6);
            let bottleneck = |&r: &usize| {
                let full = load(r, &flows, &rates) >= capacities[r] * (1.0 - 1e-6);
                let most = flows.iter().zip(&rates).filter(|(f, _)| f.path.contains(&r)).map(|(_, x)| *x);
                full && most.fold(0.0, f64::max) <= rate * (1.0 + 1e-6)
            };
            prop_assert!(bound || flow.path.iter().any(bottleneck), "{flow:?} at {rate}");
        }
    }

    /// All bytes arrive, none faster than its narrowest link, and all together no sooner than the busiest link allows.
    #[test]
    fn bytes_are_conserved((capacities, flows) in networks()) {
        let ends = ends(&capacities, &flows);
        for (flow, end) in flows.iter().zip(&ends) {
            let alone = flow.path.iter().map(|&r| capacities[r]).fold(flow.most, f64::min);
            prop_assert!(*end >= flow.bytes / alone / 1e3 * (1.0 - 1e-6));
        }
        let last = ends.iter().copied().fold(0.0, f64::max);
        for (r, capacity) in capacities.iter().enumerate() {
            let bytes: f64 = flows.iter().filter(|f| f.path.contains(&r)).map(|f| f.bytes).sum();
            prop_assert!(last >= bytes / capacity / 1e3 * (1.0 - 1e-6));
        }
    }

    /// More bytes never end earlier, and everything on twice as wide a network takes half as long.
    #[test]
    fn more_takes_longer_and_wider_is_faster((capacities, flows) in networks(), which in 0usize..12) {
        let before = ends(&capacities, &flows);
        let mut more = flows.clone();
        let which = which % flows.len();
        more[which].bytes *= 2.0;
        prop_assert!(ends(&capacities, &more)[which] >= before[which] * (1.0 - 1e-6));
        let wide: Vec<f64> = capacities.iter().map(|c| 2.0 * c).collect();
        let free: Vec<Flow> = flows.iter().map(|f| Flow { most: 2.0 * f.most, ..f.clone() }).collect();
        for (wide, narrow) in ends(&wide, &free).into_iter().zip(before) {
            prop_assert!((2.0 * wide - narrow).abs() <= 1e-5 * narrow);
        }
    }
}
