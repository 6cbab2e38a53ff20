use insta::assert_snapshot;

use crate::ir::mutate::{Access, Condition, MutateError, Mutation, Operand, Site, Slot, mutate};
use crate::ir::samples::{self, Sample};
use crate::ir::*;

/// The lines that a mutation takes from and adds to the text of a kernel that verifies.
#[track_caller]
fn difference(kernel: &Kernel, mutation: Mutation) -> String {
    assert!(verify(kernel.clone()).is_ok());
    let mutant = mutate(kernel, &mutation).unwrap();
    assert_eq!(verify_structure(&mutant), Ok(()));
    let (before, after) = (kernel.to_string(), mutant.to_string());
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let mut out = String::new();
    let mut rest = new.as_slice();
    for line in old {
        match rest.iter().position(|l| *l == line) {
            Some(at) => {
                rest[..at].iter().for_each(|l| out += &format!("+{l}\n"));
                rest = &rest[at + 1..];
            }
            None => out += &format!("-{line}\n"),
        }
    }
    rest.iter().for_each(|l| out += &format!("+{l}\n"));
    assert!(!out.is_empty(), "nothing changed");
    out
}

fn exchange(mutation: Mutation) -> String {
    difference(&samples::exchange(), mutation)
}

fn scatter(mutation: Mutation) -> String {
    difference(&samples::scatter(), mutation)
}

