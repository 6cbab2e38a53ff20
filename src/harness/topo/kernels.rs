//! The kernels that measure links: one sends, one plays ping-pong. Who sends to whom, and how much, they read from memory, so
//! that one compiled kernel measures every pair and every pattern.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};

/// How [`send`] moves bytes.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum By {
    /// All lanes load and store.
    Stores,
    /// The hardware copies, where it can.
    Bulk,
}

/// Configuration of [`send`].
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "topo_send", kernel = send, args = SendArgs, warps = warps)]
pub struct Send {
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Words of 4 bytes that a rank sends to each other one at most.
    #[key(short = "n", range = 4..=67_108_864)]
    pub words: u32,
    /// How they are moved.
    #[key(short = "by")]
    pub by: By,
    /// Words that a block moves at once.
    #[tune(short = "c", values = [4, 4096, 8192, 16384], default = 8192)]
    pub chunk: u32,
    /// Blocks that send.
    #[tune(short = "b", values = [1, 2, 64], default = 64)]
    pub blocks: u32,
    /// Warps of a block.
    #[tune(short = "w", values = [1, 16], default = 16)]
    pub warps: u32,
}

impl Legal for Send {
    fn legal(&self) -> Result<(), Illegal> {
        match self.words.is_multiple_of(self.chunk) {
            true => Ok(()),
            false => Err(Illegal::new("words", self.words, format!("a multiple of chunk = {}", self.chunk))),
        }
    }
}

/// Parameters of [`send`].
#[derive(KernelArgs)]
#[args(config = Send)]
pub struct SendArgs {
    /// To whom this rank sends, and who sends to it: a bit for each rank.
    #[input]
    #[len(|_| 2)]
    pub plan: Ptr<u64>,
    /// How many chunks are sent; of 0 nothing but flags.
    #[input]
    #[len(|_| 1)]
    pub chunks: Ptr<u32>,
    /// What is sent.
    #[len(|c| u64::from(c.words))]
    pub x: Ptr<u32>,
    /// Where it arrives, `[source][words]`.
    #[len(|c| u64::from(c.ranks) * u64::from(c.words))]
    pub inbox: Sym<u32>,
    /// It has, `[source][block]`.
    #[len(|c| u64::from(c.ranks) * u64::from(c.blocks))]
    pub arrived: Flags,
    /// A word that goes with [`SendArgs::arrived`], so that there is one also without chunks, `[source][block]`.
    #[len(|c| u64::from(c.ranks) * u64::from(c.blocks))]
    pub marks: Sym<u32>,
    /// A word that goes with [`SendArgs::taken`], `[target]`.
    #[len(|c| c.ranks.into())]
    pub thanks: Sym<u32>,
    /// The target has seen all of it, `[target]`.
    #[len(|c| c.ranks.into())]
    pub taken: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Sends chunks to the ranks of the plan, and ends when they have arrived there, and what others send here.
///
/// Nothing exists twice: a rank sends again only after the target has said that it is done waiting.
#[kernel]
pub fn send(c: &Send, a: &SendArgs) {
    let epoch = a.epoch.begin();
    role("send", c.blocks, |b| {
        let to = a.plan.get(0);
        let chunks = a.chunks.get(0);
        if to != 0 {
            let mut parcel = send_to(Peers::mask(to));
            for chunk in b.strided(chunks) {
                let at = chunk * c.chunk;
                match c.by {
                    By::Stores => parcel.put(&a.inbox, rank() * c.words + at, a.x.load(at, c.chunk)),
                    By::Bulk => parcel.copy(&a.inbox, rank() * c.words + at, &a.x, at, c.chunk),
                }
            }
            parcel.put_value(&a.marks, rank() * c.blocks + b.block(), chunks);
            parcel.signal(&a.arrived, rank() * c.blocks + b.block(), epoch);
        }
    });
    role("confirm", c.ranks, |b| {
        let source = b.block();
        if a.plan.get(1) & bit(source) != 0 {
            let _ = a.arrived.wait_all(source * c.blocks, c.blocks, c.blocks, epoch);
            let mut parcel = send_to(Peers::rank(source));
            parcel.put_value(&a.thanks, rank(), 1);
            parcel.signal(&a.taken, rank(), epoch);
        }
        // This block stands for a target, too.
        if a.plan.get(0) & bit(source) != 0 {
            let _ = a.taken.from(source).wait(source, epoch);
        }
    });
}

/// What the ball of [`ping`] is.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ball {
    /// A word with its epoch.
    Packet,
    /// A word, and a flag that is stored after it.
    Signal,
}

