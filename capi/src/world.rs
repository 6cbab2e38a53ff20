//! Worlds, and memory that all of their ranks reach.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use peerwarp::harness::session::SimRanks;
use peerwarp::runtime::gpu::RawStream;
use peerwarp::runtime::op::SymmetricPart;
use peerwarp::runtime::{Launched, World, WorldOptions, gpus};

use crate::error::{Failure, PeerwarpResult, guarded};
use crate::handles::{self, Object};

/// The ranks that kernels run on.
pub struct PeerwarpWorld {
    _private: [u8; 0],
}

/// Memory on every rank that all ranks reach.
pub struct PeerwarpMemory {
    _private: [u8; 0],
}

/// How a world is formed. 0 is the default of each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PeerwarpWorldOptions {
    /// Seconds that a wait of a kernel may last; 5 by default.
    pub wait_seconds: f64,
    /// Seconds that ranks wait for each other to come together; 60 by default.
    pub form_seconds: f64,
    /// How many launches of a rank may be under way at once, 1 to 16; 1 by default.
    pub launches_at_once: u32,
    /// 1: blocks of other kernels may run on the SMs of these kernels' blocks.
    pub share_sms: u32,
    /// 1: several ranks may have one GPU, to try and to test.
    pub share_gpus: u32,
}

pub enum Ranks {
    /// This process's rank on its GPU.
    Gpu(Arc<World>),
    Simulated(Arc<SimRanks>),
}

impl Object for Ranks {
    const NAME: &'static str = "world";
    const A: &'static str = "a world";
}

impl Ranks {
    /// A world of GPUs.
    pub fn gpu(&self) -> Result<&Arc<World>, Failure> {
        match self {
            Ranks::Gpu(world) => Ok(world),
            Ranks::Simulated(_) => Err(Failure::invalid("world", "simulated", "one of GPUs")),
        }
    }
}

struct Memory {
    _part: SymmetricPart<u8>,
    _world: Arc<World>,
}

impl Object for Memory {
    const NAME: &'static str = "memory";
    const A: &'static str = "memory";
}

/// A stream of C.
///
/// # Safety
/// It is null or a stream of the rank's GPU, and alive for `'a`.
pub unsafe fn stream<'a>(stream: *mut c_void) -> RawStream<'a> {
    // SAFETY: as the caller says.
    unsafe { RawStream::from_raw(stream.addr() as u64) }
}

/// Seconds; 0 stands for the default.
fn seconds(field: &str, value: f64, default: Duration) -> Result<Duration, Failure> {
    if value == 0.0 { Ok(default) } else { Ok(WorldOptions::seconds(field, value)?) }
}

fn flag(field: &str, value: u32) -> Result<bool, Failure> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Failure::invalid(field, value, "0 or 1")),
    }
}

impl PeerwarpWorldOptions {
    fn read(&self) -> Result<WorldOptions, Failure> {
        let default = WorldOptions::default();
        Ok(WorldOptions {
            wait_budget: seconds("wait_seconds", self.wait_seconds, default.wait_budget)?,
            form_timeout: seconds("form_seconds", self.form_seconds, default.form_timeout)?,
            launches_at_once: self.launches_at_once.max(1),
            share_sms: flag("share_sms", self.share_sms)?,
            share_gpus: flag("share_gpus", self.share_gpus)?,
            ..default
        })
    }
}

/// Makes the world of the processes that torchrun, mpirun, mpiexec or srun started, each a rank with a GPU. Without a launcher it is a
/// world of one rank, on the first GPU that the process sees.
///
/// @param options NULL for all defaults.
///
/// # Safety
/// Pointers are null or point to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_world_launched(
    options: *const PeerwarpWorldOptions,
    world: *mut *mut PeerwarpWorld,
) -> PeerwarpResult {
    let make = |options: &WorldOptions| {
        let launched = Launched::here()?;
        let gpus = gpus()?;
        Ok(match launched {
            Some(launched) => World::of_process(&gpus, &launched, options)?,
            None => World::of_gpus(&gpus[..1], options)?,
        })
    };
    // SAFETY: as the caller says.
    guarded(|| unsafe { put(world, options, make) })
}

