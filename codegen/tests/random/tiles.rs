//! Two kernels of an operation that share a matrix, in the order of lanes or not.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

use super::kernel::RANKS;
use super::plan::Random;

/// Rows and columns of a tile.
pub const TILE: u32 = 64;

/// A pair of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub number: u64,
    pub dtype: Dtype,
    /// Whether the second kernel reads elements, so that it keeps the matrix in rows.
    pub broken: bool,
}

#[derive(Clone, Copy)]
struct Args {
    x: AnyMatrix,
    /// Two tiles: what a launch publishes, and what the next one makes of it.
    parts: AnyWindowMatrix,
    out: AnyMatrix,
    again: AnyMatrix,
    ready: Flags,
    over: Flags,
    epoch: Epoch,
}

impl Args {
    fn bind(p: &mut Binder, dtype: Dtype) -> Args {
        Args {
            x: p.matrix("x", [2 * TILE, TILE], Dtype::Bf16),
            parts: p.matrix("parts", [2 * TILE, TILE], dtype),
            out: p.matrix("out", [TILE, TILE], Dtype::F32),
            again: p.matrix("again", [TILE, TILE], Dtype::F32),
            ready: p.arg("ready", 1),
            over: p.arg("over", (2 * RANKS).into()),
            epoch: p.arg::<EpochWord>("epoch", 1).begin(),
        }
    }

    fn product(self, b: Group) -> Tile<f32> {
        b.dot(self.x.rows(0, TILE), self.x.rows(TILE, TILE), 2)
    }

    /// Publishes a tile and reads the other rank's.
    fn swap(self, row: u32) -> Tile<f32> {
        let other = (rank() + 1) % RANKS;
        self.parts.signal(Peers::rank(other), &self.ready, 0, self.epoch);
        let got = self.ready.from(other).wait(0, self.epoch);
        self.parts.of(other).rows(&got, row, TILE).load_f32(0, TILE)
    }
}

impl Pair {
    pub fn new(number: u64, broken: bool) -> Pair {
        Pair { number, dtype: Random(number).one_of(&[Dtype::Bf16, Dtype::F32]), broken }
    }

    pub fn kernels(self, warp_size: u32) -> Vec<Kernel> {
        let Pair { number, dtype, broken } = self;
        let traced = |name: &str, body: fn(Group, Args, bool)| {
            let name = format!("{name}_{number}");
            let kernel = trace(TraceMeta::new(&name, RANKS, warp_size, 4), |p| {
                let a = Args::bind(p, dtype);
                role("multiply", 1, |b| {
                    body(b, a, broken);
                    let _ = a.over.meet(a.epoch);
                });
            });
            kernel.unwrap_or_else(|e| panic!("{self:?}: {e}"))
        };
        let made = traced("made", |b, a, _| {
            a.parts.rows(0, TILE).store_f32(0, a.product(b));
            a.out.rows(0, TILE).store_f32(0, a.swap(0));
        });
        let used = traced("used", |b, a, broken| {
            let sums = if broken {
                a.product(b) + a.parts.elements().get_f32(5)
            } else {
                b.dot_add(a.parts.rows(0, TILE).load_f32(0, TILE), a.x.rows(0, TILE), a.x.rows(0, TILE), 2)
            };
            a.parts.rows(TILE, TILE).store_f32(0, sums);
            a.again.rows(0, TILE).store_f32(0, a.swap(TILE));
        });
        vec![made, used]
    }
}
