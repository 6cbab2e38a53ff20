//! Which signal a wait was for.

use std::collections::HashMap;

use peerwarp_codegen::print::SiteKind;

use super::{Event, Recording, Trace, Warp};

/// A wait and the signals that ended it.
#[derive(Clone, Debug)]
pub struct Match<'t> {
    /// The recording of the rank that waited.
    pub waiting: &'t Recording,
    /// The warp that waited.
    pub warp: &'t Warp,
    /// The wait.
    pub wait: &'t Event,
    /// Each signal that was waited for: the recording of the rank that sent it, the warp, and the signal.
    pub signals: Vec<(&'t Recording, &'t Warp, &'t Event)>,
}

impl<'t> Match<'t> {
    /// The signal that ended last.
    pub fn last(&self) -> Option<&(&'t Recording, &'t Warp, &'t Event)> {
        self.signals.iter().max_by_key(|s| s.2.end_ns)
    }
}

/// Finds the signals of every wait for flags. Signals that had no room in the timeline are not among them.
pub fn matches(trace: &Trace) -> Vec<Match<'_>> {
    let ranks = trace.ranks();
    // By parameter, flag, sender and receiver.
    let mut signals = HashMap::new();
    for recording in &trace.recordings {
        for (warp, event) in recording.events() {
            let site = recording.site(event.site);
            if let (SiteKind::Signal, Some(parameter)) = (site.kind, site.parameter.as_deref()) {
                for (to, flag) in event.peers(site, ranks) {
                    signals.insert((parameter, flag, recording.rank, to), (recording, warp, event));
                }
            }
        }
    }
    let mut all = vec![];
    for waiting in &trace.recordings {
        for (warp, wait) in waiting.events() {
            let site = waiting.site(wait.site);
            let (SiteKind::Wait, Some(parameter)) = (site.kind, site.parameter.as_deref()) else { continue };
            let peers = wait.peers(site, ranks).into_iter();
            let found = peers.filter_map(|(from, flag)| signals.get(&(parameter, flag, from, waiting.rank)));
            all.push(Match { waiting, warp, wait, signals: found.copied().collect() });
        }
    }
    all
}
