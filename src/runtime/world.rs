//! The ranks that run kernels together, and the memory that they share.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::RuntimeError;
use super::args::KernelArgs;
use super::far::FarRanks;
use super::gpu::{DevicePtr, Gpu, LaunchConfig, RawStream, Sharing};
use super::greetings;
use super::handles::LoadedKernel;
use super::image::KernelImage;
use super::net::bootstrap::{check_files, node};
use super::net::links::{Links, all_of, near};
use super::net::processes::Processes;
use super::net::rendezvous::Card;
use super::net::{Launched, NODE_VARIABLE, Place, RANKS, Teams};
use super::reach::{check_members, check_reach, facts, machine, own_gpu, sharing};
use super::status::{Aborted, KernelNames, Record, Status};
use super::symmetric::{Across, Member, Symmetric};
use super::tenants::Tenants;

#[path = "going_on.rs"]
mod going_on;

#[path = "replacing.rs"]
mod replacing;

/// How long a wait may last, unless told otherwise.
pub const WAIT_BUDGET: Duration = Duration::from_secs(5);

/// How long ranks wait for each other to come together, unless told otherwise.
pub const FORM_TIMEOUT: Duration = Duration::from_secs(60);

/// The most launches of a rank that may be under way at once: with more, none has blocks to speak of.
const MOST_AT_ONCE: u32 = 16;

/// How a world is formed.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// How long a wait of a kernel may last before the world is aborted.
    pub wait_budget: Duration,
    /// How memory is shared; the best way that all GPUs have if not given.
    pub sharing: Option<Sharing>,
    /// Whether blocks of other streams' kernels may run on the same SMs as the blocks of these kernels. By default
    /// each of these asks for so much shared memory that it has an SM to itself, if the GPU has one for each: on two
    /// H200s rounds of up to 64 tokens are then about 1 us faster, and such of 256 that follow each other at once 5 us. Worth
    /// giving up where a computation is to run beside them.
    pub share_sms: bool,
    /// Whether several ranks may have one GPU: to try and test kernels where there are fewer GPUs than ranks. Blocks of all
    /// of a GPU's ranks have to be resident at once, which each kernel is checked for, and have no SM to themselves. Times say
    /// nothing about links then. Processes that share a GPU take turns on it, so that a wait of microseconds
    /// takes milliseconds, unless NVIDIA's Multi-Process Service runs.
    pub share_gpus: bool,
    /// How many launches of a rank may be under way at once, such as of two operations that take turns with two batches, each on a
    /// stream of its own. Blocks of all of them have to be resident at once, which each kernel is checked for as it is loaded: it has
    /// at most [`World::blocks_per_launch`] then. They have no SM to themselves, and are launched without asking the driver for
    /// residency, as it may run such kernels one after the other while ranks wait for each other in different ones. The same on all
    /// ranks. With 1, all launches of a rank are in order, whatever their operations.
    pub launches_at_once: u32,
    /// Computers that ranks of one process play, each with as many of them in turn: what is near reaches the ranks of a node alone, and
    /// the others are reached by far channels. To try and test kernels for several nodes where there is one.
    pub nodes: u32,
    /// How long processes wait for each other whenever they have to come together.
    pub form_timeout: Duration,
    /// What has to be the same on all ranks, by name: digests of kernel tables and of configurations, say. Versions, the
    /// machine and the fields above are compared without being told.
    pub facts: BTreeMap<String, String>,
}

impl WorldOptions {
    /// A number of seconds, for one of the options.
    ///
    /// # Errors
    /// It is no number above 0 and below a million.
    pub fn seconds(field: &str, value: f64) -> Result<Duration, RuntimeError> {
        let allowed = "seconds: more than 0, less than a million";
        let found =
            Some(value).filter(|value| *value < 1e6).and_then(|v| Duration::try_from_secs_f64(v).ok());
        found.filter(|d| !d.is_zero()).ok_or_else(|| RuntimeError::invalid(field, value, allowed))
    }
}

impl Default for WorldOptions {
    fn default() -> WorldOptions {
        WorldOptions {
            wait_budget: WAIT_BUDGET,
            sharing: None,
            share_sms: false,
            share_gpus: false,
            launches_at_once: 1,
            nodes: 1,
            form_timeout: FORM_TIMEOUT,
            facts: BTreeMap::new(),
        }
    }
}