/// Configuration of [`ping`].
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "topo_ping", kernel = ping, args = PingArgs, warps = warps)]
pub struct Ping {
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Rounds at most.
    #[key(short = "n", range = 1..=4096)]
    pub rounds: u32,
    /// What goes to and fro.
    #[key(short = "ball")]
    pub ball: Ball,
    /// Warps of its block.
    #[tune(short = "w", values = [1], default = 1)]
    pub warps: u32,
}

impl Legal for Ping {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// Parameters of [`ping`].
#[derive(KernelArgs)]
#[args(config = Ping)]
pub struct PingArgs {
    /// The two ranks that play, the one that begins first, and how many rounds.
    #[input]
    #[len(|_| 3)]
    pub game: Ptr<u32>,
    /// The ball as a word with its epoch, `[thrower][round]`.
    #[len(|c| u64::from(c.ranks) * u64::from(c.rounds))]
    pub packets: Ll<u32>,
    /// The ball as a word, `[thrower][round]`.
    #[len(|c| u64::from(c.ranks) * u64::from(c.rounds))]
    pub words: Sym<u32>,
    /// It is there, `[thrower][round]`.
    #[len(|c| u64::from(c.ranks) * u64::from(c.rounds))]
    pub there: Flags,
    /// A word that goes with [`PingArgs::ready`] and [`PingArgs::over`], `[rank]`.
    #[len(|c| c.ranks.into())]
    pub bye: Sym<u32>,
    /// A player has begun, `[rank]`.
    #[len(|c| c.ranks.into())]
    pub ready: Flags,
    /// A player has read its last packet, `[rank]`.
    #[len(|c| c.ranks.into())]
    pub over: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Two ranks send a word to and fro. They begin and leave together, so that nothing exists twice: each meeting orders what
/// comes after it behind the other meeting of the launch before. Each rank's balls are apart, for others may be a launch ahead.
#[kernel]
pub fn ping(c: &Ping, a: &PingArgs) {
    let epoch = a.epoch.begin();
    role("play", 1, |_| {
        let first = a.game.get(0);
        let second = a.game.get(1);
        let rounds = a.game.get(2);
        let begins = rank().eq_to(first);
        let plays = begins | rank().eq_to(second);
        if plays {
            let other = begins.select(second, first);
            meet(a, &a.ready, other, epoch);
            for round in 0..rounds {
                if begins {
                    throw(c, a, other, round, epoch);
                }
                catch(c, a, other, round, epoch);
                if !begins {
                    throw(c, a, other, round, epoch);
                }
            }
            meet(a, &a.over, other, epoch);
        }
    });
}

fn meet(a: &PingArgs, flags: &Flags, other: Val<u32>, epoch: Epoch) {
    let mut parcel = send_to(Peers::rank(other));
    parcel.put_value(&a.bye, rank(), other);
    parcel.signal(flags, rank(), epoch);
    let _ = flags.from(other).wait(other, epoch);
}

fn throw(c: &Ping, a: &PingArgs, other: Val<u32>, round: Val<u32>, epoch: Epoch) {
    let at = rank() * c.rounds + round;
    match c.ball {
        Ball::Packet => a.packets.send(Peers::rank(other), at, splat(at, 1), epoch),
        Ball::Signal => {
            let mut parcel = send_to(Peers::rank(other));
            parcel.put_value(&a.words, at, at);
            parcel.signal(&a.there, at, epoch);
        }
    }
}

fn catch(c: &Ping, a: &PingArgs, other: Val<u32>, round: Val<u32>, epoch: Epoch) {
    let at = other * c.rounds + round;
    match c.ball {
        Ball::Packet => drop(a.packets.load(at, 1, other, epoch)),
        Ball::Signal => drop(a.there.from(other).wait(at, epoch)),
    }
}

#[cfg(test)]
#[path = "kernels_tests.rs"]
mod tests;