#[test]
fn relaxed_signal() {
    assert_snapshot!(exchange(Mutation::Relax(Site::signal("exchange", "flag"))), @"
    -  signal @flag[%slot] <- %epoch to all ranks, parcel 0
    +  signal @flag[%slot] <- %epoch to all ranks, parcel 0, relaxed
    ");
}

#[test]
fn flag_before_data() {
    assert_snapshot!(exchange(Mutation::SignalFirst(Site::signal("exchange", "flag"))), @"
    +  signal @flag[%slot] <- %epoch to all ranks, parcel 0
    -  signal @flag[%slot] <- %epoch to all ranks, parcel 0
    ");
}

#[test]
fn flag_before_data_takes_what_it_needs_along() {
    let mut s = Sample::new("k");
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, 8);
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 8);
    let word = s.b.param("epoch", ParamKind::EpochWord, Dtype::U32, 1);
    let epoch = s.value("epoch", Type::scalar(Dtype::U32), |out| ValueOp::Epoch { out, word, advance: true });
    s.role("r", 1, |s| {
        let (zero, four, one) = (s.u32(0), s.u32(4), s.u32(1));
        let parcel = s.parcel(Target::Rank(one));
        s.for_each("i", (zero, four, one), |s, i| {
            s.op(CommOp::Put(Put { parcel, buffer: inbox, index: i, value: epoch, mask: None }));
        });
        let next = s.binary("next", BinaryOp::Rem, epoch, four);
        let slot = s.binary("slot", BinaryOp::Add, next, one);
        s.binary("unrelated", BinaryOp::Add, next, four);
        s.op(CommOp::Signal(Signal { parcel, flag, index: slot, value: epoch, order: SignalOrder::Release }));
        s.binary("after", BinaryOp::Add, next, four);
    });
    let mutant = mutate(&s.finish(), &Mutation::SignalFirst(Site::signal("r", "flag"))).unwrap();
    assert_snapshot!(mutant.to_string().split_once("role").unwrap().1, @"
     r: block 0 {
      %next: u32 = %epoch % 4
      %slot: u32 = %next + 1
      signal @flag[%slot] <- %epoch to rank 1, parcel 0
      for %i: u32 in 0..4 {
        put @inbox[%i] <- %epoch to rank 1, parcel 0
      }
      %unrelated: u32 = %next + 4
      %after: u32 = %next + 4
    }
    ");
}

#[test]
fn wrong_epoch() {
    let site = Site::wait("exchange", "flag");
    assert_snapshot!(exchange(Mutation::Offset { site, slot: Slot::Value, by: -1 }), @"
    -    ^0 = wait @flag[%slot.1] == %epoch from rank %from
    +    %22: u32 = %epoch - 1
    +    ^0 = wait @flag[%slot.1] == %22 from rank %from
    ");
    let site = Site::signal("exchange", "flag");
    assert_snapshot!(exchange(Mutation::Offset { site, slot: Slot::Value, by: 1 }), @"
    -  signal @flag[%slot] <- %epoch to all ranks, parcel 0
    +  %22: u32 = %epoch + 1
    +  signal @flag[%slot] <- %22 to all ranks, parcel 0
    ");
}

#[test]
fn wrong_slot_and_out_of_range() {
    let site = Site::signal("send", "row_flag");
    assert_snapshot!(scatter(Mutation::Offset { site, slot: Slot::Index, by: 1 }), @"
    -      signal @row_flag[%slot] <- %epoch to ranks in %mask, parcel 0
    +      %64: u32 = %slot + 1
    +      signal @row_flag[%64] <- %epoch to ranks in %mask, parcel 0
    ");
    let site = Site::put("send", "inbox");
    assert_snapshot!(scatter(Mutation::Offset { site, slot: Slot::Index, by: 1 << 20 }), @"
    -      put @inbox[%20] <- %row to ranks in %mask, parcel 0
    +      %64: u32 = %20 + 1048576
    +      put @inbox[%64] <- %row to ranks in %mask, parcel 0
    ");
    let site = Site::store("recv", "rows");
    assert_snapshot!(scatter(Mutation::Replace { site, slot: Slot::Index, with: Operand::Number(4000) }), @"
    -      store @rows[%53] <- %kept where %half
    +      store @rows[4000] <- %kept where %half
    ");
    let site = Site::new("recv", Access::Load, "sent");
    assert_snapshot!(scatter(Mutation::Replace { site, slot: Slot::Index, with: Operand::Named("src".into()) }), @"
    -    %n.1: u32 = load @sent[%49] after ^0
    +    %n.1: u32 = load @sent[%src] after ^0
    ");
}

#[test]
fn missing_operations() {
    let wait = Mutation::Drop(Site::wait("exchange", "flag"));
    assert_snapshot!(exchange(wait.clone()), @"-    ^0 = wait @flag[%slot.1] == %epoch from rank %from");
    let dangling = verify(mutate(&samples::exchange(), &wait).unwrap().into_kernel()).unwrap_err();
    assert!(matches!(dangling[0].problem, Problem::ReceiptNotVisible { wait: None, .. }), "{dangling:?}");
    assert_snapshot!(exchange(Mutation::Drop(Site::signal("exchange", "flag"))), @"-  signal @flag[%slot] <- %epoch to all ranks, parcel 0");
    assert_snapshot!(exchange(Mutation::Drop(Site::put("exchange", "inbox"))), @"-  put @inbox[%9] <- %mine to all ranks, parcel 0");
}

#[test]
fn missing_zero_count_record() {
    let (site, when) = (Site::signal("close", "end_flag"), Condition::new("n", CompareOp::Ne, 0));
    assert_snapshot!(scatter(Mutation::Guard { site: site.clone(), when: when.clone(), whole_parcel: true }), @"
    -    put @sent[%26] <- %n to rank %to, parcel 1
    -    signal @end_flag[%me] <- %epoch to rank %to, parcel 1
    +    %64: bool = %n != 0
    +    if %64 {
    +      put @sent[%26] <- %n to rank %to, parcel 1
    +    }
    +    %66: bool = %n != 0
    +    if %66 {
    +      signal @end_flag[%me] <- %epoch to rank %to, parcel 1
    +    }
    ");
    assert_snapshot!(scatter(Mutation::Guard { site, when, whole_parcel: false }), @"
    -    signal @end_flag[%me] <- %epoch to rank %to, parcel 1
    +    %64: bool = %n != 0
    +    if %64 {
    +      signal @end_flag[%me] <- %epoch to rank %to, parcel 1
    +    }
    ");
}

#[test]
fn guards_read_variables_by_name() {
    let site = Site::store("recv", "rows");
    let when = Condition::new("left", CompareOp::Gt, 3);
    assert_snapshot!(scatter(Mutation::Guard { site, when, whole_parcel: false }), @"
    -      store @rows[%53] <- %kept where %half
    +      %63: u32 = $left
    +      %65: bool = %63 > 3
    +      if %65 {
    +        store @rows[%53] <- %kept where %half
    +      }
    ");
}

#[test]
fn wrong_count() {
    let site = Site::wait("recv", "end_flag");
    assert_snapshot!(scatter(Mutation::Offset { site, slot: Slot::Count, by: -1 }), @"
    -  ^0 = wait_all @end_flag[0; 4] == %epoch, 1 a rank
    +  %64: u32 = 4 - 1
    +  ^0 = wait_all @end_flag[0; %64] == %epoch, 1 a rank
    ");
}

#[test]
fn wrong_ranks() {
    let site = Site::signal("close", "end_flag");
    assert_snapshot!(scatter(Mutation::Replace { site, slot: Slot::Target, with: Operand::Named("me".into()) }), @"
    -    signal @end_flag[%me] <- %epoch to rank %to, parcel 1
    +    signal @end_flag[%me] <- %epoch to rank %me, parcel 2
    ");
    let site = Site::wait("recv", "row_flag");
    assert_snapshot!(scatter(Mutation::Offset { site, slot: Slot::From, by: 1 }), @"
    -      ^1 = wait @row_flag[%slot.1] == %epoch from rank %src
    +      %64: u32 = %src + 1
    +      ^1 = wait @row_flag[%slot.1] == %epoch from rank %64
    ");
    // The put stays in the parcel with its old target.
    let site = Site::put("send", "inbox");
    assert_snapshot!(scatter(Mutation::Replace { site, slot: Slot::Target, with: Operand::Number(0) }), @"
    -      put @inbox[%20] <- %row to ranks in %mask, parcel 0
    +      put @inbox[%20] <- %row to ranks in 0b0, parcel 2
    ");
}

#[test]
fn buffer_reused_an_epoch_early() {
    let parity = |nth| Mutation::ReplaceValue { name: "parity".into(), nth, with: Operand::Number(0) };
    assert_snapshot!(exchange(parity(None)), @"
    -  %half: u32 = %parity * 4
    +  %half: u32 = 0 * 4
    ");
    assert_eq!(exchange(parity(Some(0))), exchange(parity(None)));
}

#[test]
fn replaced_values_reach_every_use() {
    let by = |name: &str, nth, with: Operand| Mutation::ReplaceValue { name: name.into(), nth, with };
    assert_snapshot!(scatter(by("mask", None, Operand::Number(1))), @"
    -      put @inbox[%20] <- %row to ranks in %mask, parcel 0
    -      signal @row_flag[%slot] <- %epoch to ranks in %mask, parcel 0
    +      put @inbox[%20] <- %row to ranks in 0b1, parcel 0
    +      signal @row_flag[%slot] <- %epoch to ranks in 0b1, parcel 0
    ");
    assert_snapshot!(scatter(by("slot", Some(1), Operand::Named("src".into()))), @"
    -      ^1 = wait @row_flag[%slot.1] == %epoch from rank %src
    -      %53: u32 = %slot.1 * 64
    +      ^1 = wait @row_flag[%src] == %epoch from rank %src
    +      %53: u32 = %src * 64
    ");
    assert_snapshot!(scatter(by("bits", Some(1), Operand::Number(7))), @"
    -      %kept: f32[64] = bitcast(%bits.1)
    +      %64: u32[64] = splat(7)
    +      %kept: f32[64] = bitcast(%64)
    ");
    assert_snapshot!(scatter(by("src", None, Operand::Number(2))), @"
    -    %49: u32 = %src * 8
    +    %49: u32 = 2 * 8
    -      ^1 = wait @row_flag[%slot.1] == %epoch from rank %src
    +      ^1 = wait @row_flag[%slot.1] == %epoch from rank 2
    ");
}

#[test]
fn a_frozen_epoch() {
    assert_snapshot!(exchange(Mutation::KeepEpoch("epoch".into())), @"
    -  %epoch: u32 = epoch @epoch, advance
    +  %epoch: u32 = epoch @epoch
    ");
}

#[test]
fn only_the_nth() {
    let twice = |s: &mut Sample, x: ParamId| {
        let zero = s.u32(0);
        for value in [1, 2, 3] {
            let value = s.u32(value);
            s.op(MemoryOp::Store { place: Place::Param(x), index: zero, value, mask: None });
        }
    };
    let mut s = Sample::new("k");
    let x = s.b.param("x", ParamKind::Local, Dtype::U32, 4);
    s.role("r", 1, |s| twice(s, x));
    s.role("other", 1, |s| twice(s, x));
    let k = s.finish();
    assert_snapshot!(difference(&k, Mutation::Drop(Site::store("r", "x").nth(1))), @"
    +  store @x[0] <- 3
    +}
    +
    +role other: block 1 {
    +  store @x[0] <- 1
    -
    -role other: block 1 {
    -  store @x[0] <- 1
    -  store @x[0] <- 2
    -  store @x[0] <- 3
    -}
    ");
    let all = mutate(&k, &Mutation::Drop(Site::store("r", "x"))).unwrap();
    assert_eq!(all.to_string().matches("store").count(), 3, "the other role keeps its stores");
}

#[test]
fn addresses_that_match_nothing_say_what_there_is() {
    let error = |m| mutate(&samples::exchange(), &m).unwrap_err().to_string();
    assert_snapshot!(error(Mutation::Drop(Site::signal("exchange", "flags"))), @"the kernel has no signals of `flags` in role `exchange`; it has: loads of `x` in role `exchange`, puts of `inbox` in role `exchange`, signals of `flag` in role `exchange`, waits of `flag` in role `exchange`, loads of `inbox` in role `exchange`, stores of `y` in role `exchange`");
    assert_snapshot!(error(Mutation::Drop(Site::wait("send", "flag"))), @"the kernel has no waits of `flag` in role `send`; it has: loads of `x` in role `exchange`, puts of `inbox` in role `exchange`, signals of `flag` in role `exchange`, waits of `flag` in role `exchange`, loads of `inbox` in role `exchange`, stores of `y` in role `exchange`");
    assert_snapshot!(error(Mutation::Drop(Site::put("exchange", "flag"))), @"the kernel has no puts of `flag` in role `exchange`; it has: loads of `x` in role `exchange`, puts of `inbox` in role `exchange`, signals of `flag` in role `exchange`, waits of `flag` in role `exchange`, loads of `inbox` in role `exchange`, stores of `y` in role `exchange`");
    assert_snapshot!(error(Mutation::Drop(Site::wait("exchange", "flag").nth(1))), @"number 1 of the waits of `flag` in role `exchange`, counted from 0, where there are only 1");
    let site = Site::signal("exchange", "flag");
    assert_snapshot!(error(Mutation::Offset { site, slot: Slot::Count, by: 1 }), @"`signal` has no count");
    let site = Site::new("exchange", Access::Load, "x");
    assert_snapshot!(error(Mutation::Drop(site.clone())), @"`load` defines values that others use");
    assert_snapshot!(error(Mutation::Relax(site.clone())), @"`load` belongs to no parcel");
    let when = Condition::new("nothing", CompareOp::Ne, 0);
    assert_snapshot!(error(Mutation::Guard { site: site.clone(), when: when.clone(), whole_parcel: true }), @"`load` belongs to no parcel");
    let site = Site::put("exchange", "inbox");
    assert_snapshot!(error(Mutation::Guard { site, when, whole_parcel: false }), @"nothing named `nothing` is visible at src/sample.rs:16");
    let replace = |name: &str, nth, with| Mutation::ReplaceValue { name: name.into(), nth, with };
    assert_snapshot!(error(replace("nothing", None, Operand::Number(1))), @"the kernel has no value named `nothing`");
    assert_snapshot!(error(replace("slot", Some(2), Operand::Number(1))), @"number 2 of the values named `slot`, counted from 0, where there are only 2");
    assert_snapshot!(error(replace("slot", Some(0), Operand::Named("from".into()))), @"nothing named `from` is visible at src/sample.rs:12");
    assert_snapshot!(error(Mutation::KeepEpoch("flag".into())), @"the kernel reads no epoch word `flag`");
}

#[test]
fn what_would_not_be_a_kernel_is_refused() {
    let site = Site::put("send", "inbox");
    let with = Operand::Named("slot".into());
    let error =
        mutate(&samples::scatter(), &Mutation::Replace { site, slot: Slot::Value, with }).unwrap_err();
    let MutateError::Malformed(errors) = &error else { panic!("{error}") };
    assert!(matches!(errors[0].problem, Problem::BufferDtype { .. }), "{error}");
    let site = Site::put("send", "inbox");
    let error =
        mutate(&samples::scatter(), &Mutation::Offset { site, slot: Slot::Value, by: 1 }).unwrap_err();
    assert_eq!(error, MutateError::NoNumber { ty: Type::scalar(Dtype::Bf16) });
}
