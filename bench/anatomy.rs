//! What an all-reduce of few elements between two ranks is made of: one kernel that does ever more of it.
//!
//! ```sh
//! cargo run --release --example anatomy -- bench stage=launch,epoch,copy,hop,credits elements=1024,16384,262144 ranks=2 dtype=bf16
//! ```
//!
//! What a stage takes more than the one before it is the price of what it adds. The last one is an all-reduce, with the
//! blocks and tiles of the family `all_reduce`. `hop` is it without credits: a bound, which `check` refuses.

use std::process::ExitCode;

use peerwarp::harness::elements::{encode, mixed};
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Work, Workload};
use peerwarp::prelude::*;

/// How much of an all-reduce.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Blocks that do nothing.
    Launch,
    /// They begin an epoch: a trip to this GPU's memory, and a barrier.
    Epoch,
    /// They read their elements and write them: another trip, and what a kernel's end waits for.
    Copy,
    /// They send them and take the other rank's: a trip over the link.
    Hop,
    /// A block more gives and awaits credits: a fence, a store over the link, and a trip to this GPU's memory.
    Credits,
}

/// A variant.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "anatomy", kernel = anatomy, args = AnatomyArgs, warps = warps)]
pub struct Anatomy {
    /// How much of an all-reduce it is.
    #[key]
    pub stage: Stage,
    /// Elements of a rank's vector.
    #[key(short = "n", range = 1..=268435456)]
    pub elements: u32,
    /// World size.
    #[key(short = "r", range = 2..=2, ranks)]
    pub ranks: u32,
    /// Type of the elements.
    #[key(values = [Dtype::F32, Dtype::Fp16, Dtype::Bf16])]
    pub dtype: Dtype,
    /// Warps of a block.
    #[tune(short = "w", values = [1, 2, 4, 8, 16], default = |key| chunk(key) / 256)]
    pub warps: u32,
    /// Elements of a tile.
    #[tune(short = "c", values = [256, 512, 1024, 2048, 4096], default = |key| chunk(key))]
    pub chunk: u32,
    /// Blocks.
    #[tune(short = "b", values = [1, 2, 4, 8, 16, 32, 64, 128], default = |key| blocks(key))]
    pub blocks: u32,
}

fn chunk(key: &AnatomyKey) -> u32 {
    key.elements.div_ceil(128).next_power_of_two().clamp(1024, 4096)
}

fn blocks(key: &AnatomyKey) -> u32 {
    key.elements.div_ceil(chunk(key)).next_power_of_two().min(128)
}

impl Legal for Anatomy {
    fn legal(&self) -> Result<(), Illegal> {
        let whole = Transport::Packets.carries(self.elements, self.dtype);
        Illegal::unless(whole, "elements", self.elements, || "whole packets of 16 bytes")?;
        let most = 1024 * self.warps;
        let allowed = || format!("at most {most} with {} warps", self.warps);
        Illegal::unless(self.chunk <= most, "chunk", self.chunk, allowed)
    }
}

impl Anatomy {
    fn tiles(&self) -> ChannelShape {
        let tiles = Slots::ByNumber(self.elements.div_ceil(self.chunk));
        let shape = ChannelShape::new(Transport::Packets, self.ranks, tiles);
        shape.banks(3).credits(self.stage == Stage::Credits)
    }
}

