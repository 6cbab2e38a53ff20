//! What a run of a problem reports, and which problems cannot be run.

use std::sync::Arc;

use peerwarp::codegen::ir::Planted;
use peerwarp::codegen::ir::mutate::{Mutation, Site, mutate};
use peerwarp::codegen::sim::{Findings, Options};
use peerwarp::families::moe::kernels::{Combine, Dispatch, Hook, Layout, Phase, Protocol};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning, Round, Traffic};
use peerwarp::families::moe::{MoeError, MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::session::{Ran, SimSession};

use crate::support::{apart, shape, small};

/// Two ranks with two experts each. Rank 0: a token to both of rank 1's experts, and one that stays. Rank 1: one that
/// goes to an expert of each, one masked.
fn problem() -> MoeProblem {
    let ids = vec![vec![2, 3, 0, 1], vec![1, 2, -1, -1]];
    let shape = shape(64, 4, 2, 2, 2);
    MoeProblem::new(shape, Routing::with_weights(&shape, ids, 0), 0).unwrap()
}

fn run(tuning: &MoeTuning, rounds: u32) -> Ran {
    apart(&problem(), tuning, rounds).run(&Options::default()).unwrap()
}

fn traffic(tuning: &MoeTuning, rounds: u32) -> Traffic {
    MoeRounds::new(&problem(), tuning, rounds).unwrap().traffic()
}

/// What is found where kernels are changed.
fn edited(tuning: &MoeTuning, plant: &mut dyn FnMut(&mut Planted)) -> Box<Findings> {
    let rounds = Arc::new(MoeRounds::new(&problem(), tuning, 2).unwrap());
    SimSession::planted(rounds, plant).unwrap().run(&Options::default()).unwrap_err()
}

#[test]
fn bytes_and_flags_are_those_of_the_routing() {
    // A record is a number of tokens, four counts, and for each of two tokens' four entries a word and a weight.
    let (row, record) = (128, 4 + 4 * 4 + 4 * 4 + 4 * 4);
    let small = |shape: &MoeShape| small(shape).with_protocol(Protocol::Flags);
    let run_dedup = run(&small(&problem().shape), 3);
    // In each round: rank 0 sends a row, rank 1 one; each comes back.
    assert_eq!(run_dedup.report.link_bytes(0, 1), 3 * (record + row + row));
    assert_eq!(run_dedup.report.link_bytes(1, 0), 3 * (record + row + row));
    // What it tells itself; dispatch moves its own row without the inbox, combine by way of it.
    assert_eq!(run_dedup.report.link_bytes(0, 0), 3 * (record + row));
    assert_eq!(run_dedup.report.bytes_on_wire(), 6 * (record + 2 * row));
    assert_eq!(run_dedup.report.link_signals(0, 1), 3 * 3);
    let of_dedup = traffic(&small(&problem().shape), 3);
    assert_eq!((of_dedup.rows_dedup, of_dedup.rows_plain), (6, 9));
    assert!((of_dedup.dedup_saving - 1.0 / 3.0).abs() < 1e-12);

    // Plain, rank 0 sends its first token's row twice; weights stay at home.
    let plain = run(&small(&problem().shape).with_dedup(false), 3);
    let record = record - 4 * 4;
    assert_eq!(plain.report.link_bytes(0, 1), 3 * (record + 2 * row + row));
    assert_eq!(plain.report.link_bytes(1, 0), 3 * (record + row + 2 * row));
    assert_eq!(traffic(&small(&problem().shape).with_dedup(false), 3), of_dedup);
    assert_eq!(plain.report.steps, run(&small(&problem().shape).with_dedup(false), 3).report.steps);
}

#[test]
fn ranks_know_what_they_send_and_receive() {
    let traffic = traffic(&small(&problem().shape), 2);
    let of = |rank: usize| {
        let r = &traffic.ranks[rank];
        (r.tokens_sent, r.tokens_received, r.rows)
    };
    assert_eq!([of(0), of(1)], [(4, 4, 6), (4, 4, 6)]);
}

#[test]
fn wrong_results_are_not_ok() {
    let problem = problem();
    let tuning = small(&problem.shape);
    let lose = |kernel: &'static str, site: Site| {
        edited(&tuning, &mut |k: &mut _| mutate_one(k, kernel, &site)).to_string()
    };
    // Rows that are not stored are found after dispatch, combined rows at the end.
    let said = lose("dispatch", Site::store("recv", "rows"));
    assert!(said.contains("bytes of row 0"), "{said}");
    let said = lose("combine", Site::store("recv", "out"));
    assert!(said.contains("out"), "{said}");
}

