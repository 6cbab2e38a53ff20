//! What is odd about a machine, in words: GPUs that do not reach each other, one slow link, GPUs of several kinds.

use super::class::LinkClass;
use super::network::Network;
use super::predict::Patterns;

/// A link is slow if it gets less than this part of what others of its class get.
const SLOW: f64 = 0.8;

/// The most pairs that a note lists.
const MOST: usize = 6;

/// What users should know of a machine, if anything.
pub fn notes(network: &Network, patterns: Option<&Patterns>) -> Vec<String> {
    let all = [mixed(network), strangers(network), reach(network)];
    let mut notes: Vec<String> = all.into_iter().flatten().collect();
    notes.extend(slow(network));
    notes.extend(patterns.and_then(|p| uneven(&p.all_to_all)));
    notes
}

fn mixed(network: &Network) -> Option<String> {
    let first = network.gpus.first()?;
    let (at, other) = network.gpus.iter().enumerate().find(|(_, name)| *name != first)?;
    Some(format!(
        "GPU {at} is {other} and GPU 0 is {first}: ranks on both wait for the slower one, and kernels tuned for one are not for the \
         other. Leave one kind out with CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES"
    ))
}

fn listed(pairs: &[(usize, usize)]) -> String {
    let shown: Vec<String> = pairs.iter().take(MOST).map(|(a, b)| format!("{a} and {b}")).collect();
    let more = pairs.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more pairs") } else { String::new() };
    shown.join(", ") + &more
}

fn strangers(network: &Network) -> Option<String> {
    let no_path =
        |&(a, b): &(usize, usize)| a < b && (network.route(a, b).is_err() || network.route(b, a).is_err());
    let pairs: Vec<_> = network.pairs().filter(no_path).collect();
    (!pairs.is_empty()).then(|| format!("there is no path between GPUs {}", listed(&pairs)))
}

/// GPUs of which a world cannot be made, and of which it can.
fn reach(network: &Network) -> Option<String> {
    let reaches = |from, to| network.route(from, to).is_ok_and(|route| route.staged_gbps.is_none());
    let both = |a, b| reaches(a, b) && reaches(b, a);
    let pairs: Vec<_> = network.pairs().filter(|&(a, b)| a < b && !both(a, b)).collect();
    if pairs.is_empty() {
        return None;
    }
    let together: Vec<String> =
        crate::runtime::together(network.gpus.len(), &both).iter().map(usize::to_string).collect();
    let together = match together.len() {
        0 | 1 => "No two GPUs have it: only simulated ranks can form a world".to_owned(),
        _ => format!("GPUs {} can form a world", together.join(",")),
    };
    Some(format!(
        "GPUs {} have no access to each other's memory: copies go through the host, and kernels cannot. {together}",
        listed(&pairs)
    ))
}

/// Links that get less than others of their class.
fn slow(network: &Network) -> Vec<String> {
    let rates: Vec<(usize, usize, LinkClass, f64)> = network
        .pairs()
        .filter_map(|(a, b)| Some((a, b, network.route(a, b).ok()?.class, network.gbps(a, b).ok()?)))
        .collect();
    let usual = |class: LinkClass| {
        let mut same: Vec<f64> = rates.iter().filter(|r| r.2 == class).map(|r| r.3).collect();
        same.sort_by(f64::total_cmp);
        same[same.len() / 2]
    };
    let slow = rates.iter().filter(|(.., class, gbps)| *gbps < SLOW * usual(*class));
    slow.map(|&(a, b, class, gbps)| {
        format!(
            "GPU {a} to GPU {b} gets {gbps:.1} GB/s, and others of its class ({class}) {:.1}: a link may be down or narrower than it \
             should be (`nvidia-smi nvlink -s`, `nvidia-smi -q -d PCI`). All ranks wait for it",
            usual(class)
        )
    })
    .collect()
}

/// GPUs that send less than others while all send to all.
fn uneven(all_to_all: &[f64]) -> Option<String> {
    let best = all_to_all.iter().copied().fold(0.0, f64::max);
    let (gpu, worst) = all_to_all.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1))?;
    (worst < SLOW * best).then(|| {
        format!("while all send to all, GPU {gpu} gets {worst:.1} GB/s and the best one {best:.1}: an all-to-all ends with the slowest")
    })
}

#[cfg(test)]
#[path = "notes_tests.rs"]
mod tests;
