//! What collectives are run on, and what must come out.

use std::ops::Range;

use peerwarp_codegen::ir::{Const, Dtype};

use super::{
    Algorithm, AllGather, AllReduce, AllToAll, Broadcast, Hook, Length, Lengths, NormQuantise,
    RaggedAllToAll, ReduceScatter, Reduction, RegisteredAllReduce, ScaleLayout, Shots, reference,
};
use crate::harness::bench::TIMING;
use crate::harness::blocks::{Blocks, Scaling};
use crate::harness::verdict::Expected;
use crate::harness::workload::{Baseline, Contents, OfRows, Turn, Work, Workload};
use crate::input::InputError;

/// PyTorch with NCCL, and with its symmetric memory, launched one by one and as a CUDA graph.
const BASELINES: Baseline = Baseline {
    scripts: &[("collectives.py", include_str!("../../../bench/baselines/collectives.py")), TIMING],
};

fn contents(buffer: &str, dtype: Dtype, values: &[f32]) -> Contents {
    Contents::new(buffer, reference::bytes(dtype, values))
}

/// A rank's vector, where a kernel takes it.
pub(super) fn vector(in_place: bool, turn: Turn, elements: u32, dtype: Dtype) -> Contents {
    contents(if in_place { "out" } else { "x" }, dtype, &reference::vector(turn, elements, dtype))
}

pub(super) fn exactly(buffer: &str, dtype: Dtype, values: &[f32]) -> Expected {
    Expected::exactly(buffer, dtype, reference::bytes(dtype, values))
}

/// The numbers of a launch that says lengths so.
fn numbers(l: Lengths, said: &reference::Said) -> Vec<(String, Const)> {
    let all = [("rows", said.rows, Length::Whole), ("all_rows", said.all_rows, Length::Each)];
    let there = all
        .into_iter()
        .filter(|(_, _, only)| l.length != Length::Whole && [l.length, Length::Whole].contains(only));
    there.map(|(name, n, _)| (name.to_owned(), Const::U32(n))).collect()
}

/// The words on the GPU of such a launch.
fn words(said: &reference::Said) -> Option<Contents> {
    (!said.n.is_empty()).then(|| Contents::of("n", &said.n))
}

/// What a launch has.
fn some(all: Vec<Expected>) -> Vec<Expected> {
    all.into_iter().filter(|expected| !expected.bytes.is_empty()).collect()
}

/// What a family passes whose lengths launches say, and what comes out. `$of_capacity` says where results depend on the capacity, too,
/// and `$without` where there is a result without some ranks.
macro_rules! with_lengths {
    () => {
        with_lengths!(|_| false, |_| true);
    };
    ($of_capacity:expr, $without:expr) => {
        fn baselines() -> Option<Baseline> {
            Some(BASELINES)
        }

        fn inputs(&self, turn: Turn) -> Vec<Contents> {
            let said = reference::said(turn, self.lengths());
            self.of_length(turn, self.launched(turn)).into_iter().chain(words(&said)).collect()
        }

        fn numbers(&self, turn: Turn) -> Vec<(String, Const)> {
            numbers(self.lengths(), &reference::said(turn, self.lengths()))
        }

        /// Of all rows.
        fn timing_inputs(&self, turn: Turn) -> Vec<Contents> {
            let said = reference::all_said(self.lengths());
            self.of_length(turn, self.elements).into_iter().chain(words(&said)).collect()
        }

        fn timing_numbers(&self, _: Turn) -> Vec<(String, Const)> {
            numbers(self.lengths(), &reference::all_said(self.lengths()))
        }

        fn expected(&self, turn: Turn) -> Vec<Expected> {
            some(self.results(turn, 0))
        }

        fn expected_without(&self, turn: Turn, inactive: u64) -> Option<Vec<Expected>> {
            let without: fn(&Self) -> bool = $without;
            without(self).then(|| some(self.results(turn, inactive)))
        }

        fn takes_rows() -> bool {
            true
        }

        fn of_rows(&self, rows: u32) -> Result<OfRows<Self>, InputError> {
            let (l, of_capacity) = (self.lengths(), $of_capacity as fn(&Self) -> bool);
            let said = given(l, rows)?;
            if of_capacity(self) {
                let allowed = "scale_layout=row: other scales stand by the capacity";
                return Err(InputError::conflict("--launch-rows", rows, "scale_layout", allowed));
            }
            let elements = self.elements / l.most * rows;
            let like = Self { elements, length: Length::Whole, row: 1, ..self.clone() };
            Ok(OfRows { like, words: words(&said).into_iter().collect(), numbers: numbers(l, &said) })
        }
    };
}