fn mutate_one(kernel: &mut Planted, name: &str, site: &Site) {
    if kernel.name == name {
        *kernel = mutate(kernel, &Mutation::Drop(site.clone())).unwrap();
    }
}

/// With rows by token, weights and index are outputs like any other.
#[test]
fn a_wrong_index_is_found() {
    let problem = problem();
    let tuning = small(&problem.shape).with_layout(Layout::RankMajor);
    for (store, said) in [
        (Site::store("entries", "entry_expert"), "experts of the entries of rank 0"),
        (Site::store("entries", "weight_from"), "weights of the entries of rank 0"),
        (Site::store("entries", "n_from"), "tokens of each source"),
        (Site::store("index", "gather"), "rows of the experts"),
        (Site::store("recv", "rows"), "bytes of row "),
    ] {
        let found = edited(&tuning, &mut |k: &mut _| mutate_one(k, "dispatch", &store)).to_string();
        assert!(found.contains(said), "{store:?}: {found}");
    }
}

/// With a hook the rows are what combine takes: its sums have no weights then, and are told from those that do.
#[test]
fn rows_by_token_have_the_weights_that_the_experts_gave_them() {
    let problem = problem();
    let tuning = small(&problem.shape).with_layout(Layout::RankMajor);
    let [plain, hooked] = [Hook::None, Hook::Expert].map(|hook| {
        let tuning = tuning.clone().with_hook(hook);
        assert!(run(&tuning, 2).verdict.ok());
        Round::new(&problem, tuning.semantics(), 0).out
    });
    let by_expert = Round::new(&problem, small(&problem.shape).semantics(), 0).out;
    assert!(plain == by_expert && plain != hooked);
}

#[test]
fn what_does_not_fit_is_refused() {
    let problem = problem();
    let message = |tuning: &MoeTuning, rounds| match MoeRounds::new(&problem, tuning, rounds) {
        Err(e) => e.to_string(),
        Ok(_) => "accepted".to_owned(),
    };
    let fits = small(&problem.shape);
    assert_eq!(message(&fits, 0), "rounds = 0: must be 1 or more");

    let other = small(&MoeShape { dtype: RowDtype::Fp16, ..problem.shape });
    assert!(
        message(&other, 1).starts_with("dispatch = moe_dispatch_h64_e4_k2_t2_r2_fp16_raw_expertmajor_both__")
    );
    let apart = |d: &Dispatch, c: &Combine| MoeTuning::of(d, c).unwrap_err().to_string();
    let (dispatch, combine) = (fits.dispatch(), fits.combine());
    let combined = apart(&dispatch, &other.combine());
    assert_eq!(combined, "combined = fp16: must be bf16, as rows of bf16 go out");
    for other in [
        Combine { dedup: false, ..combine.clone() },
        Combine { layout: Layout::RankMajor, ..combine.clone() },
        Combine { phase: Phase::Send, ..combine.clone() },
    ] {
        let said = apart(&dispatch, &other);
        assert!(
            said.ends_with(
                "in one phase, with layout, max_rows, expert_slots, ids and dedup as dispatch has them"
            ),
            "{said}"
        );
    }
    let flags = fits.clone().with_protocol(Protocol::Flags).combine();
    assert!(apart(&dispatch, &flags).ends_with("the protocol that goes with dispatch's, packets"));
    let mut illegal = fits;
    illegal.plan.combine.group_warps = 16;
    assert!(matches!(MoeRounds::new(&problem, &illegal, 1), Err(MoeError::Family(_))));
}
