//! Whether the simulator has room for its ranks, told before anything is made for them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use peerwarp_codegen::family::DynKernel;
use rustix::process::{Resource, getrlimit};

use crate::input::InputError;

/// Memory that a process may use.
#[derive(Clone, Debug, Default)]
struct Limits {
    /// Addresses that are left, and who says so. Memory that is never touched takes its addresses all the same.
    addresses: Option<(u64, &'static str)>,
    /// Memory that is left, and who says so.
    memory: Option<(u64, &'static str)>,
}

/// Whether the ranks of these variants have room on the simulator: all buffers of all ranks in the addresses that the process may
/// still use, and as much as one rank's buffers in memory. How much of the others is touched depends on the inputs.
///
/// # Errors
/// They have not: says how many bytes they need, and how many there are.
pub(crate) fn room_for<K: DynKernel + ?Sized>(variants: &[Arc<K>]) -> Result<(), InputError> {
    fits(variants, &Limits::here())
}

fn fits<K: DynKernel + ?Sized>(variants: &[Arc<K>], limits: &Limits) -> Result<(), InputError> {
    let mut buffers: BTreeMap<String, u64> = BTreeMap::new();
    for param in variants.iter().flat_map(|variant| variant.params()) {
        let bytes = param.bytes();
        buffers.entry(param.name).and_modify(|most| *most = bytes.max(*most)).or_insert(bytes);
    }
    let rank = buffers.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    let ranks = variants.iter().map(|variant| u64::from(variant.ranks())).max().unwrap_or(0);
    // The checker and the reference have theirs beside.
    let all = rank.saturating_mul(ranks).saturating_add(rank);
    for (needed, limit) in [(all, limits.addresses), (rank, limits.memory)] {
        if let Some((left, who)) = limit
            && needed > left
        {
            let allowed = format!("{left}, as {who} leaves; a smaller problem or fewer --ranks need less");
            return Err(InputError::not_allowed("bytes of memory for the simulator", needed, allowed));
        }
    }
    Ok(())
}

impl Limits {
    /// Those of this process. What the system does not tell is no limit.
    fn here() -> Limits {
        let of_address_space =
            getrlimit(Resource::As).current.map(|most| most.saturating_sub(address_space()));
        let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| kib(&text, "MemAvailable:"));
        let free = [(of_cgroup(), "memory.max of its cgroup"), (available, "MemAvailable of /proc/meminfo")];
        Limits {
            addresses: of_address_space.map(|left| (left, "RLIMIT_AS (ulimit -v)")),
            memory: free.into_iter().filter_map(|(left, who)| Some((left?, who))).min(),
        }
    }
}

/// Bytes of addresses that the process uses.
fn address_space() -> u64 {
    fs::read_to_string("/proc/self/status").ok().and_then(|text| kib(&text, "VmSize:")).unwrap_or(0)
}

/// A number of KiB behind its name, in bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// What the cgroup (of version 2) of the process leaves of its memory.
fn of_cgroup() -> Option<u64> {
    let all = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = all.lines().find_map(|line| line.strip_prefix("0::"))?;
    let number = |file: &str| {
        fs::read_to_string(format!("/sys/fs/cgroup{own}/{file}")).ok()?.trim().parse::<u64>().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use peerwarp_codegen::family::Family;

    use super::*;
    use crate::harness::trace::sync::ClockSync;

    #[test]
    fn what_does_not_fit_is_reported_in_bytes() {
        let variants = [ClockSync { ranks: 2, rounds: 4 }.into_variant()];
        let rank: u64 = variants[0].params().iter().map(|param| param.bytes()).sum();
        let limits =
            |addresses, memory| Limits { addresses: Some((addresses, "a")), memory: Some((memory, "b")) };
        fits(&variants, &limits(3 * rank, rank)).unwrap();
        fits(&variants, &Limits::default()).unwrap();
        let said = fits(&variants, &limits(3 * rank - 1, rank)).unwrap_err().to_string();
        let (all, left) = (3 * rank, 3 * rank - 1);
        let told =
            format!("bytes of memory for the simulator = {all}: not allowed\n  allowed: {left}, as a leaves");
        assert!(said.starts_with(&told), "{said}");
        let said = fits(&variants, &limits(3 * rank, rank - 1)).unwrap_err().to_string();
        assert!(said.contains("as b leaves"), "{said}");
    }

    #[test]
    fn limits_are_read_from_the_system() {
        assert_eq!(kib("MemFree: 1 kB\nMemAvailable:   2048 kB\n", "MemAvailable:"), Some(2 << 20));
        assert_eq!(kib("MemFree: 1 kB\n", "MemAvailable:"), None);
        assert!(address_space() > 1 << 20);
        assert!(Limits::here().memory.is_some_and(|(left, _)| left > 0));
    }
}
