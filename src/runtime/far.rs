//! Far channels of an operation: on each rank memory that puts read and write, and a proxy that carries them.
//!
//! All of it is memory of the host, which kernels reach as well: no network card has to reach a GPU's memory. Ranks of an operation meet by
//! way of their world, whose introductions are authenticated.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use peerwarp_codegen::dsl::ParamSpec;
use peerwarp_codegen::ir::{FAR_CHANNELS, FAR_MEMORY, FarPart, ParamKind};
use peerwarp_fabric::{
    Book, Channel, CloseError, Endpoint, EndpointOptions, Memory, Provider, Proxy, ProxyOptions, Ring,
    Station, UNIT, Words,
};

use super::gpu::{DevicePtr, Gpu};
use super::handles::Buffer;
use super::symmetric::Member;
use super::world::lock;
use super::{RuntimeError, World};

/// What buffers in the memory of puts are aligned to.
const ALIGN: u64 = 256;
/// Slots of a ring, as a power of two: commands of 16 bytes that may wait.
const LOG_SLOTS: u32 = 12;

/// `Far` in emitted sources.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct FarArgs {
    ring: DevicePtr,
    words: DevicePtr,
    memory: DevicePtr,
    sent: DevicePtr,
    log_slots: u32,
    channel: u32,
    node: u32,
    /// Bytes of a structure are counted by eights.
    rest: u32,
}

/// What an operation has of far channels: one plan for all ranks.
#[derive(Clone, Debug, Default)]
pub(super) struct FarPlan {
    /// First byte and size of each outbox and inbox in the memory of puts.
    pub buffers: BTreeMap<String, (u64, u64)>,
    bytes: u64,
    /// The first channel of each launch, and how many there are in all.
    first: Vec<u32>,
    channels: u64,
}

impl FarPlan {
    /// Adds an outbox or an inbox.
    pub fn add(&mut self, name: &str, bytes: u64) {
        // The first unit is for credits.
        let at = self.bytes.max(UNIT as u64).next_multiple_of(ALIGN);
        self.buffers.insert(name.to_owned(), (at, bytes));
        self.bytes = at + bytes;
    }

    /// Counts the channels of a launch's kernel.
    pub fn launch(&mut self, params: &[ParamSpec], ranks: u32) {
        // More than an engine has are refused before they are used.
        self.first.push(self.channels as u32);
        let counters = params.iter().filter(|p| p.kind == ParamKind::Far(FarPart::Counts)).map(|p| p.len);
        self.channels += counters.sum::<u64>() / u64::from(ranks.max(1));
    }

    /// Whether commands can name all of it: launches of an operation share one memory of puts, and the channels of one proxy.
    ///
    /// # Errors
    /// It is more than commands can name.
    pub fn check(&self, launches: &[&str]) -> Result<(), RuntimeError> {
        let sums = [
            ("bytes of outboxes and inboxes", self.bytes, FAR_MEMORY),
            ("channels", self.channels, FAR_CHANNELS),
        ];
        match sums.into_iter().find(|(_, sum, most)| sum > most) {
            None => Ok(()),
            Some((what, sum, most)) => {
                Err(RuntimeError::FarLimit { what, sum, most, launches: launches.join(", ") })
            }
        }
    }

    /// Gives a launch the channels of one before.
    pub fn launch_like(&mut self, before: usize) {
        self.first.push(self.first[before]);
    }

    /// The first channel of a launch.
    pub fn channel(&self, launch: usize) -> u32 {
        self.first[launch]
    }

    /// Whether there is nothing to carry.
    pub fn is_empty(&self) -> bool {
        self.channels == 0
    }
}

/// Memory of the host that a GPU's kernels reach.
#[derive(Debug)]
struct Mapped {
    memory: Memory,
    gpu: Arc<dyn Gpu>,
    ptr: DevicePtr,
}

fn first_of(memory: &Memory) -> *mut c_void {
    memory.words().as_ptr().cast_mut().cast()
}

impl Mapped {
    fn new(gpu: &Arc<dyn Gpu>, bytes: usize) -> Result<Mapped, RuntimeError> {
        let memory = Memory::zeroed(bytes).map_err(carried)?;
        // SAFETY: this keeps the memory, and unmaps it first.
        let ptr = unsafe { gpu.map_host(first_of(&memory), memory.bytes() as u64)? };
        Ok(Mapped { memory, gpu: Arc::clone(gpu), ptr })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: kernels have ended before this is dropped, and it was mapped from there.
        let _ = unsafe { self.gpu.unmap_host(first_of(&self.memory)) };
    }
}

/// An error of the engine, in its own words.
fn carried(reason: impl std::fmt::Display) -> RuntimeError {
    RuntimeError::Fabric { reason: reason.to_string() }
}

/// What carries the far channels of one rank's part of an operation.
#[derive(Debug)]
pub(super) struct FarRank {
    // The proxy ends first: it uses the memory.
    proxy: Mutex<Option<Proxy>>,
    shared: Shared,
    delivered: Ring,
    budget: Duration,
    node: u32,
}

