//! Mistakes in `#[derive(Choice)]`.
use peerwarp_codegen::family::Choice;

#[derive(Choice)]
struct NoEnum;

#[derive(Choice)]
enum Nothing {}

#[derive(Choice)]
enum WithFields {
    Flags,
    Packets(u32),
}

#[derive(Choice)]
enum Names {
    SplitSend,
    #[choice(name = "splitsend")]
    Fused,
    #[choice(name = "Over Head")]
    Overhead,
    #[choice(nmae = "fp8")]
    Fp8E4m3,
}

#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serd)]
enum Misspelt {
    One,
}

fn main() {}