/// Memory whose bytes have to be of a certain value before the first launch: made so again by [`World::reset`].
#[derive(Debug)]
struct Cleared {
    gpu: Arc<dyn Gpu>,
    ptr: DevicePtr,
    bytes: u64,
    value: u8,
    /// What keeps the memory.
    owner: Weak<dyn Any + Send + Sync>,
}

/// The ranks that run kernels together: all in this process, or each in a process of its own, with a GPU each unless
/// [`WorldOptions::share_gpus`] lets them share some.
#[derive(Debug)]
pub struct World {
    teams: Teams,
    members: Vec<Member>,
    sharing: Sharing,
    share_sms: bool,
    tenants: Tenants,
    wait_budget: Duration,
    form_timeout: Duration,
    status: Arc<Symmetric>,
    /// How often it was reset.
    resets: AtomicU64,
    /// Ranks without which it goes on, as a mask.
    inactive: AtomicU64,
    /// What processes have mapped of each other.
    across: Mutex<Vec<Weak<Across>>>,
    /// None if all ranks are in this one.
    processes: Option<Arc<Processes>>,
    kernels: Mutex<Vec<KernelNames>>,
    cleared: Mutex<Vec<Cleared>>,
    /// Memory that launches may be given for windows.
    shared: Mutex<Vec<Weak<Symmetric>>>,
    /// How many operations with far channels there have been, and what carries those of operations that are there.
    far: Mutex<(u64, Vec<Weak<FarRanks>>)>,
    /// The error after which nothing may be launched.
    poisoned: Mutex<Option<String>>,
}

impl World {
    /// One rank for each of these GPUs, in order. One that is there several times is shared, if `options` allows that.
    pub fn of_gpus(gpus: &[Arc<dyn Gpu>], options: &WorldOptions) -> Result<World, RuntimeError> {
        let members: Vec<Member> =
            gpus.iter().zip(0..).map(|(gpu, rank)| Member { rank, gpu: Arc::clone(gpu) }).collect();
        check_members(&members, options.share_gpus)?;
        let sharing = sharing(&members, options.sharing)?;
        let ranks = members.len() as u32;
        let teams = Teams::of(ranks, options.nodes)?;
        let bytes = greetings::status_bytes(teams.local_ranks());
        let status = Symmetric::local(&members, teams.local_ranks(), bytes, sharing)?;
        let at_once = at_once(options)?;
        let tenants = Tenants::of(members.iter().map(|m| m.gpu.info().bus_id.as_str()), at_once);
        World::with(teams, members, tenants, sharing, options, status, None)
    }

    /// The world that this process was started for, one rank a process. Ranks of a computer are a node, unless [`NODE_VARIABLE`] names it: what is
    /// near reaches a node, far channels all. The rank's GPU is that of its number on the
    /// machine among `gpus`, those that the process sees, or the only one. Where GPUs may be shared, numbers go on at the first
    /// GPU after the last.
    pub fn of_process(
        gpus: &[Arc<dyn Gpu>],
        launched: &Launched,
        options: &WorldOptions,
    ) -> Result<World, RuntimeError> {
        launched.check(RANKS)?;
        if options.nodes != 1 {
            let allowed = format!("1 where each rank has a process: {NODE_VARIABLE} names nodes of one host");
            return Err(RuntimeError::invalid("nodes", options.nodes, allowed));
        }
        if launched.rank == 0 {
            check_files(launched.ranks, getrlimit(Resource::Nofile).current)?;
        }
        let at_once = at_once(options)?;
        let (members, sharing, card) = World::own(gpus, launched, options)?;
        let (mut links, cards, teams) = Links::join(launched, card, options.form_timeout)?;
        let near = near(&cards, launched.rank);
        links.agree(check_reach(gpus, members[0].gpu.as_ref(), &near))?;
        let bytes = greetings::status_bytes(teams.local_ranks());
        let first = launched.rank - launched.rank % teams.local_ranks();
        let ledger = links.ledger(first, teams.local_ranks())?;
        let processes = Arc::new(Processes::new(links, ledger, sharing));
        let ranks = first..first + teams.local_ranks();
        let status = Symmetric::across(&members[0], ranks, bytes, sharing, &processes)?;
        let tenants = Tenants::of(near.iter().map(|card| card.bus_id.as_str()), at_once);
        World::with(teams, members, tenants, sharing, options, status, Some(processes))
    }

