//! What a round has to leave in a rank's memory, and what the experts put there in between.

use std::borrow::Cow;

use bytemuck::cast_slice;

use super::data::{Round, Semantics};
use crate::families::moe::MoeShape;
use crate::families::moe::kernels::{Begins, Hook, ScaleLayout};
use crate::families::moe::reference::{self, Entry};
use crate::harness::elements;

/// A part of a buffer that has to hold certain bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected<'r> {
    /// The buffer, by the name of the kernels' parameter.
    pub buffer: &'static str,
    /// First byte.
    pub at: u64,
    /// What it is, in words.
    pub what: String,
    /// The bytes.
    pub bytes: Cow<'r, [u8]>,
}

impl<'r> Expected<'r> {
    fn new(buffer: &'static str, at: u64, what: impl Into<String>, bytes: &[u8]) -> Expected<'r> {
        Expected::of(buffer, at, what, bytes.to_vec().into())
    }

    fn of(buffer: &'static str, at: u64, what: impl Into<String>, bytes: Cow<'r, [u8]>) -> Expected<'r> {
        Expected { buffer, at, what: what.into(), bytes }
    }

    /// What is wrong about the bytes that are there, if something is.
    pub fn wrong(&self, got: &[u8]) -> Option<String> {
        // All of them at once is faster than one by one.
        if got.get(..self.bytes.len()).is_some_and(|got| *got == *self.bytes) {
            return None;
        }
        let Some(i) = got.iter().zip(&*self.bytes).position(|(g, w)| g != w) else {
            return (got.len() < self.bytes.len())
                .then(|| format!("{}: only {} bytes", self.what, got.len()));
        };
        Some(format!("{}: byte {i} is {:#04x}, {:#04x} is right", self.what, got[i], self.bytes[i]))
    }
}

impl Semantics {
    /// Where the rows of each of a rank's experts begin, which has so many of each, and after the last one where they end, of as many
    /// experts as any rank has: whether or not there are so many places.
    fn first_rows(&self, shape: &MoeShape, counts: &[u32]) -> Vec<u32> {
        let most = shape.map().at_most();
        match self.key.layout.room(shape, self.key.max_rows).begins {
            Begins::Strided(stride) => (0..=most).map(|expert| expert * stride).collect(),
            Begins::Aligned(align) => {
                let end = |sum: &mut u32, expert: usize| {
                    *sum += counts.get(expert).map_or(0, |n| n.next_multiple_of(align));
                    Some(*sum)
                };
                [0].into_iter().chain((0..most as usize).scan(0, end)).collect()
            }
        }
    }

    /// By expert, the places of the rows of a rank that has so many of each, in their order; none for those that have none.
    pub(super) fn places(&self, shape: &MoeShape, counts: &[u32]) -> Vec<Option<u32>> {
        let room = self.key.layout.room(shape, self.key.max_rows);
        let has_place = |i: u32, row: u32| match room.begins {
            Begins::Strided(stride) => i < stride,
            Begins::Aligned(_) => !room.drops || u64::from(row) < room.places,
        };
        let of_expert =
            |(first, n): (u32, &u32)| (0..*n).map(move |i| has_place(i, first + i).then_some(first + i));
        self.first_rows(shape, counts).into_iter().zip(counts).flat_map(of_expert).collect()
    }
}

