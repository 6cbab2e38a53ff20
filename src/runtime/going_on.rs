//! Worlds that go on without some of their ranks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{World, lock};
use crate::runtime::RuntimeError;
use crate::runtime::net::FormError;
use crate::runtime::net::deadline::Deadline;
use crate::runtime::net::ledger::{Met, Step, VIEWS, View, Way};
use crate::runtime::net::links::all_of;
use crate::runtime::symmetric::Across;

impl World {
    /// Goes on without a rank, with what it had not finished lost as by [`World::reset`]: kernels of the others do not wait for it any
    /// more, and find zeros in place of what it would have sent. Graphs that were captured before stay as they are. Operations whose
    /// kernels need more than that of each rank say so; `peerwarp check --deaths` finds those that do not.
    ///
    /// Where each rank has a process, this is [`World::go_on`] of one that says that it waits for the rank in vain.
    ///
    /// # Errors
    /// There is no such rank, it has left already, it is the last one, or ranks are on several nodes. As of [`World::reset`] and
    /// [`World::go_on`].
    pub fn deactivate(&self, rank: u32) -> Result<(), RuntimeError> {
        let inactive = self.without(rank)?;
        match &self.processes {
            None => {
                self.inactive.store(inactive, Ordering::Relaxed);
                self.reset()
            }
            Some(processes) => {
                processes.ledger().blame(1 << rank);
                self.go_on().map(|_| ())
            }
        }
    }

    /// Goes on with the ranks that come here, of a world whose ranks have processes of their own on one node; yields those without which it
    /// goes on from here on. All ranks that can have to call it, after an error of a wait. Processes that are gone are not waited for; nor
    /// for longer than a moment those for which a kernel or a caller of [`World::deactivate`] waited in vain; and others for
    /// [`WorldOptions::form_timeout`](crate::runtime::WorldOptions::form_timeout). What the others share is other memory from then on, at
    /// the addresses that it had, where a process that was stopped and goes on reaches nothing; memory of `World::symmetric` keeps what it
    /// holds. What kernels had not finished is lost, as by [`World::reset`].
    ///
    /// # Errors
    /// The others go on without this rank ([`RuntimeError::Inactive`]), memory does not go by VMM, ranks have dropped
    /// other operations, or the driver fails.
    pub fn go_on(&self) -> Result<Vec<u32>, RuntimeError> {
        let went = self.go_on_with_others();
        if let Err(e) = &went {
            lock(&self.poisoned).get_or_insert_with(|| e.to_string());
        }
        went
    }

    fn go_on_with_others(&self) -> Result<Vec<u32>, RuntimeError> {
        let Some(processes) = self.processes.as_ref().filter(|_| self.teams.nodes() == 1) else {
            let found = if self.teams.nodes() > 1 { "of several nodes" } else { "of one process" };
            return Err(RuntimeError::invalid(
                "world that goes on by itself",
                found,
                "of several processes on one node",
            ));
        };
        let (own, ledger) = (self.members[0].rank, processes.ledger());
        self.members[0].gpu.synchronize()?;
        if let Err(RuntimeError::Aborted(aborted)) = self.records()
            && let Some(wait) = aborted.wait.filter(|wait| wait.peer != own)
        {
            ledger.blame(1 << wait.peer.min(63));
        }
        let lost = || processes.links().all_lost().iter().fold(0, |mask, rank| mask | 1 << rank);
        let before = self.inactive();
        let mut known = processes.links().view();
        let view = loop {
            let deadline = Deadline::after(self.form_timeout);
            let view = match ledger.way(known) {
                Way::Left => return Err(RuntimeError::Inactive { rank: own }),
                Way::Renew(view) => view,
                Way::Meet(view) => {
                    let missing = match ledger.meet(view, Step::Idle, lost, &deadline) {
                        Met::Changed => continue,
                        Met::All => 0,
                        Met::Missing(missing) => missing,
                    };
                    ledger.decide(view, view.active & !missing).ok_or_else(|| {
                        let allowed = format!("at most {VIEWS}: form the world anew");
                        RuntimeError::invalid("times that ranks left", VIEWS, allowed)
                    })?;
                    continue;
                }
            };
            known = view.number;
            processes.links().go_over(view.number, |rank| view.has(rank));
            match self.renew() {
                Ok(()) => match ledger.meet(view, Step::Renewed, lost, &deadline) {
                    Met::All => break view,
                    Met::Changed => {}
                    Met::Missing(missing) => drop(ledger.decide(view, view.active & !missing)),
                },
                // A rank that is gone is found by the next round.
                Err(RuntimeError::Form(FormError::Lost { .. } | FormError::Late { .. })) => {}
                Err(e) => return Err(e),
            }
        };
        self.begin(view)?;
        let left = self.inactive() & !before;
        Ok((0..self.ranks()).filter(|rank| left >> rank & 1 != 0).collect())
    }

