//! The experts that tokens' entries name, and the slots that a table places these in.
//!
//! Dispatch alone reads the table. It writes down where each entry of this rank went (`routed`), and combine reads that: the table may
//! change as soon as dispatch has sent, and no rank reads the table of another one.

use peerwarp_codegen::dsl::AnyTile;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::Dtype;

use super::combine::Launch;
use super::config::Dispatch;
use super::dispatch::TokenArgs;

/// What expert ids are given as.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum IdType {
    /// 32 bits.
    I32,
    /// 64 bits, as PyTorch's `topk` yields them. Kernels read them as they are.
    I64,
}

impl IdType {
    /// The element type. Of 64 bits, ids are numbers without a sign to kernels: a negative one is too large, and names no expert.
    pub fn dtype(self) -> Dtype {
        match self {
            IdType::I32 => Dtype::I32,
            IdType::I64 => Dtype::U64,
        }
    }
}

/// Whether dispatch writes down where entries go: what ids of 64 bits name, and where a table places that.
pub(super) fn notes_routes(expert_slots: u32, ids: IdType) -> bool {
    expert_slots > 0 || ids == IdType::I64
}

/// Adds the entries of each expert to its count: those of the mask.
pub(super) fn count_entries(counts: Ptr<u32>, expert: Tile<u32>, counted: Tile<bool>) {
    counts.scatter_add(expert, splat(1u32, expert.len()), counted);
}

/// Stands for the expert of an entry whose id names none.
const NO_EXPERT: u32 = u32::MAX;

/// Stands for the slot of an entry whose expert the table places in none: it has no replica, or what the table says is no slot.
const NO_SLOT: u32 = u32::MAX - 1;

/// The ids of a rank's entries.
pub(super) struct Ids<'a> {
    given: Box<dyn Given>,
    table: Option<Table<'a>>,
    /// Whether ids may say [`NO_SLOT`].
    are_slots: bool,
}

/// An id, as what says the expert that it names.
pub(super) type Id = Box<dyn FnOnce() -> Val<u32>>;

/// Ids of one width. An id that names no expert, such as a negative one, becomes too large.
trait Given {
    /// The ids of `len` entries from one on.
    fn load(&self, at: Index, len: u32) -> AnyTile;

    /// The ids of these entries; that of no expert where the mask does not hold.
    fn gather(&self, entry: Tile<u32>, mask: Tile<bool>) -> AnyTile;

    /// The experts that ids name.
    fn named(&self, ids: AnyTile) -> Tile<u32>;

    /// The id of one entry.
    fn get(&self, entry: Val<u32>) -> Id;
}

impl Given for Ptr<i32> {
    fn load(&self, at: Index, len: u32) -> AnyTile {
        Ptr::load(self, at, len).into()
    }

    fn gather(&self, entry: Tile<u32>, mask: Tile<bool>) -> AnyTile {
        Ptr::gather(self, entry, mask, -1).into()
    }

    fn named(&self, ids: AnyTile) -> Tile<u32> {
        ids.typed::<i32>().cast::<u32>()
    }

    fn get(&self, entry: Val<u32>) -> Id {
        let id = Ptr::get(self, entry);
        Box::new(move || id.cast::<u32>())
    }
}

/// Ids of 64 bits, and the number of experts.
struct Wide(Ptr<u64>, u32);

impl Given for Wide {
    fn load(&self, at: Index, len: u32) -> AnyTile {
        self.0.load(at, len).into()
    }

    fn gather(&self, entry: Tile<u32>, mask: Tile<bool>) -> AnyTile {
        self.0.gather(entry, mask, u64::MAX).into()
    }

    fn named(&self, ids: AnyTile) -> Tile<u32> {
        low_words(self.1, ids.typed())
    }

    fn get(&self, entry: Val<u32>) -> Id {
        let (id, experts) = (self.0.get(entry), self.1);
        Box::new(move || low_word(experts, id))
    }
}

#[kernel]
fn low_words(experts: u32, id: Tile<u64>) -> Tile<u32> {
    let there = id < u64::from(experts);
    there.select(id.cast::<u32>(), NO_EXPERT)
}

#[kernel]
fn low_word(experts: u32, id: Val<u64>) -> Val<u32> {
    let there = id < u64::from(experts);
    there.select(id.cast::<u32>(), NO_EXPERT)
}

