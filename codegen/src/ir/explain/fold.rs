//! Comptime loops unroll; this rolls their traces up again, so that what is done eight times is described once.

use super::steps::{Action, Step};

/// Longest sequence of steps looked for as the body of an unrolled loop.
const LONGEST: usize = 6;

/// Joins accesses to one buffer that follow each other, then sequences of steps that repeat.
pub(super) fn fold(steps: Vec<Step>) -> Vec<Step> {
    repeats(join(steps))
}

fn join(steps: Vec<Step>) -> Vec<Step> {
    let mut joined: Vec<Step> = vec![];
    for step in steps {
        if let (Some(Step::Do(last)), Step::Do(next)) = (joined.last_mut(), &step)
            && (last.deed, last.shared, &last.buffer, &last.ranks, &last.mask, &last.count)
                == (next.deed, next.shared, &next.buffer, &next.ranks, &next.mask, &next.count)
        {
            last.pieces += next.pieces;
            last.bytes += next.bytes;
        } else {
            joined.push(step);
        }
    }
    joined
}

fn repeats(steps: Vec<Step>) -> Vec<Step> {
    let mut out: Vec<Step> = vec![];
    let mut rest = steps.as_slice();
    while !rest.is_empty() {
        // The longest run wins; of equal ones, that with the shortest body.
        let best = (1..=LONGEST.min(rest.len() / 2))
            .map(|period| (period, run(rest, period)))
            .filter(|&(_, times)| times > 1)
            .max_by_key(|&(period, times)| (period * times, usize::MAX - period));
        let taken = match best {
            Some((period, times)) => {
                let rounds = rest[..period * times].chunks_exact(period);
                let mut steps = rest[..period].to_vec();
                rounds.for_each(|round| forget_indices(&mut steps, round));
                out.push(Step::Times { times: times as u32, steps });
                period * times
            }
            None => {
                out.push(rest[0].clone());
                1
            }
        };
        rest = &rest[taken..];
    }
    out
}

/// How many times the first `period` steps stand in a row.
fn run(steps: &[Step], period: usize) -> usize {
    let first = &steps[..period];
    steps.chunks_exact(period).take_while(|c| c.iter().zip(first).all(|(a, b)| alike(a, b))).count()
}

/// Leaves out the indices that are different in another round.
fn forget_indices(steps: &mut [Step], round: &[Step]) {
    for (step, other) in steps.iter_mut().zip(round) {
        match (step, other) {
            (Step::Do(a), Step::Do(b)) if a.index != b.index => a.index.clear(),
            (Step::If { then, otherwise, .. }, Step::If { then: t, otherwise: o, .. }) => {
                forget_indices(then, t);
                forget_indices(otherwise, o);
            }
            (Step::ForEach { steps, .. }, Step::ForEach { steps: other, .. })
            | (Step::While { steps, .. }, Step::While { steps: other, .. })
            | (Step::Times { steps, .. }, Step::Times { steps: other, .. })
            | (Step::Split { steps, .. }, Step::Split { steps: other, .. }) => forget_indices(steps, other),
            _ => {}
        }
    }
}

/// Whether two steps would be described the same way but for indices and conditions, which differ from round to round.
fn alike(a: &Step, b: &Step) -> bool {
    let all = |x: &[Step], y: &[Step]| x.len() == y.len() && x.iter().zip(y).all(|(a, b)| alike(a, b));
    match (a, b) {
        (Step::Do(x), Step::Do(y)) => {
            let key = |a: &Action| (a.deed, a.shared, a.buffer.clone(), a.bytes, a.pieces, a.mask.is_some());
            key(x) == key(y)
        }
        (Step::If { then, otherwise, .. }, Step::If { then: t, otherwise: o, .. }) => {
            all(then, t) && all(otherwise, o)
        }
        (Step::ForEach { steps: x, spread: p, .. }, Step::ForEach { steps: y, spread: q, .. }) => {
            p == q && all(x, y)
        }
        (Step::While { steps: x, .. }, Step::While { steps: y, .. }) => all(x, y),
        (Step::Times { times: n, steps: x }, Step::Times { times: m, steps: y }) => n == m && all(x, y),
        (Step::Split { warps: v, steps: x, .. }, Step::Split { warps: w, steps: y, .. }) => {
            v == w && all(x, y)
        }
        (Step::Leave { .. }, Step::Leave { .. }) => a == b,
        _ => false,
    }
}
