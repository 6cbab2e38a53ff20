use std::thread::spawn;

use super::super::mock::{Machine, MockGpu};
use super::super::net::{FormError, free_address, secret};
use super::*;

pub(super) fn options() -> WorldOptions {
    WorldOptions { form_timeout: Duration::from_secs(20), ..WorldOptions::default() }
}

pub(super) fn launched(rank: u32, ranks: u32, address: &str) -> Launched {
    let (address, secret) = (address.to_owned(), secret());
    Launched { launcher: "torchrun", rank, ranks, local_rank: rank, node: None, address, secret }
}

/// A word that one rank writes to another.
pub(super) fn word(from: u32, to: u32) -> u64 {
    u64::from(from * 100 + to)
}

/// Has the member write a word to every rank's block.
pub(super) fn write_all(world: &World, member: usize, block: &Symmetric) {
    let Member { rank, gpu } = &world.members()[member];
    for to in 0..world.ranks() {
        let at = block.bases(member)[to as usize] + 8 * u64::from(*rank);
        // SAFETY: the world's memory.
        unsafe { gpu.upload(at, &word(*rank, to).to_ne_bytes()).unwrap() };
    }
}

pub(super) fn read_own(world: &World, member: usize, block: &Symmetric) -> Vec<u64> {
    let Member { rank, gpu } = &world.members()[member];
    let mut found = vec![0u64; world.ranks() as usize];
    // SAFETY: the world's memory.
    unsafe {
        gpu.download(block.bases(member)[*rank as usize], bytemuck::cast_slice_mut(&mut found)).unwrap()
    };
    found
}

#[test]
fn in_one_process_all_ranks_reach_all_memory_and_nothing_is_left() {
    let machine = Machine::default();
    let world = World::of_gpus(&MockGpu::all(&machine, 3), &options()).unwrap();
    let block = world.allocate(1000).unwrap();
    assert_eq!((block.bytes(), read_own(&world, 2, &block)), (1000, vec![0; 3]));
    (0..3).for_each(|m| write_all(&world, m, &block));
    for to in 0..3 {
        assert_eq!(
            read_own(&world, to as usize, &block),
            (0..3).map(|from| word(from, to)).collect::<Vec<_>>()
        );
    }
    world.check().unwrap();
    drop((block, world));
    assert_eq!(machine.alive(), 0);
}

#[test]
fn whatever_fails_nothing_is_left() {
    // What is perhaps still being filled is left: no other owner may have it.
    for (call, left) in [("alloc_shared", 0), ("fill", 0), ("synchronize", 1)] {
        for good in 0..3 {
            let machine = Machine::default();
            machine.leaves(left);
            machine.fail(call, good);
            let error = World::of_gpus(&MockGpu::all(&machine, 3), &options()).unwrap_err();
            assert_eq!(error.to_string(), format!("{call} failed: told to"));
            assert_eq!(machine.alive(), left, "{call} after {good}");
        }
    }
}

#[test]
fn gpus_that_make_no_world_are_named() {
    let machine = Machine::default();
    let said = |gpus: Vec<Arc<dyn Gpu>>| World::of_gpus(&gpus, &options()).unwrap_err().to_string();
    let gpu = |ordinal| Arc::new(MockGpu::new(&machine, ordinal)) as Arc<dyn Gpu>;
    assert_eq!(said(vec![]), "ranks = 0: 1 to 64, with a GPU each");
    assert!(said(vec![gpu(0), gpu(1), gpu(0)]).starts_with("GPU of rank 2 = 0: a GPU of its own"));
    let mut far = MockGpu::new(&machine, 1);
    far.unreachable = vec![0];
    let said = said(vec![gpu(0), Arc::new(far)]);
    assert!(said.starts_with("GPU 1 cannot reach the memory of GPU 0"), "{said}");
    assert!(
        said.ends_with("; no two of these GPUs make a world, the simulator needs none (`run --backend sim`)"),
        "{said}"
    );
}

