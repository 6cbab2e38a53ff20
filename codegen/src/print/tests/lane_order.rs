//! Which matrices lie as lanes hold them: those that are written and read by whole tiles of one shape alone.

use crate::{
    dsl::{Binder, Binding, ParamSpec, TraceMeta, prelude::*, trace},
    ir::Dtype,
};

use super::printed;

/// What a role is given.
#[derive(Clone, Copy)]
struct Given {
    x: AnyMatrix,
    /// Three tiles of 64 x 64.
    parts: AnyWindowMatrix,
    ready: Flags,
    out: AnyMatrix,
    epoch: Epoch,
}

impl Given {
    fn product(self, b: Group) -> Tile<f32> {
        b.dot(self.x.rows(0, 64), self.x.rows(64, 64), 2)
    }

    fn store(self, row: impl IntoVal<u32>, sums: impl IntoTile<f32>) {
        self.parts.rows(row, 64).store_f32(0, sums);
    }

    fn publish(self) -> Arrived {
        self.parts.signal(Peers::all(), &self.ready, rank(), self.epoch);
        self.ready.from(1 - rank()).wait(1 - rank(), self.epoch)
    }

    fn load(self, got: &Arrived, row: impl IntoVal<u32>) -> Tile<f32> {
        self.parts.of(1 - rank()).rows(got, row, 64).load_f32(0, 64)
    }
}

/// What is emitted of a kernel whose only role does this with 4 warps.
#[track_caller]
fn role_of(target: &str, dtype: Dtype, body: impl FnOnce(Group, Given)) -> String {
    let target_warp = if target.starts_with("hip") { 64 } else { 32 };
    let traced = trace(TraceMeta::new("sample", 2, target_warp, 4), |p| {
        let matrix = |p: &mut Binder, name, dtype| p.matrix::<AnyMatrix>(name, [192, 64], dtype);
        let (x, out) = (matrix(p, "x", Dtype::Bf16), matrix(p, "out", dtype));
        let (parts, ready) = (p.matrix("parts", [192, 64], dtype), p.arg("ready", 2));
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("multiply", 2, |b| body(b, Given { x, parts, ready, out, epoch }));
    });
    let kernel = traced.unwrap_or_else(|e| panic!("{e}"));
    printed(&kernel, target).unwrap_or_else(|e| panic!("{e}")).text
}

/// Whether the window lies as lanes hold it: for writers and for readers.
#[track_caller]
fn by_lanes(body: impl FnOnce(Group, Given)) -> bool {
    let text = role_of("cuda:sm_90a", Dtype::Bf16, body);
    let (stored, loaded) =
        (text.contains("store_lanes<128>(args.parts"), text.contains("load_lanes<128>(args.parts"));
    assert_eq!(stored, loaded, "{text}");
    stored
}

#[test]
fn whole_tiles_lie_as_lanes_hold_them() {
    assert!(by_lanes(|b, g| {
        g.store(b.index() % 2 * 64, g.product(b));
        let got = g.publish();
        g.out.rows(0, 64).store_f32(0, g.load(&got, b.index() % 2 * 64));
    }));
    // Tiles of other columns are of another matrix.
    assert!(by_lanes(|b, g| {
        let sums = g.product(b);
        g.out.rows(0, 64).store_f32(8, sums);
        g.store(0, sums);
        let got = g.publish();
        g.out.rows(0, 64).store_f32(0, g.load(&got, 0));
    }));
}

#[test]
fn a_variable_is_stored_as_it_is() {
    let text = role_of("cuda:sm_90a", Dtype::F32, |b, g| {
        let mut sums = var(g.product(b));
        g.store(0, sums.get());
        sums.set(sums.get() * 2.0);
        g.store(64, sums.get());
        let got = g.publish();
        g.out.rows(0, 64).store_f32(0, g.load(&got, 64));
    });
    assert_eq!(text.matches("store_lanes<128>(args.parts").count(), 2, "{text}");
}

