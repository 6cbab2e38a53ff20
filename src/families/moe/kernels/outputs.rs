//! The experts' outputs at the rank that has them, by how they stand: what goes back of a slot.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Any, AnyTile, OutgoingField};

use super::combine::Launch;
use super::device::at;
use super::layout::Layout;
use super::plan::Begin;
use super::protocol::Protocol;

/// The experts' outputs.
pub(super) trait Outputs {
    /// Which of some entries are here, given what dispatch says of them.
    fn are_here(&self, entries: Tile<i32>) -> Tile<bool>;

    /// Does something with the slot of a number among its source's, if the source has its token.
    fn if_there(&self, source: Val<u32>, number: Val<u32>, act: &dyn Fn());

    /// What goes back of the slot of a number among its source's, of which `entry` is the first entry.
    fn slot(&self, g: Group, source: Val<u32>, number: Val<u32>, entry: Val<u32>) -> Box<dyn Slot + '_>;
}

/// What a rank keeps of its own tokens.
pub(super) trait Keep {
    /// Pieces of what it has of a token, which has these owners, as they would have come back.
    fn pieces(&self, g: Group, owners: Val<u64>, token: Val<u32>) -> Piece<'_>;
}

/// A piece of a row, by its first element and its length.
pub(super) type Piece<'a> = Box<dyn Fn(Val<u32>, u32) -> Tile<f32> + 'a>;

/// A slot that was received.
pub(super) trait Slot {
    /// Whether this rank has something to send for it.
    fn is_here(&self) -> Val<bool>;

    /// Puts a part of its row as it is.
    fn put(&self, part: Val<u32>, to: &OutgoingField<'_, Any>);

    /// A piece of its row.
    fn piece(&self, start: Val<u32>, len: u32) -> AnyTile;
}

impl<'a> Launch<'a> {
    /// The experts' outputs.
    pub fn outputs(self) -> Box<dyn Outputs + 'a> {
        match (self.c.layout, self.c.dedup) {
            (Layout::RankMajor, _) => Box::new(RankMajor(self)),
            (_, true) => Box::new(Summed(self)),
            (_, false) => Box::new(ExpertMajor(self)),
        }
    }
}

/// What says which entries are here: their rows, or their experts.
pub(super) fn here(l: Launch<'_>) -> Ptr<i32> {
    l.a.pos.or(l.a.entry_expert).expect("either says which entries are here")
}

/// A row for each token: its experts' outputs are summed.
pub(super) struct RankMajor<'a>(pub Launch<'a>);

impl Outputs for RankMajor<'_> {
    #[kernel]
    fn are_here(&self, entries: Tile<i32>) -> Tile<bool> {
        entries != self.0.a.empty_id
    }

    /// Dispatch says of each entry whether it is here, also of tokens that are not there.
    fn if_there(&self, _: Val<u32>, _: Val<u32>, act: &dyn Fn()) {
        act();
    }

    fn slot(&self, _: Group, source: Val<u32>, number: Val<u32>, entry: Val<u32>) -> Box<dyn Slot + '_> {
        let row = move || source * self.0.c.tokens + number;
        Box::new(Whole { of: self, l: self.0, entry, row: Box::new(row) })
    }
}

impl Keep for RankMajor<'_> {
    #[kernel]
    fn pieces(&self, _: Group, owners: Val<u64>, token: Val<u32>) -> Piece<'_> {
        let Launch { c, a, .. } = self.0;
        let there = (owners & bit(rank())) != 0;
        let token = rank() * c.tokens + token;
        Box::new(move |start, len| a.y.load_if(at(token, c.hidden) + start.to_u64(), len, there).to_f32())
    }
}

/// A row for each entry, which goes back for itself.
struct ExpertMajor<'a>(Launch<'a>);

