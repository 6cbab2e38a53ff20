//! Which ranks rows travel to and from: all of them, or the others where a rank's own rows stay in place.

use peerwarp_codegen::dsl::prelude::*;

use super::plan::Own;

/// The ranks that rows travel to and from.
pub(super) trait Travel {
    /// The source and the slot of the n-th message to receive, in the order in which rows are sent: all sources' first slots, then their
    /// second ones.
    fn arriving(&self, message: Val<u32>) -> (Val<u32>, Val<u32>);

    /// The rank that the n-th row or batch goes back to, and its number among those that go there. Ranks begin with different ones.
    fn returning(&self, nth: Val<u32>) -> (Val<u32>, Val<u32>);

    /// Does something with a rank's own rows, if they stay where they are.
    fn stay(&self, act: &dyn Fn());

    /// Those of the ranks of a mask.
    fn of(&self, mask: &dyn Fn() -> Val<u64>) -> Val<u64>;
}

impl Own {
    /// The ranks that rows travel to and from, of so many.
    pub(super) fn travel(self, ranks: u32) -> Box<dyn Travel> {
        match self {
            Own::Moved => Box::new(All(ranks)),
            Own::InPlace => Box::new(Others(ranks)),
        }
    }
}

struct All(u32);

impl Travel for All {
    #[kernel]
    fn arriving(&self, message: Val<u32>) -> (Val<u32>, Val<u32>) {
        let source = message % self.0;
        let slot = message / self.0;
        (source, slot)
    }

    #[kernel]
    fn returning(&self, nth: Val<u32>) -> (Val<u32>, Val<u32>) {
        let (_to, number) = (nth % self.0, nth / self.0);
        let source = (nth + rank()) % self.0;
        (source, number)
    }

    fn stay(&self, _: &dyn Fn()) {}

    fn of(&self, mask: &dyn Fn() -> Val<u64>) -> Val<u64> {
        mask()
    }
}

struct Others(u32);

impl Travel for Others {
    #[kernel]
    fn arriving(&self, message: Val<u32>) -> (Val<u32>, Val<u32>) {
        let others = self.0 - 1;
        let source = (rank() + 1 + message % others) % self.0;
        let slot = message / others;
        (source, slot)
    }

    #[kernel]
    fn returning(&self, nth: Val<u32>) -> (Val<u32>, Val<u32>) {
        let (to, number) = (nth % (self.0 - 1), nth / (self.0 - 1));
        let source = (to + (rank() + 1)) % self.0;
        (source, number)
    }

    fn stay(&self, act: &dyn Fn()) {
        act();
    }

    #[kernel]
    fn of(&self, mask: &dyn Fn() -> Val<u64>) -> Val<u64> {
        let owners = mask();
        owners & !bit(rank())
    }
}