#[test]
fn gpus_that_make_no_world_are_told_with_those_that_do() {
    let machine = Machine::default();
    let said = |gpus: Vec<Arc<dyn Gpu>>| World::of_gpus(&gpus, &options()).unwrap_err().to_string();
    let gpu = |ordinal, strangers: &[u32]| {
        let mut gpu = MockGpu::new(&machine, ordinal);
        gpu.unreachable = strangers.to_vec();
        Arc::new(gpu) as Arc<dyn Gpu>
    };
    // 0 and 3 do not reach each other.
    let error = said(vec![gpu(0, &[3]), gpu(1, &[]), gpu(2, &[]), gpu(3, &[0])]);
    assert!(error.starts_with("GPU 0 cannot reach the memory of GPU 3: "), "{error}");
    assert!(
        error.contains("`peerwarp topo` shows which are); 3 ranks can have GPUs 0,1,2 (CUDA_VISIBLE_DEVICES"),
        "{error}"
    );
    // Two kinds.
    let mut mixed = MockGpu::all_hip(&machine, 4);
    mixed[3] = gpu(3, &[]);
    let error = said(mixed);
    assert!(
        error.starts_with("GPU 3 of rank 3 is mock (sm_90a), and that of rank 0 is mock (gfx942): "),
        "{error}"
    );
    assert!(error.contains("; 3 ranks can have GPUs 0,1,2 ("), "{error}");
}

fn sharing_gpus() -> WorldOptions {
    WorldOptions { share_gpus: true, ..options() }
}

#[test]
fn ranks_share_a_gpu_if_they_may() {
    let machine = Machine::default();
    // Drivers say that a GPU is no peer of itself.
    let mut alone = MockGpu::new(&machine, 0);
    alone.unreachable = vec![0];
    let gpu: Arc<dyn Gpu> = Arc::new(alone);
    let world = World::of_gpus(&[Arc::clone(&gpu), Arc::clone(&gpu)], &sharing_gpus()).unwrap();
    assert_eq!((world.ranks(), world.ranks_per_gpu(), world.shares_sms()), (2, 2, true));
    let block = world.allocate(1000).unwrap();
    (0..2).for_each(|m| write_all(&world, m, &block));
    assert_eq!(read_own(&world, 0, &block), [word(0, 0), word(1, 0)]);
    assert_eq!(read_own(&world, 1, &block), [word(0, 1), word(1, 1)]);
    let two = World::of_gpus(&MockGpu::all(&machine, 2), &sharing_gpus()).unwrap();
    assert_eq!((two.ranks_per_gpu(), two.shares_sms()), (1, false));
}

#[test]
fn several_launches_of_a_rank_share_its_gpu() {
    let machine = Machine::default();
    let world = |launches_at_once| {
        World::of_gpus(&MockGpu::all(&machine, 2), &WorldOptions { launches_at_once, ..options() })
    };
    let (one, three) = (world(1).unwrap(), world(3).unwrap());
    assert_eq!((one.shares_sms(), one.blocks_per_launch()), (false, None));
    assert_eq!((three.shares_sms(), three.blocks_per_launch(), three.ranks_per_gpu()), (true, Some(44), 1));
    for wrong in [0, 17] {
        let said = world(wrong).unwrap_err().to_string();
        assert_eq!(said, format!("launches_at_once = {wrong}: 1 to 16"));
    }
    let gpus = MockGpu::all(&machine, 2);
    let some = |rank| WorldOptions { launches_at_once: 1 + rank, ..options() };
    for world in form_with(&gpus, 2, some) {
        let said = world.unwrap_err().to_string();
        assert!(said.contains("launches_at_once of rank 1 is 2, and 1 on rank 0"), "{said}");
    }
}

