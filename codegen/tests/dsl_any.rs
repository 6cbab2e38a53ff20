//! Buffers whose element type a config chooses: tiles are moved as they are, or looked into.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel, OpKind, ValueOp};

fn relay(from: Dtype, to: Dtype) -> Result<Kernel, TraceError> {
    trace(TraceMeta::new("relay", 2, 32, 1), |p: &mut Binder| {
        let x = p.erased::<AnyPtr>("x", 64, from);
        let inbox = p.erased::<AnySym>("inbox", 64, from);
        let flag = p.arg::<Flags>("flag", 2);
        let out = p.erased::<AnyPtr>("out", 64, to);
        let word = p.arg::<EpochWord>("epoch", 1);
        let epoch = word.begin();
        role("all", 1, |_| {
            let mut row = send_to(Peers::all());
            row.put_any(&inbox, 0, x.load(0, 32));
            row.signal(&flag, rank(), epoch);
            let got = flag.from(0).wait(0, epoch);
            out.store(0, inbox.load(&got, 0, 32));
            out.store_f32(32, inbox.load(&got, 0, 32).to_f32());
        });
    })
}

#[test]
fn rows_move_without_a_conversion() {
    for dtype in [Dtype::U32, Dtype::Bf16, Dtype::Fp8] {
        let kernel = relay(dtype, dtype).unwrap();
        let mut casts = vec![];
        kernel.walk(&kernel.roles[0].body, &mut |_, op| {
            if let OpKind::Value(ValueOp::Cast { out, .. }) = op.kind {
                casts.push(kernel.ty(out).dtype);
            }
        });
        assert_eq!(casts, [Dtype::F32, dtype], "of the one tile that is looked into");
    }
}

#[test]
fn rows_move_between_buffers_of_one_type_only() {
    let error = relay(Dtype::U32, Dtype::Bf16).unwrap_err().to_string();
    assert!(error.contains("dsl_any.rs:20:"), "{error}");
    assert!(error.contains("a tile of u32 for `out`, which is of bf16"), "{error}");
    assert!(error.contains("`.to_f32()`"), "{error}");
}
