//! Mistakes in `#[derive(KernelArgs)]`.
use peerwarp_codegen::dsl::prelude::*;

pub struct Config {
    tokens: u32,
}

#[derive(KernelArgs)]
struct NoConfig {
    x: Ptr<u32>,
}

#[derive(KernelArgs)]
#[args(cfg = Config)]
struct Misspelt {
    x: Ptr<u32>,
}

#[derive(KernelArgs)]
#[args]
struct Empty {
    x: Ptr<u32>,
}

#[derive(KernelArgs)]
#[args(config = "Config")]
struct ConfigIsText {
    x: Ptr<u32>,
}

#[derive(KernelArgs)]
#[args(config = Config)]
enum Variants {
    NothingSaysWhen(Rows),
    #[when(|c| c.tokens > 0)]
    Empty,
    #[when(true, false)]
    Garbled(Rows),
    #[when(|c| c.tokens > 1)]
    Last(Rows),
}

#[derive(KernelArgs)]
#[args(config = Config)]
enum Single {
    One(Rows),
}

#[derive(KernelArgs)]
#[args(config = Config)]
union Union {
    rows: Ptr<u32>,
}

#[derive(KernelArgs)]
#[args(config = Config)]
struct Dtypes {
    rows: AnyPtr,
    inbox: AnySym,
    #[dtype(|c| c.dtype)]
    x: Ptr<u32>,
}

#[derive(KernelArgs)]
#[args(config = Config)]
struct Lengths {
    #[len(4)]
    scale: Val<f32>,
    #[len = 4]
    x: Ptr<u32>,
    #[len(|c, n| n)]
    y: Ptr<u32>,
    #[len(1)]
    #[len(2)]
    z: Ptr<u32>,
    #[len(|c| c.)]
    w: Ptr<u32>,
    sometimes: Option<Ptr<u32>>,
}

#[derive(KernelArgs)]
#[args(config = Config)]
struct Groups {
    #[group]
    #[len(4)]
    rows: Rows,
    #[group(4)]
    more: Rows,
}

#[derive(KernelArgs)]
#[args(config = Config)]
struct Bindings {
    #[input]
    #[output]
    #[len(4)]
    both: Ptr<u32>,
    #[input]
    #[len(4)]
    symmetric: Sym<u32>,
    #[output]
    flags: Flags,
    #[input]
    by_value: Val<u32>,
    #[group]
    #[output]
    group: Rows,
}

#[derive(KernelArgs)]
#[args(config = Config)]
struct Counted {
    #[input]
    #[len(4)]
    #[rows(4)]
    without_a_number: Ptr<u32>,
    #[len(4)]
    #[rows(there, |_| 4)]
    of_its_own: Ptr<u32>,
    there: Val<u32>,
    #[input]
    #[shape(|_| [8, 8])]
    #[dtype(|_| Dtype::Bf16)]
    #[rows(garbage here !)]
    matrix: AnyMatrix,
}

#[derive(KernelArgs)]
#[args(config = Config)]
struct Typed {
    #[shape(|_| [8, 8])]
    #[dtype(|_| Dtype::Bf16)]
    chosen: Matrix<u32>,
    #[len(64)]
    shapeless: SymMatrix<u32>,
}

fn main() {}