#[test]
fn every_type_and_target_has_whole_16_bytes() {
    for target in ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"] {
        for dtype in [Dtype::Bf16, Dtype::F32] {
            let text = role_of(target, dtype, |b, g| {
                g.store(0, g.product(b));
                let got = g.publish();
                g.out.rows(0, 64).store_f32(0, g.load(&got, 0));
            });
            assert!(
                text.contains("store_lanes<") && text.contains("load_lanes<"),
                "{target}, {dtype}: {text}"
            );
        }
    }
}

#[test]
fn others_lie_in_rows() {
    // A tile that may begin anywhere, or end beyond the last row.
    for row in [|b: Group| b.index() * 32, |b: Group| b.index() * 64 + 128] {
        assert!(!by_lanes(|b, g| {
            g.store(row(b), g.product(b));
            let got = g.publish();
            g.out.rows(0, 64).store_f32(0, g.load(&got, 0));
        }));
    }
    // Rows that are left out, and columns.
    assert!(!by_lanes(|b, g| {
        g.parts.rows(0, 64).below(10).store_f32(0, g.product(b));
        let got = g.publish();
        g.out.rows(0, 64).store_f32(0, g.load(&got, 0));
    }));
    assert!(!by_lanes(|b, g| {
        g.parts.rows(0, 64).store_f32(8, g.product(b));
        let got = g.publish();
        g.out.rows(0, 64).store_f32(0, g.load(&got, 0));
    }));
    // Somebody who reads elements, or tiles of another shape.
    assert!(!by_lanes(|b, g| {
        g.store(0, g.product(b));
        let got = g.publish();
        g.out.rows(0, 64).store_f32(0, g.load(&got, 0) + g.parts.elements().get_f32(5));
    }));
    assert!(!by_lanes(|b, g| {
        g.store(0, g.product(b));
        let got = g.publish();
        g.out.rows(0, 128).store_f32(0, g.parts.of(0).rows(&got, 0, 128).load_f32(0, 64));
    }));
    // Products bring rows.
    assert!(!by_lanes(|b, g| {
        g.store(0, g.product(b));
        let got = g.publish();
        g.store(64, g.load(&got, 0));
        let theirs = g.parts.of(1 - rank()).rows(&got, 0, 64);
        g.out.rows(0, 64).store_f32(0, b.dot(theirs, g.x.rows(0, 64), 2));
    }));
    // What is not read here another kernel may read.
    assert!(!by_lanes(|b, g| {
        g.store(0, g.product(b));
        let _got = g.publish();
    }));
}

/// The words of the window: of a kernel that stores and loads it by whole tiles, of one that only loads it, and of the first one with
/// a window of the caller's.
#[test]
fn the_order_is_in_the_words_of_a_parameter() {
    let words = |both: bool, binding| {
        let traced = trace(TraceMeta::new("sample", 2, 32, 4), |p| {
            let matrix = |p: &mut Binder, name| p.matrix::<AnyMatrix>(name, [192, 64], Dtype::Bf16);
            let (x, out) = (matrix(p, "x"), matrix(p, "out"));
            let spec = ParamSpec::matrix::<AnyWindowMatrix>("parts", [192, 64], Dtype::Bf16, "");
            p.declare(vec![spec.bound(binding)]);
            let (parts, ready) = (p.next(), p.arg("ready", 2));
            let epoch = p.arg::<EpochWord>("epoch", 1).begin();
            role("multiply", 2, |b| {
                let g = Given { x, parts, ready, out, epoch };
                if both {
                    g.store(0, g.product(b));
                }
                let got = g.publish();
                g.out.rows(0, 64).store_f32(0, g.load(&got, 0));
            });
        });
        let kernel = traced.unwrap_or_else(|e| panic!("{e}"));
        let source = printed(&kernel, "cuda:sm_90a").unwrap_or_else(|e| panic!("{e}"));
        source.params.into_iter().find(|words| words.starts_with("parts")).unwrap()
    };
    let (by_lanes, in_rows) = (words(true, Binding::State), words(false, Binding::State));
    assert_eq!(words(true, Binding::Input), in_rows, "callers see rows");
    let (signature, order) = crate::ir::signature_and_order(&by_lanes);
    assert_eq!((signature, order.is_some()), (&*in_rows, true), "{by_lanes}");
    assert_eq!(crate::ir::signature_and_order(&in_rows).1, None, "{in_rows}");
}