/// Makes the world of a process that takes the place of one that is gone, started as that one was, with the same rank, address and
/// secret. It makes the operations and the memory that the other ranks have, in the same order, and then calls
/// `peerwarp_world_replace`, as they do. Launches before are refused.
///
/// @param options NULL for all defaults.
///
/// # Safety
/// Pointers are null or point to what their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_world_in_place_of(
    options: *const PeerwarpWorldOptions,
    world: *mut *mut PeerwarpWorld,
) -> PeerwarpResult {
    let make = |options: &WorldOptions| {
        let allowed = "one that says the rank, as of the process before";
        let launched = Launched::here()?.ok_or_else(|| Failure::invalid("launcher", "none", allowed))?;
        Ok(World::in_place_of(&gpus()?, &launched, options)?)
    };
    // SAFETY: as the caller says.
    guarded(|| unsafe { put(world, options, make) })
}

/// Puts a world of GPUs that is made with options.
///
/// # Safety
/// Pointers are null or point to what their types say.
unsafe fn put(
    world: *mut *mut PeerwarpWorld,
    options: *const PeerwarpWorldOptions,
    make: impl FnOnce(&WorldOptions) -> Result<World, Failure>,
) -> Result<(), Failure> {
    // SAFETY: as the caller says.
    let given = unsafe { options.as_ref() };
    let ranks = || {
        let options = given.map_or_else(|| Ok(WorldOptions::default()), PeerwarpWorldOptions::read)?;
        Ok(Ranks::Gpu(Arc::new(make(&options)?)))
    };
    // SAFETY: as the caller says.
    unsafe { handles::put(world, ranks) }
}

/// Makes a world of simulated ranks, 1 to 64, all in this process and without a GPU. `seed` decides the schedules.
///
/// # Safety
/// `world` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_world_simulated(
    ranks: u32,
    seed: u64,
    world: *mut *mut PeerwarpWorld,
) -> PeerwarpResult {
    let make = || Ok(Ranks::Simulated(Arc::new(SimRanks::new(ranks, seed, true)?)));
    // SAFETY: as the caller says.
    guarded(|| unsafe { handles::put(world, make) })
}

/// Writes how many ranks a world has, which of them this process is, and the number of its GPU among those that the process sees. A
/// simulated world has neither of the latter. What is NULL is not written.
///
/// # Safety
/// Pointers are null, or numbers can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_world_place(
    world: *mut PeerwarpWorld,
    ranks: *mut u32,
    rank: *mut u32,
    gpu: *mut u32,
) -> PeerwarpResult {
    guarded(|| {
        let world = handles::get::<_, Ranks>(world)?;
        let size = match &*world {
            Ranks::Gpu(world) => world.ranks(),
            Ranks::Simulated(simulated) => simulated.ranks(),
        };
        // An error comes before any value is written.
        let own = match (rank.is_null() && gpu.is_null(), &*world) {
            (true, _) => None,
            (false, world) => Some(&world.gpu()?.members()[0]),
        };
        let values =
            [(ranks, Some(size)), (rank, own.map(|m| m.rank)), (gpu, own.map(|m| m.gpu.info().ordinal))];
        for (place, value) in values {
            if let (false, Some(value)) = (place.is_null(), value) {
                // SAFETY: as the caller says.
                unsafe { *place = value };
            }
        }
        Ok(())
    })
}

/// Waits until what is on a stream has ended, then does as `peerwarp_world_check`.
///
/// # Safety
/// `stream` is null or a `cudaStream_t` or `hipStream_t` of the rank's GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_world_finish(
    world: *mut PeerwarpWorld,
    stream: *mut c_void,
) -> PeerwarpResult {
    guarded(|| {
        let world = handles::get::<_, Ranks>(world)?;
        // SAFETY: as the caller says.
        Ok(world.gpu()?.finish(0, unsafe { self::stream(stream) })?)
    })
}

/// Returns PEERWARP_RESULT_ABORTED if a wait of a kernel has run out of time on any rank. Waits for nothing.
#[unsafe(no_mangle)]
pub extern "C" fn peerwarp_world_check(world: *mut PeerwarpWorld) -> PeerwarpResult {
    guarded(|| Ok(handles::get::<_, Ranks>(world)?.gpu()?.check()?))
}