/// What a rank's kernels and its proxy share.
#[derive(Debug)]
struct Shared {
    ring: Mapped,
    words: Mapped,
    memory: Mapped,
    /// How many commands kernels have given, in the GPU's memory.
    sent: Buffer,
}

/// A rank of a world as stations count it.
#[derive(Clone, Copy, Debug)]
struct Seat {
    rank: u16,
    ranks: u16,
    channels: u8,
    /// Whether other ranks are in this process.
    one_process: bool,
}

/// Whether a provider carries puts between ranks of one process, where they are in one.
fn suits(provider: Provider, one_process: bool) -> Result<(), RuntimeError> {
    match one_process && provider == Provider::Shm {
        false => Ok(()),
        true => Err(carried(
            "the provider shm is for ranks of several processes: between endpoints of one process libfabric 2.6 crashes; let each rank \
             have a process, or say FI_PROVIDER=tcp",
        )),
    }
}

impl Seat {
    /// An endpoint of its own, with a rank's memory of puts registered.
    fn station(self, memory: &Mapped) -> Result<Station, RuntimeError> {
        let endpoint = Endpoint::open(&EndpointOptions::default()).map_err(carried)?;
        suits(endpoint.provider(), self.one_process)?;
        let channel = Channel { outbox: memory.memory.clone(), inbox: memory.memory.clone() };
        let channels = vec![channel; self.channels.into()];
        Station::new(endpoint, self.rank, self.ranks, &channels).map_err(carried)
    }

    /// The proxy of a station whose peers are known by their cards.
    fn proxy(
        self,
        station: Station,
        cards: &[Vec<u8>],
        (ring, words): (&Ring, &Mapped),
        budget: Duration,
    ) -> Result<Proxy, RuntimeError> {
        let mut book = Book::new(&station);
        for (rank, card) in (0..).zip(cards).filter(|(rank, _)| *rank != self.rank) {
            book.insert(rank, card).map_err(carried)?;
        }
        let counts = Words::new(words.memory.clone(), self.channels, self.ranks).map_err(carried)?;
        // Kernels wait for longer, so that the proxy names a peer that is gone.
        let options = ProxyOptions { budget: budget / 2, ..ProxyOptions::default() };
        Proxy::start(station, book, vec![ring.clone()], counts, &options).map_err(carried)
    }
}

impl Shared {
    fn new(plan: &FarPlan, gpu: &Arc<dyn Gpu>, ranks: u16) -> Result<Shared, RuntimeError> {
        let memory = Mapped::new(gpu, plan.bytes as usize)?;
        let ring = Mapped::new(gpu, Ring::bytes(1 << LOG_SLOTS))?;
        let words = Mapped::new(gpu, Words::bytes(plan.channels as u8, ranks))?;
        let sent = Buffer::new(gpu, 8)?;
        sent.clear(0)?;
        Ok(Shared { ring, words, memory, sent })
    }

    /// No command was given and no put has arrived. The proxy has ended.
    fn clear(&self) -> Result<(), RuntimeError> {
        let words = [&self.ring, &self.words].into_iter().flat_map(|mapped| mapped.memory.words());
        words.for_each(|word| word.store(0, Ordering::Release));
        self.sent.clear(0)
    }
}

/// What carries the far channels of an operation on this process's ranks, in the order of [`World::members`].
#[derive(Debug)]
pub(super) struct FarRanks {
    ranks: Vec<FarRank>,
    seats: Vec<Seat>,
    /// Its number among those of the world, the same on all ranks.
    number: u64,
}

/// Makes it, if something is far. All ranks come together.
///
/// # Errors
/// libfabric is not there, has no provider or refuses memory, or the ranks do not fit together.
pub(super) fn carry(world: &World, plan: &FarPlan) -> Result<Option<Arc<FarRanks>>, RuntimeError> {
    if plan.is_empty() {
        return Ok(None);
    }
    let members = world.members();
    let (ranks, channels, one_process) = (world.ranks() as u16, plan.channels as u8, members.len() > 1);
    let seat = |member: &Member| Seat { rank: member.rank as u16, ranks, channels, one_process };
    let seats: Vec<Seat> = members.iter().map(seat).collect();
    let opened = members.iter().zip(&seats).map(|(member, seat)| {
        let shared = Shared::new(plan, &member.gpu, ranks)?;
        Ok((seat.station(&shared.memory)?, shared))
    });
    let (shared, opened) = match opened.collect::<Result<Vec<_>, RuntimeError>>() {
        Ok(opened) => {
            let (stations, shared): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
            (shared, Ok(stations))
        }
        Err(e) => (vec![], Err(e)),
    };
    let (stations, cards) = introduced(world, opened)?;
    let budget = world.wait_budget();
    let started =
        shared.into_iter().zip(stations).zip(&seats).zip(0..).map(|(((shared, station), seat), member)| {
            let delivered = Ring::new(shared.ring.memory.clone(), 0, 1 << LOG_SLOTS).map_err(carried)?;
            let proxy = seat.proxy(station, &cards, (&delivered, &shared.words), budget)?;
            let node = world.place(member).node;
            Ok(FarRank { proxy: Mutex::new(Some(proxy)), shared, delivered, budget, node })
        });
    let ranks = world.agree(started.collect())?;
    Ok(Some(world.watch(|number| FarRanks { ranks, seats, number })))
}

