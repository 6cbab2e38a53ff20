//! Ranks in processes of their own.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Instant;

use super::super::mock::{Machine, MockGpu};
use super::super::net::{FormError, free_address, secret};
use super::tests::{launched, options, read_own, word, write_all};
use super::*;

const CHILD: &str = "runtime::world::process_tests::child";

/// A process of its own that runs [`child`].
fn process(rank: u32, ranks: u32, port: u16, part: &str) -> Child {
    process_on("", rank, ranks, port, part)
}

/// The same on a node of this name, if it has one.
fn process_on(node: &str, rank: u32, ranks: u32, port: u16, part: &str) -> Child {
    process_of(CHILD, node, rank, ranks, port).env("PEERWARP_TEST_PART", part).spawn().unwrap()
}

/// The command of a process of its own that runs an ignored test as a rank on a node of this name, if it has one.
pub(in crate::runtime) fn process_of(child: &str, node: &str, rank: u32, ranks: u32, port: u16) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", child, "--ignored", "--nocapture"]);
    for (name, value) in
        [("RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_RANK", rank), ("MASTER_PORT", port.into())]
    {
        command.env(name, value.to_string());
    }
    command.env("MASTER_ADDR", "127.0.0.1");
    command.env("PEERWARP_SECRET", secret().expose()).env_remove("PEERWARP_SECRET_FILE");
    command.env_remove("PEERWARP_RENDEZVOUS").env_remove("TORCHELASTIC_USE_AGENT_STORE");
    command.env_remove(NODE_VARIABLE);
    if !node.is_empty() {
        command.env(NODE_VARIABLE, node);
    }
    command.stdout(std::process::Stdio::null());
    command
}

/// What a process does as one rank. Not a test of its own.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn child() {
    let Ok(Some(launched)) = Launched::here() else { return };
    let part = std::env::var("PEERWARP_TEST_PART").unwrap_or_default();
    let machine = Machine::default();
    let gpus = MockGpu::all(&machine, launched.ranks);
    if part == "dies" {
        // Killed by itself: no destructor runs.
        std::process::abort();
    }
    let world = World::of_process(&gpus, &launched, &options());
    if part == "scattered" {
        let said = world.unwrap_err().to_string();
        return assert!(said.contains("rank 1 is not on the node of the ranks before it"), "{said}");
    }
    let world = world.unwrap();
    if part == "two nodes" {
        return two_nodes(&world);
    }
    if part == "dies later" {
        std::process::abort();
    }
    let block = world.allocate(64).unwrap();
    write_all(&world, 0, &block);
    world.agree(Ok(())).unwrap();
    let want: Vec<u64> = (0..launched.ranks).map(|from| word(from, launched.rank)).collect();
    assert_eq!(read_own(&world, 0, &block), want);
    world.agree(Ok(())).unwrap();
}

/// Ranks reach the memory of their node, and agree with all ranks.
fn two_nodes(world: &World) {
    let (own, teams) = (world.members()[0].rank, world.teams());
    assert_eq!((world.ranks(), teams.nodes(), teams.local_ranks()), (4, 2, 2));
    let (first, block) = (own / 2 * 2, world.allocate(64).unwrap());
    let gpu = &world.members()[0].gpu;
    assert_eq!(block.bases(0).len(), 2);
    for (to, base) in (first..).zip(block.bases(0)) {
        let at = base + 8 * u64::from(own - first);
        // SAFETY: memory of the world, which is there.
        unsafe { gpu.upload(at, &word(own, to).to_ne_bytes()).unwrap() };
    }
    world.agree(Ok(())).unwrap();
    let mut found = [0u64; 2];
    // SAFETY: as above.
    unsafe { gpu.download(block.own(0), bytemuck::cast_slice_mut(&mut found)).unwrap() };
    assert_eq!(found, [word(first, own), word(first + 1, own)]);
    assert_eq!(world.gather(Ok(own)).unwrap(), [0, 1, 2, 3]);
    world.agree(Ok(())).unwrap();
}

