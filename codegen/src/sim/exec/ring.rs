//! The ring of pieces that operands of products go through.
//!
//! A loader brings pieces of so many columns of both operands to slots of shared memory, as far ahead as there are slots. Either operand's
//! rows come by a load that runs by itself and lands whenever it likes. Multiplying warps wait until a slot is full, multiply it while the
//! piece before is still being read, and give that one back then. This is the order in which slots change hands, and what is
//! wrong with it where a printer makes a [`Mistake`]; what is loaded and multiplied is for others.

use crate::sim::values::Tile;

/// A mistake that a printer could make with what runs by itself: loads of operands, products, and copies. Tests plant them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mistake {
    /// A piece is multiplied without a wait until it has been brought.
    FullNotAwaited,
    /// A piece is multiplied when one of both operands' rows have come: fewer bytes are expected than come.
    HalfExpected,
    /// The wait until a piece has been brought is for the round before, once there was one.
    OldRoundAwaited,
    /// Pieces are brought without a wait until their slots have been given back.
    EmptyNotAwaited,
    /// There is room for one piece less than is counted on.
    OneSlotTooFew,
    /// A slot is given back when its product begins, and not when it is over.
    GivenBackEarly,
    /// The last piece of a product is not given back.
    LastNotGivenBack,
    /// The first wait of the loader is for the round after.
    NextRoundAwaited,
    /// The loader leaves a slot out in each round, but the multiplying warps do not.
    SlotSkipped,
    /// No fence stands between what was waited for and the loads, which go by a proxy of their own.
    NoProxyFence,
    /// The loader does not wait for what other ranks signal: the multiplying warps do.
    LoaderDoesNotWait,
    /// The left operand's first pieces are brought before the wait for them, as those of the right one may be.
    LeftBroughtAhead,
    /// A copy in bulk is not waited for before it is signalled.
    CopyNotAwaited,
}

/// Number of a piece in a product that begins with `first`; below 0 if it is one of the product before.
fn relative(piece: u64, first: u64) -> i64 {
    piece.wrapping_sub(first) as i64
}

/// Rows of an operand on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Number of the piece, over all products.
    pub piece: u64,
    /// 0 for the left operand's rows, 1 for the right one's.
    pub operand: usize,
    /// Whether it was begun before what it needs was waited for.
    pub ahead: bool,
}

/// What multiplying warps do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Multiply(u64),
    /// The piece has not been brought.
    Wait(u64),
    Done,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// The piece of which rows are there, and whose.
    holds: Option<u64>,
    landed: [bool; 2],
    rows: [Tile; 2],
    /// Whether it has been multiplied, or its product has begun.
    multiplied: bool,
    /// Whether its product still reads it.
    read: bool,
}

/// A ring, from a role's first product to its last.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    slots: Vec<Slot>,
    stages: u64,
    mistake: Option<Mistake>,
    /// The first piece of the product, and the one behind its last.
    pieces: (u64, u64),
    /// How many have been asked for, multiplied, and given back, over all products.
    brought: u64,
    multiplied: u64,
    given_back: u64,
    /// In the order in which they were begun.
    pub flights: Vec<Load>,
}

