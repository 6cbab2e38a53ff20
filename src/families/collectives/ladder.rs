//! Which capacity takes a length, where callers prepare one operation for many.

use super::Length;

/// Capacities, of which the smallest with room takes a length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ladder {
    /// Elements of a rank's vector, or of its part, ascending; powers of two if there are none.
    capacities: Vec<u64>,
}

/// What of a key stands for a length, and what its launches say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// Elements of the key.
    pub elements: u64,
    /// What says lengths.
    pub length: Length,
    /// Elements of a row.
    pub row: u32,
    /// Rows of a launch, if it says how many.
    pub rows: Option<u32>,
}

impl Rung {
    /// A key for this length alone.
    pub fn alone(elements: u64) -> Rung {
        Rung { elements, length: Length::Whole, row: 1, rows: None }
    }
}

/// The least capacity of powers of two: shorter vectors take as long.
const LEAST: u64 = 1024;

/// The most elements of a key. A length whose capacity has more of them has a key of its own.
const MOST: u64 = 1 << 28;

impl Ladder {
    /// With these capacities; powers of two if there are none.
    pub fn new(mut capacities: Vec<u64>) -> Ladder {
        capacities.sort_unstable();
        Ladder { capacities }
    }

    /// The capacity for a vector of `parts` parts, with `packet` elements in 16 bytes. Where parts stand one after another, those that are
    /// whole packets have rows of these, so that accesses stay wide.
    ///
    /// # Errors
    /// The largest capacity, which has no room.
    pub fn rung(&self, elements: u64, parts: u64, packet: u32, offsets: bool) -> Result<Rung, u64> {
        let part = elements / parts;
        let row = if offsets && part.is_multiple_of(packet.into()) { packet } else { 1 };
        let capacity = match self.capacities.last() {
            None => part.checked_next_power_of_two().unwrap_or(u64::MAX).max(LEAST),
            Some(last) => *self.capacities.iter().find(|capacity| **capacity >= part).ok_or(*last)?,
        };
        let all = capacity.checked_next_multiple_of(row.into()).and_then(|part| part.checked_mul(parts));
        Ok(match (all.filter(|all| *all <= MOST), u32::try_from(part / u64::from(row))) {
            (Some(elements), Ok(rows)) => Rung { elements, length: Length::Host, row, rows: Some(rows) },
            _ => Rung::alone(elements),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(elements: u64, row: u32, rows: u32) -> Rung {
        Rung { elements, length: Length::Host, row, rows: Some(rows) }
    }

    #[test]
    fn the_smallest_capacity_with_room_takes_a_length() {
        let two = Ladder::default();
        assert_eq!(two.rung(1, 1, 8, false), Ok(host(1024, 1, 1)));
        assert_eq!(two.rung(1024, 1, 8, true), Ok(host(1024, 8, 128)));
        assert_eq!(two.rung(1028, 1, 8, true), Ok(host(2048, 1, 1028)));
        assert_eq!(two.rung(3 * 2048, 3, 4, true), Ok(host(3 * 2048, 4, 512)));
        let own = Ladder::new(vec![5000, 100]);
        assert_eq!(own.rung(100, 1, 8, false), Ok(host(100, 1, 100)));
        // Whole rows of packets need whole packets.
        assert_eq!(own.rung(2 * 96, 2, 8, true), Ok(host(2 * 104, 8, 12)));
        assert_eq!(own.rung(101, 1, 8, false), Ok(host(5000, 1, 101)));
        assert_eq!(own.rung(5001, 1, 8, false), Err(5000));
    }

    #[test]
    fn a_length_whose_capacity_is_no_key_has_one_of_its_own() {
        let (two, most) = (Ladder::default(), 1 << 28);
        assert_eq!(two.rung(most, 1, 8, false), Ok(host(most, 1, 1 << 28)));
        assert_eq!(two.rung(most + 1, 1, 8, false), Ok(Rung::alone(most + 1)));
        assert_eq!(two.rung(3 * 80_000_000, 3, 8, true), Ok(Rung::alone(240_000_000)));
        assert_eq!(two.rung(u64::MAX, 1, 8, false), Ok(Rung::alone(u64::MAX)));
    }
}
