//! Tiles of any number of elements as emitted: the last one may be any part of a tile, of a vector and of a packet.

#[path = "../../codegen/tests/printed/tails.rs"]
mod kernel;

use half::{bf16, f16};
use peerwarp_codegen::ir::{Dtype, verify};
use peerwarp_codegen::print::{EmitInfo, emit};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job};
use kernel::{TAIL_CHUNK, TAIL_RANKS, Tails, tails_of};

/// A small integer: it, its neighbours and its double are exact in every type.
fn number(rank: u32, i: u32) -> f32 {
    ((i * 7 + rank * 13) % 61) as f32 - 30.0
}

fn encode(dtype: Dtype, x: f32) -> Vec<u8> {
    match dtype {
        Dtype::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        Dtype::Fp16 => f16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

fn emitted(case: Tails, language: Language) -> Emitted {
    let target = language.target();
    let kernel = tails_of(case, target.warp_size());
    let info = EmitInfo { command: "peerwarp".into() };
    let verified = verify(kernel.clone()).unwrap_or_else(|e| panic!("{e}"));
    Emitted { kernel, source: emit(&verified, target, &info).unwrap_or_else(|e| panic!("{e}")) }
}

/// What a rank must have at the end, by buffer.
fn expected(case: Tails, rank: u32) -> Vec<(&'static str, Vec<u8>)> {
    let Tails { n, dtype, .. } = case;
    let of = |source: u32, f: fn(f32) -> f32| (0..n).flat_map(move |i| encode(dtype, f(number(source, i))));
    let before = (rank + TAIL_RANKS - 1) % TAIL_RANKS;
    let least = |tile: u32| {
        let end = n.min((tile + 1) * TAIL_CHUNK);
        (tile * TAIL_CHUNK..end).map(|i| number(rank, i)).fold(f32::MAX, f32::min)
    };
    let sum: f32 = (0..n).map(|i| number(rank, i)).sum();
    let least: f32 = (0..n.div_ceil(TAIL_CHUNK)).map(least).sum();
    let there = (0..TAIL_CHUNK).map(|i| n.checked_sub(i + 1).map(|i| number(before, i) - 1.0));
    let backwards = there.flat_map(|x| encode(dtype, x.unwrap_or(0.0))).collect();
    vec![
        ("all", (0..TAIL_RANKS).flat_map(|source| of(source, |x| x + 1.0)).collect()),
        ("copied", of(before, |x| x).collect()),
        ("doubled", of(before, |x| 2.0 * x).collect()),
        ("less", of(before, |x| x - 1.0).collect()),
        ("backwards", backwards),
        ("sum", (sum + least).to_le_bytes().to_vec()),
    ]
}

fn run(case: Tails, language: Language) {
    let emitted = emitted(case, language);
    let mut job = Job::new(language, TAIL_RANKS);
    job.buffers_of(&emitted.kernel, str::to_owned);
    let launch = job.launch(&emitted, str::to_owned, |_| vec![], 1_000_000_000);
    for rank in 0..TAIL_RANKS {
        let x: Vec<u8> = (0..case.n).flat_map(|i| encode(case.dtype, number(rank, i))).collect();
        job.write(rank, "x", 0, &x);
        job.write(rank, "count", 0, &[case.n]);
        job.run_on(rank, launch);
        for (name, want) in expected(case, rank) {
            job.read(rank, name, 0..want.len() as u64);
        }
    }
    let program = Program::new(&[Text::of(&emitted.source, language)], Mode::Checked);
    for run in job.run(&program, 0..2) {
        assert!(run.findings.is_empty(), "{case:?} {language:?}: {}", run.findings.join("\n"));
        for rank in 0..TAIL_RANKS {
            let mut rest = &run.read[rank as usize][..];
            for (name, want) in expected(case, rank) {
                let (got, after) = rest.split_at(want.len());
                let wrong = got.iter().zip(&want).position(|(g, w)| g != w);
                assert_eq!(wrong, None, "{case:?} {language:?}: first wrong byte of {name} of rank {rank}");
                rest = after;
            }
        }
    }
}

#[test]
fn any_number_of_elements_moves() {
    let cases = [
        (1003, Dtype::F32, false),
        (517, Dtype::Bf16, true),
        (1003, Dtype::Fp16, false),
        (1000, Dtype::Bf16, false),
        (1021, Dtype::F32, true),
        (3, Dtype::Bf16, false),
    ];
    for (n, dtype, on_device) in cases {
        for language in Language::ALL {
            run(Tails { n, dtype, on_device }, language);
        }
    }
}