    /// Runs in a view, all of whose ranks share fresh memory.
    pub(super) fn begin(&self, view: View) -> Result<(), RuntimeError> {
        let Some(processes) = &self.processes else { return Ok(()) };
        self.inactive.store(!view.active & all_of(self.ranks()), Ordering::Relaxed);
        self.clear_all()?;
        #[cfg(test)]
        crate::runtime::net::ledger::tests::reach("cleared");
        // No rank launches before the flags of all are clear.
        let agreed = self.agree(Ok(()));
        #[cfg(test)]
        crate::runtime::net::ledger::tests::reach("agreed");
        processes.ledger().runs(view);
        agreed?;
        self.resets.fetch_add(1, Ordering::Relaxed);
        *lock(&self.poisoned) = None;
        Ok(())
    }

    /// Maps anew all that processes have mapped of each other.
    pub(super) fn renew(&self) -> Result<(), RuntimeError> {
        let Some(processes) = &self.processes else { return Ok(()) };
        let all: Vec<Arc<Across>> = lock(&self.across).iter().filter_map(Weak::upgrade).collect();
        let numbers: Vec<u32> = all.iter().map(|across| across.number()).collect();
        let others: Vec<Vec<u32>> = processes.links().gather(Ok(numbers.clone()))?;
        #[cfg(test)]
        crate::runtime::net::ledger::tests::reach("gathered");
        if let Some(other) = others.iter().find(|other| **other != numbers) {
            let allowed = "the same on all ranks: drop operations on all of them";
            return Err(RuntimeError::invalid("allocations", format!("{numbers:?} and {other:?}"), allowed));
        }
        all.iter().try_for_each(|across| across.renew())
    }

    /// The mask of ranks that are not active once this one is not, either.
    fn without(&self, rank: u32) -> Result<u64, RuntimeError> {
        let (inactive, ranks) = (self.inactive(), self.ranks());
        if self.teams.nodes() > 1 {
            let allowed = "of one node: others leave the world, and form it anew";
            return Err(RuntimeError::invalid(
                "world that goes on without a rank",
                "of several nodes",
                allowed,
            ));
        }
        if !self.is_active(rank) || inactive.count_ones() + 1 == ranks {
            let active: Vec<String> =
                (0..ranks).filter(|r| self.is_active(*r)).map(|r| r.to_string()).collect();
            let allowed = format!("an active rank, of {}, that is not the last one", active.join(", "));
            return Err(RuntimeError::invalid("rank to go on without", rank, allowed));
        }
        Ok(inactive | 1 << rank)
    }

    /// Ranks without which it goes on, as a mask: bit `r` is rank `r`'s.
    pub fn inactive(&self) -> u64 {
        self.inactive.load(Ordering::Relaxed)
    }

    /// Whether there is such a rank, and the world does not go on without it.
    pub fn is_active(&self, rank: u32) -> bool {
        rank < self.ranks() && (rank > 63 || self.inactive() >> rank & 1 == 0)
    }
}
