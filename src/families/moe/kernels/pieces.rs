//! Rows in pieces that a group's lanes hold at once.

use peerwarp_codegen::dsl::prelude::*;

/// Elements of a piece of a row of `row` elements: `vectors` of 16 bytes for each lane of `warps` warps, a warp taken
/// as 32 lanes.
pub(super) fn piece_len(row: u32, warps: u32, vectors: u32, element_bytes: u32) -> u32 {
    row.min(warps * 32 * vectors * (16 / element_bytes))
}

/// Does something with each piece of a row of `row` elements, given its first element and its length: `len`, except
/// for the last piece when they don't divide.
#[kernel]
pub(super) fn each_piece(row: u32, len: u32, mut act: impl FnMut(Val<u32>, u32)) {
    let whole = row / len;
    if whole == 1 {
        act(0u32.val(), len);
    } else {
        for i in 0..whole.val() {
            let start = i * len;
            act(start, len);
        }
    }
    if let Some(rest) = rest(row, len) {
        act((whole * len).val(), rest);
    }
}

/// Elements of the last piece of a row, where pieces of `len` elements don't divide it.
fn rest(row: u32, len: u32) -> Option<u32> {
    Some(row % len).filter(|rest| *rest > 0)
}

/// How groups divide a row that is too long for their lanes to hold at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    /// Elements of a row.
    pub row: u32,
    /// Elements of a piece, the last one perhaps excepted.
    pub len: u32,
    /// Whether each piece may be another group's, or all of a row are one group's.
    pub shared: bool,
}

impl Pieces {
    /// Parts of a row that may be different groups'.
    pub fn parts(&self) -> u32 {
        if self.shared { self.row.div_ceil(self.len) } else { 1 }
    }

    /// The row and the part of it that is a group's i-th work.
    pub fn part(&self, i: Val<u32>) -> (Val<u32>, Val<u32>) {
        (i / self.parts(), i % self.parts())
    }

    /// Does something with each piece of a part, given its first element and its length.
    #[kernel]
    pub fn each(&self, part: Val<u32>, mut act: impl FnMut(Val<u32>, u32)) {
        let whole = self.row / self.len;
        if self.parts() == 1 {
            each_piece(self.row, self.len, &mut act);
        } else if let Some(rest) = rest(self.row, self.len) {
            if part < whole {
                // The bound says to the printer, too, that pieces of one row don't reach into the next one.
                act(part.min(whole - 1) * self.len, self.len);
            } else {
                act((whole * self.len).val(), rest);
            }
        } else {
            let start = part * self.len;
            act(start, self.len);
        }
    }

    /// Does what is to be done once for a row.
    #[kernel]
    pub fn once(&self, part: Val<u32>, mut act: impl FnMut()) {
        if part == 0 {
            act();
        }
    }
}

#[cfg(test)]
mod tests {
    use peerwarp_codegen::dsl::{TraceMeta, trace};

    use super::*;

    #[test]
    fn a_piece_is_what_lanes_hold_but_no_longer_than_a_row() {
        assert_eq!(piece_len(2880, 1, 4, 2), 1024);
        assert_eq!(piece_len(2880, 4, 4, 4), 2048);
        assert_eq!(piece_len(8, 4, 4, 2), 8);
    }

    /// Lengths of the pieces that are traced, and whether there is a loop.
    fn traced(row: u32, len: u32) -> (Vec<u32>, bool) {
        let mut lens = vec![];
        let kernel = trace(TraceMeta::new("pieces", 2, 32, 1), |_| {
            role("all", 1, |_| each_piece(row, len, |_, len| lens.push(len)));
        });
        (lens, format!("{}", kernel.unwrap()).contains("for "))
    }

    #[test]
    fn whole_pieces_are_a_loop_and_the_rest_follows() {
        assert_eq!(traced(2048, 1024), (vec![1024], true));
        assert_eq!(traced(2880, 1024), (vec![1024, 832], true));
        assert_eq!(traced(1440, 1024), (vec![1024, 416], false));
        assert_eq!(traced(8, 8), (vec![8], false));
    }
}