#[test]
fn processes_share_a_gpu_if_all_of_them_may() {
    let machine = Machine::default();
    let worlds = form_with(&MockGpu::all(&machine, 2), 3, |_| sharing_gpus());
    let worlds: Vec<World> = worlds.into_iter().map(Result::unwrap).collect();
    let has: Vec<u32> = worlds.iter().map(|w| w.members()[0].gpu.info().ordinal).collect();
    assert_eq!((has, worlds[1].ranks_per_gpu()), (vec![0, 1, 0], 2));
    drop(worlds);
    let some = |rank| if rank == 1 { sharing_gpus() } else { options() };
    for world in form_with(&MockGpu::all(&machine, 1), 2, some) {
        let said = world.unwrap_err().to_string();
        assert!(said.starts_with("share_gpus of rank 1 is true, and false on rank 0"), "{said}");
    }
    for world in form_with(&MockGpu::all(&machine, 1), 2, |_| options()) {
        let said = world.unwrap_err().to_string();
        assert!(
            said.contains("both have GPU 0000:00:00.0: every rank needs a GPU of its own, unless"),
            "{said}"
        );
    }
}

#[test]
fn too_few_gpus_are_told_with_what_can_be_done() {
    let few = |found| RuntimeError::TooFewGpus { backend: "cuda", found, needed: 8 }.to_string();
    assert_eq!(
        few(4),
        "8 cuda GPUs are needed and 4 can be seen; CUDA_VISIBLE_DEVICES hides some if it is set; use 4 ranks at most, or the \
         simulator, which takes any number of ranks (`run --backend sim`)"
    );
    assert!(few(1).ends_with("is set; the simulator, which takes any number of ranks (`run --backend sim`)"));
}

#[test]
fn an_expired_wait_poisons_the_world_until_it_is_reset() {
    let machine = Machine::default();
    let world = World::of_gpus(&MockGpu::all(&machine, 2), &options()).unwrap();
    let flags = world.allocate(64).unwrap();
    let alive: Arc<dyn std::any::Any + Send + Sync> = Arc::new(());
    world.clear(0, (flags.bases(0)[0], 8), 0, &alive).unwrap();
    write_all(&world, 1, &flags);
    // As a kernel on rank 1 does it.
    let expired =
        Status { aborted: 2, filled: 1, rank: 1, peer: 0, expected: 5, seen: 4, ..Status::default() };
    let gpu = &world.members()[1].gpu;
    // SAFETY: the world's memory.
    unsafe { gpu.upload(world.status_pointers(1)[1], bytemuck::bytes_of(&expired)).unwrap() };
    // SAFETY: the world's memory.
    unsafe { gpu.upload(world.status_pointers(1)[0], &2u32.to_ne_bytes()).unwrap() };
    match world.check().unwrap_err() {
        RuntimeError::Aborted(aborted) => {
            assert_eq!((aborted.rank, aborted.recoverable), (1, true));
            assert_eq!(aborted.wait.unwrap().peer, 0);
        }
        other => panic!("{other}"),
    }
    assert!(matches!(world.check(), Err(RuntimeError::Poisoned { .. })));
    assert!(matches!(world.usable(), Err(RuntimeError::Poisoned { .. })));
    world.reset().unwrap();
    world.check().unwrap();
    assert_eq!(read_own(&world, 0, &flags)[0], 0);
    // What its owner has given up is not touched.
    drop(alive);
    write_all(&world, 0, &flags);
    world.reset().unwrap();
    assert_eq!(read_own(&world, 0, &flags)[0], word(0, 0));
}

/// The status record of a member.
fn status_of(world: &World, member: usize) -> Status {
    let mut status = Status::default();
    let at = world.own_status(member);
    // SAFETY: the world's memory.
    unsafe { world.members()[member].gpu.download(at, bytemuck::bytes_of_mut(&mut status)).unwrap() };
    status
}

