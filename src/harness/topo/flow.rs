//! How transfers share links: max-min fairness, by progressive filling.
//!
//! Every transfer in flight takes the same rate until a link that it crosses is full, or it has reached its own bound; it then
//! keeps its rate and the others go on. No rate of such a solution can be raised without lowering one that is as low or lower.
//! That is how links with fair arbitration behave, and good enough for those of GPUs.

/// Below this part of what there was, nothing is left: sums of rates are rounded.
const NOTHING: f64 = 1e-9;

/// A transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The resources that it takes, by number; none twice.
    pub path: Vec<usize>,
    /// The most that it gets however free they are, in GB/s.
    pub most: f64,
    /// What it moves.
    pub bytes: f64,
}

/// Rates of flows that are all in flight, in GB/s. `capacities` are those of the resources.
///
/// A flow that takes no resource gets its own bound.
pub fn rates(capacities: &[f64], flows: &[Flow]) -> Vec<f64> {
    let mut left = capacities.to_vec();
    let mut rates = vec![0.0; flows.len()];
    let mut rising: Vec<usize> = (0..flows.len()).collect();
    while !rising.is_empty() {
        let mut users = vec![0u32; left.len()];
        rising.iter().flat_map(|&f| &flows[f].path).for_each(|&r| users[r] += 1);
        let share = |r: usize| left[r].max(0.0) / f64::from(users[r]);
        let room =
            |&f: &usize| flows[f].path.iter().map(|&r| share(r)).fold(flows[f].most - rates[f], f64::min);
        let step = rising.iter().map(room).fold(f64::INFINITY, f64::min).max(0.0);
        for &f in &rising {
            rates[f] += step;
            flows[f].path.iter().for_each(|&r| left[r] -= step);
        }
        let full = |r: usize| left[r] <= capacities[r] * NOTHING;
        let ends = |f: usize| {
            let bound = flows[f].most.is_finite() && flows[f].most - rates[f] <= flows[f].most * NOTHING;
            bound || flows[f].path.iter().any(|&r| full(r))
        };
        // An unbounded flow over nothing never ends rising.
        rising.retain(|&f| step.is_finite() && !ends(f));
    }
    rates
}

/// When each flow has moved all of its bytes, in microseconds after all have begun. Whenever one ends, the others share what
/// it leaves.
pub fn ends(capacities: &[f64], flows: &[Flow]) -> Vec<f64> {
    let mut left: Vec<f64> = flows.iter().map(|f| f.bytes).collect();
    let mut ends = vec![0.0; flows.len()];
    let mut now = 0.0;
    let mut going: Vec<usize> = (0..flows.len()).filter(|&f| left[f] > 0.0).collect();
    while !going.is_empty() {
        let there: Vec<Flow> = going.iter().map(|&f| flows[f].clone()).collect();
        let rates = rates(capacities, &there);
        // GB/s are 1000 bytes a microsecond.
        let time = |(&f, rate): (&usize, &f64)| left[f] / rate / 1e3;
        let next = going.iter().zip(&rates).map(time).fold(f64::INFINITY, f64::min);
        now += next;
        for (&f, rate) in going.iter().zip(&rates) {
            left[f] -= rate * next * 1e3;
            if left[f] <= flows[f].bytes * NOTHING {
                (left[f], ends[f]) = (0.0, now);
            }
        }
        going.retain(|&f| left[f] > 0.0);
    }
    ends
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
