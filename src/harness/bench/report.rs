//! What a result says, in words and as a page.

use serde_json::json;

use super::limit::Known;
use super::result::{Bench, Check};
use crate::harness::html::report;

/// A page with plots and tables, one file that needs nothing else.
pub fn html(bench: &Bench) -> String {
    report("peerwarp bench", &json!({ "facts": facts(bench), "bench": bench }))
}

/// Facts about the machine and the method, by name.
pub fn facts(bench: &Bench) -> Vec<(&'static str, String)> {
    let (machine, method) = (&bench.machine, &bench.method);
    let yes = |flag: bool, yes: &str, no: &str| if flag { yes } else { no }.to_owned();
    let cold = "256 MiB are written before each iteration";
    let of_gpus = match (method.process_per_rank, method.ranks_per_gpu) {
        (false, 1) => String::new(),
        (true, 1) => ", a process for each".into(),
        (false, n) => format!(", up to {n} ranks on one: times say nothing about links"),
        (true, n) => format!(", up to {n} processes on one: times say nothing about links"),
    };
    vec![
        ("GPUs", gpus(&machine.gpus) + &of_gpus),
        ("driver", format!("{}, memory shared by {}", machine.driver, machine.sharing)),
        ("peerwarp", machine.peerwarp.clone()),
        ("inputs", inputs(bench)),
        (
            "times",
            format!(
                "us of the slowest rank, {} iterations, graphs behind a sleep and a barrier of all GPUs",
                method.iterations
            ),
        ),
        ("caches", yes(method.l2_flushed, cold, "not flushed: an iteration reads what the one before read")),
        ("blocks", yes(method.sms_shared, "share SMs", "have an SM each, where there are enough")),
        (
            "floor",
            format!("{:.1} us: a kernel that does nothing, timed in the same way", bench.floor_us.median),
        ),
        ("results", results(bench)),
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
    let times = || bench.cases.iter().flat_map(|c| &c.times);
    match &bench.limits {
        Some(Known { measured_on, limits: l }) if times().any(|t| t.limit.is_some()) => format!(
            "one kernel, {} us a hop, {} GB/s to one peer and {} to all, as measured on {measured_on}",
            rounded(l.hop_us),
            rounded(l.one_peer_gbps),
            rounded(l.all_peers_gbps)
        ),
        _ if times().all(|t| t.bytes.is_none()) => "unknown: the family does not say what it moves".into(),
        _ => format!(
            "unknown: {}",
            bench.no_limits.as_deref().unwrap_or("this machine's links were not measured")
        ),
    }
}

/// To two digits behind the point.
fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// What the inputs were made of.
fn inputs(bench: &Bench) -> String {
    let given = bench.method.given.iter().map(|(name, value)| format!("{name} {value}, "));
    format!("{}seed {}", given.collect::<String>(), bench.method.seed)
}

/// Whether what was timed is right.
fn results(bench: &Bench) -> String {
    let of = |check| match check {
        Check::Right { exact: true, .. } => "right to the bit, in a run before".to_owned(),
        Check::Right { max_abs_err, .. } => {
            format!("right within their tolerance, off by at most {max_abs_err}, in a run before")
        }
        Check::NoReference => "not compared: the family has no reference".to_owned(),
        Check::Skipped => "not compared with the reference".to_owned(),
    };
    let mut all: Vec<String> = vec![];
    for check in bench.cases.iter().map(|case| of(case.check)) {
        if !all.contains(&check) {
            all.push(check);
        }
    }
    all.join("; others ")
}

#[cfg(test)]
#[path = "report_tests.rs"]
pub(super) mod tests;