/// What launches say that have so many rows of each rank.
fn given(l: Lengths, rows: u32) -> Result<reference::Said, InputError> {
    if l.length == Length::Whole {
        let allowed = "length=host, device or each: a launch has all elements";
        return Err(InputError::conflict("--launch-rows", rows, "length=whole", allowed));
    }
    if !(1..=l.most).contains(&rows) {
        return Err(InputError::not_allowed("--launch-rows", rows, format!("1 to {}, the capacity", l.most)));
    }
    let words = reference::all_said(l).n.len();
    Ok(reference::Said { rows, all_rows: rows.saturating_mul(l.ranks), n: vec![rows; words] })
}

/// A rank's vector that is reduced, where a kernel takes it.
pub(super) fn reduced(
    buffer: &str,
    op: Reduction,
    turn: Turn,
    (ranks, elements): (u32, u32),
    dtype: Dtype,
) -> Contents {
    contents(buffer, dtype, &reference::reduced(op, turn, ranks, elements, dtype))
}

/// A reduction, to the bit. Of extremes a NaN may be any other one: GPUs have instructions that make one of their own.
pub(super) fn reduction(buffer: &str, (op, dtype): (Reduction, Dtype), values: &[f32]) -> Expected {
    let exact = exactly(buffer, dtype, values);
    match op {
        Reduction::Sum | Reduction::Avg => exact,
        _ if dtype == Dtype::I32 => exact,
        _ => exact.within(0.0, 0.0),
    }
}

pub(super) fn bytes(elements: u32, dtype: Dtype) -> u64 {
    u64::from(elements) * u64::from(dtype.bytes())
}

/// Each rank's part of a vector, from every other rank to it.
fn parts(elements: u32, ranks: u32, dtype: Dtype) -> Work {
    let part = |rank| bytes(reference::part(elements, ranks, rank).len() as u32, dtype);
    let to = |from: u32| (0..ranks).map(|to| if from == to { 0 } else { part(to) }).collect();
    Work { bytes: (0..ranks).map(to).collect(), hops: 1, ..Work::default() }
}

/// What a rank gets from every rank by an all-to-all of vectors of so many elements.
pub(super) fn exchanged(
    (elements, ranks): (u32, u32),
    dtype: Dtype,
    turn: Turn,
    inactive: u64,
) -> Vec<Expected> {
    let own = reference::part(elements, ranks, turn.rank);
    let row = bytes(elements.div_ceil(ranks), dtype);
    let from = |rank: u32| {
        let vector = reference::vector_without(Turn { rank, ..turn }, inactive, elements, dtype);
        let expected = exactly("out", dtype, &vector[own.clone()]);
        Expected { at: u64::from(rank) * row, ..expected }.called(&format!("part from rank {rank}"))
    };
    (0..ranks).map(from).filter(|part| !part.bytes.is_empty()).collect()
}

/// What is added to the mean of squares.
const EPS: f32 = 1e-5;

impl AllReduce {
    /// What a rank reduces, or adds to the reduction. Where rows are quantised it is such that these have the same bits in whatever order
    /// squares are added.
    fn vector(&self, turn: Turn, elements: u32) -> Vec<f32> {
        match (self.quantise, self.op) {
            // Nothing says what a switch makes of a NaN.
            (NormQuantise::None, op) if self.hook == Hook::None && self.algorithm != Algorithm::Multimem => {
                reference::reduced(op, turn, self.ranks, elements, self.dtype)
            }
            (NormQuantise::None, _) => reference::vector(turn, elements, self.dtype),
            (_, Reduction::Avg) => reference::multiples(turn, elements, 0.25 * self.ranks as f32),
            _ => reference::multiples(turn, elements, 0.25),
        }
    }

