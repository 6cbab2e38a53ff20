//! Far channels as emitted: what the cards bring arrives, in any order; and what the machine finds where order is missing.

#[path = "../../codegen/tests/printed/post.rs"]
mod post;

use half::bf16;
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::print::{EmitInfo, emit};
use post::{RANKS, ROW, ROWS, post};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, Run};

const LAUNCHES: u32 = 4;
const WAIT_BUDGET_NS: u64 = 2_000_000_000;

/// Row `i` of a rank in a launch.
fn row(launch: u32, rank: u32, i: u32) -> Vec<bf16> {
    let first = launch * 37 + rank * 11 + i * 5;
    (0..ROW).map(|j| bf16::from_f32(((first + j) % 251) as f32 - 125.0)).collect()
}

/// Launches on every rank, each with rows of its own and a look at what it leaves.
fn job(language: Language) -> (Job, Text) {
    let target = language.target();
    let kernel = verify(post(target.warp_size())).unwrap();
    let source = emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap();
    let text = Text::of(&source, language);
    let emitted = Emitted { kernel: kernel.into_kernel(), source };
    let mut job = Job::new(language, RANKS);
    job.buffers_of(&emitted.kernel, str::to_owned);
    let run = job.launch(&emitted, str::to_owned, |name| panic!("no scalar `{name}`"), WAIT_BUDGET_NS);
    for rank in 0..RANKS {
        for launch in 0..LAUNCHES {
            let x: Vec<bf16> = (0..RANKS * ROWS).flat_map(|i| row(launch, rank, i)).collect();
            job.write(rank, "x", 0, &x);
            job.run_on(rank, run);
            job.read(rank, "out", 0..u64::from(RANKS * ROWS * ROW) * 2);
            job.read(rank, "scaled_out", 0..u64::from(RANKS * ROW) * 4);
        }
    }
    (job, text)
}

/// What a rank reads.
fn expected(rank: u32) -> Vec<u8> {
    let of_launch = |launch| {
        let senders = (0..RANKS).flat_map(|from| (0..ROWS).map(move |i| (from, rank * ROWS + i)));
        let out: Vec<bf16> = senders.flat_map(|(from, i)| row(launch, from, i)).collect();
        let scaled: Vec<f32> =
            (0..RANKS).flat_map(|from| row(launch, from, 0)).map(|x| x.to_f32() / 2.0).collect();
        [bytemuck::cast_slice::<_, u8>(&out), bytemuck::cast_slice(&scaled)].concat()
    };
    (0..LAUNCHES).flat_map(of_launch).collect()
}

/// So many seeds, and as many adversarial ones.
fn both(seeds: u64) -> impl Iterator<Item = u64> {
    (0..seeds).chain((0..seeds).map(|seed| seed + (1 << 32)))
}

fn program(text: &Text) -> Program {
    Program::new(std::slice::from_ref(text), Mode::Checked)
}

#[test]
fn rows_arrive() {
    for language in Language::ALL {
        let (job, text) = job(language);
        for run in job.run(&program(&text), both(6)) {
            assert_eq!(run.findings, Vec::<String>::new(), "{language:?}, seed {}", run.seed);
            for rank in 0..RANKS {
                assert_eq!(run.read[rank as usize], expected(rank), "{language:?}, rank {rank}");
            }
        }
    }
}

/// What to replace in emitted text, and by what.
type Edit = (&'static str, &'static str);

/// The outbox with one bank: only settling says that the card has read what the launch before put.
const ONE_BANK: Edit = ("* 2 + rows_row + bank) * 64;", "* 2 + rows_row) * 64;");

#[test]
fn settling_makes_an_outbox_free() {
    for language in Language::ALL {
        let (job, text) = job(language);
        let one_bank = program(&text.edited(ONE_BANK.0, ONE_BANK.1, 1));
        assert!(!job.any(&one_bank, both(6), is_wrong), "{language:?}");
    }
}

fn is_wrong(run: &Run) -> bool {
    !run.findings.is_empty() || (0..RANKS).any(|rank| run.read[rank as usize] != expected(rank))
}

#[test]
fn mistakes_in_the_text_are_found() {
    let no_settling = ("const u32 sent = u32(commands_of(args.far.sent));", "const u32 sent = 0;");
    let meets = (
        "    meet_before_command(group);\n    bool sent = true;\n    for (u32 turn = group.lane; turn < peers.count && sent; \
         turn += Group::lanes) {  // a lane for each rank\n        const u32 peer = peers.rank(turn);\n        if",
        "    bool sent = true;\n    for (u32 turn = group.lane; turn < peers.count && sent; turn += Group::lanes) {\n        \
         const u32 peer = peers.rank(turn);\n        if",
    );
    let fewer = (
        "rows_arrived_index, {block.index, 1},\n        2,",
        "rows_arrived_index, {block.index, 1},\n        1,",
    );
    let planted: [(&str, &[Edit]); 7] = [
        ("no settling", &[ONE_BANK, no_settling]),
        (
            "settled once the card has the commands",
            &[ONE_BANK, ("ring + ring_delivered", "ring + ring_taken")],
        ),
        ("lanes that do not meet before the command", &[meets]),
        ("a ring that is never full", &[("if (lap > 0) {", "if (lap > 99) {")]),
        ("a wait for fewer", &[fewer]),
        ("counts that are read without order", &[("    acquire_system(number);\n", "")]),
        ("a sequence that does not change", &[("(lap + 1) & 0xffff", "1")]),
    ];
    for language in Language::ALL {
        let (job, text) = job(language);
        for (what, edits) in planted {
            let edited = |text: Text, &(from, to): &Edit| text.edited(from, to, 1);
            let text = edits.iter().fold(text.clone(), edited);
            assert!(job.any(&program(&text), both(8), is_wrong), "{language:?}: {what} is not found");
        }
    }
}
