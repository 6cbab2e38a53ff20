//! What a routing puts on the links, and what other libraries are asked for.

use serde_json::{Value, json};

use crate::families::moe::kernels::ReturnDtype;
use crate::families::moe::{MoeProblem, MoeShape, Routing};
use crate::harness::workload::Work;

/// Finding out where a dispatch's rows go takes this long at least, in microseconds: the lower end of estimates, 0.5 to 1.
pub const ROUTING_US: f64 = 0.5;

/// What a dispatch moves: rows and their scales. Routing records and flags are not counted. With `dedup` a row goes once to
/// every rank that needs it, else once for every entry.
pub fn of_dispatch(shape: &MoeShape, routing: &Routing, dedup: bool) -> Work {
    let row = u64::from(shape.row_bytes()) + u64::from(shape.scale_bytes());
    let bytes = |dedup| times(rows(shape, routing, dedup), row);
    let steps = vec![("routing".to_owned(), ROUTING_US)];
    Work { bytes: bytes(dedup), least: (!dedup).then(|| bytes(true)), hops: 1, flops: 0, steps }
}

/// What the combine after it moves: a row of this type, and its scales, for every row that was dispatched, the other way round.
pub fn of_combine(shape: &MoeShape, routing: &Routing, dedup: bool, back: ReturnDtype) -> Work {
    let row = back.sent_bytes(shape.hidden).into();
    let bytes = |dedup| times(transposed(&rows(shape, routing, dedup)), row);
    Work { bytes: bytes(dedup), least: (!dedup).then(|| bytes(true)), hops: 1, flops: 0, steps: vec![] }
}

/// What the scripts of baselines take: the shape's fields, `ids` and `weights` of the first round, `[rank][token * topk + k]`,
/// and `rows`, those that our dispatch sends, `[from][to]`.
pub fn baseline_case(problem: &MoeProblem, dedup: bool) -> Value {
    let (shape, routing) = (problem.shape, problem.routing(0));
    let mut case = json!(shape);
    case["ids"] = json!(routing.ids);
    case["weights"] = json!(routing.weights);
    case["rows"] = json!(rows(&shape, routing, dedup));
    case
}

/// Rows of dispatch, `[from][to]`; the diagonal is what stays.
pub fn rows(shape: &MoeShape, routing: &Routing, dedup: bool) -> Vec<Vec<u64>> {
    let (map, ranks) = (shape.map(), shape.ranks as usize);
    let owner: Vec<usize> =
        (0..shape.experts as i32).map(|e| map.owner(e).map_or(0, |rank| rank as usize)).collect();
    let of_source = |ids: &Vec<i32>| {
        let mut to = vec![0; ranks];
        for token in ids.chunks(shape.topk as usize) {
            let mut entries = vec![0u64; ranks];
            for id in token.iter().filter_map(|&id| usize::try_from(id).ok()) {
                if let Some(&rank) = owner.get(id) {
                    entries[rank] += 1;
                }
            }
            for (all, n) in to.iter_mut().zip(entries) {
                *all += if dedup { n.min(1) } else { n };
            }
        }
        to
    };
    routing.ids.iter().map(of_source).collect()
}

fn times(mut rows: Vec<Vec<u64>>, bytes: u64) -> Vec<Vec<u64>> {
    rows.iter_mut().flatten().for_each(|n| *n *= bytes);
    rows
}