    /// The rank of this process, how it shares memory, and what it says of itself.
    fn own(
        gpus: &[Arc<dyn Gpu>],
        launched: &Launched,
        options: &WorldOptions,
    ) -> Result<(Vec<Member>, Sharing, Card), RuntimeError> {
        let gpu = own_gpu(gpus, launched.local_rank, options.share_gpus)?;
        let members = vec![Member { rank: launched.rank, gpu: Arc::clone(gpu) }];
        let sharing = sharing(&members, options.sharing)?;
        let card = Card {
            rank: launched.rank,
            ranks: launched.ranks,
            bus_id: gpu.info().bus_id.clone(),
            machine: machine(),
            node: node(launched, machine())?,
            socket: String::new(),
            share_gpus: options.share_gpus,
            facts: facts(options, sharing, gpu.info().target.arch()),
        };
        Ok((members, sharing, card))
    }

    fn with(
        teams: Teams,
        members: Vec<Member>,
        tenants: Tenants,
        sharing: Sharing,
        options: &WorldOptions,
        status: Symmetric,
        processes: Option<Arc<Processes>>,
    ) -> Result<World, RuntimeError> {
        let WorldOptions { wait_budget, share_sms, form_timeout, .. } = *options;
        let (kernels, cleared, poisoned) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (shared, far) = (Mutex::default(), Mutex::default());
        let across = status.mapped_across().map(Arc::downgrade).into_iter().collect();
        let active = processes
            .as_ref()
            .filter(|_| teams.nodes() == 1)
            .map(|processes| processes.ledger().view().active);
        let inactive = active.map_or(0, |active| !active & all_of(teams.ranks()));
        let world = World {
            teams,
            members,
            sharing,
            share_sms,
            tenants,
            wait_budget,
            form_timeout,
            status: Arc::new(status),
            resets: AtomicU64::new(0),
            inactive: AtomicU64::new(inactive),
            across: Mutex::new(across),
            processes,
            kernels,
            cleared,
            shared,
            far,
            poisoned,
        };
        world.greet()?;
        Ok(world)
    }

    /// Whether all of its ranks reach each other.
    fn greet(&self) -> Result<(), RuntimeError> {
        let World { members, teams, status, .. } = self;
        self.agree(greetings::write(members, teams, status))?;
        self.agree(greetings::read(members, teams, status, |rank| self.is_active(rank)))
    }

    /// World size: ranks of all nodes.
    pub fn ranks(&self) -> u32 {
        self.teams.ranks()
    }

    /// Its ranks, by node and by rail.
    pub fn teams(&self) -> &Teams {
        &self.teams
    }

    /// Where a member is.
    pub(super) fn place(&self, member: usize) -> Place {
        self.teams.place(self.members[member].rank).expect("members are ranks of the world")
    }

    /// The ranks of this process.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// How memory is shared.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Whether blocks of other kernels may run on the SMs of these kernels' blocks.
    pub fn shares_sms(&self) -> bool {
        self.share_sms || self.tenants.launches() > 1
    }

    /// The most ranks that are on one GPU.
    pub fn ranks_per_gpu(&self) -> u32 {
        self.tenants.most()
    }

    /// So many blocks of any kernel fit on a GPU for each of the launches that may be under way there, if these are several: of ranks
    /// that share it, or of [`WorldOptions::launches_at_once`].
    pub fn blocks_per_launch(&self) -> Option<u32> {
        let launches = self.tenants.launches();
        (launches > 1).then(|| self.members[0].gpu.info().sms / launches)
    }

    /// Loads a kernel whose blocks wait for each other on a GPU of one of its ranks.
    pub(crate) fn load(&self, gpu: &Arc<dyn Gpu>, image: &KernelImage) -> Result<LoadedKernel, RuntimeError> {
        image.serves(gpu.info())?;
        let shape = LaunchConfig { cooperative: true, ..LaunchConfig::from(&image.launch) };
        let exclusive_sm_bytes = shape.exclusive_sm_bytes.filter(|_| !self.share_sms);
        let config = self.tenants.config(LaunchConfig { exclusive_sm_bytes, ..shape });
        // SAFETY: as the implementation of `Images` says.
        let kernel = unsafe { LoadedKernel::new(gpu, &image.module, &image.entry, config)? };
        self.tenants.admit(kernel)
    }

