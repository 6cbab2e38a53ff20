use std::sync::Arc;

use peerwarp_codegen::family::{Target, Variant};
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::print::{self, EmitInfo};
use peerwarp_codegen::sim::{Bindings, Compiled, HostMemory, Machine, Options, Strategy};

use super::*;

fn small(by: By) -> Send {
    Send { ranks: 3, words: 16, by, chunk: 4, blocks: 2, warps: 1 }
}

/// Runs a kernel on every rank several times under many schedules; `fill` says what a rank has before each launch.
fn explored(
    config: &Variant,
    launches: u32,
    fill: impl Fn(u32, u32, &mut HostMemory<'_, '_>) -> Result<(), String>
    + Clone
    + std::marker::Send
    + Sync
    + 'static,
    look: impl Fn(&peerwarp_codegen::sim::Memory),
) {
    let kernel = Arc::new(Compiled::new(verify(config.trace(32).unwrap()).unwrap()));
    let mut machine = Machine::new(config.ranks());
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..config.ranks() {
        for launch in 0..launches {
            let fill = fill.clone();
            machine
                .host(rank, "fill", move |memory: &mut HostMemory<'_, '_>| fill(rank, launch, memory))
                .unwrap();
            machine.launch(rank, &kernel, &Bindings::new()).unwrap();
        }
    }
    for seed in 0..30 {
        for strategy in [Strategy::Random, Strategy::Adversarial] {
            let outcome = machine
                .run(&Options { seed, strategy, ..Options::default() })
                .unwrap_or_else(|f| panic!("{f}"));
            look(&outcome.memory);
        }
    }
}

/// Whom each rank sends to, as bits, launch by launch: pairs, one to all, all to all, none.
const PLANS: [[u64; 3]; 5] =
    [[0b010, 0, 0], [0b110, 0, 0], [0b110, 0b101, 0b011], [0, 0, 0], [0, 0b100, 0b010]];

#[test]
fn what_is_sent_arrives_under_every_schedule_and_every_plan() {
    for by in [By::Stores, By::Bulk] {
        let fill = |rank: u32, launch: u32, memory: &mut HostMemory<'_, '_>| {
            let plan = PLANS[launch as usize];
            let from =
                (0..3).filter(|&source| plan[source] >> rank & 1 == 1).fold(0u64, |all, s| all | 1 << s);
            // The second one measures flags alone.
            let chunks = if launch == 1 { 0u32 } else { 3 };
            memory.write("plan", 0, &[plan[rank as usize], from]).map_err(|e| e.to_string())?;
            memory.write("chunks", 0, &[chunks]).map_err(|e| e.to_string())?;
            let x: Vec<u32> = (0..16).map(|i| 1000 * (rank + 1) + i).collect();
            memory.write("x", 0, &x).map_err(|e| e.to_string())
        };
        explored(&small(by).into_variant(), PLANS.len() as u32, fill, |memory| {
            for (source, target) in [(0u32, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
                let inbox = memory.read::<u32>(target, "inbox").unwrap();
                let want: Vec<u32> = (0..12).map(|i| 1000 * (source + 1) + i).collect();
                assert_eq!(inbox[16 * source as usize..][..12], want, "{by:?}: {source} to {target}");
            }
        });
    }
}

#[test]
fn the_ball_comes_back_under_every_schedule() {
    for ball in [Ball::Packet, Ball::Signal] {
        let config = Ping { ranks: 3, rounds: 2, ball, warps: 1 }.into_variant();
        let fill = |_, launch: u32, memory: &mut HostMemory<'_, '_>| {
            // Another pair each time, then the first one again; as many rounds as there is room for, or fewer.
            let game = [[0u32, 2, 2], [2, 1, 1], [0, 1, 2], [0, 2, 2]][launch as usize];
            memory.write("game", 0, &game).map_err(|e| e.to_string())
        };
        explored(&config, 4, fill, |memory| {
            // Each player's word for the other one of its last games.
            assert_eq!(memory.read::<u32>(2, "bye").unwrap()[..2], [2, 2], "{ball:?}");
            assert_eq!(memory.read::<u32>(1, "bye").unwrap()[2], 1, "{ball:?}");
        });
    }
}

#[test]
fn they_are_emitted_for_every_target_as_they_are_launched() {
    for target in Target::all() {
        let sends = [By::Stores, By::Bulk]
            .map(|by| Send::with_defaults(&SendKey { ranks: 8, words: 1 << 22, by }).unwrap().into_variant());
        let pings = [Ball::Packet, Ball::Signal].map(|ball| {
            Ping::with_defaults(&PingKey { ranks: 8, rounds: 256, ball }).unwrap().into_variant()
        });
        for variant in sends.iter().chain(&pings) {
            let kernel = verify(variant.trace(target.warp_size()).unwrap()).unwrap();
            let emitted = print::emit(&kernel, target, &EmitInfo { command: String::new() });
            assert!(emitted.is_ok(), "{} for {target}: {:?}", variant.variant_name(), emitted.err());
        }
    }
}

#[test]
fn chunks_fill_what_is_sent() {
    let error = Send { words: 18, ..small(By::Stores) }.legal().unwrap_err().to_string();
    assert!(error.contains("`words` = 18") && error.contains("a multiple of chunk = 4"), "{error}");
}