    /// Elements that a launch has.
    fn launched(&self, turn: Turn) -> u32 {
        reference::launched(turn, self.lengths(), self.elements)
    }

    /// A residual and weights, of rows that all ranks have.
    fn residual_and_weight(&self, turn: Turn, elements: u32) -> [Vec<f32>; 2] {
        let of = |rank| Turn { rank, ..turn };
        let weight = reference::vector(of(self.ranks + 1), self.hidden, self.weight_dtype());
        [self.vector(of(self.ranks), elements), weight]
    }

    /// The scale of all rows that a caller gives.
    const SCALE: f32 = 3.0 / 512.0;

    /// What a rank has to hold where some ranks, a mask of them, are not active.
    fn results(&self, turn: Turn, inactive: u64) -> Vec<Expected> {
        let active = (0..self.ranks).filter(|rank| inactive >> rank & 1 == 0);
        let elements = self.launched(turn);
        let all: Vec<Vec<f32>> = active.map(|rank| self.vector(Turn { rank, ..turn }, elements)).collect();
        let sum = reference::reduction(self.op, &all, self.dtype);
        if self.hook == Hook::None {
            return vec![reduction("out", (self.op, self.dtype), &sum)];
        }
        let [residual, mut weight] = self.residual_and_weight(turn, elements);
        let added = reference::added(&sum, &residual, self.dtype);
        if self.quantise != NormQuantise::None {
            let weight = (&weight[..], self.plus_one);
            let rows = reference::rms_norm_of_exact(&added, weight, EPS, self.dtype);
            let kept = self.normalised.then(|| exactly("normalised", self.dtype, &rows));
            let added = exactly("residual_out", self.dtype, &added);
            return self.quantised(&rows).into_iter().chain(kept).chain([added]).collect();
        }
        if self.plus_one {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        let normalised = reference::rms_norm(&added, &weight, EPS, self.dtype);
        // Twice what rounding to the type may change: the mean's additions have another order.
        let rel = match self.dtype {
            Dtype::Bf16 => 1.0 / 128.0,
            Dtype::Fp16 => 1.0 / 1024.0,
            _ => 1e-5,
        };
        let normalised = exactly("out", self.dtype, &normalised).within(1e-6, rel);
        vec![exactly("residual_out", self.dtype, &added), normalised]
    }

    /// Normalised rows as they are stored, and their scales.
    fn quantised(&self, rows: &[f32]) -> Vec<Expected> {
        let hidden = self.hidden as usize;
        let out = |bytes| Expected::exactly("out", self.result().0, bytes);
        match self.quantise {
            NormQuantise::None => vec![exactly("out", self.dtype, rows)],
            NormQuantise::Fp8Tensor => vec![out(reference::fp8_of_tensor(rows, Self::SCALE))],
            NormQuantise::Fp8Token => {
                let (bytes, scales) = reference::fp8_of_rows(rows, hidden);
                vec![out(bytes), exactly("scales", Dtype::F32, &scales)]
            }
            NormQuantise::Nvfp4 => {
                let scaling = Scaling { tensor: Self::SCALE, ..Scaling::default() };
                let rows = rows.chunks(hidden).map(|row| Blocks::Nvfp4.quantise(row, scaling));
                let (bytes, scales): (Vec<Vec<u8>>, Vec<Vec<u8>>) = rows.unzip();
                let room = self.scale_room();
                let word = |(row, word, bytes): (u64, u64, &[u8])| Expected {
                    at: 4 * room.place(row, word),
                    ..Expected::exactly("scales", Dtype::U32, bytes.to_vec())
                };
                let words = (0..).zip(&scales).flat_map(|(row, scales)| {
                    (0..).zip(scales.chunks(4)).map(move |(word, bytes)| (row, word, bytes))
                });
                [out(bytes.concat())].into_iter().chain(words.map(word)).collect()
            }
        }
    }
}

impl AllReduce {
    /// What it is passed, of so many elements.
    fn of_length(&self, turn: Turn, elements: u32) -> Vec<Contents> {
        let named = |name, values: &[f32]| contents(name, self.dtype, values);
        let x = named(if self.in_place { "out" } else { "x" }, &self.vector(turn, elements));
        if self.hook == Hook::None {
            return vec![x];
        }
        let [residual, weight] = self.residual_and_weight(turn, elements);
        let weight = contents("weight", self.weight_dtype(), &weight);
        let scale = self.of_tensor().then(|| Contents::of("scale", &[Self::SCALE]));
        [x, named("residual", &residual), weight, Contents::of("eps", &[EPS])]
            .into_iter()
            .chain(scale)
            .collect()
    }
}

impl Workload for AllReduce {
    with_lengths!(|c| c.scale_layout != ScaleLayout::Row, |c| {
        // The switch reads what ranks have that are not active; and averages of fewer ranks have no squares that add up exactly.
        let inexact = c.quantise != NormQuantise::None && c.op == Reduction::Avg;
        c.algorithm != Algorithm::Multimem && !inexact
    });

