//! Storage of tiles. What one tile gives back the next one takes, so that what is computed with stays in the caches however
//! many agents take turns.

use std::cell::RefCell;
use std::rc::Rc;

/// How many words of each size a thread keeps at most, and how many storages at least: agents have thousands of small tiles.
const KEPT_WORDS: usize = 1 << 18;
const KEPT: usize = 64;
/// Sizes: powers of two.
const SIZES: usize = 24;

thread_local! {
    static POOL: RefCell<[Vec<Rc<[u64]>>; SIZES]> = const { RefCell::new([const { Vec::new() }; SIZES]) };
}

/// At least one word, shared by the tiles that are copies of each other; none by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words(Option<Rc<[u64]>>);

impl Words {
    /// At least `need` words that no value shares, with unspecified content.
    pub fn new(need: usize) -> Words {
        let len = need.next_power_of_two();
        let kept = POOL.with(|pool| pool.borrow_mut().get_mut(size(len)).and_then(Vec::pop));
        Words(Some(kept.unwrap_or_else(|| std::iter::repeat_n(0, len).collect())))
    }

    /// At least `need` words, the first of which are `word`.
    pub fn full(need: usize, word: u64) -> Words {
        let mut words = Words::new(need);
        if let Some(all) = words.all_mut() {
            all[..need].fill(word);
        }
        words
    }

    /// At least `need` words, the first of which are given.
    pub fn of(need: usize, given: impl Iterator<Item = u64>) -> Words {
        let mut words = Words::new(need);
        if let Some(all) = words.all_mut() {
            all[..need].iter_mut().zip(given).for_each(|(word, given)| *word = given);
        }
        words
    }

    /// All words.
    pub fn all(&self) -> &[u64] {
        self.0.as_deref().unwrap_or_default()
    }

    /// All words, if no value shares them.
    pub fn all_mut(&mut self) -> Option<&mut [u64]> {
        self.0.as_mut().and_then(Rc::get_mut)
    }

    /// Whether `need` words can be written here.
    pub fn make_room(&mut self, need: usize) -> bool {
        self.all_mut().is_some_and(|words| words.len() >= need)
    }
}

/// The number of a size.
fn size(len: usize) -> usize {
    len.trailing_zeros() as usize
}

impl Drop for Words {
    fn drop(&mut self) {
        let Some(words) = self.0.take().filter(|w| Rc::strong_count(w) == 1) else { return };
        // A thread that ends keeps nothing.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            let most = KEPT.max(KEPT_WORDS / words.len());
            if let Some(kept) = pool.get_mut(size(words.len())).filter(|kept| kept.len() < most) {
                kept.push(words);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_taken_again() {
        let first = Words::new(5);
        let place = first.all().as_ptr();
        let shared = first.clone();
        drop(first);
        let second = Words::new(5);
        assert_ne!(second.all().as_ptr(), place, "somebody has it still");
        drop(shared);
        let third = Words::full(7, 3);
        assert_eq!((third.all().as_ptr(), &third.all()[..7]), (place, &[3; 7][..]));
        assert!(third.all().len() >= 7 && second.all().len() >= 5);
    }

    #[test]
    fn shared_words_are_not_written() {
        let mut a = Words::full(2, 1);
        assert!(a.make_room(2) && !a.make_room(3));
        let b = a.clone();
        assert!(!a.make_room(1) && a.all_mut().is_none());
        assert_eq!(b.all(), [1, 1]);
    }
}
