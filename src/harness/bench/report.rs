//! What a result says, in words.

use super::limit::H200;
use super::result::{Bench, CaseTimes};

/// Facts about the machine and the method, by name.
pub fn facts(bench: &Bench) -> Vec<(&'static str, String)> {
    let (machine, method) = (&bench.machine, &bench.method);
    let yes = |flag: bool, yes: &str, no: &str| if flag { yes } else { no }.to_owned();
    let cold = "256 MiB are written before each iteration";
    vec![
        ("GPUs", gpus(&machine.gpus) + if method.process_per_rank { ", a process for each" } else { "" }),
        ("driver", format!("{}, memory shared by {}", machine.driver, machine.sharing)),
        ("peerwarp", machine.peerwarp.clone()),
        ("routing", format!("{}, seed {}", method.routing, method.seed)),
        (
            "times",
            format!(
                "us of the slowest rank, {} iterations, graphs behind a sleep and a barrier of all GPUs",
                method.iterations
            ),
        ),
        ("caches", yes(method.l2_flushed, cold, "not flushed: an iteration reads what the one before read")),
        (
            "blocks",
            yes(
                method.multiprocessors_shared,
                "share multiprocessors",
                "have a multiprocessor each, where there are enough",
            ),
        ),
        (
            "floor",
            format!("{:.1} us: a kernel that does nothing, timed in the same way", bench.floor_us.median),
        ),
        (
            "results",
            yes(method.checked, "right to the bit, in a run before", "not compared with the reference"),
        ),
        ("limit", limit(bench)),
    ]
}

fn gpus(names: &[String]) -> String {
    match names.split_first() {
        Some((first, rest)) if rest.iter().all(|name| name == first) => format!("{} x {first}", names.len()),
        _ => names.join(", "),
    }
}

fn limit(bench: &Bench) -> String {
    let known = bench.cases.iter().flat_map(|c| &c.times).any(|t| t.limit.is_some());
    match known {
        true => format!(
            "one kernel, {} us a hop, {} GB/s to one peer and {} to all, as measured on {}s",
            H200.hop_us, H200.one_peer_gbps, H200.all_peers_gbps, H200.gpu
        ),
        false => "unknown: the links of this machine have not been measured".into(),
    }
}

/// What a problem is called.
pub fn title(case: &CaseTimes) -> String {
    let shape = &case.shape;
    format!(
        "{} experts, topk {}, hidden {}, {}, {} ranks, {} tokens a rank",
        shape.experts,
        shape.topk,
        shape.hidden,
        shape.dtype,
        shape.ranks,
        tokens(case)
    )
}

/// The same where there is little room.
pub fn short_title(case: &CaseTimes) -> String {
    let shape = &case.shape;
    format!("h{} e{} k{} {}, {} tokens", shape.hidden, shape.experts, shape.topk, shape.dtype, tokens(case))
}

/// Of a rank: one number, or the least and the most.
fn tokens(case: &CaseTimes) -> String {
    let (least, most) = (case.tokens_per_rank.iter().min(), case.tokens_per_rank.iter().max());
    match (least, most) {
        (Some(least), Some(most)) if least != most => format!("{least} to {most}"),
        _ => most.copied().unwrap_or(case.shape.tokens).to_string(),
    }
}
