//! Ranks in processes of their own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use peerwarp::families::moe::kernels::{Hook, Layout, Protocol};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeAllToAll, MoeShape, RowDtype};
use peerwarp::runtime::gpu::{Gpu, Sharing};
use peerwarp::runtime::{Launched, Secret, World, WorldOptions, cuda};
use serde_json::json;

use super::{
    Nothing, SHORT, aborted, apart, endurance, epochs_wrap, every_bit, gpus, in_one_launch, jit, missing,
    options, report, right, shape, short,
};

const CHILD: &str = "processes::child";

/// What the ranks of these tests know.
const SECRET: &str = "the secret of worlds that are tests";

/// A process of its own that runs [`child`] as one of `ranks` ranks.
pub fn process(address: &str, rank: usize, ranks: usize, part: &str, more: &[(&str, String)]) -> Child {
    let (host, port) = address.rsplit_once(':').unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", CHILD, "--ignored", "--nocapture"]).env("PEERWARP_TEST_PART", part);
    command.envs(more.iter().map(|(name, value)| (name, value)));
    command.env("MASTER_ADDR", host).env("MASTER_PORT", port);
    command.env("PEERWARP_SECRET", SECRET).env_remove("PEERWARP_SECRET_FILE");
    for (name, value) in [("RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_RANK", rank)] {
        command.env(name, value.to_string());
    }
    command.env_remove("PEERWARP_RENDEZVOUS").env_remove("TORCHELASTIC_USE_AGENT_STORE");
    command.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap()
}

pub fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub fn rank_0(gpus: &[Arc<dyn Gpu>], ranks: usize, address: &str, options: &WorldOptions) -> Arc<World> {
    let (ranks, address) = (ranks as u32, address.to_owned());
    let secret = Secret::new(SECRET).unwrap();
    let launched =
        Launched { launcher: "torchrun", rank: 0, ranks, local_rank: 0, node: None, address, secret };
    Arc::new(World::of_process(gpus, &launched, options).unwrap())
}

/// Waits until a child says a word.
pub fn await_ready(child: &mut Child, word: &str) {
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    assert!(
        out.lines().map_while(Result::ok).any(|line| line.contains(word)),
        "the child did not say {word}"
    );
}

/// What another process does as one of the other ranks. Not a test of its own.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn child() {
    let Ok(Some(launched)) = Launched::here() else { return };
    let gpus = cuda::gpus().unwrap();
    let part = std::env::var("PEERWARP_TEST_PART").unwrap();
    let options = options_of(&part);
    let takes_place = matches!(&*part, "replaces" | "endures all, replaced");
    let form = if takes_place { World::in_place_of } else { World::of_process };
    let world = Arc::new(form(&gpus, &launched, &options).unwrap());
    match &*part {
        "replaces" => return missing::as_the_rank_that_comes(&world),
        "leaves" => return missing::as_the_rank_that_leaves(&world),
        "stays" | "stays, replaced" => return missing::as_a_rank_that_stays(&world, part != "stays"),
        "slow" => return missing::as_a_slow_rank(&world),
        "endures" => return endurance::as_rank_1(&world),
        "endures all" | "endures all, replaced" => return endurance::as_rank_1_of_all(&world),
        _ => {}
    }
    in_processes(&world);
    if part == "killed" {
        let _op = MoeAllToAll::new(&world, &tuning_of(&world), &jit()).unwrap();
        println!("ready");
        // Until it is killed.
        let _ = std::io::stdin().read_line(&mut String::new());
    }
}

pub fn options_of(part: &str) -> WorldOptions {
    let sharing = Some(if part == "ipc" { Sharing::Ipc } else { Sharing::Vmm });
    WorldOptions { sharing, ..if matches!(part, "vmm" | "ipc") { options() } else { short() } }
}

/// What every process of a world does.
fn in_processes(world: &Arc<World>) {
    let n: Vec<u32> = [5, 8].into_iter().cycle().take(world.ranks() as usize).collect();
    let tuning = tuning_of(world);
    // More than 10^4 rounds without the host, and graphs that end in either parity. Processes on one GPU take turns of
    // milliseconds on it.
    let take_turns = world.ranks_per_gpu() > 1 && world.members().len() == 1;
    let replays = if take_turns { 101 } else { 3501 };
    every_bit(world, &tuning.clone().with_protocol(Protocol::Flags), &n, 3, replays, 9);
    every_bit(world, &tuning, &n, 3, replays, 10);
    let shape = tuning.key.shape;
    right(&mut in_one_launch(world, &shape, &n, 3, 10), replays);
    epochs_wrap(|rounds, seed| apart(world, &tuning, &n, rounds, seed));
    epochs_wrap(|rounds, seed| in_one_launch(world, &shape, &n, rounds, seed));
}

pub fn tuning_of(world: &World) -> MoeTuning {
    let shape = MoeShape { ranks: world.ranks(), ..shape(1024, 8, RowDtype::Bf16) };
    let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor)
        .unwrap()
        .with_protocol(Protocol::Packets);
    tuning.with_hook(Hook::Expert)
}

/// How many ranks a test of all GPUs has.
fn all(gpus: &[Arc<dyn Gpu>]) -> usize {
    gpus.len().min(8)
}

#[test]
fn all_gpus_in_one_process_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = Arc::new(World::of_gpus(&gpus[..all(&gpus)], &options()).unwrap());
    in_processes(&world);
    report("one process", json!({ "ranks": world.ranks() }));
}

#[test]
fn a_process_for_each_gpu_is_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let ranks = all(&gpus);
    for part in ["vmm", "ipc"] {
        let address = free_address();
        let children: Vec<Child> = (1..ranks).map(|rank| process(&address, rank, ranks, part, &[])).collect();
        in_processes(&rank_0(&gpus, ranks, &address, &options_of(part)));
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        report("processes", json!({ "sharing": part, "ranks": ranks }));
    }
}

#[test]
fn a_process_that_is_killed_is_named_in_time() {
    let Some((_one, gpus)) = gpus() else { return };
    let address = free_address();
    let mut child = process(&address, 1, 2, "killed", &[]);
    let world = rank_0(&gpus, 2, &address, &options_of("killed"));
    in_processes(&world);
    let tuning = tuning_of(&world);
    let mut op = MoeAllToAll::new(&world, &tuning, &jit()).unwrap();
    await_ready(&mut child, "ready");
    child.kill().unwrap();
    child.wait().unwrap();
    let place = Nothing::new(&gpus[0], &tuning.key.shape);
    let start = Instant::now();
    // SAFETY: there are no tokens, and the buffers live as long as the stream.
    let _routed = unsafe { op.ranks_mut()[0].dispatch_raw(&place.tokens(), place.stream.raw()).unwrap() };
    let aborted = aborted(world.finish(0, place.stream.raw()));
    let took = start.elapsed();
    assert_eq!(
        (aborted.rank, aborted.wait.clone().unwrap().peer, aborted.recoverable),
        (0, 1, false),
        "{aborted}"
    );
    assert!(took < SHORT * 4, "{took:?}");
    assert_eq!(world.lost(), Some(1));
    let reset = world.reset().unwrap_err().to_string();
    assert!(reset.contains("rank 1 is gone"), "{reset}");
    report(
        "killed process",
        json!({ "error": aborted.to_string(), "seconds": took.as_secs_f64(), "reset": reset }),
    );
}
