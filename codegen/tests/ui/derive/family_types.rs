//! What the compiler says about the types of families whose attributes are fine.
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_macros::kernel;

#[derive(KernelArgs)]
#[args(config = Scale)]
pub struct Args {
    x: Ptr<u32>,
}

#[kernel]
fn scale(_c: &Scale, _a: &Args) {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoChoice {
    A,
}

#[derive(Family, Clone, Debug, PartialEq)]
#[family(kernel = scale, args = Args, warps = 4)]
pub struct Scale {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
    #[key]
    choice: NoChoice,
    #[tune(values = [4, 8], default = |key| key.blocks)]
    blocks: u32,
    #[tune(values = [4, 8], default = "4")]
    more: u32,
}

impl Legal for Scale {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

fn main() {}
