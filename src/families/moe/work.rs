//! What a routing puts on the links, in bytes of rows and their scales. Routing records and flags are not counted.

use serde_json::json;

use crate::families::moe::{MoeProblem, MoeShape, Routing};
use crate::harness::bench::wire::rows;
use crate::harness::workload::Work;

/// Finding out where a dispatch's rows go takes 0.5 to 1 us on an H200: the lower end.
const ROUTING_US: f64 = 0.5;

/// What a dispatch moves.
pub fn of_dispatch(shape: &MoeShape, routing: &Routing, dedup: bool) -> Work {
    let row = u64::from(shape.row_bytes()) + 4 * u64::from(shape.scales());
    let bytes =
        |dedup| rows(shape, routing, dedup).iter().map(|to| to.iter().map(|n| n * row).collect()).collect();
    let least = (!dedup).then(|| bytes(true));
    Work { bytes: bytes(dedup), least, hops: 1, flops: 0, steps: vec![("routing".into(), ROUTING_US)] }
}

/// What the combine that belongs to it moves: what came in goes back.
pub fn of_combine(shape: &MoeShape, routing: &Routing, dedup: bool) -> Work {
    let row = u64::from(shape.hidden) * u64::from(shape.dtype.combined().bytes());
    let back = |dedup| -> Vec<Vec<u64>> {
        let rows = rows(shape, routing, dedup);
        let n = rows.len();
        (0..n).map(|from| (0..n).map(|to| rows[to][from] * row).collect()).collect()
    };
    Work { bytes: back(dedup), least: (!dedup).then(|| back(true)), hops: 1, flops: 0, steps: vec![] }
}

/// What is asked of other libraries: the shape, the routing, and how many rows go from where to where.
pub fn baseline_case(problem: &MoeProblem, dedup: bool) -> serde_json::Value {
    let (shape, routing) = (problem.shape, problem.routing(0));
    let mut case =
        json!({ "ids": routing.ids, "weights": routing.weights, "rows": rows(&shape, routing, dedup) });
    if let (Some(case), serde_json::Value::Object(shape)) = (case.as_object_mut(), json!(shape)) {
        case.extend(shape);
    }
    case
}