    fn work(&self) -> Work {
        let (vector, ranks) = (bytes(self.elements, self.dtype), u64::from(self.ranks));
        let least = Work::all_to_all(self.ranks, (2 * vector).div_ceil(ranks));
        let flops = u64::from(self.elements) * (ranks - 1);
        if self.algorithm == Algorithm::Multimem {
            // Out of each rank go its vector, for the switch to reduce, and its part of the result, for the switch to multiply.
            let bytes = (vector + vector.div_ceil(ranks)).div_ceil((ranks - 1).max(1));
            Work { hops: 2, ..Work::all_to_all(self.ranks, bytes) }
        } else if self.algorithm.reduces_all() {
            Work { least: Some(least.bytes), flops, ..Work::all_to_all(self.ranks, vector) }
        } else {
            Work { hops: 2, flops: flops / ranks, ..least }
        }
    }
}

impl RegisteredAllReduce {
    /// What a rank has to hold where some ranks, a mask of them, are not active.
    fn results(&self, turn: Turn, inactive: u64) -> Vec<Expected> {
        let all = reference::active_vectors(self.op, turn, (self.ranks, inactive), self.elements, self.dtype);
        vec![reduction("data", (self.op, self.dtype), &reference::reduction(self.op, &all, self.dtype))]
    }
}

impl Workload for RegisteredAllReduce {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![reduced("data", self.op, turn, (self.ranks, self.elements), self.dtype)]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        self.results(turn, 0)
    }

    fn expected_without(&self, turn: Turn, inactive: u64) -> Option<Vec<Expected>> {
        Some(self.results(turn, inactive))
    }

    fn work(&self) -> Work {
        let (vector, ranks) = (bytes(self.elements, self.dtype), u64::from(self.ranks));
        let least = Work::all_to_all(self.ranks, (2 * vector).div_ceil(ranks));
        let flops = u64::from(self.elements) * (ranks - 1);
        match self.shots {
            Shots::One => {
                Work { least: Some(least.bytes), flops, hops: 2, ..Work::all_to_all(self.ranks, vector) }
            }
            Shots::Two => Work { hops: 3, flops: flops / ranks, ..least },
        }
    }
}

impl ReduceScatter {
    /// Elements of a rank's vector in a launch.
    fn launched(&self, turn: Turn) -> u32 {
        match self.length {
            Length::Whole => self.elements,
            Length::Host | Length::Device => self.ranks * reference::launched(turn, self.lengths(), 0),
            Length::Each => reference::shares(turn, self.lengths()).iter().map(|share| share.held).sum(),
        }
    }

    /// A rank's part of it.
    fn part(&self, turn: Turn) -> Range<usize> {
        if self.length != Length::Each {
            return reference::part(self.launched(turn), self.ranks, turn.rank);
        }
        let share = reference::shares(turn, self.lengths())[turn.rank as usize];
        share.first as usize..(share.first + share.own) as usize
    }

