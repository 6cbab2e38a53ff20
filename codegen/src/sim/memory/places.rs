//! Which stores are on their way to which places.

use super::wire::Spot;

/// The stores that meet each part of each buffer, by number. Most of the time nothing is on its way to the place that somebody looks
/// at, and a look at one or two words says so.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// By buffer, of its bytes and of its flags: for each part, one of the stores that meet it, which knows the next one; zero where
    /// none does, and else the number in `links` plus one.
    parts: Vec<[Vec<u32>; 2]>,
    links: Vec<Link>,
    unused: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    store: u32,
    next: u32,
}

/// Bytes of a part, as a power of two: rows have several, and neighbouring pieces of rows have different ones.
const BYTES_BITS: u32 = 9;
/// Flags of a part.
const FLAGS_BITS: u32 = 3;

/// A spot's buffer, what it is of, and its parts.
fn parts_of(spot: &Spot) -> (usize, usize, std::ops::Range<usize>) {
    match *spot {
        Spot::Bytes { buffer, from, to } => {
            (buffer, 0, (from >> BYTES_BITS) as usize..to.div_ceil(1 << BYTES_BITS) as usize)
        }
        Spot::Flag { buffer, index } => {
            let part = (index >> FLAGS_BITS) as usize;
            (buffer, 1, part..part + 1)
        }
    }
}

impl Places {
    pub fn add(&mut self, store: u32, spot: &Spot) {
        let (buffer, sort, parts) = parts_of(spot);
        if self.parts.len() <= buffer {
            self.parts.resize_with(buffer + 1, Default::default);
        }
        let heads = &mut self.parts[buffer][sort];
        if heads.len() < parts.end {
            heads.resize(parts.end, 0);
        }
        for head in &mut heads[parts] {
            let link = Link { store, next: *head };
            *head = match self.unused.pop() {
                Some(at) => {
                    self.links[at as usize] = link;
                    at + 1
                }
                None => {
                    self.links.push(link);
                    self.links.len() as u32
                }
            };
        }
    }

    /// Forgets a store that was added with this spot.
    pub fn remove(&mut self, store: u32, spot: &Spot) {
        let (buffer, sort, parts) = parts_of(spot);
        for head in &mut self.parts[buffer][sort][parts] {
            let (mut at, mut before) = (*head, None);
            while let Some(found) = at.checked_sub(1) {
                let Link { store: of, next } = self.links[found as usize];
                if of == store {
                    match before {
                        None => *head = next,
                        Some(before) => self.links[before as usize].next = next,
                    }
                    self.unused.push(found);
                    break;
                }
                (before, at) = (Some(found), next);
            }
        }
    }

    /// The stores to the parts of a place, some of them more than once.
    pub fn near(&self, spot: &Spot) -> impl Iterator<Item = u32> + '_ {
        let (buffer, sort, parts) = parts_of(spot);
        let heads = self.parts.get(buffer).map_or(&[][..], |of| &of[sort]);
        let heads = &heads[parts.start.min(heads.len())..parts.end.min(heads.len())];
        heads.iter().flat_map(|&head| {
            let link = |at: u32| at.checked_sub(1).map(|at| self.links[at as usize]);
            std::iter::successors(link(head), move |found| link(found.next)).map(|found| found.store)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_found_where_they_go() {
        let bytes = |from, to| Spot::Bytes { buffer: 2, from, to };
        let flag = |index| Spot::Flag { buffer: 2, index };
        let mut places = Places::default();
        let near = |places: &Places, spot| {
            let mut all: Vec<u32> = places.near(&spot).collect();
            all.sort_unstable();
            all
        };
        assert!(near(&places, bytes(0, 5000)).is_empty());
        places.add(0, &bytes(500, 1500));
        places.add(1, &bytes(1400, 1401));
        places.add(2, &flag(3));
        assert_eq!(near(&places, bytes(0, 400)), [0]);
        assert_eq!(near(&places, bytes(1024, 1536)), [0, 1]);
        assert_eq!(near(&places, bytes(0, 1 << 30)), [0, 0, 0, 1]);
        assert_eq!((near(&places, flag(1)), near(&places, flag(40))), (vec![2], vec![]));
        assert!(near(&places, Spot::Flag { buffer: 9, index: 0 }).is_empty());
        places.remove(0, &bytes(500, 1500));
        assert_eq!(near(&places, bytes(0, 1536)), [1]);
        places.add(0, &bytes(0, 1));
        places.remove(2, &flag(3));
        assert_eq!((near(&places, bytes(0, 1536)), near(&places, flag(3))), (vec![0, 1], vec![]));
    }
}
