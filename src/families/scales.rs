//! Where the scales of quantised rows stand in memory.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;

/// The order of scales of rows in memory. A word is an f32 scale, or four scales of a byte.
#[derive(Choice, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum ScaleLayout {
    /// `[row][word]`.
    #[default]
    Row,
    /// `[word][row]`, the rows of each word followed by as many as make a multiple of 4: 16 bytes, as TMA wants it.
    Column,
    /// `[128 rows][word][row % 32][row / 32 % 4]`: tiles of 128 rows by four scales, as block-scaled tensor cores take them. Scales are
    /// bytes.
    #[choice(name = "128x4")]
    Tiles,
}

/// Rows of a tile of [`ScaleLayout::Tiles`].
const TILE_ROWS: u64 = 128;

/// Rows that the rows of a column of [`ScaleLayout::Column`] are a multiple of.
const COLUMN_ROWS: u64 = 4;

/// Where the scales of rows stand: in one matrix, or in several of as many rows each.
#[derive(Clone, Copy, Debug)]
pub struct ScaleRoom {
    layout: ScaleLayout,
    /// Words of a row.
    words: u64,
    /// Rows of a matrix.
    rows: u64,
    /// Matrices.
    matrices: u64,
}

impl ScaleRoom {
    /// Words of each row of so many rows in so many matrices.
    pub(super) fn new(layout: ScaleLayout, words: u32, (rows, matrices): (u64, u64)) -> ScaleRoom {
        ScaleRoom { layout, words: words.into(), rows, matrices }
    }

    /// Rows of a matrix, and as many as make it whole.
    fn whole_rows(&self) -> u64 {
        match self.layout {
            ScaleLayout::Row => self.rows,
            ScaleLayout::Column => self.rows.next_multiple_of(COLUMN_ROWS),
            ScaleLayout::Tiles => self.rows.next_multiple_of(TILE_ROWS),
        }
    }

    /// Words in all.
    pub fn all_words(&self) -> u64 {
        self.matrices * self.whole_rows() * self.words
    }

    /// Matrices, the rows of each without and with those that make it whole, and the words of a row.
    pub fn shape(&self) -> [u64; 4] {
        [self.matrices, self.rows, self.whole_rows(), self.words]
    }

    /// Where a word of a row's scales is.
    pub fn place(&self, row: u64, word: u64) -> u64 {
        let (matrix, row) = (row / self.rows, row % self.rows);
        let (first, step) = match self.layout {
            ScaleLayout::Row => (row * self.words, 1),
            ScaleLayout::Column => (row, self.whole_rows()),
            ScaleLayout::Tiles => {
                (row / TILE_ROWS * (self.words * TILE_ROWS) + row % 32 * 4 + row / 32 % 4, TILE_ROWS)
            }
        };
        matrix * (self.words * self.whole_rows()) + first + word * step
    }

    /// Stores the words of a row's scales.
    pub(super) fn store(&self, scales: &AnyPtr, row: Val<u32>, words: AnyTile) {
        let n = self.words as u32;
        let (first, step) = self.first_and_step(row);
        match step {
            1 => scales.store(first, words),
            _ => scales.scatter(arange(n) * step + first, words, true),
        }
    }

    /// The first word of a row's scales, and how many words further each next one is.
    pub(super) fn first_and_step(&self, row: Val<u32>) -> (Val<u32>, u32) {
        let (rows, words, whole) = (self.rows as u32, self.words as u32, self.whole_rows() as u32);
        let (matrix, row) = if self.matrices == 1 { (None, row) } else { (Some(row / rows), row % rows) };
        let (first, step) = match self.layout {
            ScaleLayout::Row => (row * words, 1),
            ScaleLayout::Column => (row, whole),
            ScaleLayout::Tiles => {
                let tile = TILE_ROWS as u32;
                (row / tile * (words * tile) + row % 32 * 4 + row / 32 % 4, tile)
            }
        };
        (matrix.map_or(first, |matrix| matrix * (words * whole) + first), step)
    }
}
