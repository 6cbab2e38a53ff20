//! Which GPUs reach each other's memory.

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
    fn grow(set: &mut Vec<usize>, from: usize, gpus: usize, fits: &dyn Fn(&[usize], usize) -> bool, best: &mut Vec<usize>) {
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
