//! Which GPUs make a world: those that reach each other's memory, and take the same kernels.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use super::gpu::{Gpu, Sharing};
use super::net::rendezvous::Card;
use super::symmetric::Member;
use super::{RuntimeError, WorldOptions};

/// The largest set of these GPUs, by their numbers from 0 on, that all reach each other; of several the first. Found by
/// looking at all sets for a machine's usual number of GPUs, and greedily for more than that.
pub(crate) fn together(gpus: usize, both: &dyn Fn(usize, usize) -> bool) -> Vec<usize> {
    const ALL_SETS: usize = 16;
    let fits = |set: &[usize], gpu: usize| set.iter().all(|&other| both(other, gpu));
    if gpus > ALL_SETS {
        let greedy = |first: usize| {
            (first..gpus).fold(vec![], |mut set, gpu| {
                if fits(&set, gpu) {
                    set.push(gpu);
                }
                set
            })
        };
        return (0..gpus).map(greedy).rev().max_by_key(Vec::len).unwrap_or_default();
    }
    fn grow(
        set: &mut Vec<usize>,
        from: usize,
        gpus: usize,
        fits: &dyn Fn(&[usize], usize) -> bool,
        best: &mut Vec<usize>,
    ) {
        if set.len() > best.len() {
            best.clone_from(set);
        }
        for gpu in from..gpus {
            if fits(set, gpu) {
                set.push(gpu);
                grow(set, gpu + 1, gpus, fits, best);
                set.pop();
            }
        }
    }
    let mut best = vec![];
    grow(&mut vec![], 0, gpus, &fits, &mut best);
    best
}

/// Whether there are enough GPUs, each once unless they may be shared, and each can reach the others.
pub(super) fn check_members(members: &[Member], share: bool) -> Result<(), RuntimeError> {
    if members.is_empty() || members.len() > 64 {
        return Err(RuntimeError::invalid("ranks", members.len(), "1 to 64, with a GPU each"));
    }
    for (i, a) in members.iter().enumerate() {
        for (j, b) in members.iter().enumerate() {
            let (from, to) = (a.gpu.info().ordinal, b.gpu.info().ordinal);
            if i < j && from == to && !share {
                let allowed = "a GPU of its own for every rank, as kernels wait for each other; or `share_gpus`, to try them";
                return Err(RuntimeError::invalid(format!("GPU of rank {j}"), to, allowed));
            }
            if !reaches(a.gpu.as_ref(), to)? {
                return Err(RuntimeError::NoPeerAccess { from, to, together: together_of(members)? });
            }
        }
    }
    check_alike(members)
}

/// Whether a GPU can reach another one's memory. Its own it can: drivers are asked of others only.
fn reaches(gpu: &dyn Gpu, other: u32) -> Result<bool, RuntimeError> {
    Ok(gpu.info().ordinal == other || gpu.can_access(other)?)
}

/// Whether all GPUs take the same kernels.
fn check_alike(members: &[Member]) -> Result<(), RuntimeError> {
    let first = members[0].gpu.info();
    let other = members.iter().find(|m| m.gpu.info().target != first.target);
    let Some(Member { rank, gpu }) = other else { return Ok(()) };
    let info = gpu.info();
    Err(RuntimeError::MixedGpus {
        rank: *rank,
        gpu: info.ordinal,
        name: info.name.clone(),
        arch: info.target.arch(),
        first_name: first.name.clone(),
        first_arch: first.target.arch(),
        together: together_of(members)?,
    })
}

/// Numbers of the most GPUs among these of which a world can be made.
fn together_of(members: &[Member]) -> Result<Vec<u32>, RuntimeError> {
    let mut fits = vec![vec![true; members.len()]; members.len()];
    for (i, a) in members.iter().enumerate() {
        for (j, b) in members.iter().enumerate().filter(|(j, _)| *j != i) {
            let alike = a.gpu.info().target == b.gpu.info().target;
            fits[i][j] = alike && reaches(a.gpu.as_ref(), b.gpu.info().ordinal)?;
        }
    }
    let found = together(members.len(), &|a, b| fits[a][b] && fits[b][a]);
    Ok(found.into_iter().map(|at| members[at].gpu.info().ordinal).collect())
}

