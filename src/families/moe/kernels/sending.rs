//! How rows of dispatch are shared among those who send them.

use super::config::Dispatch;
use super::defaults::worth_dynamic_scheduling;
use super::protocol::{Phase, Protocol};

impl Dispatch {
    /// Whether a rank's own rows go from the input to their places, and not through its inbox. An expert-major row is copied to several
    /// places, and the copy reads the input as well. Few rows as packets are in the inbox before their places are known, so that a load
    /// from the input would only be later
    /// (`bench/results/moe-on-two-gpus.md`, choices).
    pub(super) fn keeps_own(&self) -> bool {
        let many_packets = self.ranks == 2 && self.tokens > 128 && !self.sends_apart();
        let pays = self.protocol != Protocol::Packets || many_packets;
        pays && self.layout.by_expert() && self.phase == Phase::Both && !self.quantises()
    }

    /// Ranks that rows are sent to.
    pub(super) fn destinations(&self) -> u32 {
        self.ranks - u32::from(self.keeps_own())
    }

    /// Whether parts of rows are other groups' for each rank: while a group has two at most, waiting is what takes time.
    pub(super) fn sends_apart(&self) -> bool {
        let parts = self.slots() * self.pieces().parts() * self.ranks;
        self.protocol == Protocol::Packets && parts <= 2 * self.send_blocks * (self.warps / self.group_warps)
    }

    /// Whether slots to send are scheduled dynamically. With each number drawn the warps of a group wait for the one that releases the row
    /// before, where they had been ahead of it. That pays if a row goes to many ranks, or if so many groups send that the link is
    /// what they wait for.
    pub(super) fn dynamic_slots(&self) -> bool {
        let joining = if self.few_send() { self.route_blocks() } else { 0 };
        let groups = (self.send_blocks + joining) * (self.warps / self.group_warps);
        let copies = self.ranks.min(self.slot_entries());
        worth_dynamic_scheduling(self.protocol, self.slots(), groups) && (copies >= 4 || groups >= 512)
    }

    /// Whether rows go with flags and so few blocks send them that the others are missed when they are done with their own. Where
    /// many do, one kernel for all of it would have more registers than a thread of 32 warps has.
    pub(super) fn few_send(&self) -> bool {
        !self.receivers_count() && self.send_blocks < 32
    }

    /// Whether blocks send rows once they have told the ranks where rows go: those who draw rows share them with whoever comes.
    pub(super) fn route_joins(&self) -> bool {
        self.few_send() && self.dynamic_slots()
    }

    /// Whether blocks that have sent receive as well: by expert a row is stored several times, and who does that is not done when the
    /// link is, unless it has rows for many ranks to bring. Blocks go on once.
    pub(super) fn send_joins(&self) -> bool {
        let groups = (self.send_blocks + self.recv_blocks) * (self.warps / self.group_warps);
        let many = worth_dynamic_scheduling(self.protocol, self.slots() * self.ranks, groups);
        self.keeps_own() && self.ranks == 2 && many && !self.route_joins()
    }
}