impl Outputs for ExpertMajor<'_> {
    #[kernel]
    fn are_here(&self, entries: Tile<i32>) -> Tile<bool> {
        entries >= 0
    }

    fn if_there(&self, source: Val<u32>, number: Val<u32>, act: &dyn Fn()) {
        self.0.dispatched().if_there(self.0, (source, number), act);
    }

    fn slot(&self, _: Group, _: Val<u32>, _: Val<u32>, entry: Val<u32>) -> Box<dyn Slot + '_> {
        Box::new(Whole { of: self, l: self.0, entry, row: Box::new(move || row_of_entry(self.0, entry)) })
    }
}

/// A slot whose row goes back as it is.
struct Whole<'a> {
    of: &'a dyn Outputs,
    l: Launch<'a>,
    entry: Val<u32>,
    /// The row of `y`.
    row: Box<dyn Fn() -> Val<u32> + 'a>,
}

/// Whether some entry of a slot is here.
#[kernel]
fn any_is_here(l: Launch<'_>, of: &dyn Outputs, entry: Val<u32>) -> Val<bool> {
    let entries = here(l).load(entry, l.c.slot_entries());
    let owned = of.are_here(entries);
    owned.any()
}

impl Slot for Whole<'_> {
    fn is_here(&self) -> Val<bool> {
        any_is_here(self.l, self.of, self.entry)
    }

    #[kernel]
    fn put(&self, part: Val<u32>, to: &OutgoingField<'_, Any>) {
        let Launch { c, a, .. } = self.l;
        let first = || at((self.row)(), c.hidden);
        if c.protocol == Protocol::Bulk {
            to.copy(0u64, &a.y, first(), c.hidden);
        } else {
            c.sent_pieces().each(part, |start, len| {
                let y = a.y.load(first() + start.to_u64(), len);
                to.put(start.to_u64(), y);
            });
        }
    }

    #[kernel]
    fn piece(&self, start: Val<u32>, len: u32) -> AnyTile {
        let Launch { c, a, .. } = self.l;
        a.y.load(at((self.row)(), c.hidden) + start.to_u64(), len)
    }
}

/// A row for each entry, of which this rank sums those of a token before it sends them.
pub(super) struct Summed<'a>(pub Launch<'a>);

impl Outputs for Summed<'_> {
    fn are_here(&self, entries: Tile<i32>) -> Tile<bool> {
        self.0.c.room().placing().fit.are_here(entries)
    }

    fn if_there(&self, source: Val<u32>, number: Val<u32>, act: &dyn Fn()) {
        self.0.dispatched().if_there(self.0, (source, number), act);
    }

    #[kernel]
    fn slot(&self, g: Group, _: Val<u32>, _: Val<u32>, entry: Val<u32>) -> Box<dyn Slot + '_> {
        let placed = placed(self.0, g, entry);
        Box::new(Sum { of: self, entry, placed })
    }
}

impl Keep for Summed<'_> {
    #[kernel]
    fn pieces(&self, g: Group, _: Val<u64>, token: Val<u32>) -> Piece<'_> {
        let l = self.0;
        let token = rank() * l.c.tokens + token;
        let placed = placed(l, g, token * l.c.topk);
        Box::new(move |start, len| {
            let sum = owned_sum(l, (token * l.c.topk, placed), start, len);
            AnyTile::rounded(sum, l.c.dtype.dtype()).to_f32()
        })
    }
}

/// A slot of whose rows the weighted sum goes back.
struct Sum<'a> {
    of: &'a Summed<'a>,
    entry: Val<u32>,
    /// Which of its entries have rows here, a bit each.
    placed: Val<u32>,
}

impl Slot for Sum<'_> {
    fn is_here(&self) -> Val<bool> {
        let l = self.of.0;
        l.c.room().placing().fit.any_is_here(self.placed, &|| any_is_here(l, self.of, self.entry))
    }

    #[kernel]
    fn put(&self, part: Val<u32>, to: &OutgoingField<'_, Any>) {
        let l = self.of.0;
        l.c.sent_pieces().each(part, |start, len| {
            let sum = owned_sum(l, (self.entry, self.placed), start, len);
            to.put_f32(start.to_u64(), sum);
        });
    }

    #[kernel]
    fn piece(&self, start: Val<u32>, len: u32) -> AnyTile {
        let l = self.of.0;
        let sum = owned_sum(l, (self.entry, self.placed), start, len);
        AnyTile::rounded(sum, l.c.dtype.dtype())
    }
}

