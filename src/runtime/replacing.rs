//! Processes that take the places of ranks without which a world goes on.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{World, at_once, lock};
use crate::runtime::gpu::Gpu;
use crate::runtime::net::deadline::Deadline;
use crate::runtime::net::ledger::{Ledger, Met, Step, VIEWS, View};
use crate::runtime::net::links::{Links, all_of};
use crate::runtime::net::processes::Processes;
use crate::runtime::net::replacing::Present;
use crate::runtime::net::{FormError, Launched, RANKS, Teams};
use crate::runtime::reach::own_gpu;
use crate::runtime::symmetric::{Across, Symmetric};
use crate::runtime::tenants::Tenants;
use crate::runtime::{RuntimeError, WorldOptions, greetings};

impl World {
    /// A world for a process that takes the place of one that is gone: started as that one was, with the same rank, address and secret.
    /// It makes the operations and the memory that the other ranks have at that time, in the order in which they made them, and then
    /// calls [`World::replace`], as they do. Before that its launches are refused ([`RuntimeError::Inactive`]).
    ///
    /// # Errors
    /// As of [`World::of_process`]; ranks are on several nodes.
    pub fn in_place_of(
        gpus: &[Arc<dyn Gpu>],
        launched: &Launched,
        options: &WorldOptions,
    ) -> Result<World, RuntimeError> {
        launched.check(RANKS)?;
        let (ranks, rank) = (launched.ranks, launched.rank);
        let (members, sharing, card) = World::own(gpus, launched, options)?;
        // Where GPUs are shared, each has the ranks that it would have if all of them saw the GPUs that this one sees.
        let sharers = (0..ranks).filter(|other| options.share_gpus || *other == rank);
        let sharers = sharers.map(|other| own_gpu(gpus, other, true)).collect::<Result<Vec<_>, _>>()?;
        let tenants = Tenants::of(sharers.iter().map(|gpu| gpu.info().bus_id.as_str()), at_once(options)?);
        let ledger = Ledger::create(1 << rank).and_then(|file| Ledger::open(file, rank))?;
        let links = Links::alone(launched, card, options.form_timeout);
        let processes = Arc::new(Processes::new(links, ledger, sharing));
        let bytes = greetings::status_bytes(ranks);
        let status = Symmetric::across(&members[0], 0..ranks, bytes, sharing, &processes)?;
        let teams = Teams::of(ranks, 1)?;
        let world = World::with(teams, members, tenants, sharing, options, status, Some(processes))?;
        // The others go on without this rank, too, as long as it has no place.
        world.inactive.store(all_of(ranks), Ordering::Relaxed);
        Ok(world)
    }

    /// Lets a new process take the place of a rank without which the world goes on. All active ranks call this when nothing of theirs runs,
    /// and so does the new process, whose world is [`World::in_place_of`]. The active rank of the lowest number waits for it, for
    /// [`WorldOptions::form_timeout`], where rank 0 did when the world was formed. From then on all ranks share other memory, at the
    /// addresses that each has, as after [`World::go_on`]: graphs stay as they are, and a process that had the rank before reaches nothing.
    ///
    /// In a world of one process, the rank is active again.
    ///
    /// # Errors
    /// The rank is active, or there is no such rank; the new process does not come, or has made other memory. A world whose new process is
    /// lost on its way goes on without it by [`World::go_on`].
    pub fn replace(&self, rank: u32) -> Result<(), RuntimeError> {
        let Some(processes) = &self.processes else {
            self.is_replaceable(rank)?;
            self.inactive.fetch_and(!(1 << rank), Ordering::Relaxed);
            return self.reset();
        };
        let is_new = self.members[0].rank == rank && processes.links().is_alone();
        if !is_new {
            self.usable()?;
            self.is_replaceable(rank)?;
        }
        let replaced = if is_new { self.take_place(processes) } else { self.admit(processes, rank) };
        if let Err(e) = &replaced {
            lock(&self.poisoned).get_or_insert_with(|| e.to_string());
        }
        replaced
    }

    fn is_replaceable(&self, rank: u32) -> Result<(), RuntimeError> {
        let inactive: Vec<String> =
            (0..self.ranks()).filter(|r| !self.is_active(*r)).map(|r| r.to_string()).collect();
        if rank < self.ranks() && !self.is_active(rank) {
            return Ok(());
        }
        let allowed = match inactive.is_empty() {
            true => "one without which the world goes on: all are active".to_owned(),
            false => format!("one without which the world goes on, of {}", inactive.join(", ")),
        };
        Err(RuntimeError::invalid("rank to replace", rank, allowed))
    }

    fn admit(&self, processes: &Processes, rank: u32) -> Result<(), RuntimeError> {
        self.members[0].gpu.synchronize()?;
        let (ledger, own) = (processes.ledger(), self.present(processes));
        // The same on all ranks: none decides before all have met.
        let view = ledger.view();
        let newcomer = processes.links().admit(rank, (&ledger, view), own.clone())?;
        let fits = same_memory(rank, &newcomer, &own);
        self.agree(fits)?;
        self.go_over(processes, view, rank)
    }

    fn take_place(&self, processes: &Processes) -> Result<(), RuntimeError> {
        let (rank, own) = (self.members[0].rank, self.present(processes));
        let (first, ledger, view) = processes.links().take_place(own.clone())?;
        let fits = same_memory(rank, &own, &first);
        self.agree(fits)?;
        let all: Vec<Arc<Across>> = lock(&self.across).iter().filter_map(Weak::upgrade).collect();
        all.iter().zip(&first.allocations).for_each(|(across, (number, _))| across.renumber(*number));
        processes.take_place(ledger, first.next);
        self.go_over(processes, view, rank)
    }

    /// Goes over to the view after one, with another rank.
    fn go_over(&self, processes: &Processes, view: View, rank: u32) -> Result<(), RuntimeError> {
        let ledger = processes.ledger();
        let next = ledger.decide(view, view.active | 1 << rank).filter(|next| next.has(rank));
        let next = next.ok_or_else(|| {
            let allowed = format!("at most {VIEWS}, and no rank that leaves while another one comes");
            RuntimeError::invalid("times that ranks left or came", view.number + 1, allowed)
        })?;
        processes.links().go_over(next.number, |rank| next.has(rank));
        self.renew()?;
        let lost = || processes.links().all_lost().iter().fold(0, |mask, rank| mask | 1 << rank);
        let deadline = Deadline::after(self.form_timeout);
        match ledger.meet(next, Step::Renewed, lost, &deadline) {
            Met::All => {}
            Met::Missing(missing) => return Err(FormError::Lost { rank: missing.trailing_zeros() }.into()),
            Met::Changed => return Err(FormError::Lost { rank }.into()),
        }
        self.begin(next)?;
        self.greet()
    }

    /// What this rank has when another one takes a place.
    fn present(&self, processes: &Processes) -> Present {
        let all =
            lock(&self.across).iter().filter_map(Weak::upgrade).map(|a| (a.number(), a.bytes())).collect();
        Present::new(all, processes.next())
    }
}

/// Whether a newcomer has made the memory that the others have.
fn same_memory(rank: u32, newcomer: &Present, other: &Present) -> Result<(), RuntimeError> {
    let sizes =
        |present: &Present| -> Vec<u64> { present.allocations.iter().map(|(_, bytes)| *bytes).collect() };
    let (new, old) = (sizes(newcomer), sizes(other));
    if new == old {
        return Ok(());
    }
    let allowed = format!("{old:?}, those of the others: the same operations, made in the same order");
    Err(RuntimeError::invalid(format!("bytes of allocations of rank {rank}"), format!("{new:?}"), allowed))
}
