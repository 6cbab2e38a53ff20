//! Roles beside another one in its blocks, as emitted text: warps of a block that meet apart, at barriers of their own.

#[path = "../../codegen/tests/printed/relay.rs"]
mod fixture;

use fixture::{RANKS, ROW, ROWS, expected, relay, x};
use peerwarp_codegen::dsl::EpochWord;
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::print::{EmitInfo, emit};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, Run, WAIT_BUDGET_NS};

const LAUNCHES: u32 = 5;
const SEEDS: std::ops::Range<u64> = 0..4;

struct Host {
    job: Job,
    text: Text,
}

impl Host {
    fn new(language: Language) -> Host {
        let target = language.target();
        let kernel = verify(relay(target.warp_size(), EpochWord::begin)).unwrap_or_else(|e| panic!("{e}"));
        let source =
            emit(&kernel, target, &EmitInfo { command: String::new() }).unwrap_or_else(|e| panic!("{e}"));
        let emitted = Emitted { kernel: kernel.into_kernel(), source };
        let mut job = Job::new(language, RANKS);
        job.buffers_of(&emitted.kernel, str::to_owned);
        let launch = job.launch(&emitted, str::to_owned, |_| vec![], WAIT_BUDGET_NS);
        for rank in 0..RANKS {
            job.write(rank, "x", 0, &x(rank));
            for _ in 0..LAUNCHES {
                job.run_on(rank, launch);
            }
            job.read(rank, "out", 0..4 * u64::from(ROWS * ROW));
            job.read(rank, "sum", 0..4);
        }
        Host { job, text: Text::of(&emitted.source, language) }
    }

    /// What is wrong with each run of a text.
    fn runs(&self, text: &Text) -> Vec<Vec<String>> {
        let program = Program::new(std::slice::from_ref(text), Mode::Checked);
        let wrong = |run: &Run| {
            let mut all = run.findings.clone();
            for rank in 0..RANKS {
                if run.read[rank as usize] != bytemuck::cast_slice::<f32, u8>(&expected(rank).concat()) {
                    all.push(format!("wrong result: rank {rank}"));
                }
            }
            all
        };
        self.job.run(&program, SEEDS).iter().map(wrong).collect()
    }
}

#[test]
fn emitted_roles_beside_others_are_clean() {
    for language in Language::ALL {
        let host = Host::new(language);
        for (seed, wrong) in host.runs(&host.text).into_iter().enumerate() {
            assert!(wrong.is_empty(), "{language:?} seed {seed}: {}", wrong.join("\n"));
        }
    }
}

#[test]
fn warps_that_do_not_meet_are_caught() {
    let planted = [
        (Language::Cuda, "block.sync();", 1),
        (Language::Cuda, "warps.sync();", 1),
        (Language::Hip, "block.sync();", 1),
        (Language::Hip, "warps.sync();", 1),
        (Language::Hip, "    ++meetings;\n", 1),
        (Language::Cuda, "else Meeting<N>{15 - Nth}.sync();", 1),
    ];
    for (language, from, count) in planted {
        let host = Host::new(language);
        let text = host.text.clone().edited(from, "", count);
        let caught = host.runs(&text).into_iter().filter(|wrong| !wrong.is_empty()).count();
        assert!(caught > 0, "{language:?} without {from}");
    }
}
