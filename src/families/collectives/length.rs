//! Lengths that launches say: rows of a vector, up to the capacity of a key.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Illegal};

use super::cut::{Cut, Part};
use super::exchange;

/// What says how long a vector is.
#[derive(Choice, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Length {
    /// The key: each launch has all elements.
    #[default]
    Whole,
    /// A number that the host passes. A captured graph keeps it.
    Host,
    /// A word on the GPU. A captured graph reads it in each launch.
    Device,
    /// A word on the GPU for each rank: vectors of ranks have lengths of their own.
    Each,
}

/// Lengths of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// What says them.
    pub length: Length,
    /// Elements of a row.
    pub row: u32,
    /// The most rows of a rank.
    pub most: u32,
    /// World size.
    pub ranks: u32,
}

impl Lengths {
    /// Lengths up to `capacity` elements of a rank.
    pub(super) fn new(length: Length, row: u32, capacity: u32, ranks: u32) -> Lengths {
        Lengths { length, row, most: capacity / row.max(1), ranks }
    }

    /// Whether a capacity of so many elements of each of `parts` parts is whole rows.
    pub(super) fn legal(&self, elements: u32, parts: u32) -> Result<(), Illegal> {
        let whole = self.length == Length::Whole;
        let allowed = || "1 with length=whole: launches have all elements";
        Illegal::unless(!whole || self.row == 1, "row", self.row, allowed)?;
        let divides = elements.is_multiple_of(parts) && (elements / parts).is_multiple_of(self.row);
        Illegal::unless(whole || divides, "elements", elements, || match parts {
            1 => format!("a multiple of {}, the elements of a row", self.row),
            _ => format!("a multiple of {} elements of a row and {parts} ranks", self.row),
        })?;
        let all = u64::from(self.most) * u64::from(self.row) * u64::from(self.ranks);
        let allowed = || "fewer: offsets of ranks with lengths of their own have 32 bits";
        Illegal::unless(self.length != Length::Each || all <= u32::MAX.into(), "elements", elements, allowed)
    }

    /// Elements of the rows of a cut; 0 if launches have all elements.
    pub(super) fn cut_row(&self) -> u32 {
        if self.length == Length::Whole { 0 } else { self.row }
    }

    /// A channel between ranks that may have nothing to send each other in a launch: credits keep them in step.
    pub(super) fn keeps_apart(&self, shape: ChannelShape) -> ChannelShape {
        if self.length == Length::Whole { shape } else { shape.credits(true) }
    }

    /// The channel of tiles of a cut from every rank to every other one.
    pub(super) fn tiles(&self, transport: Transport, cut: Cut) -> ChannelShape {
        self.keeps_apart(exchange::tiles(transport, self.ranks, cut.tiles(), cut))
    }

    /// Rows of a tensor with the vector, or the part, of a rank: as many as `rows` says.
    pub(super) fn of_rank(&self) -> Option<(&'static str, u64)> {
        (self.length != Length::Whole).then_some(("rows", self.most.into()))
    }

    /// Rows of a tensor with a part of every rank.
    pub(super) fn of_all(&self) -> Option<(&'static str, u64)> {
        match self.length {
            Length::Each => Some(("all_rows", u64::from(self.most) * u64::from(self.ranks))),
            Length::Whole | Length::Host | Length::Device => self.of_rank(),
        }
    }

    fn words(&self) -> u64 {
        match self.length {
            Length::Whole | Length::Host => 0,
            Length::Device => 1,
            Length::Each => self.ranks.into(),
        }
    }
}

/// What a launch says of lengths.
#[derive(KernelArgs)]
#[args(config = Lengths)]
pub struct LengthArgs {
    /// Rows of a tensor with the vector, or with this rank's part. The launch touches none beyond. All ranks pass the same number,
    /// unless each has a length of its own.
    #[len(|c| u64::from(c.length != Length::Whole))]
    pub rows: Option<Val<u32>>,
    /// Rows of the tensor with all ranks' parts, where each rank has a length of its own.
    #[len(|c| u64::from(c.length == Length::Each))]
    pub all_rows: Option<Val<u32>>,
    /// How many of these rows a launch has, the same on all ranks; where each rank has a length of its own, `[rank]`. More rows than
    /// the capacity count as the capacity.
    #[input]
    #[len(|c| c.words())]
    pub n: Option<Ptr<u32>>,
}

/// How much of a vector a launch has.
#[derive(Clone, Copy, Debug)]
pub(super) struct There {
    /// Elements that travel.
    pub len: Val<u32>,
    /// Elements of them that tensors have, if these may be fewer.
    pub held: Option<Val<u32>>,
}

impl LengthArgs {
    /// The elements of a launch whose vectors, or parts, have one length.
    pub(super) fn there(&self, l: Lengths) -> Option<There> {
        let there = self.rows?.min(l.most);
        let rows = self.n.map_or(there, |n| n.get(0).min(there));
        Some(There { len: rows * l.row, held: None })
    }
}

/// The lengths of all ranks, where each has one of its own: parts follow one another in the tensor of all ranks.
#[derive(Clone, Copy)]
pub(super) struct Shares {
    l: Lengths,
    n: Ptr<u32>,
    rows: Val<u32>,
    all_rows: Val<u32>,
}

impl Shares {
    /// Where ranks have lengths of their own.
    pub fn new(l: Lengths, a: &LengthArgs) -> Option<Shares> {
        let (Some(rows), Some(all_rows), Some(n), Length::Each) = (a.rows, a.all_rows, a.n, l.length) else {
            return None;
        };
        Some(Shares { l, n, rows, all_rows })
    }

    fn count(&self, rank: Val<u32>) -> Val<u32> {
        self.n.get(rank).min(self.l.most)
    }

    /// Rows of the ranks before this one.
    #[kernel]
    fn before(&self) -> Val<u32> {
        let mut rows = var(0u32.val());
        for r in 0..rank() {
            rows.set(rows.get() + self.count(r));
        }
        rows.get()
    }

    /// A part that begins at this row of the tensor of all ranks, where `most` rows of another tensor have room for it.
    fn part(&self, first: Val<u32>, count: Val<u32>, most: Val<u32>) -> (Part, There) {
        let held = count.min(most).min(self.all_rows.max(first) - first);
        let there = There { len: count * self.l.row, held: Some(held * self.l.row) };
        (Part::from(first * self.l.row), there)
    }

    /// This rank's part.
    pub fn own(&self) -> (Part, There) {
        self.part(self.before(), self.count(rank()), self.rows)
    }

    /// Does something with each other rank's part. The next rank's is the first.
    #[kernel]
    pub fn others(&self, mut act: impl FnMut(Val<u32>, Part, There)) {
        let mut next = var(self.before() + self.count(rank()));
        for i in 1..ranks().val() {
            let of = (rank() + i) % ranks();
            let (first, count) = (of.eq_to(0u32).select(0u32, next.get()), self.count(of));
            next.set(first + count);
            let (part, there) = self.part(first, count, count);
            act(of, part, there);
        }
    }
}
