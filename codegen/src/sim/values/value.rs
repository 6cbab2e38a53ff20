//! Tiles at run time: plain bytes with a shared owner, so that a copy of a tile is a pointer.

use std::cell::OnceCell;

use bytemuck::Pod;

use super::pool::Words;

/// Words of a tile that needs no storage beside its register: eight elements of 32 bits are what most tiles have at most.
const SMALL: usize = 4;

/// The elements of a tile, aligned for every element type. Booleans are one byte each, 0 or 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tile {
    /// Size.
    bytes: u32,
    /// Whether it is known to be full of one element. A word that repeats it is the first of `small` then.
    full: bool,
    /// The elements, if these are few.
    small: [u64; SMALL],
    /// The elements, if these are more; of a tile that is full of one, there from when somebody wants to see them all.
    words: OnceCell<Words>,
    /// See [`Tile::exact`].
    exact: Words,
}

impl Tile {
    /// The elements; `T` has the size of the tile's element type.
    pub fn view<T: Pod>(&self) -> &[T] {
        let need = self.words_needed();
        let words = match need <= SMALL {
            true => &self.small,
            false => self.words.get_or_init(|| Words::full(need, self.small[0])).all(),
        };
        bytemuck::cast_slice(&bytemuck::cast_slice::<u64, u8>(words)[..self.bytes()])
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    fn words_needed(&self) -> usize {
        self.bytes().div_ceil(8)
    }

    /// Of a tile that is known to be full of one element: a word that repeats it.
    pub fn uniform(&self) -> Option<u64> {
        self.full.then_some(self.small[0])
    }

    /// The same as an element, of whose size the elements are.
    pub fn element<T: Pod>(&self) -> Option<T> {
        self.uniform().map(|word| bytemuck::cast_slice::<u64, T>(&[word])[0])
    }

    /// Fills it with `len` elements of `size` bytes, all of which are the low bits of `bits`.
    pub fn fill(&mut self, len: usize, size: usize, bits: u64) {
        let word = match size {
            1 => u64::from(bits as u8) * (u64::MAX / 0xff),
            2 => u64::from(bits as u16) * (u64::MAX / 0xffff),
            4 => u64::from(bits as u32) * (u64::MAX / 0xffff_ffff),
            _ => bits,
        };
        self.clear();
        (self.bytes, self.full, self.small) = ((len * size) as u32, true, [word; SMALL]);
    }

    /// Lets go of the elements.
    pub fn clear(&mut self) {
        if self.bytes == 0 {
            return;
        }
        (self.bytes, self.full) = (0, false);
        self.forget_words();
        self.forget_exact();
    }

    fn forget_words(&mut self) {
        // Most tiles have none, and to ask costs less than to put nothing into the place of nothing.
        if self.words.get().is_some() {
            self.words = OnceCell::new();
        }
    }

    /// Makes it a copy of another one: of nothing, most of the time.
    pub fn become_like(&mut self, other: &Tile) {
        match other.bytes {
            0 => self.clear(),
            _ => *self = other.clone(),
        }
    }

    /// Of a `U32` tile in which an element has wrapped: all elements as they would be if none had, modulo 2^64.
    pub fn exact(&self) -> Option<&[u64]> {
        let exact = self.exact.all();
        (!exact.is_empty()).then(|| &exact[..self.bytes() / 4])
    }

    /// See [`Tile::exact`].
    pub fn set_exact(&mut self, exact: impl Iterator<Item = u64>) {
        self.exact = Words::of(self.bytes() / 4, exact);
    }

    /// See [`Tile::exact`].
    pub fn forget_exact(&mut self) {
        if !self.exact.all().is_empty() {
            self.exact = Words::default();
        }
    }

    /// Turns this into a tile of `len` elements that no other value shares and returns them, with unspecified content. The
    /// storage is kept where it can be.
    pub fn fresh<T: Pod>(&mut self, len: usize) -> &mut [T] {
        (self.bytes, self.full) = ((len * size_of::<T>()) as u32, false);
        self.forget_exact();
        let (need, bytes) = (self.words_needed(), self.bytes());
        let words = if need <= SMALL {
            self.forget_words();
            &mut self.small[..]
        } else {
            if !self.words.get_mut().is_some_and(|w| w.make_room(need)) {
                self.words = Words::new(need).into();
            }
            self.words.get_mut().and_then(Words::all_mut).expect("no other value has it")
        };
        bytemuck::cast_slice_mut(&mut bytemuck::cast_slice_mut::<u64, u8>(words)[..bytes])
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
pub(crate) fn runs(mask: &Tile) -> impl Iterator<Item = (usize, usize)> + '_ {
    let (whole, mask) = match mask.uniform() {
        Some(0) => (None, &[][..]),
        Some(_) => (Some((0, mask.bytes())), &[][..]),
        None => (None, mask.view::<u8>()),
    };
    let mut at = 0;
    whole.into_iter().chain(std::iter::from_fn(move || {
        let start = next(mask, at, 1)?;
        at = next(mask, start, 0).unwrap_or(mask.len());
        Some((start, at))
    }))
}

/// The first truth value from a place on that is set (1) or not (0).
fn next(mask: &[u8], mut from: usize, value: u8) -> Option<usize> {
    let others = [1 - value; 16];
    while mask.get(from..from + 16).is_some_and(|m| m == others) {
        from += 16;
    }
    mask[from..].iter().position(|&m| m == value).map(|n| from + n)
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
    fn a_full_tile_is_all_there_when_it_is_looked_at() {
        let mut a = Tile::default();
        a.fill(5, 2, 0xf_abcd);
        let b = a.clone();
        assert_eq!((a.view::<u16>(), a.bytes()), (&[0xabcd; 5][..], 10));
        a.fresh::<u16>(5).fill(7);
        assert_eq!((a.uniform(), a.view::<u16>(), b.view::<u16>()), (None, &[7; 5][..], &[0xabcd; 5][..]));
        a.fill(9, 1, 1);
        assert_eq!(a.view::<u8>(), [1; 9]);
        a.fill(3, 4, u64::MAX - 1);
        assert_eq!(a.view::<u32>(), [u32::MAX - 1; 3]);
        a.fill(2, 8, u64::MAX - 1);
        assert_eq!(a.view::<u64>(), [u64::MAX - 1; 2]);
    }

    #[test]
    fn runs_of_a_mask() {
        let tile = |m: &[u8]| {
            let mut t = Tile::default();
            t.fresh::<u8>(m.len()).copy_from_slice(m);
            t
        };
        let all = |m: &[u8]| runs(&tile(m)).collect::<Vec<_>>();
        assert_eq!(all(&[]), []);
        assert_eq!(all(&[0, 0]), []);
        assert_eq!(all(&[1, 1]), [(0, 2)]);
        assert_eq!(all(&[0, 1, 1, 0, 1]), [(1, 3), (4, 5)]);
        let mut long = [0; 70];
        long[20..57].fill(1);
        long[69] = 1;
        assert_eq!(all(&long), [(20, 57), (69, 70)]);
        let mut full = Tile::default();
        for (bits, want) in [(1, vec![(0, 40)]), (0, vec![])] {
            full.fill(40, 1, bits);
            assert_eq!(runs(&full).collect::<Vec<_>>(), want);
        }
    }
}
