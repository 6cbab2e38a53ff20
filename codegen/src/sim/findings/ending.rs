//! What must hold when something ends: counters at the end of a launch, signals and packets at the end of a run.

use super::finding::FindingKind;
use crate::ir::ParamKind;
use crate::sim::exec::pairs::Ahead;
use crate::sim::memory::Event;
use crate::sim::schedule::World;

impl World<'_> {
    /// The work counters of a rank's launch, which is about to end, must be zero for the next one.
    pub fn check_counters(&mut self, rank: u32) {
        let Some(launch) = &self.streams[rank as usize].launch else { return };
        let params = &self.machine.kernels[launch.kernel].kernel.params;
        let mut left = vec![];
        for (param, buffer) in params.iter().zip(launch.buffers()) {
            let Some(buffer) = buffer.filter(|_| param.kind == ParamKind::Counters) else { continue };
            let counters = &self.memory[rank as usize][buffer].view::<u32>()[..param.len as usize];
            let kept = (0..).zip(counters).filter(|(_, held)| **held != 0);
            left.extend(kept.map(|(index, &held)| (buffer, param.name.clone(), index, held)));
        }
        for (buffer, name, index, held) in left {
            let Some(&by) = self.draws.get(&(rank, buffer, index)) else { continue };
            let message = format!(
                "work counter {name}[{index}] is {held} at the end of the launch, and the next one needs it at zero: a group \
                 left the loop early or never ran it, or two loops draw from one counter"
            );
            self.find_at(FindingKind::CounterNotReset, message, by, None, &name, (index, index + 1));
        }
    }

    /// At the end of a run: signals without a wait, packets that were not taken.
    pub fn check_left_over(&mut self) {
        self.check_unwaited();
        self.check_untaken();
        self.check_pairs();
        self.check_far_left();
    }

    fn check_unwaited(&mut self) {
        let mut unwaited: Vec<(usize, usize, u64, u32, Event)> = vec![];
        for (rank, buffers) in self.memory.iter().enumerate() {
            for (buffer, flags) in
                buffers.iter().enumerate().filter_map(|(b, m)| Some((b, m.flags.as_ref()?)))
            {
                unwaited.extend(flags.unseen().map(|(i, f)| (rank, buffer, i, f.value, f.by)));
            }
        }
        for (rank, buffer, index, value, by) in unwaited {
            let name = self.machine.buffers[buffer].name.clone();
            let message =
                format!("{name}[{index}] = {value} of rank {rank} is signalled, but no group waits for it");
            self.find_at(FindingKind::UnwaitedSignal, message, by, None, &name, (index, index + 1));
        }
    }

    fn check_pairs(&mut self) {
        let mut alone: Vec<_> = std::mem::take(&mut self.pairs).into_iter().collect();
        alone.sort_unstable_by_key(|(pair, _)| *pair);
        for Ahead { block, products } in alone.into_iter().map(|(_, ahead)| ahead) {
            let Some((_, by)) = products.front() else { continue };
            let message = format!(
                "block {block} multiplies {} times more often than block {}, and blocks of a pair multiply together",
                products.len(),
                block ^ 1
            );
            self.find(FindingKind::PairsDiffer, message, *by, None);
        }
    }

    fn check_untaken(&mut self) {
        let mut untaken = vec![];
        for (rank, buffers) in self.memory.iter().enumerate() {
            for (buffer, memory) in buffers.iter().enumerate() {
                let found = memory.messages.iter().flat_map(|m| m.untaken());
                untaken.extend(found.map(|(range, by)| (rank, buffer, range, by)));
            }
        }
        for (rank, buffer, range, by) in untaken {
            let name = self.machine.buffers[buffer].name.clone();
            let message = format!(
                "packets {}..{} of {name} of rank {rank} are sent, but no group takes them",
                range.start, range.end
            );
            self.find_at(FindingKind::UntakenPacket, message, by, None, &name, (range.start, range.end));
        }
    }
}