/// GPUs of so many ranks: the first ones, which several ranks take in turns if GPUs may be shared and there are fewer of them.
pub(crate) fn for_ranks(gpus: &[Arc<dyn Gpu>], ranks: u32, share: bool) -> Option<Vec<Arc<dyn Gpu>>> {
    let enough = gpus.len() >= ranks as usize || (share && !gpus.is_empty());
    enough.then(|| gpus.iter().cycle().take(ranks as usize).map(Arc::clone).collect())
}

/// Whether a GPU can reach those of the other ranks, as far as this process sees them.
pub(super) fn check_reach(gpus: &[Arc<dyn Gpu>], own: &dyn Gpu, cards: &[Card]) -> Result<(), RuntimeError> {
    for card in cards {
        let other = gpus.iter().find(|gpu| gpu.info().bus_id == card.bus_id);
        if let Some(to) = other.map(|gpu| gpu.info().ordinal)
            && !reaches(own, to)?
        {
            return Err(RuntimeError::NoPeerAccess { from: own.info().ordinal, to, together: vec![] });
        }
    }
    Ok(())
}

/// The way to share memory that is asked for, or else the best that all GPUs have.
pub(super) fn sharing(members: &[Member], asked: Option<Sharing>) -> Result<Sharing, RuntimeError> {
    let all = |way: &Sharing| members.iter().all(|m| m.gpu.sharing().contains(way));
    match asked {
        None => Ok(members[0].gpu.sharing().iter().copied().find(all).unwrap_or(Sharing::Ipc)),
        Some(way) if all(&way) => Ok(way),
        Some(way) => {
            let allowed = "a way to share memory that all GPUs have";
            Err(RuntimeError::invalid("sharing", format!("{way:?}").to_lowercase(), allowed))
        }
    }
}

/// The GPU of the rank with this number on its machine.
pub(super) fn own_gpu(
    gpus: &[Arc<dyn Gpu>],
    local_rank: u32,
    share: bool,
) -> Result<&Arc<dyn Gpu>, RuntimeError> {
    match gpus {
        [] => Err(RuntimeError::TooFewGpus { backend: "cuda", found: 0, needed: 1 }),
        // The launcher shows every process a GPU of its own.
        [only] => Ok(only),
        all if share => Ok(&all[local_rank as usize % all.len()]),
        all => all.get(local_rank as usize).ok_or_else(|| RuntimeError::TooFewGpus {
            backend: all[0].info().target.backend(),
            found: all.len() as u32,
            needed: local_rank + 1,
        }),
    }
}

/// What this machine is known by: handles can be passed within it only. Changes whenever it starts; empty where the system does
/// not say.
pub(super) fn machine() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// What has to be the same on all ranks.
pub(super) fn facts(options: &WorldOptions, sharing: Sharing, arch: &str) -> BTreeMap<String, String> {
    let own = [
        ("peerwarp", env!("CARGO_PKG_VERSION").to_owned()),
        ("architecture", arch.to_owned()),
        ("sharing", format!("{sharing:?}").to_lowercase()),
        ("wait budget", format!("{:?}", options.wait_budget)),
        ("launches_at_once", options.launches_at_once.to_string()),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value));
    options.facts.clone().into_iter().chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_set_is_found() {
        assert_eq!(together(4, &|_, _| true), [0, 1, 2, 3]);
        assert_eq!(together(3, &|_, _| false), [0]);
        assert_eq!(together(0, &|_, _| true), [0; 0]);
        // 0 reaches 1 alone; 1, 2 and 3 reach each other.
        assert_eq!(together(4, &|a, b| a.min(b) > 0 || a.max(b) == 1), [1, 2, 3]);
        assert_eq!(together(20, &|a, b| a % 2 == b % 2), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
    }
}