/// Clears flags, epochs and counters after PEERWARP_RESULT_ABORTED. All ranks call it.
#[unsafe(no_mangle)]
pub extern "C" fn peerwarp_world_reset(world: *mut PeerwarpWorld) -> PeerwarpResult {
    guarded(|| Ok(handles::get::<_, Ranks>(world)?.gpu()?.reset()?))
}

/// Goes on without a rank that this one waits for in vain: as `peerwarp_world_go_on`, where the others do not wait for it any more.
#[unsafe(no_mangle)]
pub extern "C" fn peerwarp_world_deactivate(world: *mut PeerwarpWorld, rank: u32) -> PeerwarpResult {
    guarded(|| Ok(handles::get::<_, Ranks>(world)?.gpu()?.deactivate(rank)?))
}

/// Lets a new process take the place of a rank without which the world goes on. All active ranks call this when nothing of theirs runs,
/// and so does the new process. Ranks share fresh memory at the old addresses, and graphs stay valid.
#[unsafe(no_mangle)]
pub extern "C" fn peerwarp_world_replace(world: *mut PeerwarpWorld, rank: u32) -> PeerwarpResult {
    guarded(|| Ok(handles::get::<_, Ranks>(world)?.gpu()?.replace(rank)?))
}

/// Goes on with the ranks that call it after PEERWARP_RESULT_ABORTED, which all ranks that can do, and writes those that are not among
/// them as a mask: bit r is rank r's. Processes that are gone are not waited for. Kernels find zeros in place of what such a rank would
/// have sent. Operations and graphs stay as they are; what kernels had not finished is lost, as by `peerwarp_world_reset`.
///
/// # Safety
/// `inactive` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_world_go_on(
    world: *mut PeerwarpWorld,
    inactive: *mut u64,
) -> PeerwarpResult {
    guarded(|| {
        let world = handles::get::<_, Ranks>(world)?;
        let world = world.gpu()?;
        world.go_on()?;
        if !inactive.is_null() {
            // SAFETY: as the caller says.
            unsafe { *inactive = world.inactive() };
        }
        Ok(())
    })
}

/// Leaves a world. All ranks do, after their operations and memory are freed. While a world of GPUs is in use, the result is
/// PEERWARP_RESULT_INVALID, and the world stays. Where leaving itself fails, the world is gone all the same.
#[unsafe(no_mangle)]
pub extern "C" fn peerwarp_world_free(world: *mut PeerwarpWorld) -> PeerwarpResult {
    guarded(|| {
        let ranks = match Arc::try_unwrap(handles::take::<_, Ranks>(world)?) {
            Ok(Ranks::Simulated(_)) => return Ok(()),
            Ok(Ranks::Gpu(left)) => match Arc::try_unwrap(left) {
                Ok(left) => return Ok(left.leave()?),
                Err(used) => Arc::new(Ranks::Gpu(used)),
            },
            Err(used) => used,
        };
        handles::give_back(world, ranks);
        Err(Failure::invalid("world", "in use", "one whose operations and memory have been freed"))
    })
}

/// Makes memory of `bytes` zeros on every rank, for parameters that are windows, and writes the address of this rank's part. All ranks
/// make it in the same order, with the same size.
///
/// # Safety
/// Pointers are null, or what their types say can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peerwarp_empty(
    world: *mut PeerwarpWorld,
    bytes: u64,
    memory: *mut *mut PeerwarpMemory,
    address: *mut *mut c_void,
) -> PeerwarpResult {
    guarded(|| {
        let world = handles::get::<_, Ranks>(world)?;
        if address.is_null() {
            return Err(Failure::invalid("address", "null", "where the address is put"));
        }
        // SAFETY: as the caller says.
        unsafe { *address = std::ptr::null_mut() };
        let make = || {
            let world = world.gpu()?;
            let part = world.symmetric::<u8>(bytes)?.swap_remove(0);
            // SAFETY: as the caller says.
            unsafe { *address = std::ptr::without_provenance_mut(part.buffer().ptr() as usize) };
            Ok(Memory { _part: part, _world: Arc::clone(world) })
        };
        // SAFETY: as the caller says.
        unsafe { handles::put(memory, make) }
    })
}

/// Frees memory, after what this process's GPU runs has ended.
#[unsafe(no_mangle)]
pub extern "C" fn peerwarp_memory_free(memory: *mut PeerwarpMemory) -> PeerwarpResult {
    guarded(|| handles::take::<_, Memory>(memory).map(drop))
}