impl Round {
    /// All that dispatch has to leave on a rank, made one by one: rows are many.
    pub fn dispatched(&self, rank: u32) -> impl Iterator<Item = Expected<'_>> {
        let mut all = self.counts(rank);
        match self.semantics.key.layout.by_expert() {
            true => self.positions(rank, &mut all),
            false => self.index(rank, &mut all),
        }
        all.into_iter().chain(self.rows(rank))
    }

    /// The places of rows on a rank, and an entry that each is of.
    pub fn places(&self, rank: u32) -> Vec<(u64, Entry)> {
        let rows = self.grouped[rank as usize].rows.iter();
        if self.semantics.key.layout.by_expert() {
            let placed = rows.zip(self.by_expert(rank));
            return placed.filter_map(|(&entry, place)| Some((u64::from(place?), entry))).collect();
        }
        let mut all: Vec<_> = rows.map(|&e| (u64::from(self.by_token(e)), e)).collect();
        all.sort_by_key(|(place, _)| *place);
        all.dedup_by_key(|(place, _)| *place);
        all
    }

    /// By expert, the places of a rank's rows in their order; none for those that have none.
    fn by_expert(&self, rank: u32) -> Vec<Option<u32>> {
        self.semantics.places(&self.shape, &self.grouped[rank as usize].counts)
    }

    /// What the experts of a rank make of what came, with the first byte of each part; nothing where dispatch's rows are
    /// what combine takes.
    pub fn experts_outputs(&self, rank: u32) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let places = if self.semantics.y_is_rows() { vec![] } else { self.places(rank) };
        let row = move |(place, entry): (u64, Entry)| {
            let y = match self.semantics.key.layout.by_expert() || self.semantics.key.weighted {
                true => self.expert_row(rank, entry),
                false => self.summed_row(rank, entry),
            };
            (place * y.len() as u64, y)
        };
        places.into_iter().map(row)
    }

    /// The number of a token's row by token.
    fn by_token(&self, entry: Entry) -> u32 {
        entry.source * self.shape.tokens + entry.token
    }

    /// The bytes of what a rank's experts make of an entry's token, weighted, summed and rounded.
    fn summed_row(&self, rank: u32, entry: Entry) -> Vec<u8> {
        // The same for all of the token's entries on the rank.
        let output = self.expert_output(rank, entry);
        let at = (entry.source, entry.token);
        let sum = reference::of_owner(&self.shape, &self.routing, rank, at, |_, _| &output);
        elements::encode(self.semantics.key.combined.dtype(), &sum)
    }

    fn counts(&self, rank: u32) -> Vec<Expected<'_>> {
        let counts = &self.grouped[rank as usize].counts;
        let mut start = self.semantics.first_rows(&self.shape, counts);
        let (mut rows, mut placed) = (vec![0; self.shape.map().at_most() as usize], vec![]);
        let room = self.semantics.key.layout.room(&self.shape, self.semantics.key.max_rows);
        let mut places = self.semantics.places(&self.shape, counts).into_iter();
        for (rows, &n) in rows.iter_mut().zip(counts) {
            placed.extend(places.by_ref().take(n as usize));
            *rows = placed.drain(..).flatten().count() as u32;
        }
        let overflow = counts.iter().sum::<u32>() - rows.iter().sum::<u32>();
        let needed = match room.begins {
            Begins::Strided(_) => counts.iter().copied().max().unwrap_or(0),
            Begins::Aligned(_) => start.last().copied().unwrap_or(0),
        };
        if room.drops {
            start.iter_mut().for_each(|first| *first = u64::from(*first).min(room.places) as u32);
        }
        let n = self.routing.tokens_per_rank(self.shape.topk);
        let mut all = vec![
            Expected::new("expert_rows", 0, "rows of each expert", cast_slice(&rows)),
            Expected::new("expert_start", 0, "first row of each expert", cast_slice(&start)),
            Expected::new("n_from", 0, "tokens of each source", cast_slice(&n)),
        ];
        if room.drops {
            all.push(Expected::new("overflow", 0, "rows without a place", cast_slice(&[overflow])));
            let what = "the most rows with which all have a place";
            all.push(Expected::new("needed", 0, what, cast_slice(&[needed])));
        }
        all
    }

    /// Bytes of what there is for each entry of a rank, of 4 bytes each.
    fn entries_bytes(&self) -> u64 {
        u64::from(self.shape.tokens * self.shape.topk) * 4
    }

    fn positions(&self, rank: u32, all: &mut Vec<Expected<'_>>) {
        let places = self.by_expert(rank);
        let place = |row: &i32| match usize::try_from(*row) {
            // Where it is not here.
            Err(_) => -1,
            Ok(row) => places[row].map_or(-2, |place| place as i32),
        };
        for (source, pos) in (0..).zip(&self.grouped[rank as usize].pos) {
            let what = format!("rows of the entries of rank {source}");
            let pos: Vec<i32> = pos.iter().map(place).collect();
            all.push(Expected::new("pos", source * self.entries_bytes(), what, cast_slice(&pos)));
        }
    }

    fn index(&self, rank: u32, all: &mut Vec<Expected<'_>>) {
        let grouped = &self.grouped[rank as usize];
        let owned = self.shape.map().owned(rank);
        for (source, ids) in (0..).zip(&self.routing.ids) {
            let of = |id: &i32| match u32::try_from(*id) {
                Ok(expert) if owned.contains(&expert) => *id + self.first_expert as i32,
                _ => self.no_expert,
            };
            let mut experts: Vec<i32> = ids.iter().map(of).collect();
            experts.resize((self.shape.tokens * self.shape.topk) as usize, self.no_expert);
            let at = source * self.entries_bytes();
            let what = format!("experts of the entries of rank {source}");
            all.push(Expected::new("entry_expert", at, what, cast_slice(&experts)));
            let weights = &self.routing.weights[source as usize];
            let what = format!("weights of the entries of rank {source}");
            all.push(Expected::new("weight_from", at, what, cast_slice(weights)));
        }
        let gather: Vec<u32> = grouped.rows.iter().map(|&entry| self.by_token(entry)).collect();
        all.push(Expected::new("gather", 0, "rows of the experts", cast_slice(&gather)));
    }

    fn rows(&self, rank: u32) -> impl Iterator<Item = Expected<'_>> {
        let [rows, scales_of_rows] = self.semantics.rows();
        let scaled = self.shape.scales() > 0 && self.semantics.key.hook == Hook::None;
        self.places(rank).into_iter().flat_map(move |(place, entry)| {
            let row = self.row(rank, entry);
            let what = format!("bytes of row {place}, which is {entry:?}");
            let row = Expected::of(rows, place * row.len() as u64, what, row);
            let scales = scaled.then(|| self.placed_scales(scales_of_rows, (place, entry)));
            [row].into_iter().chain(scales.into_iter().flatten())
        })
    }

    /// The scales of a row, where their layout has them: all of them, or word by word.
    fn placed_scales(&self, buffer: &'static str, (place, entry): (u64, Entry)) -> Vec<Expected<'_>> {
        let (scales, key) = (self.scales(entry), &self.semantics.key);
        let words = scales.len() as u64 / 4;
        let room = key.layout.room(&self.shape, key.max_rows);
        let rows = if let Begins::Strided(stride) = room.begins { stride.into() } else { room.places };
        let (matrix, row) = (place / rows, place % rows);
        let at = |word: u64| match key.scale_layout {
            ScaleLayout::Row => place * words + word,
            ScaleLayout::Column => (matrix * words + word) * rows.div_ceil(4) * 4 + row,
            ScaleLayout::Tiles => {
                let tile = (matrix * rows.div_ceil(128) + row / 128) * words + word;
                tile * 128 + row % 32 * 4 + row % 128 / 32
            }
        };
        let what = format!("scales of row {place}, which is {entry:?}");
        match key.scale_layout {
            ScaleLayout::Row => vec![Expected::new(buffer, 4 * at(0), what, scales)],
            ScaleLayout::Column | ScaleLayout::Tiles => (0..)
                .zip(scales.chunks(4))
                .map(|(word, bytes)| {
                    Expected::new(buffer, 4 * at(word), format!("word {word} of the {what}"), bytes)
                })
                .collect(),
        }
    }

    /// Bytes of a row that dispatch yields, and of its scales.
    pub(super) fn dispatched_row_bytes(&self) -> (usize, usize) {
        match self.semantics.key.hook {
            Hook::None => (self.shape.row_bytes() as usize, self.shape.scale_bytes() as usize),
            Hook::Expert | Hook::Custom => {
                ((self.shape.hidden * self.semantics.key.combined.dtype().bytes()) as usize, 0)
            }
        }
    }
}
