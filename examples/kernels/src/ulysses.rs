//! The transpose of Ulysses' sequence parallelism: each rank has some tokens with all heads, and gets all tokens with some heads.

use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Work, Workload};
use peerwarp::prelude::*;

/// A variant of the transpose.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "ulysses", kernel = ulysses, args = UlyssesArgs, warps = warps)]
pub struct Ulysses {
    /// Tokens of all ranks together.
    #[key(short = "t", range = 1..=1048576)]
    pub tokens: u32,
    /// Heads.
    #[key(short = "h", range = 1..=1024)]
    pub heads: u32,
    /// Elements of a head.
    #[key(short = "d", range = 8..=512, multiple_of = 8)]
    pub dim: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Type of the elements.
    #[key(values = [Dtype::Bf16, Dtype::Fp16, Dtype::F32], default = Dtype::Bf16)]
    pub dtype: Dtype,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8, 16], default = 8)]
    pub warps: u32,
    /// Warps that send or receive a message together.
    #[tune(short = "g", values = [1, 2, 4], default = |key| if key.tokens > 1024 { 1 } else { 4 })]
    pub group: u32,
    /// Tokens of a message.
    #[tune(short = "m", values = [1, 2, 4, 8], default = |key| rows(key))]
    pub rows: u32,
    /// Blocks of each role.
    #[tune(short = "b", shrinks, values = [1, 4, 16, 64], default = |key| if key.tokens > 256 { 64 } else { 16 })]
    pub blocks: u32,
}

/// Of many tokens several a message, so that flags cost little; of few tokens one, so that all groups have work.
fn rows(key: &UlyssesKey) -> u32 {
    if key.tokens > 1024 && (key.tokens / key.ranks).is_multiple_of(4) { 4 } else { 1 }
}

impl Legal for Ulysses {
    fn legal(&self) -> Result<(), Illegal> {
        let whole = |n: u32| n.is_multiple_of(self.ranks);
        let allowed = || format!("a multiple of the {} ranks", self.ranks);
        Illegal::unless(whole(self.tokens), "tokens", self.tokens, allowed)?;
        Illegal::unless(whole(self.heads), "heads", self.heads, allowed)?;
        let own = self.own_tokens();
        let allowed = || format!("a divisor of the {own} tokens of a rank");
        Illegal::unless(own.is_multiple_of(self.rows), "rows", self.rows, allowed)?;
        let elements = u64::from(self.tokens) * u64::from(self.heads) * u64::from(self.dim);
        let allowed = || "as many as make 2^31 elements at most".to_owned();
        Illegal::unless(elements < 1 << 31, "tokens", self.tokens, allowed)
    }
}

impl Ulysses {
    /// Tokens that a rank has at first.
    fn own_tokens(&self) -> u32 {
        self.tokens / self.ranks
    }

    /// Elements of a token that one rank gets.
    fn part(&self) -> u32 {
        self.heads / self.ranks * self.dim
    }

    /// Messages from each rank to each other one.
    fn messages(&self) -> u32 {
        self.own_tokens() / self.rows
    }

    fn channel(&self) -> ChannelShape {
        ChannelShape::new(Transport::Flags, self.ranks, Slots::BySender(self.messages()))
    }

    fn elements(&self) -> u64 {
        u64::from(self.own_tokens()) * u64::from(self.heads) * u64::from(self.dim)
    }
}

/// Parameters of [`ulysses`].
#[derive(KernelArgs)]
#[args(config = Ulysses)]
pub struct UlyssesArgs {
    /// This rank's tokens with all heads, `[token][head][element]`.
    #[input]
    #[len(|c| c.elements())]
    #[dtype(|c| c.dtype)]
    pub x: AnyPtr,
    /// All tokens with this rank's heads, `[token][head][element]`.
    #[output]
    #[len(|c| c.elements())]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// Parts of the other ranks' tokens.
    #[channel(|c| c.channel())]
    #[len(|c| c.rows * c.part())]
    #[dtype(|c| c.dtype)]
    pub parts: AnyChannel,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Sends each rank its heads of this rank's tokens.
#[kernel]
pub fn ulysses(c: &Ulysses, a: &UlyssesArgs) {
    let parts = a.parts.open(a.epoch.begin());
    role("send", c.blocks, |b| {
        b.split(c.group, |group| {
            for i in group.strided(c.messages() * (c.ranks - 1)) {
                let to = (rank() + 1 + i / c.messages()) % c.ranks;
                let number = i % c.messages();
                let message = parts.to(Peers::rank(to)).slot(number);
                for row in 0..c.rows {
                    let token = number * c.rows + row;
                    message.put(row * c.part(), a.x.load((token * c.ranks + to) * c.part(), c.part()));
                }
                message.done();
            }
            for token in group.strided(c.own_tokens()) {
                let own = a.x.load((token * c.ranks + rank()) * c.part(), c.part());
                a.out.store((rank() * c.own_tokens() + token) * c.part(), own);
            }
        });
    });
    role("receive", c.blocks, |b| {
        b.split(c.group, |group| {
            for i in group.strided(c.messages() * (c.ranks - 1)) {
                let from = (rank() + 1 + i / c.messages()) % c.ranks;
                let number = i % c.messages();
                let got = parts.from(from).slot(number).load(0, c.rows * c.part());
                a.out.store((from * c.own_tokens() + number * c.rows) * c.part(), got);
            }
        });
    });
    parts.credits();
}

impl Workload for Ulysses {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::new("x", crate::numbers(self.dtype, self.elements() as usize, turn))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let part = self.part() as usize * self.dtype.bytes() as usize;
        let of = |rank| {
            let x = crate::numbers(self.dtype, self.elements() as usize, Turn { rank, ..turn });
            let own = x.chunks(part).skip(turn.rank as usize).step_by(self.ranks as usize);
            own.flatten().copied().collect::<Vec<u8>>()
        };
        vec![Expected::exactly("out", self.dtype, (0..self.ranks).flat_map(of).collect())]
    }

    fn work(&self) -> Work {
        Work::all_to_all(self.ranks, self.elements() * u64::from(self.dtype.bytes()) / u64::from(self.ranks))
    }
}
