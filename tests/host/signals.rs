//! Signals without data, barriers, flags between blocks and tickets: the emitted text is clean, and wrong orders and scopes in
//! it are caught.

#[allow(dead_code)] // those of the simulator's tests, which need more of it
#[path = "../../codegen/tests/printed/signals.rs"]
mod fixtures;

use fixtures::{RANKS, ROW, credit, hand_over, meeting, pages, requests};
use peerwarp_codegen::ir::{Kernel, verify};
use peerwarp_codegen::print::{EmitInfo, emit};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, Run, STATUS, WAIT_BUDGET_NS};
use crate::waits::Status;

const LAUNCHES: u32 = 5;
/// Seeds under which the texts are clean.
const SEEDS: std::ops::Range<u64> = 0..6;
/// Seeds under which a mistake is caught: ranks of one pace, and ranks of different paces.
const PLANTED_SEEDS: std::ops::Range<u64> = 0..2;

struct Host {
    job: Job,
    text: Text,
    expected: Vec<Vec<f32>>,
}

fn row(rank: u32) -> Vec<f32> {
    (0..ROW).map(|i| (i + 100 * rank) as f32).collect()
}

fn expected(name: &str, rank: u32) -> Vec<f32> {
    match name {
        "credit" | "pages" | "requests" => row((rank + RANKS - 1) % RANKS),
        "meeting" => (0..ROW as usize).map(|i| (0..RANKS).map(|r| row(r)[i]).sum()).collect(),
        _ => {
            let mut out: Vec<f32> = row(rank).iter().map(|x| 2.0 * x).collect();
            out.rotate_left((ROW / fixtures::PARTS) as usize);
            out.push(row(rank).iter().sum());
            out
        }
    }
}

impl Host {
    fn new(make: fn(u32) -> Kernel, language: Language) -> Host {
        let target = language.target();
        let kernel = verify(make(target.warp_size())).unwrap_or_else(|e| panic!("{e}"));
        let info = EmitInfo { command: String::new() };
        let source = emit(&kernel, target, &info).unwrap_or_else(|e| panic!("{e}"));
        let emitted = Emitted { kernel: kernel.into_kernel(), source };
        let mut job = Job::new(language, RANKS);
        job.buffers_of(&emitted.kernel, str::to_owned);
        let launch = job.launch(&emitted, str::to_owned, |_| vec![], WAIT_BUDGET_NS);
        for rank in 0..RANKS {
            job.write(rank, "x", 0, &row(rank));
            for _ in 0..LAUNCHES {
                job.run_on(rank, launch);
            }
            job.read(rank, "out", 0..4 * u64::from(ROW));
            if emitted.kernel.params.iter().any(|p| p.name == "sum") {
                job.read(rank, "sum", 0..4);
            }
        }
        let expected = (0..RANKS).map(|rank| expected(&emitted.kernel.name, rank)).collect();
        Host { job, text: Text::of(&emitted.source, language), expected }
    }

    fn wrong(&self, run: &Run) -> Vec<String> {
        let mut all = run.findings.clone();
        for (rank, want) in self.expected.iter().enumerate() {
            if run.read[rank] != bytemuck::cast_slice::<f32, u8>(want) {
                all.push(format!("wrong result: rank {rank}"));
            }
        }
        all
    }

    fn runs(&self, text: &Text, seeds: std::ops::Range<u64>) -> Vec<Vec<String>> {
        let program = Program::new(std::slice::from_ref(text), Mode::Checked);
        self.job.run(&program, seeds).iter().map(|run| self.wrong(run)).collect()
    }
}

#[test]
fn emitted_signals_are_clean() {
    for language in Language::ALL {
        for make in [credit, meeting, hand_over, requests, pages] {
            let host = Host::new(make, language);
            for (seed, wrong) in host.runs(&host.text, SEEDS).into_iter().enumerate() {
                assert!(
                    wrong.is_empty(),
                    "{language:?} {} seed {seed}: {}",
                    host.text.entry,
                    wrong.join("\n")
                );
            }
        }
    }
}

/// Kernel, text and what stands in its place.
type Planted = (fn(u32) -> Kernel, &'static str, &'static str);