impl<'a> Ids<'a> {
    /// Those that the caller gives.
    pub fn given(c: &'a Dispatch, a: &TokenArgs) -> Ids<'a> {
        let given: Box<dyn Given> = match c.ids {
            IdType::I32 => Box::new(a.ids.typed::<i32>()),
            IdType::I64 => Box::new(Wide(a.ids.typed(), c.experts)),
        };
        let table = a.place.map(|place| Table { c, place, replicas: a.replicas });
        Ids { given, table, are_slots: table.is_some() }
    }

    /// Those that are numbers of experts.
    pub fn numbers(ids: Ptr<i32>) -> Ids<'static> {
        Ids { given: Box::new(ids), table: None, are_slots: false }
    }

    /// Those that combine reads: as dispatch wrote them down, or else the caller's.
    pub fn dispatched(l: Launch<'_>) -> Ids<'static> {
        let Launch { c, a, .. } = l;
        let given = a.ids.or(a.routed).expect("either says where entries go");
        Ids { are_slots: c.expert_slots > 0, ..Ids::numbers(given) }
    }

    /// The ids of `len` entries from one on.
    pub fn load(&self, at: impl IntoIndex, len: u32) -> AnyTile {
        self.given.load(at.index(), len)
    }

    /// The ids of these entries; that of no expert where the mask does not hold.
    pub fn gather(&self, entry: Tile<u32>, mask: Tile<bool>) -> AnyTile {
        self.given.gather(entry, mask)
    }

    /// The experts that ids name.
    pub fn named(&self, ids: AnyTile) -> Tile<u32> {
        self.given.named(ids)
    }

    /// Where experts of these entries are: their own numbers, or those of their slots among all ranks'. What is none becomes too large.
    pub fn placed(&self, named: Tile<u32>, entry: impl FnOnce() -> Tile<u32>) -> Tile<u32> {
        self.table.map_or(named, |table| table.slots(named, entry()))
    }

    /// The same of `count` entries from `first` on.
    #[track_caller]
    pub fn of(&self, first: Val<u32>, count: u32) -> Tile<u32> {
        let named = self.named(self.load(first, count));
        self.placed(named, || arange(count) + first)
    }

    /// The id of one entry.
    pub fn get(&self, entry: Val<u32>) -> Id {
        self.given.get(entry)
    }

    /// As [`Ids::of`], of one entry.
    pub fn of_one(&self, entry: Val<u32>) -> Val<u32> {
        self.where_is(self.get(entry), || entry)
    }

    /// The same, given its id.
    pub fn where_is(&self, id: Id, entry: impl FnOnce() -> Val<u32>) -> Val<u32> {
        let named = id();
        self.table.map_or(named, |table| table.slot(named, entry()))
    }

    /// Which entries name an expert that has no slot, if there is a table.
    #[kernel]
    pub fn without_slot(&self, placed: Tile<u32>) -> Option<Tile<bool>> {
        self.are_slots.then(|| placed == NO_SLOT)
    }
}

/// Where experts are.
#[derive(Clone, Copy)]
struct Table<'a> {
    c: &'a Dispatch,
    place: Ptr<i32>,
    replicas: Option<Ptr<u32>>,
}

impl Table<'_> {
    /// The slots of experts that entries name. Replicas take turns from token to token, and ranks begin with different ones.
    #[kernel]
    fn slots(self, named: Tile<u32>, entry: Tile<u32>) -> Tile<u32> {
        let Table { c, place, replicas } = self;
        let there = named < c.experts;
        let expert = there.select(named, 0);
        let slot = if let Some(replicas) = replicas {
            let n = replicas.gather(expert, true, 0).minimum(c.replicas);
            let nth = (entry / c.topk + rank()) % n.maximum(1);
            let slot = place.gather(expert * c.replicas + nth, true, -1);
            (n > 0).select(slot, -1)
        } else {
            place.gather(expert, true, -1)
        };
        let slot = slot.cast::<u32>();
        let is_one = slot < c.map().experts;
        there.select(is_one.select(slot, NO_SLOT), NO_EXPERT)
    }

    /// The same of one entry.
    #[kernel]
    fn slot(self, named: Val<u32>, entry: Val<u32>) -> Val<u32> {
        let Table { c, place, replicas } = self;
        let there = named < c.experts;
        let expert = there.select(named, 0);
        let slot = if let Some(replicas) = replicas {
            let n = replicas.get(expert).min(c.replicas);
            let nth = (entry / c.topk + rank()) % n.max(1);
            let slot = place.get(expert * c.replicas + nth);
            (n > 0).select(slot, -1)
        } else {
            place.get(expert)
        };
        let slot = slot.cast::<u32>();
        let is_one = slot < c.map().experts;
        there.select(is_one.select(slot, NO_SLOT), NO_EXPERT)
    }
}
