//! A family is a struct with named fields and a `#[family(..)]`; one field at most is the world size.
use peerwarp_codegen::family::Family;

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4)]
enum Phase {
    Send,
}

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4)]
struct Tuple(u32);

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4)]
struct Generic<T> {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
    #[key]
    t: T,
}

#[derive(Family)]
struct Bare {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
}

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4)]
struct NoWorld {
    #[key(range = 2..=8)]
    ranks: u32,
}

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4)]
struct TwoWorlds {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
    #[key(range = 2..=8, ranks)]
    nodes: u64,
}

fn main() {}
