//! Waits for some of several flags, and loads that happen or not.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Planted;
use peerwarp_codegen::ir::{Dtype, Kernel};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};

const RANKS: u32 = 4;
const LEN: u32 = 64;

/// Ranks 0 and 2 send a row to all ranks; every rank adds up what the ranks of `loaded` sent, having waited for the ranks of
/// `awaited`.
fn some_send(awaited: u64, loaded: u64) -> Kernel {
    trace(TraceMeta::new("some", RANKS, 32, 1), |p: &mut Binder| {
        let x = p.erased::<AnyPtr>("x", LEN.into(), Dtype::F32);
        let out = p.arg::<Ptr<f32>>("out", LEN.into());
        let inbox = p.erased::<AnySym>("inbox", (RANKS * LEN).into(), Dtype::F32);
        let flag = p.arg::<Flags>("flag", RANKS.into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("all", 1, |_| exchange(awaited, loaded, &x, &out, &inbox, &flag, epoch));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn exchange(
    awaited: u64,
    loaded: u64,
    x: &AnyPtr,
    out: &Ptr<f32>,
    inbox: &AnySym,
    flag: &Flags,
    epoch: Epoch,
) {
    if rank() % 2 == 0 {
        let mut row = send_to(Peers::all());
        row.put_any(inbox, rank() * LEN, x.load(0, LEN));
        row.signal(flag, rank(), epoch);
    }
    let arrived = flag.wait_some(0, RANKS, awaited, 1, epoch);
    let mut sum = var(splat(0f32, LEN));
    for from in 0..RANKS {
        let there = (loaded.val() & bit(from.val())) != 0;
        sum += inbox.load_if(&arrived, from * LEN, LEN, there).to_f32();
    }
    // Beyond the end of `x`, were it read.
    sum += x.load_if(rank() + 1, LEN, rank() > RANKS).to_f32();
    out.store(0, &sum);
}

/// What is found over some seeds; where nothing is, the sums are right.
fn found(awaited: u64, loaded: u64) -> Vec<FindingKind> {
    let kernel = Arc::new(Compiled::planted(Planted::new(some_send(awaited, loaded)).unwrap()));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    let row = |rank: u32| (0..LEN).map(|i| (i + 100 * rank) as f32).collect::<Vec<_>>();
    for rank in 0..RANKS {
        machine.write(rank, "x", 0, &row(rank)).unwrap();
    }
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    let mut kinds = vec![];
    for seed in 0..16 {
        match machine.run(&Options::default().with_seed(seed)) {
            Err(findings) => kinds.extend(findings.list.iter().map(|f| f.kind)),
            Ok(outcome) => {
                let want: Vec<f32> = (0..LEN).map(|i| (2 * i + 200) as f32).collect();
                (0..RANKS).for_each(|r| assert_eq!(outcome.memory.read::<f32>(r, "out").unwrap(), want));
            }
        }
    }
    kinds.sort();
    kinds.dedup();
    kinds
}

#[test]
fn flags_that_the_mask_leaves_out_are_not_waited_for() {
    assert_eq!(found(0b0101, 0b0101), []);
    assert_eq!(found(0b0111, 0b0101), [FindingKind::Deadlock]);
}

#[test]
fn what_is_read_has_to_be_waited_for() {
    let kinds = found(0b0001, 0b0101);
    assert!(kinds.contains(&FindingKind::DataRace), "{kinds:?}");
    assert!(!found(0b0101, 0b0111).is_empty(), "no rank writes the row of rank 1");
}
