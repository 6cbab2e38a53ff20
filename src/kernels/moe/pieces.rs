//! Rows in pieces that a group's lanes hold at once.

use peerwarp_codegen::dsl::prelude::*;

use super::device::at;

/// Consecutive elements of a row that a group moves as one tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First element.
    pub start: u32,
    /// Number of elements.
    pub len: u32,
}

impl Piece {
    /// First element of this piece of row `i`.
    pub(super) fn at(&self, i: Val<u32>, row: u32) -> Val<u64> {
        at(i, row) + u64::from(self.start)
    }
}

/// A row of `row` elements in pieces of `piece`, the last one shorter when they don't divide.
pub(super) fn pieces(row: u32, piece: u32) -> impl Iterator<Item = Piece> {
    (0..row).step_by(piece as usize).map(move |start| Piece { start, len: piece.min(row - start) })
}

/// Elements of a piece: `vectors` of 16 bytes for each lane of `warps` warps, a warp taken as 32 lanes.
pub(super) fn piece_len(warps: u32, vectors: u32, element_bytes: u32) -> u32 {
    warps * 32 * vectors * (16 / element_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_row_once() {
        let all: Vec<Piece> = pieces(2880, piece_len(1, 4, 2)).collect();
        let want = [(0, 1024), (1024, 1024), (2048, 832)].map(|(start, len)| Piece { start, len });
        assert_eq!(all, want);
        assert_eq!(pieces(8, 1024).collect::<Vec<_>>(), [Piece { start: 0, len: 8 }]);
        assert_eq!(pieces(2048, 1024).count(), 2);
    }
}
