//! Reductions along rows and columns of products, as emitted: between lanes of a warp, and between warps.

#[path = "../../codegen/tests/printed/norms.rs"]
mod printed;

use half::bf16;
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::print::{EmitInfo, emit};
use printed::{BANDS, COLUMNS, EACH, K, ROWS, norms};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, Run};

const WAIT_BUDGET_NS: u64 = 2_000_000_000;

/// A matrix of small whole numbers.
fn matrix(rows: u32, seed: u32) -> Vec<f32> {
    (0..rows * K).map(|i| ((i * 7 + i / K * 3 + seed * 13) % 9) as f32 - 4.0).collect()
}

/// The product's rows, and of rows that are not there zeros.
fn rows(rank: u32) -> Vec<Vec<f32>> {
    let (x, w) = (matrix(ROWS, rank), matrix(COLUMNS, 5 + rank));
    let dot = |row: u32, column: u32| {
        (0..K).map(|i| x[(row * K + i) as usize] * w[(column * K + i) as usize]).sum::<f32>()
    };
    let of = |row| (0..COLUMNS).map(|column| if row < ROWS { dot(row, column) } else { 0.0 }).collect();
    (0..BANDS * 64).map(of).collect()
}

/// What comes out, one buffer after the other: `normed`, `least`, `weights`, `sums` and `most`.
fn expected(rank: u32) -> Vec<f32> {
    let all = rows(rank);
    let there = &all[..ROWS as usize];
    let least = |row: &Vec<f32>| row.iter().copied().fold(f32::MAX, f32::min);
    let normed = there.iter().flat_map(|row| {
        let mean = row.iter().sum::<f32>() / COLUMNS as f32;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / COLUMNS as f32;
        row.iter().map(move |x| (x - mean) / (variance + 1e-5).sqrt())
    });
    let weights = there.iter().flat_map(|row| {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let each = move |x: &f32| ((x - most) * 0.125).exp();
        let sum: f32 = row.iter().map(each).sum();
        row.iter().map(move |x| each(x) / sum)
    });
    let column = |band: u32, column: u32| {
        (0..64).map(|row| all[(band * 64 + row) as usize][column as usize]).collect::<Vec<f32>>()
    };
    let columns = || (0..BANDS).flat_map(|band| (0..COLUMNS).map(move |column| (band, column)));
    let sums = columns().map(|(band, at)| column(band, at).iter().sum::<f32>());
    let most = columns().map(|(band, at)| {
        let column = column(band, at);
        column.iter().copied().fold(f32::MIN, f32::max) + least(&column)
    });
    let least = there.iter().flat_map(|row| [least(row); EACH as usize]);
    normed.chain(least).chain(weights).chain(sums).chain(most).collect()
}

fn job(language: Language) -> (Job, Text) {
    let target = language.target();
    let kernel = verify(norms(target.warp_size())).unwrap();
    let source = emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap();
    let text = Text::of(&source, language);
    let emitted = Emitted { kernel: kernel.into_kernel(), source };
    let mut job = Job::new(language, 2);
    job.buffers_of(&emitted.kernel, str::to_owned);
    let launch = job.launch(&emitted, str::to_owned, |name| panic!("no scalar `{name}`"), WAIT_BUDGET_NS);
    let narrow = |m: Vec<f32>| m.into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    for rank in 0..2 {
        job.write(rank, "x", 0, &narrow(matrix(ROWS, rank)));
        job.write(rank, "w", 0, &narrow(matrix(COLUMNS, 5 + rank)));
        job.run_on(rank, launch);
        let lens = [("normed", ROWS * COLUMNS), ("least", ROWS * EACH), ("weights", ROWS * COLUMNS)];
        for (name, len) in lens.into_iter().chain([("sums", BANDS * COLUMNS), ("most", BANDS * COLUMNS)]) {
            job.read(rank, name, 0..u64::from(len) * 4);
        }
    }
    (job, text)
}

/// Whether all is well under some schedules: the first that is not ends it. Sums of whole numbers are exact; roots and exponentials are the target's own.
fn holds(text: &Text, job: &Job) -> bool {
    let close = |a: f32, b: f32| (a - b).abs() <= 1e-6 + b.abs() * 1e-5;
    let right = |(rank, read): (usize, &Vec<u8>)| {
        let read: Vec<f32> =
            read.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
        let expected = expected(rank as u32);
        read.len() == expected.len() && read.iter().zip(&expected).all(|(a, b)| close(*a, *b))
    };
    let program = Program::new(std::slice::from_ref(text), Mode::Checked);
    let is_wrong = |run: &Run| !(run.findings.is_empty() && run.read.iter().enumerate().all(right));
    !job.any(&program, 0..3, is_wrong)
}

#[test]
fn rows_and_columns_are_reduced() {
    for language in [Language::Cuda, Language::Hip, Language::Gfx12] {
        let (job, text) = job(language);
        assert!(holds(&text, &job), "{language:?}");
    }
}

#[test]
fn every_bug_of_a_reduction_shows() {
    let read = "group.sync();  // an earlier reduction's values have been read";
    let bugs = [
        (Language::Cuda, "lanes of a row are left out", "nearest = 1, end = 4", "nearest = 1, end = 2"),
        (Language::Cuda, "lanes of a column are left out", "nearest = 4, end = 32", "nearest = 4, end = 16"),
        (Language::Hip, "lanes of a row are left out", "nearest = 16, end = 64", "nearest = 16, end = 32"),
        (Language::Hip, "lanes of a column are left out", "nearest = 1, end = 16", "nearest = 1, end = 8"),
        (Language::Cuda, "rows are taken for each other", "/ 4) * 2 + step % 2;", "/ 4) * 2;"),
        (Language::Cuda, "columns are taken for each other", "/ 8) * 2 + j;", "/ 8) * 2;"),
        (Language::Hip, "columns are taken for each other", "/ 16) * 4 + j;", "/ 16) * 4;"),
        (Language::Gfx12, "lanes of a row are left out", "nearest = 16, end = 32", "nearest = 16, end = 16"),
        (Language::Gfx12, "lanes of a column are left out", "nearest = 1, end = 16", "nearest = 1, end = 8"),
        (Language::Gfx12, "columns are taken for each other", "/ 16) * 8 + j;", "/ 16) * 8;"),
        (Language::Gfx12, "halves are taken for each other", "lane % 32 / 16 * 8 + i % 8", "i % 8"),
        (
            Language::Cuda,
            "what warps have is read before it is there",
            "    }\n        group.sync();\n",
            "    }\n",
        ),
        (Language::Cuda, "what others still read is overwritten", read, ""),
        (Language::Hip, "what others still read is overwritten", read, ""),
        (
            Language::Cuda,
            "a warp is left out",
            "u32 part = 1; part < Lines::parts",
            "u32 part = 2; part < Lines::parts",
        ),
    ];
    for (language, name, from, to) in bugs {
        let (job, text) = job(language);
        assert!(!holds(&text.edited(from, to, 1), &job), "{language:?}: {name}");
    }
}