    /// How long a wait of a kernel may last.
    pub fn wait_budget(&self) -> Duration {
        self.wait_budget
    }

    /// Allocates zeroed memory on every rank. All ranks have to do so in the same order, with the same size.
    pub fn allocate(&self, bytes: u64) -> Result<Symmetric, RuntimeError> {
        match &self.processes {
            None => Symmetric::local(&self.members, self.teams.local_ranks(), bytes, self.sharing),
            Some(processes) => {
                let first = self.members[0].rank - self.place(0).local_rank;
                let near = first..first + self.teams.local_ranks();
                let memory = Symmetric::across(&self.members[0], near, bytes, self.sharing, processes)?;
                let mut all = lock(&self.across);
                all.retain(|across| across.strong_count() > 0);
                all.extend(memory.mapped_across().map(Arc::downgrade));
                Ok(memory)
            }
        }
    }

    /// [`World::allocate`] of memory that launches may be given for windows, as long as it is there.
    pub(crate) fn share(&self, bytes: u64) -> Result<Arc<Symmetric>, RuntimeError> {
        let memory = Arc::new(self.allocate(bytes)?);
        memory.keep();
        let mut all = lock(&self.shared);
        all.retain(|known| known.strong_count() > 0);
        all.push(Arc::downgrade(&memory));
        Ok(memory)
    }

    /// The shared memory in which these bytes of a member are, and how far from its start.
    pub(crate) fn shared(&self, member: usize, ptr: DevicePtr, bytes: u64) -> Option<(Arc<Symmetric>, u64)> {
        lock(&self.shared).iter().filter_map(Weak::upgrade).find_map(|memory| {
            let at = ptr.checked_sub(memory.own(member))?;
            at.checked_add(bytes).is_some_and(|end| end <= memory.bytes()).then_some((memory, at))
        })
    }

    /// Waits for all ranks; an error on one of them becomes an error on all of them. All ranks have to call it, within
    /// [`WorldOptions::form_timeout`].
    pub fn agree<T>(&self, result: Result<T, RuntimeError>) -> Result<T, RuntimeError> {
        match &self.processes {
            None => result,
            Some(processes) => processes.links().agree(result),
        }
    }

    /// What every process has, in the order of their ranks; an error on one of them becomes an error on all of them. All
    /// have to call it, as [`World::agree`].
    pub(crate) fn gather<T>(&self, own: Result<T, RuntimeError>) -> Result<Vec<T>, RuntimeError>
    where
        T: Serialize + DeserializeOwned,
    {
        match &self.processes {
            None => Ok(vec![own?]),
            Some(processes) => processes.links().gather(own),
        }
    }

    /// Keeps what carries far channels, which is given its number, to ask for faults and to renew as long as it is there.
    pub(super) fn watch(&self, far: impl FnOnce(u64) -> FarRanks) -> Arc<FarRanks> {
        let (carried, all) = &mut *lock(&self.far);
        let far = Arc::new(far(*carried));
        *carried += 1;
        all.push(Arc::downgrade(&far));
        far
    }

