//! A family whose kernel lacks `#[kernel]`, and that says nothing about legality; one with another family's kernel.
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_macros::kernel;

#[derive(KernelArgs)]
#[args(config = First)]
pub struct Args {
    x: Ptr<u32>,
}

fn no_kernel(_c: &First, _a: &Args) {}

#[derive(Family, Clone, Debug, PartialEq)]
#[family(kernel = no_kernel, args = Args, warps = 4)]
pub struct First {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
}

#[kernel]
fn scale(_c: &First, _a: &Args) {}

#[derive(Family, Clone, Debug, PartialEq)]
#[family(kernel = scale, args = Args, warps = 4)]
pub struct Second {
    #[key(range = 2..=8, ranks)]
    ranks: u32,
}

impl Legal for Second {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

fn main() {}
