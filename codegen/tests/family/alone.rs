//! A family without a world size: one rank, which has no peers.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_macros::kernel;

#[derive(Family, Clone, Debug, PartialEq)]
#[family(kernel = number, args = NumberArgs, warps = 4)]
pub struct Number {
    /// Elements.
    #[key(short = "n", range = 1..=1024)]
    pub elements: u32,
    /// Blocks.
    #[tune(short = "b", values = [1, 2], default = 2)]
    pub blocks: u32,
}

impl Legal for Number {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = Number)]
pub struct NumberArgs {
    /// Numbers.
    #[output]
    #[len(|c| c.elements.into())]
    pub out: Ptr<u32>,
}

/// Stores the rank's number.
#[kernel]
pub fn number(c: &Number, a: &NumberArgs) {
    role("store", c.blocks, |b| {
        for i in b.strided(c.elements) {
            a.out.set(i, if rank() == 0 { i + rank() } else { 7 / rank() });
        }
    });
}

#[test]
fn a_family_without_a_world_size_has_one_rank() {
    let config = Number::from_text("elements=12").unwrap();
    assert_eq!((config.ranks(), config.variant_name().as_str()), (1, "number_n12__b2"));
    assert_eq!(Number::parse_variant("number_n12__b2").unwrap(), config);
    let kernel = config.trace(32).unwrap();
    assert_eq!(kernel.ranks, 1);
    let text = kernel.to_string();
    assert!(!text.contains("rank()") && !text.contains("if "), "its number is known: {text}");
}