/// Parameters of the kernel.
#[derive(KernelArgs)]
#[args(config = Anatomy)]
pub struct AnatomyArgs {
    /// This rank's vector.
    #[input]
    #[len(|c| u64::from(c.elements))]
    #[dtype(|c| c.dtype)]
    pub x: AnyPtr,
    /// The sum, or the vector, or nothing.
    #[output]
    #[len(|c| u64::from(c.elements))]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// The other rank's tiles.
    #[channel(|c| c.tiles())]
    #[len(|c| if c.stage >= Stage::Hop { c.chunk } else { 0 })]
    #[dtype(|c| c.dtype)]
    pub tiles: Option<AnyChannel>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// As much of an all-reduce as the stage says.
#[kernel]
pub fn anatomy(c: &Anatomy, a: &AnatomyArgs) {
    if c.stage == Stage::Launch {
        return role("blocks", c.blocks, |_| {});
    }
    let epoch = a.epoch.begin();
    let tiles = a.tiles.as_ref().map(|tiles| tiles.open(epoch));
    role("blocks", c.blocks, |b| {
        if c.stage >= Stage::Copy {
            for t in b.tiles(c.elements, c.chunk) {
                let own = a.x.load(t.at(), t.len());
                match &tiles {
                    None => a.out.store(t.at(), own),
                    Some(tiles) => {
                        let message = tiles.to(Peers::others()).slot(t.number());
                        message.put(t.local(), own);
                        message.done();
                        let other = tiles.from(rank() ^ 1).slot(t.number()).load(t.local(), t.len());
                        a.out.store_f32(t.at(), own.to_f32() + other.to_f32());
                    }
                }
            }
        }
    });
    if let Some(tiles) = &tiles {
        tiles.credits();
    }
}

impl Anatomy {
    fn vector(&self, turn: Turn) -> Vec<f32> {
        let number =
            |i: u32| turn.seed ^ u64::from(turn.round) << 48 ^ u64::from(turn.rank) << 32 ^ u64::from(i);
        // Small whole numbers, so that sums are exact.
        (0..self.elements).map(|i| (mixed(number(i)) % 17) as f32 - 8.0).collect()
    }
}

impl Workload for Anatomy {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::new("x", encode(self.dtype, &self.vector(turn)))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let own = self.vector(turn);
        let out = match self.stage {
            Stage::Launch | Stage::Epoch => return vec![],
            Stage::Copy => own,
            Stage::Hop | Stage::Credits => {
                let other = self.vector(Turn { rank: turn.rank ^ 1, ..turn });
                own.iter().zip(&other).map(|(a, b)| a + b).collect()
            }
        };
        vec![Expected::exactly("out", self.dtype, encode(self.dtype, &out))]
    }

    fn work(&self) -> Work {
        let sends = self.stage >= Stage::Hop;
        let bytes = u64::from(self.elements) * u64::from(self.dtype.bytes());
        if sends { Work::all_to_all(self.ranks, bytes) } else { Work::default() }
    }
}

fn main() -> ExitCode {
    peerwarp::cli::main(&[peerwarp::cli::workload::<Anatomy>()])
}

#[cfg(test)]
mod tests {
    use peerwarp::codegen::sim::FindingKind;
    use peerwarp::harness::check::{Exploration, Wrong, explore};
    use peerwarp::harness::suite;
    use peerwarp::harness::workload::Inputs;

    use super::*;

    /// What is wrong with a stage, under some schedules.
    fn wrong(stage: Stage) -> Option<Wrong> {
        let settings = [("stage", stage.name()), ("elements", "2504"), ("ranks", "2"), ("dtype", "bf16")];
        let config = Anatomy::from_settings(&settings).unwrap();
        let inputs = Inputs { rounds: 6, ..Inputs::default() };
        let exploration = Exploration { inputs, seeds: 16, resident_blocks: None };
        explore(suite::of::<Anatomy>(), &[config.into_variant()], &exploration, || ())
            .unwrap()
            .map(|found| found.1)
    }

    #[test]
    fn stages_are_right_and_the_one_without_credits_is_not_ordered() {
        for stage in [Stage::Launch, Stage::Epoch, Stage::Copy, Stage::Credits] {
            assert!(wrong(stage).is_none(), "{stage:?}: {:?}", wrong(stage));
        }
        let Some(Wrong::Protocol(findings)) = wrong(Stage::Hop) else {
            panic!("nothing orders its launches")
        };
        assert_eq!(findings.list[0].kind, FindingKind::LostPacket);
    }
}
