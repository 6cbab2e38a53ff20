//! Mistakes in `#[family(..)]`.
use peerwarp_codegen::family::Family;

#[derive(Family)]
#[family(kernel = k, args = Args, warps = wraps)]
struct UnknownWarps {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
    #[tune(values = [4, 8])]
    warps: u32,
}

#[derive(Family)]
#[family(kernel = k, args = Args, warps = wide)]
struct WarpsAreNoNumber {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
    #[tune]
    wide: bool,
}

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 64)]
struct TooManyWarps {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
}

#[derive(Family)]
#[family(kernal = k, args = Args, warps = 4)]
struct Misspelt {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
}

#[derive(Family)]
#[family(args = Args, warps = 4)]
struct NoKernel {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
}

#[derive(Family)]
#[family(name = "Scale__2", kernel = "k", args = Args, warps, serde = true)]
struct WrongValues {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
}

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4, revision = 0)]
struct RevisionZero {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
}

fn main() {}