/// Stations with the cards of all ranks' stations. All ranks come together.
fn introduced(
    world: &World,
    opened: Result<Vec<Station>, RuntimeError>,
) -> Result<(Vec<Station>, Vec<Vec<u8>>), RuntimeError> {
    let (stations, cards) = match opened {
        Ok(stations) => {
            let cards: Vec<Vec<u8>> = stations.iter().map(Station::card).collect();
            (stations, Ok(cards))
        }
        Err(e) => (vec![], Err(e)),
    };
    Ok((stations, world.gather(cards)?.concat()))
}

impl FarRanks {
    /// That of a member.
    pub fn of(&self, member: usize) -> &FarRank {
        &self.ranks[member]
    }

    /// Its number among those of the world.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Begins anew, with no command given and no put arrived or under way. Kernels have ended on all ranks, which come together.
    ///
    /// What is under way is delivered first, as long as it can be. Then proxies end with their endpoints, so that no late put of
    /// theirs arrives, and others start in the same memory, which kernels know.
    ///
    /// # Errors
    /// A proxy does not end, or none can be started.
    pub fn renew(&self, world: &World) -> Result<(), RuntimeError> {
        self.ranks.iter().for_each(FarRank::drain);
        world.agree(Ok(()))?;
        world.agree(self.ranks.iter().try_for_each(FarRank::end))?;
        let all = || self.ranks.iter().zip(&self.seats);
        let opened = all().map(|(rank, seat)| {
            rank.shared.clear()?;
            seat.station(&rank.shared.memory)
        });
        let (stations, cards) = introduced(world, opened.collect())?;
        let started = all().zip(stations).try_for_each(|((rank, seat), station)| {
            let proxy = seat.proxy(station, &cards, (&rank.delivered, &rank.shared.words), rank.budget)?;
            *lock(&rank.proxy) = Some(proxy);
            Ok(())
        });
        world.agree(started)
    }

    /// What went wrong first on one of the ranks.
    pub fn fault(&self) -> Option<String> {
        self.ranks.iter().find_map(FarRank::fault)
    }
}

impl Drop for FarRanks {
    /// Kernels have ended, and have waited for what was put to them. All that they have put is delivered before a proxy ends, which takes
    /// part in the delivery.
    fn drop(&mut self) {
        self.ranks.iter().for_each(FarRank::drain);
        // A drop has no caller that takes the error.
        self.ranks.iter().for_each(|rank| drop(rank.end()));
    }
}

impl FarRank {
    /// What a launch's kernel is given.
    pub fn args(&self, plan: &FarPlan, launch: usize) -> FarArgs {
        FarArgs {
            ring: self.shared.ring.ptr,
            words: self.shared.words.ptr,
            memory: self.shared.memory.ptr,
            sent: self.shared.sent.ptr(),
            log_slots: LOG_SLOTS,
            channel: plan.channel(launch),
            node: self.node,
            rest: 0,
        }
    }

    /// Where the memory of puts begins.
    pub fn memory(&self) -> DevicePtr {
        self.shared.memory.ptr
    }

    /// Ends the proxy. What it has not delivered is lost.
    ///
    /// # Errors
    /// It hangs in a call of libfabric: what it uses cannot be used again.
    fn end(&self) -> Result<(), RuntimeError> {
        let Some(proxy) = lock(&self.proxy).take() else { return Ok(()) };
        match proxy.close(Duration::from_secs(1)) {
            Err(stuck @ CloseError::Stuck { .. }) => Err(carried(stuck)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn fault(&self) -> Option<String> {
        lock(&self.proxy).as_ref()?.faults().first().map(ToString::to_string)
    }

    /// Waits until all that kernels have commanded is delivered, while the proxies of all ranks run.
    fn drain(&self) {
        let sent = self.shared.sent.read::<u64>(0, 1).ok().and_then(|sent| sent.first().copied());
        if let (Some(sent), Some(proxy)) = (sent, lock(&self.proxy).as_ref()) {
            // A peer that is gone takes nothing in. A wait has named it before.
            let _ = self.delivered.wait_delivered(sent, proxy.words(), self.budget);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_for_processes() {
        assert!(suits(Provider::Tcp, true).is_ok() && suits(Provider::Shm, false).is_ok());
        let said = suits(Provider::Shm, true).unwrap_err().to_string();
        assert!(said.contains("FI_PROVIDER=tcp"), "{said}");
    }
}
