//! All ranks' memory at once: what the simulator makes of it, that each mistake is found, what is refused and what is printed.

use crate::printed::digest::{ENTRY, excerpt};
use crate::printed::switch;

use std::sync::Arc;

use half::{bf16, f16};
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::mutate::{Mutant, every, mutate};
use peerwarp_codegen::ir::{
    CommOp, Dtype, Kernel, MemoryOp, OpKind, Place, Planted, Target as To, ValueOp, verify,
};
use peerwarp_codegen::print::{EmitInfo, EmitOptions, Source, emit, emit_with};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Findings, Machine, Options};
use switch::{Bug, RANKS, ROW, switched, switched_with};

fn row(rank: u32) -> Vec<f32> {
    (0..ROW).map(|i| ((i * 7 + rank * 13) % 251) as f32 / 8.0 - 15.0).collect()
}

/// Values as elements, and back from there.
fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::Bf16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        Dtype::Fp16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn machine(kernel: Planted, dtype: Dtype, launches: u32) -> Machine {
    let kernel = Arc::new(Compiled::planted(kernel));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..RANKS {
        machine.write(rank, "x", 0, &bytes(dtype, &row(rank))).unwrap();
    }
    for _ in 0..launches {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

fn reduced(op: ReduceOp) -> Vec<f32> {
    let rows: Vec<Vec<f32>> = (0..RANKS).map(row).collect();
    let one = |a: f32, b: f32| match op {
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        _ => a + b,
    };
    let element = |i: usize| rows.iter().map(|row| row[i]).reduce(one).unwrap();
    (0..ROW as usize).map(element).collect()
}

const KINDS: [(Dtype, ReduceOp); 7] = [
    (Dtype::F32, ReduceOp::Sum),
    (Dtype::Bf16, ReduceOp::Sum),
    (Dtype::Bf16, ReduceOp::Min),
    (Dtype::Bf16, ReduceOp::Max),
    (Dtype::Fp16, ReduceOp::Sum),
    (Dtype::Fp16, ReduceOp::Min),
    (Dtype::Fp16, ReduceOp::Max),
];

#[test]
fn all_ranks_are_reduced_in_their_order() {
    for (dtype, op) in KINDS {
        let kernel = switched(dtype, op);
        verify(kernel.clone()).unwrap();
        let machine = machine(Planted::new(kernel).unwrap(), dtype, 5);
        for seed in 0..6 {
            let outcome = machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{e}"));
            for rank in 0..RANKS {
                let out = outcome.memory.read::<u8>(rank, "out").unwrap();
                assert_eq!(out, bytes(dtype, &reduced(op)), "{dtype} {op:?}, rank {rank}");
            }
        }
    }
}

/// The kinds of findings over some seeds.
fn found(kernel: &Planted, launches: u32) -> Vec<FindingKind> {
    let machine = machine(kernel.clone(), Dtype::Bf16, launches);
    let run = |seed| machine.run(&Options::default().with_seed(seed)).err();
    let mut kinds: Vec<FindingKind> =
        (0..16).filter_map(run).flat_map(|f| f.list.into_iter().map(|f| f.kind)).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

fn of_bug(bug: Bug, launches: u32) -> Vec<FindingKind> {
    found(&Planted::new(switched_with(Dtype::Bf16, ReduceOp::Sum, bug)).unwrap(), launches)
}

#[test]
fn mistakes_are_found() {
    assert_eq!(of_bug(Bug::None, 5), []);
    let early = of_bug(Bug::EarlySignal, 1);
    assert!(early.contains(&FindingKind::DataRace) || early.contains(&FindingKind::UninitializedRead));
    assert!(of_bug(Bug::MissingRank, 1).contains(&FindingKind::WrongSender));
}

fn results(machine: &Machine) -> Result<Vec<Vec<u8>>, Box<Findings>> {
    let outcome = machine.run(&Options::default())?;
    Ok((0..RANKS).map(|rank| outcome.memory.read::<u8>(rank, "out").unwrap().to_vec()).collect())
}

#[test]
fn every_planted_bug_is_found_or_shows() {
    let kernel = switched(Dtype::Bf16, ReduceOp::Sum);
    let right = results(&machine(Planted::new(kernel.clone()).unwrap(), Dtype::Bf16, 3)).unwrap();
    let is_missed = |mutant: &Mutant| {
        let planted = mutate(&kernel, &mutant.mutation).unwrap_or_else(|e| panic!("{mutant}: {e}"));
        let machine = machine(planted, Dtype::Bf16, 3);
        let clean = |seed| machine.run(&Options::default().with_seed(seed)).is_ok();
        (0..6).all(clean) && results(&machine).is_ok_and(|got| got == right)
    };
    let all = every(&kernel);
    assert!(all.len() > 10, "{}", all.len());
    let missed: Vec<&Mutant> = all.iter().filter(|m| is_missed(m)).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

/// What the verifier says of a kernel with a change.
fn refused(mut kernel: Kernel, change: impl Fn(&mut Kernel)) -> String {
    change(&mut kernel);
    verify(kernel).unwrap_err().to_string()
}

fn each_load(kernel: &mut Kernel, change: impl Fn(&mut MemoryOp)) {
    for op in &mut kernel.ops {
        if let OpKind::Memory(op @ MemoryOp::Load { place: Place::All(..), .. }) = &mut op.kind {
            change(op);
        }
    }
}

#[test]
fn what_no_switch_does_is_refused() {
    let kernel = || switched(Dtype::Bf16, ReduceOp::Sum);
    let max = verify(switched(Dtype::F32, ReduceOp::Max)).unwrap_err().to_string();
    assert!(max.contains("reduces f32 of all ranks by max, which no switch does"), "{max}");
    let or = refused(kernel(), |k| {
        each_load(k, |op| {
            if let MemoryOp::Load { place: Place::All(_, how), .. } = op {
                *how = ReduceOp::Or;
            }
        });
    });
    assert!(or.contains("reduces bf16 of all ranks by or"), "{or}");
    let without_receipt = refused(kernel(), |k| {
        each_load(k, |op| {
            if let MemoryOp::Load { receipt, .. } = op {
                *receipt = None;
            }
        });
    });
    assert!(without_receipt.contains("`vector` is read without a receipt"), "{without_receipt}");
    let of_inbox = refused(kernel(), |k| {
        let sums = k.params.iter().position(|p| p.name == "sums").unwrap() as u32;
        each_load(k, |op| {
            if let MemoryOp::Load { place: Place::All(param, _), .. } = op {
                param.0 = sums;
            }
        });
    });
    assert!(of_inbox.contains("it works on a window"), "{of_inbox}");
    let to_some = refused(kernel(), |k| {
        let rank = k.ops.iter().find_map(|op| match op.kind {
            OpKind::Value(ValueOp::Rank { out }) => Some(out),
            _ => None,
        });
        let put = k.ops.iter().find_map(|op| match &op.kind {
            OpKind::Comm(CommOp::Put(put)) => Some(put.parcel),
            _ => None,
        });
        k.parcels[put.unwrap().index()].target = To::Rank(rank.unwrap());
    });
    assert!(to_some.contains("a put to `sums` of all ranks at once"), "{to_some}");
}

/// A kernel of one role, which reads the windows of all.
fn traced(
    len: u32,
    at: impl Fn() -> Val<u32>,
    wait: fn(&Flags, Epoch) -> Arrived,
) -> Result<Kernel, TraceError> {
    trace(TraceMeta::new("read", 4, 32, 1), |p: &mut Binder| {
        let (window, out) = (p.arg::<Window<f32>>("window", 64), p.arg::<Ptr<f32>>("out", 64));
        let ready = p.arg::<Flags>("ready", 8);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("all", 1, |_| {
            window.signal(Peers::all(), &ready, rank(), epoch);
            let got = wait(&ready, epoch);
            out.store(0, window.load_reduce(ReduceOp::Sum, &got, at(), len));
        });
    })
}

#[test]
fn tiles_and_indices_are_of_whole_sixteen_bytes() {
    let all = |ready: &Flags, epoch| ready.wait_all(0, 4, 1, epoch);
    traced(32, || rank() * 4, all).map(verify).unwrap().unwrap();
    let error = verify(traced(30, || rank() * 4, all).unwrap()).unwrap_err().to_string();
    assert!(error.contains("has 120 bytes; all ranks at once are read and put to by whole 16"), "{error}");
    let error = verify(traced(32, || rank() * 2, all).unwrap()).unwrap_err().to_string();
    assert!(error.contains("not known to be a multiple of 4 elements"), "{error}");
}

#[test]
fn one_ranks_receipt_is_not_enough() {
    let error = traced(32, || rank() * 4, |ready, epoch| ready.from(1).wait(1, epoch)).unwrap_err();
    assert!(error.message.contains("with the receipt of a signal of rank 1"), "{error}");
}

fn emitted(dtype: Dtype, op: ReduceOp, target: &str) -> Result<Source, String> {
    let mut kernel = switched(dtype, op);
    let target: Target = target.parse().unwrap();
    // HIP's warps: nothing in the kernel depends on them.
    kernel.warp_size = target.warp_size();
    kernel.block_warps = 128 / target.warp_size();
    let info = EmitInfo { command: "a test".into() };
    let options = EmitOptions { lines: false, ..EmitOptions::default() };
    emit_with(&verify(kernel).unwrap(), target, &info, &options).map_err(|e| e.to_string())
}

#[test]
fn it_is_printed_for_targets_that_can() {
    let source = emitted(Dtype::Bf16, ReduceOp::Sum, "cuda:sm_90a").unwrap();
    let text = &source.text;
    insta::assert_snapshot!(excerpt(source.roles(), &[ENTRY]));
    // A pointer to all ranks' instances comes after those of the ranks.
    assert!(text.contains("bf16* vector[5];") && text.contains("bf16* sums[5];"), "{text}");
    assert!(text.contains("bf16* x;") && text.contains("u32* ready[4];"), "{text}");
    for (dtype, op) in KINDS {
        let text = emitted(dtype, op, "cuda:sm_100a").unwrap().text;
        assert!(text.contains(&format!("multimem_{}_{dtype}(args.vector[ranks]", op.name())), "{text}");
    }
}

#[test]
fn other_targets_are_told() {
    for target in ["cuda:sm_80", "cuda:sm_89", "hip:gfx942"] {
        let error = emitted(Dtype::Bf16, ReduceOp::Sum, target).unwrap_err();
        let said = format!("reaches `vector` of all ranks at once, and {target} has no multimem");
        assert!(error.contains(&said), "{error}");
    }
}

/// What a rank stores by its own pointer after the wait comes before the switch reads it: a proxy fence stands between.
#[test]
fn a_store_of_its_own_is_fenced_before_all_ranks_are_read() {
    let text = |late: bool| {
        let kernel = trace(TraceMeta::new("late", RANKS, 32, 4), |p: &mut Binder| {
            let (x, out): (Ptr<f32>, Ptr<f32>) = (p.arg("x", ROW.into()), p.arg("out", ROW.into()));
            let vector: Window<f32> = p.arg("vector", ROW.into());
            let ready: Flags = p.arg("ready", RANKS.into());
            let epoch = p.arg::<EpochWord>("epoch", 1).begin();
            role("all", 1, |_| {
                vector.store(0, x.load(0, ROW));
                vector.signal(Peers::all(), &ready, rank(), epoch);
                let got = ready.wait_all(0, RANKS, 1, epoch);
                let share = rank() * switch::SHARE;
                if late {
                    vector.store(share, x.load(share, switch::SHARE) * 2.0);
                }
                out.store(share, vector.load_reduce(ReduceOp::Sum, &got, share, switch::SHARE));
            });
        });
        let kernel = verify(kernel.unwrap_or_else(|e| panic!("{e}"))).unwrap_or_else(|e| panic!("{e}"));
        let target: Target = "cuda:sm_90a".parse().unwrap();
        emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap().text
    };
    let fences = |text: &str| text.matches("    multimem_fence();").count();
    assert_eq!(fences(&text(false)), 1, "behind the wait alone");
    let late = text(true);
    let read = late.find("multimem_sum_f32(args").expect("the switch reads");
    let before = &late[..read];
    let stored = before.rfind("store(").expect("a store stands before it");
    assert!(before[stored..].contains("multimem_fence();"), "{late}");
    assert_eq!(fences(&late), 2, "{late}");
}