#[test]
fn a_world_goes_on_without_ranks_and_says_so_to_kernels() {
    let machine = Machine::default();
    let world = World::of_gpus(&MockGpu::all(&machine, 3), &options()).unwrap();
    let shared = world.allocate(64).unwrap();
    let alive: Arc<dyn std::any::Any + Send + Sync> = Arc::new(());
    world.clear(2, (shared.bases(2)[2], 8), 0, &alive).unwrap();
    write_all(&world, 1, &shared);
    world.deactivate(1).unwrap();
    assert_eq!((world.inactive(), world.is_active(0), world.is_active(1)), (0b10, true, false));
    assert_eq!(read_own(&world, 2, &shared)[0], 0, "what kernels share is cleared");
    for member in 0..3 {
        assert_eq!(status_of(&world, member), Status { inactive: 0b10, ..Status::default() });
    }
    world.reset().unwrap();
    assert_eq!(status_of(&world, 0).inactive, 0b10, "a reset does not bring it back");
    let refused = |rank: u32| world.deactivate(rank).unwrap_err().to_string();
    assert!(refused(1).contains("an active rank, of 0, 2"), "{}", refused(1));
    assert!(refused(9).contains("rank to go on without = 9"), "{}", refused(9));
    world.deactivate(2).unwrap();
    assert!(refused(0).contains("not the last one"), "{}", refused(0));
    world.usable().unwrap();
}

#[test]
fn a_world_of_several_nodes_does_not_go_on_without_a_rank() {
    let machine = Machine::default();
    let world = World::of_gpus(&MockGpu::all(&machine, 4), &WorldOptions { nodes: 2, ..options() }).unwrap();
    let refused = world.deactivate(1).unwrap_err().to_string();
    assert!(refused.contains("of several nodes"), "{refused}");
    assert_eq!(world.inactive(), 0);
}

#[test]
fn what_kernels_may_still_write_to_is_not_freed_with_the_world() {
    let machine = Machine::default();
    let world = World::of_gpus(&MockGpu::all(&machine, 2), &options()).unwrap();
    let alive = machine.alive();
    machine.fail("synchronize", 1);
    drop(world);
    assert_eq!(machine.alive(), alive, "kernels of rank 1 may still run");
    machine.leaves(alive);
}

#[test]
fn a_gpu_that_fails_poisons_the_world() {
    let machine = Machine::default();
    let world = World::of_gpus(&MockGpu::all(&machine, 2), &options()).unwrap();
    machine.fail("synchronize_stream", 0);
    assert!(matches!(world.finish(0, RawStream::DEFAULT), Err(RuntimeError::Driver { .. })));
    let error = world.usable().unwrap_err().to_string();
    assert!(error.contains("synchronize_stream failed: told to"), "{error}");
}

#[test]
fn a_rank_has_the_gpu_of_its_number_or_the_only_one() {
    let machine = Machine::default();
    let gpus = MockGpu::all(&machine, 2);
    for share in [false, true] {
        let ordinal = |gpus, local| own_gpu(gpus, local, share).unwrap().info().ordinal;
        assert_eq!((ordinal(&gpus, 1), ordinal(&gpus[..1], 1)), (1, 0));
        assert!(matches!(own_gpu(&[], 0, share), Err(RuntimeError::TooFewGpus { found: 0, .. })));
    }
    let few = own_gpu(&gpus, 2, false);
    assert!(matches!(few, Err(RuntimeError::TooFewGpus { found: 2, needed: 3, .. })));
    assert_eq!(own_gpu(&gpus, 3, true).unwrap().info().ordinal, 1);
}

/// Forms a world with a thread in place of each process.
fn threads(
    ranks: u32,
    machine: &Machine,
    options: impl Fn(u32) -> WorldOptions,
) -> Vec<Result<World, RuntimeError>> {
    form(&MockGpu::all(machine, ranks), options)
}

fn form(gpus: &[Arc<dyn Gpu>], options: impl Fn(u32) -> WorldOptions) -> Vec<Result<World, RuntimeError>> {
    form_with(gpus, gpus.len() as u32, options)
}

