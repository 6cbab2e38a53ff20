//! Scalars, tiles and masks.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::{Dtype, UnaryOp};

use crate::page::Page;

const INTRO: &str = "\
A `Val<T>` is a scalar, the same in all lanes of its group. A `Tile<T>` is a vector that the lanes of a group hold together; a matrix is a \
tile of rows. Element types are `bool`, `i32`, `u32`, `u64` and `f32`, and in memory `f16`, `bf16` and `F8` (8 bits, e4m3), which are cast to \
`f32` before arithmetic.

Values never change: a variable ([control flow](control.md)) holds one after the other. The ops of this page order nothing. All of them end the \
trace where two tiles of one operation differ in length.";

/// The IR's own table of functions of one operand.
fn functions() -> String {
    let rows = UnaryOp::ALL.iter().map(|op| {
        let of = Dtype::ALL.iter().filter(|dtype| op.allows(**dtype)).map(|dtype| format!("`{dtype}`"));
        let bits = if op.rounds() { "each target rounds" } else { "the same on every target" };
        format!("| `{}` | {} | {bits} |\n", op.name(), of.collect::<Vec<_>>().join(", "))
    });
    format!("| function | of | bits of the result |\n|---|---|---|\n{}", rows.collect::<String>())
        .trim_end()
        .to_owned()
}

pub fn page() -> Page {
    Page {
        file: "values",
        title: "Values and masks",
        intro: format!("{INTRO}\n\n{}", functions()),
        kinds: &[
            "Val",
            "Tile",
            "Element",
            "Num",
            "Int",
            "Word",
            "f16",
            "bf16",
            "F8",
            "IntoVal",
            "IntoTile",
            "Operand",
            "Alternatives",
        ],
        examples: examples(),
        source: SOURCE,
    }
}

fn float(_: u32, i: u32) -> f32 {
    i as f32 * 0.25 - 3.0
}