fn all_are_caught(language: Language, planted: &[Planted]) {
    for &(make, from, to) in planted {
        let host = Host::new(make, language);
        let text = host.text.clone().edited(from, to, 1);
        for (seed, wrong) in host.runs(&text, PLANTED_SEEDS).into_iter().enumerate() {
            let found = |w: &String| w.starts_with("race: ") || w.starts_with("uninitialised: ");
            assert!(wrong.iter().any(found), "{language:?} {from} -> {to}, seed {seed}: {wrong:?}");
        }
    }
}

#[test]
fn wrong_orders_in_cuda_are_caught() {
    all_are_caught(
        Language::Cuda,
        &[
            (hand_over, "st.release.gpu", "st.relaxed.gpu"),
            (hand_over, "st.release.gpu", "st.release.cta"),
            (hand_over, "fence.acquire.gpu;", ""),
            (hand_over, "atom.acq_rel.gpu", "atom.relaxed.gpu"),
            (hand_over, "atom.acq_rel.gpu", "atom.release.gpu"),
            (
                hand_over,
                "group.sync();\n    if (group.lane == 0) store_release_device",
                "if (group.lane == 0) store_release_device",
            ),
            (meeting, "group.sync();\n#pragma unroll 1\n", ""),
            (requests, "red.release.sys", "red.relaxed.sys"),
            (requests, "red.release.sys", "red.release.gpu"),
            (
                requests,
                "group.sync();\n    if (group.lane == 0) add_release_system",
                "if (group.lane == 0) add_release_system",
            ),
        ],
    );
}

#[test]
fn wrong_orders_in_hip_are_caught() {
    all_are_caught(
        Language::Hip,
        &[
            (hand_over, "__builtin_amdgcn_fence(__ATOMIC_RELEASE, \"agent\");", ""),
            (hand_over, "{ __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"agent\"); }", "{}"),
            (hand_over, "release_device();\n        const u32 before", "const u32 before"),
            (hand_over, "acquire_device(counter);", ""),
            (
                requests,
                "__builtin_amdgcn_fence(__ATOMIC_RELEASE, \"\");\n    stores_done();\n    __hip_atomic_fetch_add",
                "__hip_atomic_fetch_add",
            ),
            (
                requests,
                "stores_done();\n    group.sync();\n    if (group.lane == 0) add_release_system",
                "if (group.lane == 0) add_release_system",
            ),
        ],
    );
}

/// A count that stays what it is satisfies the next launch's wait before anything is put.
#[test]
fn a_count_that_is_not_set_back_is_caught() {
    for (language, reset) in [
        (
            Language::Cuda,
            "if (arrived) asm volatile(\"st.relaxed.sys.global.u32 [%0], %1;\" ::\"l\"(counts + index), \"r\"(0) : \"memory\");",
        ),
        (
            Language::Hip,
            "if (arrived) __hip_atomic_store(counts + index, 0u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);",
        ),
    ] {
        let host = Host::new(requests, language);
        let text = host.text.clone().edited(reset, "", 1);
        for (seed, wrong) in host.runs(&text, PLANTED_SEEDS).into_iter().enumerate() {
            assert!(!wrong.is_empty(), "{language:?}, seed {seed}");
        }
    }
}

/// A block that does not count: the wait expires, and its record says how far the count got.
#[test]
fn a_count_that_stays_short_is_named() {
    let call = "count_rank(block, args.sent[remainder], 1);";
    for language in Language::ALL {
        let mut host = Host::new(requests, language);
        let size = size_of::<Status>() as u64;
        (0..RANKS).for_each(|rank| host.job.read(rank, STATUS, 0..size));
        let text = host.text.clone().edited(call, &format!("if (block.index != 2) {call}"), 1);
        for run in host.job.run(&Program::new(&[text], Mode::Fast), SEEDS) {
            let status = |read: &Vec<u8>| -> Status {
                bytemuck::pod_read_unaligned(&read[read.len() - size as usize..])
            };
            let records: Vec<Status> = run.read.iter().map(status).filter(|s| s.filled == 1).collect();
            assert!(!records.is_empty() && run.read.iter().all(|read| status(read).aborted != 0));
            for s in records {
                let peer = (s.rank + RANKS - 1) % RANKS;
                assert_eq!((s.expected, s.seen, s.peer, s.index), (fixtures::PARTS, 3, peer, 0), "{s:?}");
            }
        }
    }
}
