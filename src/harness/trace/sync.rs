//! A kernel that compares the ranks' clocks: rank 0 and each other rank signal to and fro. Emitted with a timeline, it records
//! the times of which [`crate::harness::trace::clock::offsets`] makes the clocks' differences.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};

/// Configuration of [`clock_sync`].
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "clock_sync", kernel = clock_sync, args = ClockSyncArgs, warps = 1)]
pub struct ClockSync {
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// How often rank 0 and each other rank signal to each other.
    #[key(short = "n", range = 1..=1024)]
    pub rounds: u32,
}

impl Legal for ClockSync {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

impl ClockSync {
    /// Records that rank 0 makes, which makes the most: a parcel, its signal and a wait for every round with every rank.
    pub fn records(&self) -> u32 {
        3 * self.rounds * (self.ranks - 1)
    }
}

/// Parameters of [`clock_sync`].
#[derive(KernelArgs)]
#[args(config = ClockSync)]
pub struct ClockSyncArgs {
    /// What is sent: the number of the round, `[rank][round]`.
    #[len(|c| u64::from(c.ranks * c.rounds))]
    pub note: Sym<u32>,
    /// Rank 0 has begun a round, `[rank][round]`.
    #[len(|c| u64::from(c.ranks * c.rounds))]
    pub ping: Flags,
    /// The other rank has answered, `[rank][round]`.
    #[len(|c| u64::from(c.ranks * c.rounds))]
    pub pong: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Signals to and fro between rank 0 and each other rank, one rank after the other.
#[kernel]
pub fn clock_sync(c: &ClockSync, a: &ClockSyncArgs) {
    let epoch = a.epoch.begin();
    role("clock", 1, |_| {
        for peer in 1..c.ranks {
            for round in 0..c.rounds.val() {
                let index = round + peer * c.rounds;
                if rank() == 0 {
                    let mut note = send_to(Peers::rank(peer));
                    note.put_value(&a.note, index, round);
                    note.signal(&a.ping, index, epoch);
                    let _ = a.pong.from(peer).wait(index, epoch);
                }
                if rank() == peer {
                    let _ = a.ping.from(0).wait(index, epoch);
                    let mut note = send_to(Peers::rank(0));
                    note.put_value(&a.note, index, round);
                    note.signal(&a.pong, index, epoch);
                }
            }
        }
    });
}
