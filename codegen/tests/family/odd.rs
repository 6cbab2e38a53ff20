//! Families with a field of every kind, and how to get configurations of them.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;
use peerwarp_macros::kernel;
use proptest::prelude::*;

#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Rows {
    Bf16,
    #[choice(name = "fp8")]
    Fp8E4m3,
}

#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    RoundRobin,
    ByExpert,
}

/// Has a field of every kind, keys and tuning fields mixed.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(kernel = odd_jobs, args = OddArgs, warps = warps, serde, revision = 3)]
pub struct Odd {
    /// Elements of a row.
    #[key(short = "h", range = 8..=65536, multiple_of = 8)]
    pub hidden: u32,
    #[tune(short = "w", values = [4, 8, 16, 32], default = 16)]
    pub warps: u32,
    #[key(short = "r", range = 2..=64, ranks, help = "World size.")]
    pub ranks: u32,
    #[key]
    pub rows: Rows,
    #[key(short = "o", range = -16..=16, multiple_of = 4)]
    pub offset: i32,
    #[key(range = 0..=18446744073709551615)]
    pub long_seed: u64,
    #[tune(short = "s", range = 4..=64, multiple_of = 4, default = |key| (key.ranks * 3).clamp(4, 64) / 4 * 4)]
    pub send_blocks: u32,
    #[tune]
    pub dedup: bool,
    #[tune(short = "f", default = true)]
    pub fused: bool,
    #[tune(default = Order::ByExpert)]
    pub order: Order,
    #[tune(short = "r", values = [Order::ByExpert])]
    pub post: Order,
}

impl Legal for Odd {
    fn legal(&self) -> Result<(), Illegal> {
        Illegal::unless(self.dedup || self.ranks <= 8, "dedup", self.dedup, || {
            format!("true with more than 8 ranks, here {}", self.ranks)
        })?;
        let most = self.hidden / 8;
        Illegal::unless(self.send_blocks <= most, "send_blocks", self.send_blocks, || {
            format!("at most one for 8 elements of a row, {most}")
        })
    }
}

#[derive(KernelArgs)]
#[args(config = Odd)]
pub struct OddArgs {
    /// Rows to send,
    /// `[ranks][hidden]`.
    ///
    /// Anything goes.
    #[len(|c| u64::from(c.ranks) * u64::from(c.hidden))]
    #[dtype(|c| c.rows.dtype())]
    pub rows: AnyPtr,
    /// Numbers.
    pub n: Ptr<u32>,
    #[len(2 * 32)]
    #[dtype(Dtype::F32)]
    pub inbox: AnySym,
    #[len(|c| c.ranks.into())]
    pub row_flag: Flags,
    pub epoch: EpochWord,
    pub scale: Val<f32>,
}

impl Rows {
    pub fn dtype(self) -> Dtype {
        match self {
            Rows::Bf16 => Dtype::Bf16,
            Rows::Fp8E4m3 => Dtype::Fp8,
        }
    }
}

/// Does
/// odd jobs.
///
/// And nothing else.
#[kernel]
pub fn odd_jobs(c: &Odd, a: &OddArgs) {
    role("send", c.send_blocks, |_| {
        a.n.set(0, c.hidden);
    });
}

#[derive(KernelArgs)]
#[args(config = Sparing)]
pub struct SparingArgs {}

/// Does nothing, too.
#[kernel]
pub fn spare(_c: &Sparing, _a: &SparingArgs) {}

/// A family whose names leave out what is as it is by default.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "sparing", kernel = spare, args = SparingArgs, warps = warps)]
pub struct Sparing {
    #[key(short = "m", range = 0..=64, multiple_of = 8, default = 0, omitted)]
    pub most: u32,
    #[key(short = "r", range = 2..=8, ranks)]
    pub ranks: u32,
    #[key(short = "st", range = 1..=8, default = 1, omitted)]
    pub step: u32,
    #[tune(short = "by", default = false, omitted)]
    pub drawn: bool,
    #[tune(short = "w", values = [4, 8])]
    pub warps: u32,
    #[tune(short = "s", range = 1..=8, omitted)]
    pub stages: u32,
}

impl Legal for Sparing {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = Bare)]
pub struct BareArgs {}

/// Does nothing.
#[kernel]
pub fn nothing(_c: &Bare, _a: &BareArgs) {}

/// A family without keys but the world size and without tuning.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "odd", kernel = nothing, args = BareArgs, warps = 4)]
pub struct Bare {
    #[key(range = 2..=8, ranks)]
    pub ranks: u32,
}

impl Legal for Bare {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// A tuning space that is too large to go through, none of it legal for two ranks.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(kernel = huge, args = HugeArgs, warps = r#type)]
pub struct Huge {
    #[key(range = 2..=8, ranks)]
    pub ranks: u32,
    #[tune(range = 1..=32)]
    pub r#type: u32,
    #[tune(range = 0..=18446744073709551615)]
    pub seed: u64,
}

#[derive(KernelArgs)]
#[args(config = Huge)]
pub struct HugeArgs {
    pub r#in: Ptr<u32>,
}

/// Huge.
#[kernel]
pub fn huge(_c: &Huge, _a: &HugeArgs) {}

impl Legal for Huge {
    fn legal(&self) -> Result<(), Illegal> {
        Illegal::unless(self.ranks > 2, "ranks", self.ranks, || "above 2")
    }
}

pub fn key() -> OddKey {
    OddKey { hidden: 7168, ranks: 8, rows: Rows::Fp8E4m3, offset: -4, long_seed: 7 }
}

pub fn keys() -> impl Strategy<Value = OddKey> {
    let fields = (1..=8192u32, 2..=64u32, any::<bool>(), -4..=4i32, any::<u64>());
    fields.prop_map(|(hidden, ranks, fp8, offset, long_seed)| OddKey {
        hidden: hidden * 8,
        ranks,
        rows: if fp8 { Rows::Fp8E4m3 } else { Rows::Bf16 },
        offset: offset * 4,
        long_seed,
    })
}

pub fn legal() -> impl Strategy<Value = Odd> {
    let tuned = (0..4usize, 1..=16u32, any::<[bool; 3]>());
    (keys(), tuned).prop_filter_map("legal", |(key, (warps, send, [dedup, fused, by_expert]))| {
        let odd = Odd {
            hidden: key.hidden,
            warps: [4, 8, 16, 32][warps],
            ranks: key.ranks,
            rows: key.rows,
            offset: key.offset,
            long_seed: key.long_seed,
            send_blocks: send * 4,
            dedup,
            fused,
            order: if by_expert { Order::ByExpert } else { Order::RoundRobin },
            post: Order::ByExpert,
        };
        odd.check().is_ok().then_some(odd)
    })
}