/// The same of so many ranks, each of which sees all GPUs.
fn form_with(
    gpus: &[Arc<dyn Gpu>],
    ranks: u32,
    options: impl Fn(u32) -> WorldOptions,
) -> Vec<Result<World, RuntimeError>> {
    let address = free_address();
    let forming = (0..ranks).map(|rank| {
        let (gpus, launched) = (gpus.to_vec(), launched(rank, ranks, &address));
        let options = options(rank);
        spawn(move || World::of_process(&gpus, &launched, &options))
    });
    let forming: Vec<_> = forming.collect();
    forming.into_iter().map(|f| f.join().unwrap()).collect()
}

#[test]
fn across_connections_all_ranks_reach_all_memory_and_nothing_is_left() {
    let machine = Machine::default();
    let worlds = threads(4, &machine, |_| options());
    let running = worlds.into_iter().map(|world| {
        spawn(move || {
            let world = world.unwrap();
            let (rank, block) = (world.members()[0].rank, world.allocate(64).unwrap());
            write_all(&world, 0, &block);
            world.agree(Ok(())).unwrap();
            let want: Vec<u64> = (0..4).map(|from| word(from, rank)).collect();
            assert_eq!(read_own(&world, 0, &block), want);
            world.reset().unwrap();
            assert_eq!(world.lost(), None);
            world.agree(Ok(())).unwrap();
        })
    });
    running.collect::<Vec<_>>().into_iter().for_each(|r| r.join().unwrap());
    assert_eq!(machine.alive(), 0);
}

#[test]
fn ranks_with_other_kernels_are_named_on_all_ranks() {
    let machine = Machine::default();
    let digest = |rank| {
        let digest = if rank == 1 { "b" } else { "a" };
        let facts = BTreeMap::from([("digest of exchange".to_owned(), digest.to_owned())]);
        WorldOptions { facts, ..options() }
    };
    for world in threads(2, &machine, digest) {
        let said = world.unwrap_err().to_string();
        assert!(said.starts_with("digest of exchange of rank 1 is b, and a on rank 0"), "{said}");
    }
    assert_eq!(machine.alive(), 0);
}

#[test]
fn memory_that_one_rank_cannot_have_is_an_error_on_all() {
    let ways = [MockGpu::all, MockGpu::all_ipc];
    let calls = [("alloc_shared", 1), ("export", 3), ("import", 2)];
    for (gpus, (call, good)) in ways.into_iter().flat_map(|gpus| calls.map(|call| (gpus, call))) {
        let machine = Machine::default();
        machine.fail(call, good);
        let worlds = form(&gpus(&machine, 3), |_| options());
        let said = |world: Result<World, RuntimeError>| world.unwrap_err().to_string();
        for said in worlds.into_iter().map(said) {
            assert!(said.contains(&format!("{call} failed: told to")), "{said}");
        }
        assert_eq!((machine.alive(), torn(&machine)), (0, 0), "{call}");
    }
}

/// A world of two threads that share memory by IPC.
fn ipc(machine: &Machine, options: &WorldOptions) -> [World; 2] {
    let worlds = form(&MockGpu::all_ipc(machine, 2), |_| options.clone());
    worlds.into_iter().map(Result::unwrap).collect::<Vec<_>>().try_into().unwrap()
}

/// Runs something on both ranks at once.
fn both<T: Send>(worlds: &[World; 2], act: impl Fn(&World) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| act(&worlds[1]));
        [act(&worlds[0]), other.join().unwrap()]
    })
}