#[test]
fn processes_of_two_nodes_form_a_world() {
    for (nodes, part) in [(["a", "a", "b", "b"], "two nodes"), (["a", "b", "a", "b"], "scattered")] {
        let address = free_address();
        let start = |(rank, node)| process_on(node, rank, 4, port(&address), part);
        let children: Vec<Child> = (0..).zip(nodes).map(start).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success(), "{part}");
        }
    }
}

pub(in crate::runtime) fn port(address: &str) -> u16 {
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

#[test]
fn processes_reach_each_others_memory() {
    let address = free_address();
    let children: Vec<Child> = (0..3).map(|rank| process(rank, 3, port(&address), "works")).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

/// Five strangers who knock at an address again and again until they are told to stop.
struct Strangers {
    stop: AtomicBool,
    /// How often each of them has.
    knocks: [AtomicU32; 5],
}

impl Strangers {
    /// What each of them says.
    fn says() -> [Vec<u8>; 5] {
        let old =
            br#"{"Hello":{"protocol":2,"card":{"rank":1,"ranks":9,"bus_id":"","socket":"","facts":{}}}}"#;
        let old = [&(old.len() as u32).to_le_bytes(), old.as_slice()].concat();
        // A rank's words, with a proof of nothing.
        let forged = [b"peerwarp".as_slice(), &3u32.to_le_bytes(), &[3, 0, 0, 0], &[0x5a; 64]].concat();
        [vec![], b"peer".to_vec(), b"GET / HTTP/1.1\r\n\r\n".to_vec(), old, forged]
    }

    fn knock(self: &Arc<Self>, address: &str) -> Vec<JoinHandle<()>> {
        let knocking = Self::says().into_iter().enumerate().map(|(who, said)| {
            let (address, all) = (address.to_owned(), Arc::clone(self));
            spawn(move || {
                // None of them hangs up.
                let mut open = vec![];
                while !all.stop.load(Ordering::Relaxed) {
                    if let Ok(mut stream) = TcpStream::connect(&address)
                        && stream.local_addr().ok() != stream.peer_addr().ok()
                        && stream.write_all(&said).is_ok()
                    {
                        all.knocks[who].fetch_add(1, Ordering::Relaxed);
                        open.push(stream);
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            })
        });
        knocking.collect()
    }

    /// Whether all of them have knocked.
    fn came(&self) -> bool {
        self.knocks.iter().all(|knocks| knocks.load(Ordering::Relaxed) > 0)
    }
}

#[test]
fn eight_processes_form_a_world_while_five_strangers_knock() {
    let address = free_address();
    let strangers = Arc::new(Strangers { stop: AtomicBool::default(), knocks: Default::default() });
    let mut children = vec![process(0, 8, port(&address), "works")];
    let knocking = strangers.knock(&address);
    // All of them are there before the second rank is.
    let end = Instant::now() + options().form_timeout;
    while !strangers.came() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(strangers.came(), "a stranger did not knock");
    children.extend((1..8).map(|rank| process(rank, 8, port(&address), "works")));
    let ended: Vec<bool> = children.iter_mut().map(|child| child.wait().unwrap().success()).collect();
    strangers.stop.store(true, Ordering::Relaxed);
    knocking.into_iter().for_each(|stranger| stranger.join().unwrap());
    assert_eq!(ended, [true; 8]);
}

#[test]
fn a_process_that_dies_is_named_to_the_others() {
    let machine = Machine::default();
    let gpus = MockGpu::all(&machine, 2);
    let address = free_address();
    let mut child = process(1, 2, port(&address), "dies");
    assert!(!child.wait().unwrap().success());
    let options = WorldOptions { form_timeout: Duration::from_millis(300), ..options() };
    match World::of_process(&gpus, &launched(0, 2, &address), &options).unwrap_err() {
        RuntimeError::Form(FormError::Missing { missing, .. }) => assert_eq!(missing, [1]),
        other => panic!("{other}"),
    }

    let address = free_address();
    let mut child = process(1, 2, port(&address), "dies later");
    let world = World::of_process(&gpus, &launched(0, 2, &address), &super::tests::options()).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(world.lost(), Some(1));
    match world.allocate(64).unwrap_err() {
        RuntimeError::Form(e) => assert_eq!(e, FormError::Lost { rank: 1 }),
        other => panic!("{other}"),
    }
    drop(world);
    assert_eq!(machine.alive(), 0);
}
