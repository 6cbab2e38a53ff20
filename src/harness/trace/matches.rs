//! Which signals or packets a wait was for.

use std::collections::{BTreeMap, HashMap};

use peerwarp_codegen::print::{SiteKind, TimelineSite};

use super::{Event, Recording, Trace, Warp};
use crate::runtime::op::LaunchSpec;

/// Which buffer each parameter of a launch is. Launches share memory where their parameters are the same buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    /// By label, the buffers of those parameters that are not the buffer of their own name.
    launches: BTreeMap<String, BTreeMap<String, String>>,
}

impl Buffers {
    /// Of the launches of a round.
    pub fn of(launches: &[LaunchSpec]) -> Buffers {
        let renamed = launches.iter().filter(|l| !l.buffers.is_empty());
        Buffers { launches: renamed.map(|l| (l.label.clone(), l.buffers.clone())).collect() }
    }

    /// The buffer that a parameter of a launch is.
    pub fn get<'a>(&'a self, label: &str, parameter: &'a str) -> &'a str {
        let renamed = self.launches.get(label).and_then(|buffers| buffers.get(parameter));
        renamed.map_or(parameter, String::as_str)
    }
}

/// A wait and the signals that ended it; or a take, and the sending of the first tile's packets.
#[derive(Clone, Debug)]
pub struct Match<'t> {
    /// The recording of the rank that waited.
    pub waiting: &'t Recording,
    /// The warp that waited.
    pub warp: &'t Warp,
    /// The wait.
    pub wait: &'t Event,
    /// Each signal or sending that was waited for: the recording of the rank that did it, the warp, and the event.
    pub signals: Vec<(&'t Recording, &'t Warp, &'t Event)>,
}

impl<'t> Match<'t> {
    /// The signal that ended last.
    pub fn last(&self) -> Option<&(&'t Recording, &'t Warp, &'t Event)> {
        self.signals.iter().max_by_key(|s| s.2.end_ns)
    }
}

/// Finds what every wait and take was for. What had no room in the timeline is not among it.
pub fn matches(trace: &Trace) -> Vec<Match<'_>> {
    let ranks = trace.ranks();
    // By buffer, flag, sender and receiver.
    let mut signals = HashMap::new();
    for recording in &trace.recordings {
        for (warp, event) in recording.events() {
            let site = recording.site(event.site);
            if let (true, Some(parameter)) = (ends_waits(recording, site), site.parameter.as_deref()) {
                for (to, flag) in event.peers(site, ranks) {
                    let buffer = trace.buffers.get(&recording.label, parameter);
                    let key = (buffer, flag, recording.rank, to);
                    signals.insert(key, (recording, warp, event));
                }
            }
        }
    }
    let mut all = vec![];
    for waiting in &trace.recordings {
        for (warp, wait) in waiting.events() {
            let site = waiting.site(wait.site);
            let waits = matches!(site.kind, SiteKind::Wait | SiteKind::Take);
            let (true, Some(parameter)) = (waits, site.parameter.as_deref()) else { continue };
            let peers = wait.peers(site, ranks).into_iter();
            let buffer = trace.buffers.get(&waiting.label, parameter);
            let key = |(from, flag)| (buffer, flag, from, waiting.rank);
            let found = peers.filter_map(|peer| signals.get(&key(peer)));
            all.push(Match { waiting, warp, wait, signals: found.copied().collect() });
        }
    }
    all
}

/// Whether waits end by what a site does: signals, and the sending of packets, which have none.
fn ends_waits(recording: &Recording, site: &TimelineSite) -> bool {
    let signals = |s: &TimelineSite| s.kind == SiteKind::Signal && s.parameter == site.parameter;
    match site.kind {
        SiteKind::Signal => true,
        SiteKind::Send => !recording.timeline.sites.iter().any(signals),
        _ => false,
    }
}
