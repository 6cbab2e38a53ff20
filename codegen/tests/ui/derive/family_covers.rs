//! Mistakes about what a larger variant covers, and about what names leave out.
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
    #[key(range = 1..=4, default = 1, omitted)]
    without_a_short_name: u32,
    #[key(short = "d", range = 1..=4, omitted)]
    without_a_default: u32,
    #[tune(short = "e", values = [1, 2], default = |_| 1, omitted)]
    by_the_key: u32,
}

fn main() {}