/// What a launch takes from the dispatch before it, where rows stand by expert.
trait Dispatched {
    /// As [`Outputs::if_there`].
    fn if_there(&self, l: Launch<'_>, at: (Val<u32>, Val<u32>), act: &dyn Fn());

    /// A row that dispatch has given an entry.
    fn row(&self, l: Launch<'_>, row: Val<u32>) -> Val<u32>;
}

/// A dispatch that was over when the launch began.
struct Ended;

impl Dispatched for Ended {
    #[kernel]
    fn if_there(&self, l: Launch<'_>, (source, number): (Val<u32>, Val<u32>), act: &dyn Fn()) {
        if number < l.a.n_from.get(source) * l.c.token_slots() {
            act();
        }
    }

    fn row(&self, _: Launch<'_>, row: Val<u32>) -> Val<u32> {
        row
    }
}

/// A dispatch that may have given up, and left anything. Of few rows, none waits for its source's number of tokens.
struct Unended;

impl Dispatched for Unended {
    fn if_there(&self, _: Launch<'_>, _: (Val<u32>, Val<u32>), act: &dyn Fn()) {
        act();
    }

    fn row(&self, l: Launch<'_>, row: Val<u32>) -> Val<u32> {
        row.min(l.c.room().places as u32 - 1)
    }
}

impl Launch<'_> {
    /// What it takes from the dispatch before it.
    fn dispatched(self) -> &'static dyn Dispatched {
        match self.c.begin() {
            Begin::InTurn => &Ended,
            Begin::Early => &Unended,
        }
    }
}

/// The row that dispatch has given an entry that is here.
#[kernel]
fn row_of_entry(l: Launch<'_>, entry: Val<u32>) -> Val<u32> {
    let row = here(l).get(entry).cast::<u32>();
    l.dispatched().row(l, row)
}

/// Which of a token's entries have rows here, a bit each.
#[kernel]
fn placed(l: Launch<'_>, g: Group, entry: Val<u32>) -> Val<u32> {
    let c = l.c;
    if g.reduces_at_once(c.topk) {
        let there = here(l).load(entry, c.topk) >= 0;
        there.select(splat(1u32, c.topk) << arange(c.topk), 0).or_all()
    } else {
        let mut placed = var(0u32);
        for k in 0..c.topk.val() {
            if here(l).get(entry + k) >= 0 {
                placed |= 1u32.val() << k;
            }
        }
        placed.get()
    }
}

/// A piece of the weighted sum of the rows that this rank has of a token, in the order of k. Several are on their way together, of
/// those that are here.
#[kernel]
fn owned_sum(l: Launch<'_>, (entry, placed): (Val<u32>, Val<u32>), start: Val<u32>, len: u32) -> Tile<f32> {
    let Launch { c, a, .. } = l;
    let weights = a.weight_from.expect("owners that sum have weights");
    let mut sum = var(splat(0f32, len));
    let mut left = var(placed);
    let start_of = |k: Val<u32>| {
        let row = row_of_entry(l, k);
        at(row, c.hidden) + start.to_u64()
    };
    while left != 0 {
        let rows = (0..c.rows_in_flight().min(c.topk)).map(|i| {
            let bits = left.get();
            left &= bits - 1;
            if i == 0 {
                let k = entry + bits.trailing_zeros();
                let y = a.y.load(start_of(k), len);
                (y, weights.get(k))
            } else {
                let there = bits != 0;
                let k = entry + there.select(bits.trailing_zeros(), 0);
                let y = a.y.load_if(start_of(k), len, there);
                (y, there.select(weights.get(k), 0.0))
            }
        });
        for (y, weight) in rows.collect::<Vec<_>>() {
            sum = y.to_f32().fma(weight, &sum);
        }
    }
    sum.get()
}