fn torn(machine: &Machine) -> u64 {
    machine.torn.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn memory_shared_by_ipc_is_freed_when_all_ranks_have_given_it_up() {
    let machine = Machine::default();
    let worlds = ipc(&machine, &options());
    let formed = machine.alive();
    let allocate = |world: &World| world.allocate(64).unwrap();
    let [first, other] = both(&worlds, allocate);
    let one = machine.alive() - formed;
    // Rank 1 still has rank 0's memory mapped, and rank 0 has unmapped rank 1's.
    drop(first);
    let second = both(&worlds, allocate);
    assert_eq!((machine.alive() - formed, torn(&machine)), (2 * one - 1, 0));
    drop(other);
    let third = both(&worlds, allocate);
    // The first allocation is gone: the second and the third are there.
    assert_eq!((machine.alive() - formed, torn(&machine)), (2 * one, 0));
    drop((second, third));
    let left = worlds.map(|world| spawn(move || world.leave()));
    left.into_iter().for_each(|left| left.join().unwrap().unwrap());
    assert_eq!((machine.alive(), torn(&machine)), (0, 0));
}

#[test]
fn ranks_that_share_memory_by_ipc_leave_together() {
    let machine = Machine::default();
    let [zero, one] = ipc(&machine, &options());
    let (say, hear) = std::sync::mpsc::channel();
    let leaving = spawn(move || {
        drop(zero);
        say.send(()).unwrap();
    });
    let early = hear.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err(), "rank 0 left when rank 1 had its memory mapped");
    drop(one);
    leaving.join().unwrap();
    assert_eq!((machine.alive(), torn(&machine)), (0, 0));
}

#[test]
fn a_rank_that_does_not_leave_is_named_and_keeps_what_it_has_mapped() {
    let machine = Machine::default();
    let options = WorldOptions { form_timeout: Duration::from_secs(1), ..options() };
    let [zero, one] = ipc(&machine, &options);
    match zero.leave().unwrap_err() {
        RuntimeError::Form(e) => assert_eq!(e, FormError::Late { rank: 1, waited: options.form_timeout }),
        other => panic!("{other}"),
    }
    // Its own memory and that of rank 0, and rank 0's, which may still be mapped.
    assert_eq!((machine.alive(), torn(&machine)), (3, 0));
    assert!(matches!(one.leave(), Err(RuntimeError::Form(_))));
    assert_eq!(torn(&machine), 0);
    machine.leaves(2);
}

#[test]
fn a_world_whose_memory_is_in_use_is_not_left() {
    let machine = Machine::default();
    let worlds = ipc(&machine, &options());
    let blocks = both(&worlds, |world| world.allocate(64).unwrap());
    for world in worlds {
        let said = world.leave().unwrap_err().to_string();
        assert_eq!(said, "memory of the world = in use: dropped before its world is left");
    }
    // The last of it leaves, on both ranks.
    blocks.map(|block| spawn(move || drop(block))).into_iter().for_each(|d| d.join().unwrap());
    assert_eq!((machine.alive(), torn(&machine)), (0, 0));
}

#[test]
fn sizes_that_differ_are_named_on_all_ranks() {
    for gpus in [MockGpu::all, MockGpu::all_ipc] {
        let machine = Arc::new(Machine::default());
        let worlds = form(&gpus(&machine, 3), |_| options());
        let allocating = worlds.into_iter().map(|world| {
            spawn(move || {
                let world = world.unwrap();
                let rank = world.members()[0].rank;
                let alive = world.allocate(if rank == 2 { 128 } else { 64 }).unwrap_err().to_string();
                // Nothing is lost but this.
                (alive, world.allocate(64).map(|block| block.bytes()).unwrap())
            })
        });
        for allocated in allocating.collect::<Vec<_>>() {
            let want = "size in bytes of allocation 1 of rank 2 is 128, and 64 on rank 0: it has to be the same on all ranks";
            assert_eq!(allocated.join().unwrap(), (want.to_owned(), 64));
        }
        assert_eq!((machine.alive(), torn(&machine)), (0, 0));
    }
}

#[test]
fn a_rank_that_was_miscounted_is_refused() {
    let machine = Arc::new(Machine::default());
    let gpus = MockGpu::all(&machine, 2);
    let said = |rank, ranks| {
        World::of_process(&gpus, &launched(rank, ranks, "127.0.0.1:1"), &options()).unwrap_err().to_string()
    };
    assert_eq!(said(2, 2), "rank = 2: a number from 0 to 1");
    assert_eq!(said(0, 1), "ranks = 1: a number from 2 to 1024");
}
