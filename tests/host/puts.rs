//! Tiles of products that go to other ranks, as emitted: into inboxes and out of windows, where matrices end within tiles.

#[path = "../../codegen/tests/printed/parts.rs"]
mod parts;

use half::bf16;
use parts::{COLUMNS, K, RANKS, ROWS, parts};
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::print::{EmitInfo, emit};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, Run};

const LAUNCHES: u32 = 3;
const WAIT_BUDGET_NS: u64 = 2_000_000_000;

/// A matrix of small whole numbers.
fn matrix(rows: u32, seed: u32) -> Vec<f32> {
    (0..rows * K).map(|i| ((i * 7 + i / K * 3 + seed * 13) % 17) as f32 - 8.0).collect()
}

fn expected() -> Vec<u8> {
    let sum = |rank: u32, row: u32, column: u32| {
        let (x, w) = (matrix(ROWS, rank), matrix(COLUMNS, 5 + rank));
        (0..K).map(|i| x[(row * K + i) as usize] * w[(column * K + i) as usize]).sum::<f32>()
    };
    let of = |row, column| {
        (0..RANKS).map(|rank| sum(rank, row, column)).map(|s| bf16::from_f32(s).to_f32() + s).sum::<f32>()
    };
    (0..ROWS).flat_map(|row| (0..COLUMNS).flat_map(move |column| of(row, column).to_le_bytes())).collect()
}

/// Three launches on every rank.
fn job(language: Language) -> (Job, Text) {
    let target = language.target();
    let kernel = verify(parts(target.warp_size())).unwrap();
    let source = emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap();
    let text = Text::of(&source, language);
    let emitted = Emitted { kernel: kernel.into_kernel(), source };
    let mut job = Job::new(language, RANKS);
    job.buffers_of(&emitted.kernel, str::to_owned);
    let launch = job.launch(&emitted, str::to_owned, |name| panic!("no scalar `{name}`"), WAIT_BUDGET_NS);
    let narrow = |m: Vec<f32>| m.into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    for rank in 0..RANKS {
        job.write(rank, "x", 0, &narrow(matrix(ROWS, rank)));
        job.write(rank, "w", 0, &narrow(matrix(COLUMNS, 5 + rank)));
        (0..LAUNCHES).for_each(|_| job.run_on(rank, launch));
        job.read(rank, "out", 0..u64::from(ROWS * COLUMNS) * 4);
    }
    (job, text)
}

/// Whether all is well under some schedules.
fn holds(text: &Text, job: &Job) -> bool {
    let expected = expected();
    let well = |run: Run| run.findings.is_empty() && run.read.iter().all(|read| *read == expected);
    job.run(&Program::new(std::slice::from_ref(text), Mode::Checked), 0..3).into_iter().all(well)
}

#[test]
fn tiles_with_edges_reach_other_ranks() {
    for language in Language::ALL {
        let (job, text) = job(language);
        assert!(holds(&text, &job), "{language:?}");
    }
}

#[test]
fn a_tile_that_is_signalled_before_it_is_put_is_found() {
    for language in Language::ALL {
        let (job, text) = job(language);
        let text = text.edited(
            "    group.sync();\n#pragma unroll 1\n    for (u32 turn = group.lane; turn < ranks;",
            "#pragma unroll 1\n    for (u32 turn = group.lane; turn < ranks;",
            1,
        );
        assert!(!holds(&text, &job), "{language:?}: nothing found");
    }
}
