//! Mistakes that authors make with far channels, each found as what it is, at the author's line.

use std::collections::BTreeSet;

use peerwarp_codegen::dsl::prelude::Publish::{self, Batch, Each};
use peerwarp_codegen::ir::mutate::{Access, Condition, Mutation, Site, mutate};
use peerwarp_codegen::ir::{
    CommOp, CompareOp, Const, Dtype, FarWait, OpKind, Planted, Type, ValueId, ValueOp,
};
use peerwarp_codegen::sim::{FindingKind, Findings, Machine, Options, Strategy};

use super::world::{Post, ROWS, Slip, launched, machine, traced};

/// The line of the kernel that a comment marks.
fn line(mark: &str) -> Option<u32> {
    let marked = |text: &str| text.ends_with(&format!("// slip: {mark}"));
    (1..).zip(include_str!("world.rs").lines()).find(|(_, text)| marked(text)).map(|(n, _)| n)
}

/// Whether a run finds the kind as a cause, at a marked line.
fn finds(found: &Findings, kind: FindingKind, mark: &str) -> bool {
    let here = |f: &&peerwarp_codegen::sim::Finding| {
        f.kind == kind && (mark.is_empty() || f.at.loc.map(|loc| loc.line) == line(mark))
    };
    found.list[..found.causes].iter().any(|f| here(&f))
}

/// Asserts that every schedule finds the kind, at a marked line, and nothing that the others do not follow from.
#[track_caller]
fn found(machine: &Machine, kind: FindingKind, mark: &str) {
    assert!(mark.is_empty() || line(mark).is_some(), "no line is marked `{mark}`");
    for seed in 0..6 {
        for strategy in [Strategy::Random, Strategy::Adversarial] {
            let options = Options { seed, strategy, ..Options::default() };
            match machine.run(&options) {
                Ok(_) => panic!("nothing is found with {strategy:?} and seed {seed}"),
                Err(all) if !finds(&all, kind, mark) => panic!("no {kind} at `{mark}`: {all}"),
                Err(_) => {}
            }
        }
    }
}

#[track_caller]
fn slip(publish: Publish, slip: Slip, kind: FindingKind, mark: &str) {
    found(&machine(&Post { slip, ..Post::new(publish) }, 5), kind, mark);
}

#[test]
fn an_outbox_written_again_in_its_launch_is_found() {
    slip(Each, Slip::SendAgain, FindingKind::OutboxReused, "send again");
    slip(Each, Slip::SettleLate, FindingKind::OutboxReused, "settle late");
}

#[test]
fn an_outbox_that_the_end_of_a_launch_leaves_unsettled_is_found() {
    for (publish, banks) in [(Each, 2), (Batch, 2), (Each, 1)] {
        let config = Post { slip: Slip::SettleSometimes, banks, ..Post::new(publish) };
        found(&machine(&config, 3), FindingKind::UnflushedEnd, "store");
    }
    // Another role settles, and nothing orders the stores after that.
    let config = Post { slip: Slip::SettleElsewhere, banks: 1, ..Post::new(Each) };
    found(&machine(&config, 3), FindingKind::UnflushedEnd, "store");
}

#[test]
fn a_bank_put_again_without_a_credit_is_found() {
    for publish in [Each, Batch] {
        for gathers in [false, true] {
            let config = Post { one_sends: true, gathers, ..Post::new(publish) };
            found(&machine(&Post { credits: false, ..config }, 4), FindingKind::NoCredit, "put");
            // A credit says that the launches before are over, and one bank needs that of this launch.
            found(&machine(&Post { banks: 1, ..config }, 3), FindingKind::NoCredit, "put");
        }
    }
}

#[test]
fn a_count_that_is_not_that_of_the_puts_is_found() {
    slip(Each, Slip::WaitForMore, FindingKind::CountMismatch, "wait");
    slip(Each, Slip::WaitForFewer, FindingKind::CountMismatch, "wait");
    slip(Each, Slip::PutFewer, FindingKind::CountMismatch, "wait");
    slip(Batch, Slip::WaitForMore, FindingKind::CountMismatch, "wait");
    slip(Batch, Slip::PublishFewer, FindingKind::CountMismatch, "publish fewer");
}

#[test]
fn a_prefix_that_is_taken_for_a_message_is_found() {
    for publish in [Each, Batch] {
        slip(publish, Slip::Prefix, FindingKind::PrefixAssumed, "read");
        slip(publish, Slip::OneByOne, FindingKind::PrefixAssumed, "read");
    }
    // Rows that a later wait would have covered.
    slip(Each, Slip::OldRow, FindingKind::PrefixAssumed, "read");
}

