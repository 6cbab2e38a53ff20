//! How far the ranks' clocks are apart.
//!
//! Rank 0 and another rank signal to and fro, and both record when they begin to signal and when they see the other's flag. A
//! flag is never seen before its signal began. Every ping therefore bounds the difference of the two clocks from above, and
//! every pong from below; the tightest bounds of all rounds hold together. The difference is taken to be in their middle, and is
//! wrong by no more than half of what is between them, plus what a clock may be behind when it is read.

use std::collections::BTreeMap;

use peerwarp_codegen::print::SiteKind;
use serde::Serialize;

use super::Recording;

/// Names of the flags of [`crate::harness::trace::sync`].
const PING: &str = "ping";
const PONG: &str = "pong";

/// How far a rank's clock is ahead of rank 0's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClockOffset {
    /// The rank.
    pub rank: u32,
    /// Nanoseconds by which its clock is ahead.
    pub offset_ns: i64,
    /// By how much that may be wrong: half of what the bounds leave open, and the clocks' resolutions.
    pub error_ns: u64,
    /// The shortest way to the other rank and back, in nanoseconds of rank 0's clock.
    pub round_trip_ns: u64,
    /// The smallest step of its clock that was seen, in nanoseconds.
    pub resolution_ns: u64,
    /// When, on its own clock.
    #[serde(skip)]
    pub at_ns: i64,
}

/// A clock between two measurements, taken to run evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ClockLine {
    /// The first measurement.
    pub before: ClockOffset,
    /// The second one.
    pub after: ClockOffset,
}

impl ClockLine {
    /// What rank 0's clock shows when this one shows `ns`.
    pub fn common(&self, ns: i64) -> i64 {
        let (from, to) = (&self.before, &self.after);
        let span = (to.at_ns - from.at_ns).max(1) as f64;
        let drift = (to.offset_ns - from.offset_ns) as f64 / span;
        ns - from.offset_ns - (drift * (ns - from.at_ns) as f64).round() as i64
    }

    /// By how much [`ClockLine::common`] may be wrong between the measurements if the clock runs evenly.
    pub fn error_ns(&self) -> u64 {
        self.before.error_ns.max(self.after.error_ns)
    }
}

/// Why clocks cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    /// Rounds are missing.
    #[error("clocks of ranks 0 and {rank}: no round was recorded as a whole")]
    NoRound {
        /// The other rank.
        rank: u32,
    },
    /// The bounds contradict each other.
    #[error(
        "clocks of ranks 0 and {rank}: they are less than {most} ns and more than {least} ns apart; they do not run \
         evenly"
    )]
    Contradiction {
        /// The other rank.
        rank: u32,
        /// Lower bound.
        least: i64,
        /// Upper bound.
        most: i64,
    },
}

/// When a rank began to signal, and when it saw a flag, by the flag's index.
#[derive(Default)]
struct Times {
    signalled: BTreeMap<u32, i64>,
    seen: BTreeMap<u32, i64>,
}

impl Times {
    fn of(recording: &Recording, parameter: &str) -> Times {
        let mut times = Times::default();
        for (_, event) in recording.events() {
            let site = recording.site(event.site);
            if site.parameter.as_deref() != Some(parameter) {
                continue;
            }
            match site.kind {
                SiteKind::Signal => times.signalled.insert(event.index, event.begin_ns),
                SiteKind::Wait => times.seen.insert(event.index, event.end_ns),
                _ => None,
            };
        }
        times
    }
}

/// The offsets of all ranks' clocks, from recordings of [`crate::harness::trace::sync::clock_sync`] by rank.
pub fn offsets(recordings: &[Recording]) -> Result<Vec<ClockOffset>, ClockError> {
    let zero = &recordings[0];
    let (pings, pongs) = (Times::of(zero, PING), Times::of(zero, PONG));
    let own = ClockOffset {
        rank: 0,
        offset_ns: 0,
        error_ns: 0,
        round_trip_ns: 0,
        resolution_ns: resolution(zero),
        at_ns: zero.warps[0].begin_ns,
    };
    let mut all = vec![own];
    for other in &recordings[1..] {
        all.push(offset(other, &pings.signalled, &pongs.seen, own.resolution_ns)?);
    }
    Ok(all)
}

fn offset(
    other: &Recording,
    pinged: &BTreeMap<u32, i64>,
    ponged: &BTreeMap<u32, i64>,
    resolution_of_zero: u64,
) -> Result<ClockOffset, ClockError> {
    let rank = other.rank;
    let (there, back) = (Times::of(other, PING).seen, Times::of(other, PONG).signalled);
    let (mut least, mut most, mut round_trip, mut at_ns) = (i64::MIN, i64::MAX, i64::MAX, 0);
    for (index, seen) in &there {
        let Some((sent, answered, home)) = both(pinged.get(index), back.get(index), ponged.get(index)) else {
            continue;
        };
        most = most.min(seen - sent);
        least = least.max(answered - home);
        round_trip = round_trip.min((home - sent) - (answered - seen));
        at_ns = *seen;
    }
    if least == i64::MIN {
        return Err(ClockError::NoRound { rank });
    }
    // A clock that is read shows the last of its steps.
    let resolution_ns = resolution(other);
    let slack = resolution_ns.max(resolution_of_zero) as i64;
    if least > most + 2 * slack {
        return Err(ClockError::Contradiction { rank, least, most });
    }
    let error_ns = ((most - least).unsigned_abs()).div_ceil(2) + slack as u64;
    let offset_ns = least + (most - least).div_euclid(2);
    Ok(ClockOffset {
        rank,
        offset_ns,
        error_ns,
        round_trip_ns: round_trip.max(0) as u64,
        resolution_ns,
        at_ns,
    })
}

fn both(a: Option<&i64>, b: Option<&i64>, c: Option<&i64>) -> Option<(i64, i64, i64)> {
    Some((*a?, *b?, *c?))
}

/// The smallest step between the times of a recording.
fn resolution(recording: &Recording) -> u64 {
    let warps = recording.warps.iter().flat_map(|w| [w.begin_ns, w.end_ns]);
    let events = recording.events().flat_map(|(_, e)| [e.begin_ns, e.end_ns]);
    let mut times: Vec<i64> = warps.chain(events).collect();
    times.sort_unstable();
    let steps = times.windows(2).map(|t| t[1].abs_diff(t[0])).filter(|&step| step > 0);
    steps.min().unwrap_or(0)
}