impl Ring {
    pub fn new(stages: u32, mistake: Option<Mistake>) -> Ring {
        let few = u32::from(mistake == Some(Mistake::OneSlotTooFew));
        Ring {
            slots: vec![Slot::default(); (stages - few) as usize],
            stages: stages.into(),
            mistake,
            pieces: (0, 0),
            brought: 0,
            multiplied: 0,
            given_back: 0,
            flights: vec![],
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// The next product is of so many pieces.
    pub fn begin(&mut self, pieces: u64) {
        self.pieces = (self.multiplied, self.multiplied + pieces);
    }

    /// Number of a piece in its product.
    pub fn step(&self, piece: u64) -> u64 {
        piece - self.pieces.0
    }

    /// The slot of a piece, as the loader counts.
    pub fn slot(&self, piece: u64) -> usize {
        let skipped = if self.makes(Mistake::SlotSkipped) { piece / self.stages } else { 0 };
        ((piece + skipped) % self.slots.len() as u64) as usize
    }

    /// Where multiplying warps look for it.
    fn slot_read(&self, piece: u64) -> usize {
        (piece % self.slots.len() as u64) as usize
    }

    /// Begins the loads of all pieces whose slots are free, as far as a barrier tells.
    pub fn bring(&mut self) {
        let free = if self.makes(Mistake::EmptyNotAwaited) {
            u64::MAX
        } else if self.makes(Mistake::NextRoundAwaited) {
            self.given_back
        } else {
            self.given_back + self.stages
        };
        let end = self.pieces.1.min(free);
        for piece in self.brought..end {
            let ahead = self.makes(Mistake::LoaderDoesNotWait)
                || self.makes(Mistake::LeftBroughtAhead) && self.step(piece) < self.stages;
            for operand in 0..2 {
                let ahead = ahead && (operand == 0 || self.makes(Mistake::LoaderDoesNotWait));
                self.flights.push(Load { piece, operand, ahead });
            }
        }
        self.brought = self.brought.max(end);
    }

    /// Puts rows that have come into their slot, or says what is wrong with that.
    pub fn land(&mut self, load: Load, rows: Tile) -> Result<(), String> {
        let (at, first) = (self.slot(load.piece), self.pieces.0);
        let slot = &mut self.slots[at];
        if slot.holds != Some(load.piece) {
            if let Some(there) = slot.holds.map(|there| relative(there, first)) {
                if slot.read {
                    return Err(format!("land in slot {at} while piece {there} there is being multiplied"));
                }
                if !slot.multiplied {
                    return Err(format!("land in slot {at} before piece {there} there has been multiplied"));
                }
            }
            (slot.holds, slot.landed, slot.multiplied) = (Some(load.piece), [false; 2], false);
        }
        slot.landed[load.operand] = true;
        slot.rows[load.operand] = rows;
        Ok(())
    }

    /// What multiplying warps do next, as far as a barrier tells.
    pub fn next(&self) -> Next {
        let piece = self.multiplied;
        if piece == self.pieces.1 {
            return Next::Done;
        }
        let slot = &self.slots[self.slot_read(piece)];
        let here = slot.holds == Some(piece);
        let begun = piece < self.brought;
        let full = if self.makes(Mistake::FullNotAwaited) {
            begun
        } else if self.makes(Mistake::HalfExpected) {
            here && (slot.landed[0] || slot.landed[1])
        } else if self.makes(Mistake::OldRoundAwaited) && piece >= self.stages {
            begun
        } else {
            here && slot.landed == [true; 2]
        };
        if full { Next::Multiply(piece) } else { Next::Wait(piece) }
    }

    /// Both operands' rows of a piece; or of whose rows there are none, and which piece's are there instead, if any.
    pub fn rows(&self, piece: u64) -> Result<&[Tile; 2], (usize, Option<i64>)> {
        let slot = &self.slots[self.slot_read(piece)];
        let landed = if slot.holds == Some(piece) { slot.landed } else { [false; 2] };
        match landed.iter().position(|landed| !landed) {
            None => Ok(&slot.rows),
            Some(missing) => {
                let other = slot.holds.filter(|holds| *holds != piece);
                Err((missing, other.map(|other| relative(other, self.pieces.0))))
            }
        }
    }

    /// The product of a piece has begun: that of the piece before it is over, and its slot is given back.
    pub fn multiply(&mut self, piece: u64) {
        if piece > self.pieces.0 {
            self.done(piece - 1);
        }
        let at = self.slot_read(piece);
        (self.slots[at].multiplied, self.slots[at].read) = (true, true);
        self.multiplied = piece + 1;
        if self.makes(Mistake::GivenBackEarly) {
            self.given_back = piece + 1;
        }
    }

    /// The product is over.
    pub fn end(&mut self) {
        let (first, end) = self.pieces;
        if first < end {
            let before = self.given_back;
            self.done(end - 1);
            if self.makes(Mistake::LastNotGivenBack) {
                self.given_back = before;
            }
        }
    }

    fn done(&mut self, piece: u64) {
        let at = self.slot_read(piece);
        self.slots[at].read = false;
        self.given_back += u64::from(!self.makes(Mistake::GivenBackEarly));
    }
}