fn transposed(rows: &[Vec<u64>]) -> Vec<Vec<u64>> {
    (0..rows.len()).map(|to| rows.iter().map(|from| from[to]).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::RowDtype;
    use crate::harness::bench::H200;

    const SHAPE: MoeShape =
        MoeShape { hidden: 256, experts: 4, topk: 3, tokens: 2, ranks: 2, dtype: RowDtype::Fp8 };

    #[test]
    fn a_row_goes_once_to_a_rank_or_once_for_an_entry_and_comes_back() {
        // Rank 0: a token for 0, 2, 3; rank 1: a token for 0, 0 and no expert, and a masked one.
        let ids = vec![vec![0, 2, 3], vec![0, 0, -1, -1, 7, -1]];
        let routing = Routing { ids, weights: vec![] };
        assert_eq!(rows(&SHAPE, &routing, true), [[1, 1], [1, 0]]);
        assert_eq!(rows(&SHAPE, &routing, false), [[1, 2], [2, 0]]);
        // Two scales a row, and combine in bf16.
        let there = of_dispatch(&SHAPE, &routing, true);
        let back = of_combine(&SHAPE, &routing, true, ReturnDtype::Combined);
        assert_eq!(there.bytes, [[264, 264], [264, 0]]);
        assert_eq!(back.bytes, [[512, 512], [512, 0]]);
        assert_eq!([&there, &back, &there.then(&back)].map(|w| w.busiest()), [264, 512, 776]);
        assert_eq!((there.least, back.least), (None, None));
        let one_way = Routing { ids: vec![vec![2, 3, -1, 2, -1, -1], vec![]], weights: vec![] };
        let there = of_dispatch(&SHAPE, &one_way, false);
        let back = of_combine(&SHAPE, &one_way, false, ReturnDtype::Combined);
        assert_eq!((there.bytes[0][1], there.bytes[1][0]), (3 * 264, 0));
        assert_eq!((back.bytes[0][1], back.bytes[1][0]), (0, 3 * 512));
        // Two scales of fp8, one, or four words of scales and one of the row.
        let quantised = [ReturnDtype::Fp8, ReturnDtype::Fp8Token, ReturnDtype::Nvfp4];
        let sent = quantised.map(|dtype| of_combine(&SHAPE, &one_way, false, dtype).bytes[1][0]);
        assert_eq!(sent, [3 * 264, 3 * 260, 3 * 148]);
        // All of it from rank 0, and all of it back: at once.
        assert_eq!([&there, &back, &there.then(&back)].map(|w| w.busiest()), [792, 1536, 1536]);
        // Two tokens are all that has to go: three entries name the other rank.
        assert_eq!(there.least.as_ref().unwrap()[0][1], 2 * 264);
    }

    #[test]
    fn the_limit_is_that_of_the_least_rows_and_a_routing() {
        let routing = Routing { ids: vec![vec![2, 3, -1], vec![]], weights: vec![] };
        let [once, twice] = [true, false].map(|dedup| of_dispatch(&SHAPE, &routing, dedup));
        assert_eq!((once.bytes[0][1], twice.bytes[0][1]), (264, 528));
        assert_eq!(twice.least.unwrap(), once.bytes);
        assert_eq!(once.steps, [("routing".to_owned(), ROUTING_US)]);
    }

    /// Ranks other than its own that a token of uniform routing goes to, on average, of eight.
    fn other_ranks(experts: u32, topk: u32) -> f64 {
        let elsewhere = (0..topk).map(|i| f64::from(experts - experts / 8 - i) / f64::from(experts - i));
        7.0 * (1.0 - elsewhere.product::<f64>())
    }

    fn near(got: f64, want: f64, within: f64) {
        assert!((got - want).abs() <= within, "{got} is not {want}");
    }

    #[test]
    fn wire_times_are_those_of_the_reference_table() {
        // Experts, topk, bytes of a row, tokens of the busiest rank; us with deduplication and without.
        let table = [
            (8, 2, 2 * 6144, 15, 0.9, 0.9),
            (64, 6, 2 * 2048, 27, 1.3, 1.7),
            (128, 4, 2 * 2880, 83, 4.1, 4.9),
            (128, 8, 2 * 4096, 230, 25.6, 38.4),
            (256, 8, 2 * 7168, 253, 49.0, 74.0),
            (256, 8, 2 * 7168, 1, 0.2, 0.3),
            (256, 8, 2 * 7168, 8, 1.6, 2.3),
            (256, 8, 2 * 7168, 32, 6.1, 9.4),
            (256, 8, 2 * 7168, 64, 12.4, 18.7),
            (256, 8, 2 * 7168, 128, 24.8, 37.4),
            (256, 8, 7168 + 4 * 56, 128, 12.7, 19.3),
            (256, 8, 2 * 7168, 4096, 794.0, 1198.0),
            (256, 8, 7168 + 4 * 56, 4096, 409.0, 618.0),
        ];
        for (experts, topk, row, n, dedup, plain) in table {
            let us = |rows: f64| H200.wire_us(8, (rows * f64::from(n) * f64::from(row)) as u64);
            // Where every entry goes elsewhere, 7 of 8 do.
            near(us(other_ranks(experts, topk)), dedup, 0.1 + 0.004 * dedup);
            near(us(f64::from(topk) * 7.0 / 8.0), plain, 0.1 + 0.004 * plain);
        }
    }

    #[test]
    fn scripts_are_asked_for_what_we_time() {
        let shape = MoeShape { hidden: 64, experts: 4, topk: 2, tokens: 3, ranks: 2, dtype: RowDtype::Fp8 };
        let problem = MoeProblem::uniform(shape, &[3, 1], 1).unwrap();
        let case = baseline_case(&problem, true);
        assert_eq!(
            (&case["hidden"], &case["dtype"], &case["tokens"]),
            (&64.into(), &"fp8".into(), &3.into())
        );
        assert_eq!(case["ids"], json!(problem.routing(0).ids));
        assert_eq!(case["weights"], json!(problem.routing(0).weights));
        let rows = |from: usize| case["rows"][from].as_array().unwrap().len();
        assert_eq!((rows(0), rows(1)), (2, 2));
    }
}