#[test]
fn a_batch_that_needs_strong_order_is_found() {
    slip(Batch, Slip::PublishFirst, FindingKind::StrongOrder, "put");
    slip(Batch, Slip::PublishFirst, FindingKind::StrongOrder, "read");
    slip(Batch, Slip::PublishBeforeLast, FindingKind::StrongOrder, "put");
    slip(Batch, Slip::PublishElsewhere, FindingKind::StrongOrder, "put");
    slip(Batch, Slip::PublishElsewhere, FindingKind::StrongOrder, "read");
}

#[test]
fn a_row_put_twice_and_half_a_row_are_found() {
    let twice = kinds(&machine(&Post { slip: Slip::SendAgain, ..Post::new(Each) }, 5));
    assert!(twice.contains(&FindingKind::DataRace), "{twice:?}");
    slip(Each, Slip::HalfARow, FindingKind::UninitializedRead, "read");
}

#[test]
fn two_groups_that_take_from_one_counter_are_found() {
    let taken = kinds(&machine(&Post { slip: Slip::WaitTwice, ..Post::new(Each) }, 3));
    assert!(taken.contains(&FindingKind::DataRace), "{taken:?}");
}

/// The kinds of all findings over some seeds.
fn kinds(machine: &Machine) -> BTreeSet<FindingKind> {
    let runs = (0..6).filter_map(|seed| machine.run(&Options::default().with_seed(seed)).err());
    runs.flat_map(|f| f.list.into_iter().map(|f| f.kind)).collect()
}

#[track_caller]
fn planted(publish: Publish, mutation: &Mutation, kind: FindingKind) {
    let kernel = traced(&Post::new(publish)).unwrap();
    let mutant: Planted = mutate(&kernel, mutation).unwrap();
    let kinds = kinds(&launched(mutant, &Post::new(publish), 5));
    assert!(kinds.contains(&kind), "{mutation:?}: no {kind} among {kinds:?}");
}

#[test]
fn operations_left_out_are_found() {
    planted(
        Each,
        &Mutation::Drop(Site::new("send", Access::Settle, "rows_outbox")),
        FindingKind::UnflushedEnd,
    );
    planted(Batch, &Mutation::Drop(Site::signal("send", "rows_arrived")), FindingKind::StrongOrder);
    planted(Each, &Mutation::Drop(Site::wait("receive", "rows_arrived")), FindingKind::DataRace);
    planted(Each, &Mutation::Drop(Site::wait("rows_ready", "rows_ready")), FindingKind::CountMismatch);
    planted(Each, &Mutation::Drop(Site::signal("rows_ready", "rows_ready")), FindingKind::Deadlock);
    planted(Each, &Mutation::Drop(Site::put("send", "rows")), FindingKind::Deadlock);
    planted(Batch, &Mutation::Drop(Site::put("send", "rows").nth(0)), FindingKind::CountMismatch);
}

#[test]
fn a_row_of_an_older_launch_is_found() {
    // The last row is put in the first two launches only, and the count agrees.
    let mut kernel = traced(&Post::new(Each)).unwrap();
    let last = Site::put("send", "rows").nth(ROWS as usize - 1);
    let when = Condition::new("epoch", CompareOp::Lt, 3);
    kernel =
        mutate(&kernel, &Mutation::Guard { site: last, when, whole_parcel: false }).unwrap().into_kernel();
    let epoch = kernel.values.iter().position(|v| v.name.as_deref() == Some("epoch")).unwrap() as u32;
    let word = Type::scalar(Dtype::U32);
    let mut before = |ty: Type, kind: &dyn Fn(ValueId) -> ValueOp| {
        let out = kernel.add_value(ty, None);
        let id = kernel.add_op(kind(out), kernel.loc);
        kernel.prologue.ops.push(id);
        out
    };
    let b = before(word, &|out| ValueOp::Const { out, value: Const::U32(3) });
    let other = before(word, &|out| ValueOp::Const { out, value: Const::U32(2) });
    let (op, a) = (CompareOp::Lt, ValueId(epoch));
    let cond = before(word.with_dtype(Dtype::Bool), &|out| ValueOp::Compare { out, op, a, b });
    let n = before(word, &|out| ValueOp::Select { out, cond, a: b, b: other });
    for wait in Site::wait("receive", "rows_arrived").find(&kernel).unwrap() {
        if let OpKind::Comm(CommOp::FarWait(FarWait { value, .. })) = &mut kernel.ops[wait.index()].kind {
            *value = n;
        }
    }
    let kinds = kinds(&launched(Planted::new(kernel).unwrap(), &Post::new(Each), 5));
    assert!(kinds.contains(&FindingKind::StaleRead), "{kinds:?}");
}
