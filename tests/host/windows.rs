//! Windows as emitted: what peers read of them, with every access checked; and what the machine finds where order is missing.

#[path = "../../codegen/tests/printed/pull.rs"]
#[allow(dead_code)] // the simulator's tests plant the mistakes
mod pull;

use half::bf16;
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::print::{EmitInfo, emit};
use pull::{PULL_PART, PULL_RANKS, PULL_ROW, pull};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, Run};

const LAUNCHES: u32 = 3;
const WAIT_BUDGET_NS: u64 = 2_000_000_000;

fn row(rank: u32) -> Vec<bf16> {
    (0..PULL_ROW).map(|i| bf16::from_f32(((i * 7 + rank * 13) % 251) as f32 - 125.0)).collect()
}

fn counted(rank: u32) -> u32 {
    [0, 100, PULL_PART, 719][rank as usize]
}

/// Three launches on every rank, then a look at what they leave.
fn job(language: Language) -> (Job, Text) {
    let target = language.target();
    let kernel = verify(pull(target.warp_size())).unwrap();
    let source = emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap();
    let text = Text::of(&source, language);
    let emitted = Emitted { kernel: kernel.into_kernel(), source };
    let mut job = Job::new(language, PULL_RANKS);
    job.buffers_of(&emitted.kernel, str::to_owned);
    let launch = job.launch(&emitted, str::to_owned, |name| panic!("no scalar `{name}`"), WAIT_BUDGET_NS);
    for rank in 0..PULL_RANKS {
        job.write(rank, "x", 0, &row(rank));
        job.write(rank, "n", 0, &[counted(rank)]);
        (0..LAUNCHES).for_each(|_| job.run_on(rank, launch));
        job.read(rank, "sum", 0..u64::from(PULL_ROW) * 2);
        job.read(rank, "next", 0..u64::from(PULL_ROW) * 2);
        job.read(rank, "turned", 0..u64::from(PULL_ROW) * 4);
    }
    (job, text)
}

/// What rank `rank` reads in the end.
fn expected(rank: u32) -> Vec<u8> {
    let next = (rank + 1) % PULL_RANKS;
    let rows: Vec<Vec<bf16>> = (0..PULL_RANKS).map(row).collect();
    let each = || (0..PULL_ROW).map(|i| (i as usize, i / PULL_PART * PULL_PART, i % PULL_PART));
    let sum = each().map(|(at, ..)| bf16::from_f32(rows.iter().fold(0f32, |s, r| s + r[at].to_f32())));
    let there = |at: usize, within| if within < counted(next) { rows[next as usize][at] } else { bf16::ZERO };
    let copied = each().map(|(at, _, within)| there(at, within));
    let turned = each().map(|(_, part, within)| (PULL_PART - 1 - within) * 3 + next * 1000 + part);
    let (sum, copied, turned): (Vec<bf16>, Vec<bf16>, Vec<u32>) =
        (sum.collect(), copied.collect(), turned.collect());
    [bytemuck::cast_slice(&sum), bytemuck::cast_slice(&copied), bytemuck::cast_slice::<_, u8>(&turned)]
        .concat()
}

fn runs(text: &Text, job: &Job) -> Vec<Run> {
    job.run(&Program::new(std::slice::from_ref(text), Mode::Checked), 0..4)
}

#[test]
fn peers_read_what_is_published() {
    for language in Language::ALL {
        let (job, text) = job(language);
        for run in runs(&text, &job) {
            assert_eq!(run.findings, Vec::<String>::new(), "{language:?}, seed {}", run.seed);
            for rank in 0..PULL_RANKS {
                assert_eq!(run.read[rank as usize], expected(rank), "{language:?}, rank {rank}");
            }
        }
    }
}

/// The halves of the windows made one: the next launch stores what a slow peer may still read.
#[test]
fn a_window_that_is_overwritten_too_soon_is_found() {
    for language in Language::ALL {
        let (job, text) = job(language);
        let text = text.edited(
            "const u32 window_index = half_2 * 1440 + part;",
            "const u32 window_index = part;",
            1,
        );
        let text = text.edited("const u32 at = half_2 * 1440 + part;", "const u32 at = part;", 1);
        let program = Program::new(std::slice::from_ref(&text), Mode::Checked);
        let found = job.any(&program, 0..4, |run| !run.findings.is_empty());
        assert!(found, "{language:?}: nothing found");
    }
}