    fn of_length(&self, turn: Turn, elements: u32) -> Vec<Contents> {
        let x = if self.in_place { "out" } else { "x" };
        vec![reduced(x, self.op, turn, (self.ranks, elements), self.dtype)]
    }

    /// What a rank has to hold where some ranks, a mask of them, are not active.
    fn results(&self, turn: Turn, inactive: u64) -> Vec<Expected> {
        let (elements, part) = (self.launched(turn), self.part(turn));
        let all = reference::active_vectors(self.op, turn, (self.ranks, inactive), elements, self.dtype);
        let mut result = reference::reduction(self.op, &all, self.dtype);
        if !self.in_place {
            return vec![reduction("out", (self.op, self.dtype), result.get(part).unwrap_or_default())];
        }
        // The other parts stay as they were.
        let mut vector = reference::reduced(self.op, turn, self.ranks, elements, self.dtype);
        vector[part.clone()].swap_with_slice(&mut result[part]);
        vec![reduction("out", (self.op, self.dtype), &vector)]
    }
}

impl Workload for ReduceScatter {
    with_lengths!();

    fn work(&self) -> Work {
        let flops = u64::from(self.elements.div_ceil(self.ranks)) * u64::from(self.ranks - 1);
        Work { flops, ..parts(self.elements, self.ranks, self.dtype) }
    }
}

impl AllGather {
    /// Elements of this rank's vector in a launch.
    fn launched(&self, turn: Turn) -> u32 {
        match self.length {
            Length::Each => reference::shares(turn, self.lengths())[turn.rank as usize].own,
            _ => reference::launched(turn, self.lengths(), self.elements),
        }
    }

    fn of_length(&self, turn: Turn, elements: u32) -> Vec<Contents> {
        let vector = contents("x", self.dtype, &reference::vector(turn, elements, self.dtype));
        if !self.in_place {
            return vec![vector];
        }
        let at = u64::from(turn.rank) * vector.bytes.len() as u64;
        vec![Contents { buffer: "out".into(), at, ..vector }]
    }

    /// What a rank has to hold where some ranks, a mask of them, are not active.
    fn results(&self, turn: Turn, inactive: u64) -> Vec<Expected> {
        let from = |rank| {
            let of = Turn { rank, ..turn };
            reference::vector_without(of, inactive, self.launched(of), self.dtype)
        };
        if self.length != Length::Each {
            return vec![exactly("out", self.dtype, &(0..self.ranks).flat_map(from).collect::<Vec<_>>())];
        }
        let row = |(rank, share): (u32, reference::Share)| {
            let mut row = from(rank);
            // Zeros come where a sender has less than it said.
            if rank != turn.rank {
                row.resize(share.held as usize, 0.0);
            }
            let expected = exactly("out", self.dtype, &row);
            let at = bytes(share.first, self.dtype);
            Expected { at, ..expected }.called(&format!("vector of rank {rank}"))
        };
        (0..).zip(reference::shares(turn, self.lengths())).map(row).collect()
    }
}

impl Workload for AllGather {
    with_lengths!();

    fn work(&self) -> Work {
        Work::all_to_all(self.ranks, bytes(self.elements, self.dtype))
    }
}

impl AllToAll {
    /// Elements of a rank's vector in a launch.
    fn launched(&self, turn: Turn) -> u32 {
        match self.length {
            Length::Whole => self.elements,
            _ => self.ranks * reference::launched(turn, self.lengths(), 0),
        }
    }

    fn of_length(&self, turn: Turn, elements: u32) -> Vec<Contents> {
        vec![vector(self.in_place, turn, elements, self.dtype)]
    }

    /// What a rank has to hold where some ranks, a mask of them, are not active.
    fn results(&self, turn: Turn, inactive: u64) -> Vec<Expected> {
        exchanged((self.launched(turn), self.ranks), self.dtype, turn, inactive)
    }
}

