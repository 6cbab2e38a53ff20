//! In which slots of which ranks experts are, where a table says so.

use rand::Rng;

/// A rank's table of where experts are. Slots are numbered over all ranks: slot `s` of rank `r` is `r * slots + s`, if ranks have
/// `slots` each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The slot of each replica, `[expert][replica]`. A number of no slot places none.
    pub place: Vec<i32>,
    /// How many replicas each expert has, of as many as there is room for.
    pub replicas: Vec<u32>,
}

impl Placement {
    /// Any table for `experts` experts, with room for so many replicas and for `slots` slots on all ranks together: slots come several
    /// times, some experts have none, and some numbers are of no slot.
    pub fn random(experts: u32, room: u32, slots: u32, rng: &mut impl Rng) -> Placement {
        let mut one = || match rng.random_range(0..12) {
            0 => [-1, i32::MIN, i32::MAX, slots as i32][rng.random_range(0..4)],
            _ => rng.random_range(0..slots) as i32,
        };
        let place = (0..experts * room).map(|_| one()).collect();
        // Of one replica each, none is counted.
        let count = |_| if room == 1 { 1 } else { rng.random_range(0..=room + 1) };
        Placement { place, replicas: (0..experts).map(count).collect() }
    }

    /// The slot that an entry of an expert goes to, of a token by its rank and number; `None` if the expert has none. Replicas take
    /// turns from token to token, and ranks begin with different ones.
    pub fn slot(&self, expert: u32, (rank, token): (u32, u32), slots: u32) -> Option<u32> {
        let room = self.place.len() / self.replicas.len();
        let n = self.replicas[expert as usize].min(room as u32);
        let nth = (token + rank).checked_rem(n)?;
        let slot = self.place[expert as usize * room + nth as usize];
        u32::try_from(slot).ok().filter(|&slot| slot < slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_take_turns_and_what_is_no_slot_is_none() {
        let placement = Placement { place: vec![5, 1, 0, -1, 6, 2], replicas: vec![2, 1, 9] };
        let of = |expert, rank, token| placement.slot(expert, (rank, token), 6);
        assert_eq!([of(0, 0, 0), of(0, 0, 1), of(0, 0, 2), of(0, 1, 0)].map(Option::unwrap), [5, 1, 5, 1]);
        assert_eq!([of(1, 0, 0), of(1, 3, 4)], [Some(0), Some(0)]);
        // Only as many replicas as there is room for; and 6 is no slot.
        assert_eq!([of(2, 0, 0), of(2, 0, 1)], [None, Some(2)]);
        let none = Placement { replicas: vec![0; 3], ..placement };
        assert_eq!(none.slot(0, (0, 0), 6), None);
    }
}
