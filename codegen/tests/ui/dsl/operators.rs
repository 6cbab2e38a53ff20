//! Element types never mix, and not every type can be calculated with.
use peerwarp_codegen::dsl::prelude::*;

fn scalars(n: Val<u32>, weight: Val<f32>) -> Val<f32> {
    n * weight
}

fn host(n: Val<u32>) -> Val<u32> {
    n + 1u64
}

fn tiles(counts: Tile<u32>, weights: Tile<f32>) -> Tile<u32> {
    counts + weights
}

fn storage(row: Tile<bf16>) -> Tile<bf16> {
    row + row
}

fn truth(a: Val<bool>, b: Val<bool>) -> Val<bool> {
    a + b
}

fn remainder(a: Val<f32>) -> Val<f32> {
    a % a
}

fn negative(a: Val<u32>) -> Val<u32> {
    -a
}

fn choice(c: Val<bool>, n: Val<u32>, x: Val<f32>) -> Val<u32> {
    c.select(n, x)
}

fn main() {}
