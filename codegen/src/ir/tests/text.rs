use insta::assert_snapshot;

use crate::ir::samples::{self, Sample};
use crate::ir::*;

#[test]
fn text_of_an_exchange() {
    assert_snapshot!(samples::exchange());
}

#[test]
fn text_of_a_scatter_with_locations() {
    assert_snapshot!(format!("{:#}", samples::scatter()));
}

#[test]
fn text_of_a_broken_kernel_does_not_panic() {
    let mut k = samples::exchange();
    let role = k.roles[0].body.ops[0];
    k.roles[0].body.ops.push(role);
    k.roles[0].body.ops.push(OpId(9999));
    let itself = OpId(k.ops.len() as u32);
    let body = Region { ops: vec![itself] };
    let loc = k.loc;
    k.add_op(ControlOp::Split { warps: 1, body }, loc);
    k.add_op(ValueOp::Rank { out: ValueId(777) }, loc);
    k.roles[0].body.ops.extend([itself, OpId(itself.0 + 1)]);
    let text = k.to_string();
    assert!(text.contains("operation 9999 does not exist"), "{text}");
    assert!(text.contains(&format!("operation {} again", itself.0)), "{text}");
    assert!(text.contains("%?777 = rank"), "{text}");
}

#[test]
fn constant_targets_are_named() {
    let put = |ranks: u32, mask: u64| {
        let mut s = Sample::new("k");
        s.b.kernel.ranks = ranks;
        let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, 1);
        s.role("r", 1, |s| {
            let (to, index) = (s.constant(Const::U64(mask)), s.u32(0));
            let parcel = s.parcel(Target::Mask(to));
            s.op(CommOp::Put(Put { parcel, buffer: inbox, index, value: index, mask: None }));
        });
        let text = s.finish().to_string();
        let line = text.lines().find(|l| l.contains("put")).unwrap();
        line.trim().to_string()
    };
    assert_snapshot!(put(4, 0b1111), @"put @inbox[0] <- 0 to all ranks, parcel 0");
    assert_snapshot!(put(4, 0b1011), @"put @inbox[0] <- 0 to ranks in 0b1011, parcel 0");
    assert_snapshot!(put(64, u64::MAX), @"put @inbox[0] <- 0 to all ranks, parcel 0");
}
