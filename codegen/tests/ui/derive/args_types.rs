//! What the compiler says about parameters whose attributes are fine.
use peerwarp_codegen::dsl::prelude::*;

pub struct Config {
    tokens: u32,
}

#[derive(KernelArgs)]
#[args(config = Config)]
struct Args {
    #[len(|c| c.tokens)]
    too_narrow: Ptr<u32>,
    #[len(|c| c.rows as u64)]
    no_such_field: Ptr<u32>,
    #[dtype(|c| c.tokens)]
    no_dtype: AnyPtr,
    not_an_argument: Vec<u32>,
}

fn main() {}