    /// What carries far channels of operations that are there.
    fn far(&self) -> Vec<Arc<FarRanks>> {
        let (_, all) = &mut *lock(&self.far);
        all.retain(|far| far.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// A rank whose process is gone, if there is one.
    pub fn lost(&self) -> Option<u32> {
        self.processes.as_ref().and_then(|processes| processes.links().lost())
    }

    /// Where the status records of all ranks are, as the member with this index sees them.
    pub(super) fn status_pointers(&self, member: usize) -> Vec<DevicePtr> {
        self.status.pointers(member, 0)
    }

    /// The arguments of a member's kernel, with those set that every kernel takes. Its names are known from here on, for the
    /// errors of its waits.
    pub(crate) fn kernel_args(&self, member: usize, image: &KernelImage) -> Result<KernelArgs, RuntimeError> {
        lock(&self.kernels).push(KernelNames::of(image));
        let mut args = KernelArgs::new(&image.variant, &image.args);
        args.set_pointers("status", &self.status_pointers(member))?;
        args.set_u64("wait_budget_ns", self.wait_budget.as_nanos() as u64)?;
        args.set_u32("rank", self.place(member).local_rank)?;
        Ok(args)
    }

    /// Sets all bytes of a member's memory to a value, now and at every [`World::reset`] as long as `owner`, which keeps the
    /// memory, is alive. Does not wait for it.
    pub(crate) fn clear(
        &self,
        member: usize,
        (ptr, bytes): (DevicePtr, u64),
        value: u8,
        owner: &Arc<dyn Any + Send + Sync>,
    ) -> Result<(), RuntimeError> {
        let gpu = Arc::clone(&self.members[member].gpu);
        // SAFETY: `owner`, which the caller has, keeps it.
        unsafe { gpu.fill(ptr, bytes, value, RawStream::DEFAULT)? };
        lock(&self.cleared).push(Cleared { gpu, ptr, bytes, value, owner: Arc::downgrade(owner) });
        Ok(())
    }

    /// Whether kernels may be launched: an error tells of an earlier one that was not followed by a [`World::reset`].
    pub fn usable(&self) -> Result<(), RuntimeError> {
        match &*lock(&self.poisoned) {
            None => Ok(()),
            Some(first) => Err(RuntimeError::Poisoned { first: first.clone() }),
        }
    }

    /// Looks whether a wait has run out of time on any rank, which this process's ranks know of. Does not wait for
    /// kernels to end, and launches nothing.
    pub fn check(&self) -> Result<(), RuntimeError> {
        self.usable()?;
        self.records()
    }

    fn records(&self) -> Result<(), RuntimeError> {
        let records: Result<Vec<_>, _> = (0..self.members.len()).map(|m| self.status(m)).collect();
        match Aborted::of(&records?, &lock(&self.kernels)) {
            None => Ok(()),
            Some(mut aborted) => {
                let far = self.far();
                aborted.carrier = far.iter().find_map(|far| far.fault());
                aborted.recoverable = self.lost().is_none();
                lock(&self.poisoned).get_or_insert_with(|| aborted.to_string());
                Err(RuntimeError::Aborted(Box::new(aborted)))
            }
        }
    }

    /// Waits until everything on a stream of a member has ended, then looks as [`World::check`] does. Every wait of a
    /// kernel is bounded, so that this is too.
    pub fn finish(&self, member: usize, stream: RawStream<'_>) -> Result<(), RuntimeError> {
        if let Err(e) = self.members[member].gpu.synchronize_stream(stream) {
            lock(&self.poisoned).get_or_insert_with(|| e.to_string());
            return Err(e);
        }
        self.check()
    }

    /// [`World::finish`] for a stream of each member of this process, in their order. Waits for all of them before it tells
    /// of an error, so that nothing runs any more when that is handled.
    pub fn finish_all<'s>(
        &self,
        streams: impl IntoIterator<Item = RawStream<'s>>,
    ) -> Result<(), RuntimeError> {
        let ended = streams.into_iter().enumerate().map(|(member, stream)| self.finish(member, stream));
        ended.fold(Ok(()), Result::and)
    }

    /// Makes the world usable again after a wait ran out of time: waits until all GPUs are idle, then clears status
    /// records, flags and epochs; far channels get other proxies, rings and counts. What kernels had not finished is lost. All ranks have
    /// to do so, with the same operations.
    ///
    /// # Errors
    /// A GPU does not come to rest, ranks have dropped other operations with far channels, or a proxy of those does not end or start.
    pub fn reset(&self) -> Result<(), RuntimeError> {
        let reset = self.begin_anew();
        if let Err(e) = &reset {
            lock(&self.poisoned).get_or_insert_with(|| e.to_string());
        }
        reset
    }

    fn begin_anew(&self) -> Result<(), RuntimeError> {
        let far = self.far();
        self.same_far(&far)?;
        let idle = self.members.iter().try_for_each(|m| m.gpu.synchronize());
        self.agree(idle)?;
        let cleared = self.clear_all();
        self.agree(cleared)?;
        far.iter().try_for_each(|far| far.renew(self))?;
        self.resets.fetch_add(1, Ordering::Relaxed);
        *lock(&self.poisoned) = None;
        Ok(())
    }

    /// Whether all ranks have the same operations with far channels.
    fn same_far(&self, own: &[Arc<FarRanks>]) -> Result<(), RuntimeError> {
        let all: Vec<Vec<u64>> = self.gather(Ok(own.iter().map(|far| far.number()).collect()))?;
        match all.iter().position(|one| *one != all[0]) {
            None => Ok(()),
            Some(rank) => Err(RuntimeError::invalid(
                "operations with far channels",
                format!("numbers {:?} on rank {rank}, {:?} on rank 0", all[rank], all[0]),
                "the same on all ranks when the world is reset: drop each on all of them",
            )),
        }
    }

    /// How often it was reset: what kernels had not finished before is lost.
    pub(crate) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Relaxed)
    }

    /// Leaves the world, as dropping it does, and tells what goes wrong. Processes that share memory by IPC wait for each
    /// other, within [`WorldOptions::form_timeout`]: memory that another rank has mapped must not be freed. If one does
    /// not come, this rank's memory is not freed before its process ends.
    ///
    /// # Errors
    /// A rank is late or gone, or something that was made in this world is still there.
    pub fn leave(self) -> Result<(), RuntimeError> {
        let processes = self.processes.clone();
        drop(self);
        match processes.map(Arc::try_unwrap) {
            None => Ok(()),
            Some(Ok(processes)) => processes.leave(),
            Some(Err(_)) => {
                let allowed = "dropped before its world is left";
                Err(RuntimeError::invalid("memory of the world", "in use", allowed))
            }
        }
    }

    fn clear_all(&self) -> Result<(), RuntimeError> {
        let mut cleared = lock(&self.cleared);
        cleared.retain(|c| c.owner.strong_count() > 0);
        // Held until all is cleared: another thread may drop an operation meanwhile.
        let held: Vec<_> = cleared.iter().map(|c| (c, c.owner.upgrade())).collect();
        let status = (0..self.members.len())
            .map(|m| (&self.members[m].gpu, self.own_status(m), size_of::<Status>() as u64, 0));
        let cleared = held.iter().filter(|(_, owner)| owner.is_some());
        let cleared = cleared.map(|(c, _)| (&c.gpu, c.ptr, c.bytes, c.value));
        for (gpu, ptr, bytes, value) in status.chain(cleared) {
            // SAFETY: held by this world, or by the owners that are held here.
            unsafe { gpu.fill(ptr, bytes, value, RawStream::DEFAULT)? };
        }
        self.members.iter().try_for_each(|m| m.gpu.synchronize())?;
        let status = Status { inactive: self.inactive(), ..Status::default() };
        (0..self.members.len()).try_for_each(|member| {
            // SAFETY: this world's memory, as large as all records.
            unsafe { self.members[member].gpu.upload(self.own_status(member), bytemuck::bytes_of(&status)) }
        })
    }

    pub(super) fn own_status(&self, member: usize) -> DevicePtr {
        self.status.own(member)
    }

    /// A member's record, with the first rank of its node.
    fn status(&self, member: usize) -> Result<Record, RuntimeError> {
        let mut status = Status::default();
        let at = self.own_status(member);
        // SAFETY: this world's memory, as large as all records.
        unsafe { self.members[member].gpu.download(at, bytemuck::bytes_of_mut(&mut status))? };
        let rank = self.members[member].rank;
        Ok(Record { rank, first: rank - self.place(member).local_rank, status })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Kernels may still write to other ranks' memory, which is about to be unmapped.
        let idle = self.members.iter().map(|member| member.gpu.synchronize());
        if idle.fold(Ok(()), Result::and).is_err() {
            // Whether they have ended is unknown.
            std::mem::forget(Arc::clone(&self.status));
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Launches of a rank that may be under way at once.
fn at_once(options: &WorldOptions) -> Result<u32, RuntimeError> {
    let most = options.launches_at_once;
    match (1..=MOST_AT_ONCE).contains(&most) {
        true => Ok(most),
        false => Err(RuntimeError::invalid("launches_at_once", most, format!("1 to {MOST_AT_ONCE}"))),
    }
}

#[cfg(test)]
#[path = "world_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "world_process_tests.rs"]
pub(super) mod process_tests;

#[cfg(test)]
#[path = "going_on_tests.rs"]
mod going_on_tests;

#[cfg(test)]
#[path = "replacing_tests.rs"]
mod replacing_tests;