impl Workload for AllToAll {
    with_lengths!();

    fn work(&self) -> Work {
        parts(self.elements, self.ranks, self.dtype)
    }
}

impl RaggedAllToAll {
    /// What a rank has for all of them, a row each.
    fn rows(&self, turn: Turn) -> Vec<f32> {
        reference::vector(turn, self.ranks * self.capacity, self.dtype)
    }

    fn x(&self, turn: Turn) -> Contents {
        contents(if self.in_place { "out" } else { "x" }, self.dtype, &self.rows(turn))
    }

    /// What a rank has to hold where some ranks, a mask of them, are not active.
    fn results(&self, turn: Turn, inactive: u64) -> Vec<Expected> {
        let capacity = self.capacity as usize;
        let own = self.rows(turn);
        let row = |rows: &[f32], of: u32| rows[of as usize * capacity..][..capacity].to_vec();
        let count = |rank: u32| {
            if inactive >> rank & 1 != 0 {
                return 0;
            }
            let counts = reference::counts(Turn { rank, ..turn }, self.ranks, self.capacity);
            counts[turn.rank as usize].min(self.capacity)
        };
        let from = |rank: u32| {
            let mut received = row(&self.rows(Turn { rank, ..turn }), turn.rank);
            received.truncate(count(rank) as usize);
            if self.in_place {
                // What was in the row stays behind it.
                received.extend(&row(&own, rank)[received.len()..]);
            }
            let expected = exactly("out", self.dtype, &received);
            let at = u64::from(rank) * bytes(self.capacity, self.dtype);
            Expected { at, ..expected }.called(&format!("row from rank {rank}"))
        };
        let counts: Vec<u32> = (0..self.ranks).map(count).collect();
        let counts = Expected::exactly("recv_counts", Dtype::U32, bytemuck::cast_slice(&counts).to_vec());
        (0..self.ranks).map(from).filter(|row| !row.bytes.is_empty()).chain([counts]).collect()
    }
}

impl Workload for RaggedAllToAll {
    fn baselines() -> Option<Baseline> {
        Some(BASELINES)
    }

    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let counts = reference::counts(turn, self.ranks, self.capacity);
        vec![self.x(turn), Contents::of("send_counts", &counts)]
    }

    /// Whole rows, of which [`Workload::work`] tells.
    fn timing_inputs(&self, turn: Turn) -> Vec<Contents> {
        let counts = vec![self.capacity; self.ranks as usize];
        vec![self.x(turn), Contents::of("send_counts", &counts)]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        self.results(turn, 0)
    }

    fn expected_without(&self, turn: Turn, inactive: u64) -> Option<Vec<Expected>> {
        Some(self.results(turn, inactive))
    }

    /// Of whole rows.
    fn work(&self) -> Work {
        Work::all_to_all(self.ranks, bytes(self.capacity, self.dtype))
    }
}

impl Broadcast {
    /// Elements that a launch has.
    fn launched(&self, turn: Turn) -> u32 {
        reference::launched(turn, self.lengths(), self.elements)
    }

    fn of_length(&self, turn: Turn, elements: u32) -> Vec<Contents> {
        // Also the others: what they have is not to be found in the result.
        vec![vector(self.in_place, turn, elements, self.dtype)]
    }

    /// What a rank has to hold where some ranks, a mask of them, are not active.
    fn results(&self, turn: Turn, inactive: u64) -> Vec<Expected> {
        let (elements, turn) = (self.launched(turn), Turn { rank: self.root, ..turn });
        vec![exactly("out", self.dtype, &reference::vector_without(turn, inactive, elements, self.dtype))]
    }
}

impl Workload for Broadcast {
    with_lengths!();

    fn work(&self) -> Work {
        let vector = bytes(self.elements, self.dtype);
        let to = |from: u32| {
            let sent = |to: u32| if from == self.root && to != from { vector } else { 0 };
            (0..self.ranks).map(sent).collect()
        };
        Work { bytes: (0..self.ranks).map(to).collect(), hops: 1, ..Work::default() }
    }
}
