//! Mistakes in `#[key(..)]` and `#[tune(..)]`.
use peerwarp_codegen::family::Family;

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4)]
struct Ranges {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
    #[key(range = 1..32)]
    half_open: u32,
    #[key(range = 8..)]
    one_end: u32,
    #[key(range = "1-32")]
    text: u32,
    #[key(range = 32..=8)]
    empty: u32,
    #[key(range = 1..=7, multiple_of = 8)]
    no_multiple: u32,
    #[key(range = 1..=8, multiple_of = 0)]
    nothing_divides: u32,
    #[key]
    missing: u32,
    #[tune]
    missing_too: u32,
    #[key(values = [1024, 2048])]
    menu: u32,
    #[tune(values = [1, 2], range = 1..=2)]
    both: u32,
    #[tune(range = 0..=1)]
    flag: bool,
    #[tune(multiple_of = 8)]
    of_what: bool,
}

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4)]
struct Settings {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
    unsaid: u32,
    #[key(range = 1..=8)]
    #[tune(values = [1])]
    key_and_tuned: u32,
    #[key(rnage = 1..=8)]
    misspelt: u32,
    #[key(range = 1..=8, default = |key| key.ranks)]
    keys_depend_on_nothing: u32,
    #[key(range = 1..=8, range = 1..=9)]
    set_twice: u32,
    #[tune(values = [4, 8], default = 6)]
    default_off_the_menu: u32,
    #[tune(values = [4, 8], default)]
    default_of_what: u32,
    #[key]
    scale: f32,
    #[key(range = 1..=8)]
    machine_word: usize,
}

#[derive(Family)]
#[family(kernel = k, args = Args, warps = 4)]
struct Shorts {
    #[key(short = "r", range = 2..=8, ranks)]
    ranks: u32,
    #[key(short = "r", range = 1..=8)]
    rows: u32,
    #[key(short = "ranks", range = 1..=8)]
    other: u32,
    #[key(short = "K2", range = 1..=8)]
    topk: u32,
    #[key(short = 'e', range = 1..=8)]
    experts: u32,
    /// Not a mistake: tuning fields are told apart from key fields by where they stand.
    #[tune(short = "r", values = [1])]
    recv_blocks: u32,
}

fn main() {}
