use insta::assert_snapshot;

use crate::ir::{OpId, OpKind, Region, ValueId, samples};

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
    k.add_op(OpKind::Split { warps: 1, body }, loc);
    k.add_op(OpKind::Rank { out: ValueId(777) }, loc);
    k.roles[0].body.ops.extend([itself, OpId(itself.0 + 1)]);
    let text = k.to_string();
    assert!(text.contains("operation 9999 does not exist"), "{text}");
    assert!(text.contains(&format!("operation {} again", itself.0)), "{text}");
    assert!(text.contains("%?777 = rank"), "{text}");
}
