//! Mistakes about what a larger variant covers.
use peerwarp_codegen::family::Family;

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4)]
struct Covers {
    #[key(range = 2..=8, ranks, covers)]
    ranks: u32,
    #[key(covers)]
    flag: bool,
    #[key(range = -4..=4, covers)]
    signed: i32,
    #[key(range = 1..=4, covers = true)]
    with_a_value: u32,
    #[tune(values = [1, 2], covers)]
    tuned: u32,
}

fn main() {}