examples! {
    arithmetic ["+"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| ((i * 3 + 7) % 16).wrapping_sub(i / 16))
    {
        role("main", 1, |_| {
            let x = x.load(0, 64);
            out.store(0, (x * 3 + 7) % 16 - x / 16);
        });
    }

    bits ["&"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| (i & 7) << 2 | (i ^ 1) >> 3)
    {
        role("main", 1, |_| {
            let x = x.load(0, 64);
            out.store(0, (x & 7) << 2 | (x ^ 1) >> 3);
        });
    }

    inverts ["!"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| !i)
    {
        role("main", 1, |_| {
            out.store(0, !x.load(0, 64));
        });
    }

    makes_tiles ["arange", "splat", "Val::splat"]
    (n: Ptr<u32>[1] = |_, _| 5, out: Ptr<u32>[64]) -> (out: |_, i| i * 5 + 5 + 9)
    {
        role("main", 1, |_| {
            let n = n.get(0);
            out.store(0, arange(64) * splat(n, 64) + n.splat(64) + splat(9u32, 64));
        });
    }

    sets ["bit"]
    (x: Ptr<u32>[1] = |_, _| 5, out: Ptr<u64>[1]) -> (out: |_, _| 33u64)
    {
        role("main", 1, |_| {
            out.set(0, bit(x.get(0)) | 1);
        });
    }

    casts ["Val::cast", "Tile::cast"]
    (x: Ptr<f32>[64] = float, out: Ptr<bf16>[64], whole: Ptr<i32>[1])
    -> (out: |r, i| bf16::from_f32(float(r, i)), whole: |_, _| 0)
    {
        role("main", 1, |_| {
            out.store(0, x.load(0, 64).cast::<bf16>());
            whole.set(0, x.get(12).cast::<i32>());
        });
    }

    conversions ["Val::to_u32", "Val::to_i32", "Val::to_u64", "Val::to_f32"]
    (x: Ptr<u32>[1] = |_, _| 7, a: Ptr<i32>[1], b: Ptr<u64>[1], c: Ptr<u32>[1])
    -> (a: |_, _| 7, b: |_, _| 7u64 << 32, c: |_, _| 3u32)
    {
        role("main", 1, |_| {
            let x = x.get(0);
            a.set(0, x.to_i32());
            b.set(0, x.to_u64() << 32);
            c.set(0, (x.to_f32() * 0.5).to_u32());
        });
    }

    conversions_of_tiles ["Tile::to_u32", "Tile::to_i32", "Tile::to_u64", "Tile::to_f32"]
    (x: Ptr<u32>[64] = |_, i| i, a: Ptr<i32>[64], b: Ptr<u64>[64], c: Ptr<u32>[64])
    -> (a: |_, i| i as i32, b: |_, i| u64::from(i) << 32, c: |_, i| i / 2)
    {
        role("main", 1, |_| {
            let x = x.load(0, 64);
            a.store(0, x.to_i32());
            b.store(0, x.to_u64() << 32);
            c.store(0, (x.to_f32() * 0.5).to_u32());
        });
    }

    bitcasts ["Val::bitcast", "Tile::bitcast"]
    (x: Ptr<f32>[64] = float, out: Ptr<u32>[64], one: Ptr<i32>[1])
    -> (out: |r, i| float(r, i).to_bits(), one: |r, _| float(r, 0).to_bits() as i32)
    {
        role("main", 1, |_| {
            out.store(0, x.load(0, 64).bitcast::<u32>());
            one.set(0, x.get(0).bitcast::<i32>());
        });
    }

    compares ["Val::eq_to", "Val::ne_to", "Val::lt", "Val::le", "Val::gt", "Val::ge"]
    (x: Ptr<u32>[4] = |_, i| i, out: Ptr<u32>[1]) -> (out: |_, _| 1)
    {
        role("main", 1, |_| {
            let (a, b) = (x.get(1), x.get(2));
            let below = a.lt(b) & a.le(b) & a.ne_to(b);
            let above = a.gt(b) | a.ge(b) | a.eq_to(b);
            out.set(0, (below & !above).select(1u32, 0u32));
        });
    }

    masks ["Tile::eq_to", "Tile::ne_to", "Tile::lt", "Tile::le", "Tile::gt", "Tile::ge"]
    (x: Ptr<u32>[64] = |_, i| i % 8, out: Ptr<u32>[64])
    -> (out: |_, i| u32::from((2..=4).contains(&(i % 8)) && i % 8 != 3 || i % 8 == 7))
    {
        role("main", 1, |_| {
            let x = x.load(0, 64);
            let inside = x.ge(2) & x.le(4) & x.ne_to(3) & x.gt(1) & x.lt(5);
            out.store(0, (inside | x.eq_to(7)).select(1, 0));
        });
    }

    chooses ["Val::select", "Tile::select"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |r, i| if i >= 32 { i } else if r == 0 { 100 } else { 200 })
    {
        role("main", 1, |_| {
            let x = x.load(0, 64);
            let first = rank().eq_to(0).select(100u32, 200u32);
            out.store(0, x.lt(32).select(first, x));
        });
    }

    bounds ["Val::min", "Val::max", "Tile::minimum", "Tile::maximum"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| i.clamp(5, 9))
    {
        role("main", 1, |_| {
            let (low, high) = (x.get(5).min(9), x.get(9).max(5));
            out.store(0, x.load(0, 64).maximum(low).minimum(high));
        });
    }

    fused ["Val::fma", "Tile::fma"]
    (x: Ptr<f32>[64] = float, out: Ptr<f32>[64]) -> (out: |r, i| float(r, i).mul_add(2.0, float(r, 0).mul_add(4.0, 1.0)))
    {
        role("main", 1, |_| {
            let offset = x.get(0).fma(4.0, 1.0);
            out.store(0, x.load(0, 64).fma(2.0, offset));
        });
    }

    magnitude ["Val::abs", "Tile::abs"]
    (x: Ptr<f32>[64] = float, out: Ptr<f32>[64]) -> (out: |r, i| float(r, i).abs() + 3.0)
    {
        role("main", 1, |_| {
            out.store(0, x.load(0, 64).abs() + x.get(0).abs());
        });
    }

    counts_bits ["Val::popcount", "Val::trailing_zeros", "Tile::popcount", "Tile::trailing_zeros"]
    (x: Ptr<u32>[64] = |_, i| i + 1, out: Ptr<u32>[64])
    -> (out: |_, i| (i + 1).count_ones() * 8 + (i + 1).trailing_zeros() + 2 + 3)
    {
        role("main", 1, |_| {
            let all = x.load(0, 64);
            let of_one = x.get(2).popcount() + x.get(7).trailing_zeros();
            out.store(0, all.popcount() * 8 + all.trailing_zeros() + of_one);
        });
    }

    exponential ["Val::exp", "Tile::exp"]
    (x: Ptr<f32>[64] = float, out: Ptr<f32>[64]) -> (out: |r, i| float(r, i).exp() + float(r, 0).exp())
    {
        role("main", 1, |_| {
            out.store(0, x.load(0, 64).exp() + x.get(0).exp());
        });
    }

    square_root ["Val::sqrt", "Tile::sqrt", "Val::rsqrt", "Tile::rsqrt"]
    (x: Ptr<f32>[64] = |_, i| (4u32 << (i % 4 * 2)) as f32, out: Ptr<f32>[64])
    -> (out: |_, i| (2u32 << (i % 4)) as f32 + 1.0 / (2u32 << (i % 4)) as f32 + 2.5)
    {
        role("main", 1, |_| {
            let all = x.load(0, 64);
            let of_first = x.get(0).sqrt() + x.get(0).rsqrt();
            out.store(0, all.sqrt() + all.rsqrt() + of_first);
        });
    }

    hyperbolic ["Val::tanh", "Tile::tanh"]
    (x: Ptr<f32>[64] = float, out: Ptr<f32>[64])
    -> (out: |r, i| f64::from(float(r, i)).tanh() as f32 + f64::from(float(r, 0)).tanh() as f32)
    {
        role("main", 1, |_| {
            out.store(0, x.load(0, 64).tanh() + x.get(0).tanh());
        });
    }

    logarithm ["Val::log", "Tile::log"]
    (x: Ptr<f32>[64] = |_, _| 1f32, out: Ptr<f32>[64]) -> (out: |_, _| 0f32)
    {
        role("main", 1, |_| {
            out.store(0, x.load(0, 64).log() + x.get(0).log());
        });
    }

    error_function ["Val::erf", "Tile::erf"]
    (x: Ptr<f32>[64] = |_, i| if i % 2 == 0 { 0f32 } else { 9.0 }, out: Ptr<f32>[64])
    -> (out: |_, i| (i % 2) as f32)
    {
        role("main", 1, |_| {
            out.store(0, x.load(0, 64).erf() + x.get(0).erf());
        });
    }

    circular ["Val::sin", "Tile::sin", "Val::cos", "Tile::cos"]
    (x: Ptr<f32>[64] = |_, _| 0f32, out: Ptr<f32>[64]) -> (out: |_, _| 2f32)
    {
        role("main", 1, |_| {
            let (all, one) = (x.load(0, 64), x.get(0));
            out.store(0, all.sin() + all.cos() + one.sin() + one.cos());
        });
    }

    reduces ["Tile::sum", "Tile::max", "Tile::min"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[3]) -> (out: |_, i| [2016, 63, 0][i as usize])
    {
        role("main", 1, |_| {
            let x = x.load(0, 64);
            out.set(0, x.sum());
            out.set(1, x.max());
            out.set(2, x.min());
        });
    }

    reduces_bits ["Tile::or_all", "Tile::and_all", "Tile::any", "Tile::all"]
    (x: Ptr<u32>[64] = |_, i| i | 64, out: Ptr<u32>[4]) -> (out: |_, i| [127, 64, 1, 0][i as usize])
    {
        role("main", 1, |_| {
            let x = x.load(0, 64);
            out.set(0, x.or_all());
            out.set(1, x.and_all());
            out.set(2, x.eq_to(64).any().select(1u32, 0u32));
            out.set(3, x.eq_to(64).all().select(1u32, 0u32));
        });
    }

    prefix_sums ["Tile::scan_sum"]
    (x: Ptr<u32>[64] = |_, _| 2, out: Ptr<u32>[64]) -> (out: |_, i| 2 * i)
    {
        role("main", 1, |_| {
            out.store(0, x.load(0, 64).scan_sum(true));
        });
    }

    lengths ["Tile::len", "IntoTile::tile", "IntoVal::val"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| i + 64)
    {
        role("main", 1, |_| {
            let x = x.load(0, 64).tile();
            out.store(0, x + x.len().val());
        });
    }
}
