//! Tiles at run time: plain bytes with a shared owner, so that a copy of a tile is a pointer.

use std::sync::Arc;

use bytemuck::Pod;

/// The elements of a tile, aligned for every element type. Booleans are one byte each, 0 or 1.
#[derive(Clone, Debug, Default)]
pub(super) struct Tile {
    words: Option<Arc<Vec<u64>>>,
    bytes: usize,
    /// See [`Tile::exact`].
    exact: Option<Arc<Vec<u64>>>,
}

impl Tile {
    /// The elements; `T` has the size of the tile's element type.
    pub fn view<T: Pod>(&self) -> &[T] {
        let words = self.words.as_deref().map_or(&[][..], Vec::as_slice);
        bytemuck::cast_slice(&bytemuck::cast_slice::<u64, u8>(words)[..self.bytes])
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Of a `U32` tile in which an element has wrapped: all elements as they would be if none had, modulo 2^64.
    pub fn exact(&self) -> Option<&[u64]> {
        self.exact.as_ref().map(|e| &e[..])
    }

    /// See [`Tile::exact`].
    pub fn set_exact(&mut self, exact: Vec<u64>) {
        self.exact = Some(Arc::new(exact));
    }

    /// Turns this into a tile of `len` elements that nobody shares and returns them, with unspecified content. The
    /// storage is kept where it can be.
    pub fn fresh<T: Pod>(&mut self, len: usize) -> &mut [T] {
        self.bytes = len * size_of::<T>();
        self.exact = None;
        let need = self.bytes.div_ceil(8);
        let unique = self.words.as_mut().is_some_and(|w| Arc::get_mut(w).is_some());
        if !unique {
            self.words = Some(Arc::new(Vec::new()));
        }
        let words = Arc::get_mut(self.words.as_mut().expect("set above")).expect("nobody else has it");
        words.resize(need, 0);
        bytemuck::cast_slice_mut(&mut bytemuck::cast_slice_mut::<u64, u8>(words)[..self.bytes])
    }

    /// As [`Tile::fresh`], with another tile's content.
    pub fn fresh_copy<T: Pod>(&mut self, of: &Tile) -> &mut [T] {
        let from = of.view::<T>();
        let to = self.fresh::<T>(from.len());
        to.copy_from_slice(from);
        to
    }
}

/// The maximal runs of set elements of a mask, as half-open ranges.
pub(super) fn runs(mask: &[u8]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + mask[at..].iter().position(|&m| m != 0)?;
        at = mask[start..].iter().position(|&m| m == 0).map_or(mask.len(), |n| start + n);
        Some((start, at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_tile_is_not_overwritten() {
        let mut a = Tile::default();
        a.fresh::<u32>(3).copy_from_slice(&[1, 2, 3]);
        let b = a.clone();
        a.fresh::<u16>(5).fill(9);
        assert_eq!(b.view::<u32>(), [1, 2, 3]);
        assert_eq!((a.view::<u16>(), a.bytes()), (&[9u16; 5][..], 10));
        assert!(Tile::default().view::<u64>().is_empty());
    }

    #[test]
    fn runs_of_a_mask() {
        let all = |m: &[u8]| runs(m).collect::<Vec<_>>();
        assert_eq!(all(&[]), []);
        assert_eq!(all(&[0, 0]), []);
        assert_eq!(all(&[1, 1]), [(0, 2)]);
        assert_eq!(all(&[0, 1, 1, 0, 1]), [(1, 3), (4, 5)]);
    }
}
