//! Packets on the simulator: what arrives, and that each mistake with them is found.

use crate::findings;
use crate::printed::looks;
use crate::printed::mail;

use std::sync::Arc;

use half::bf16;
use looks::{Heard, looks};
use mail::{MAIL_ROW, MAIL_ROWS, mail};
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel, Planted, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};

const RANKS: u32 = 4;

/// Launches a kernel `launches` times on every rank, with `x` and `n` of all ranks.
fn machine(kernel: Kernel, launches: u32, x: &[Vec<bf16>], n: &[u32]) -> Machine {
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..RANKS {
        machine.write(rank, "x", 0, &x[rank as usize]).unwrap();
        machine.write(rank, "n", 0, &n[rank as usize..=rank as usize]).unwrap();
    }
    for _ in 0..launches {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

fn rows(rank: u32) -> Vec<bf16> {
    let value = |i: u32| bf16::from_f32(((i * 7 + rank * 13) % 251) as f32 - 125.0);
    (0..MAIL_ROW * MAIL_ROWS).map(value).collect()
}

#[test]
fn what_is_sent_is_taken() {
    let mut x: Vec<Vec<bf16>> = (0..RANKS).map(rows).collect();
    // The last two elements of a packet are all ones: the packet would look empty.
    x[2][6..8].fill(bf16::from_bits(0xffff));
    let n = [3, 0, MAIL_ROWS, 1];
    for warp_size in [32, 64] {
        let machine = machine(mail(warp_size), 5, &x, &n);
        for seed in 0..12 {
            let outcome = machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{e}"));
            for rank in 0..RANKS {
                let out = outcome.memory.read::<bf16>(rank, "out").unwrap();
                for (i, got) in out.iter().enumerate() {
                    let row = i as u32 / MAIL_ROW;
                    let parts = (0..RANKS as usize).filter(|&s| row < n[s]);
                    let want = bf16::from_f32(parts.fold(0.0, |sum, s| sum + x[s][i].to_f32()));
                    assert!(
                        got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                        "rank {rank} element {i}: {got} for {want}"
                    );
                }
            }
        }
    }
}

/// Which deviation from the protocol a kernel has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    /// One bank instead of two.
    SingleBank,
    /// Takers do not signal.
    NoAnswer,
    /// A slot that is never taken.
    Untaken,
    /// The receiver looks at another slot.
    WrongSlot,
    /// The receiver believes another rank sends.
    WrongSender,
}

/// Each rank sends a row to the next one.
fn pass(bug: Bug) -> Kernel {
    let meta = TraceMeta::new("pass", RANKS, 32, 1);
    trace(meta, |p: &mut Binder| {
        let (x, out) = (p.arg::<Ptr<f32>>("x", 64), p.arg::<Ptr<f32>>("out", 64));
        let _n = p.arg::<Ptr<u32>>("n", 1);
        let inbox = p.arg::<Packets<f32>>("inbox", 3 * 64);
        let (note, answered) = (p.arg::<Sym<u32>>("note", 8), p.arg::<Flags>("answered", 8));
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        let bank = if bug == Bug::SingleBank { 0u32.val() } else { epoch.parity() * 64 };
        role("pass", 1, |_| pass_row(bug, x, out, inbox, note, answered, epoch, bank));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
#[allow(clippy::too_many_arguments)]
fn pass_row(
    bug: Bug,
    x: Ptr<f32>,
    out: Ptr<f32>,
    inbox: Packets<f32>,
    note: Sym<u32>,
    answered: Flags,
    epoch: Epoch,
    bank: Val<u32>,
) {
    let (next, last) = ((rank() + 1) % RANKS, (rank() + RANKS - 1) % RANKS);
    inbox.send(Peers::rank(next), bank, x.load(0, 64));
    if bug == Bug::Untaken {
        inbox.send(Peers::rank(next), 128, x.load(0, 64));
    }
    if bug != Bug::NoAnswer {
        let mut answer = send_to(Peers::all());
        answer.put_value(&note, epoch.parity() * RANKS + rank(), 1u32);
        answer.signal(&answered, epoch.parity() * RANKS + rank(), epoch);
    }
    let from = if bug == Bug::WrongSender { next } else { last };
    let slot = if bug == Bug::WrongSlot { 128u32.val() } else { bank };
    out.store(0, inbox.take(slot, 64, from));
    if bug != Bug::NoAnswer {
        let all = answered.wait_all(epoch.parity() * RANKS, RANKS, 1, epoch);
        note.get(&all, epoch.parity() * RANKS);
    }
}

/// The kinds of findings over some seeds.
fn found(bug: Bug, launches: u32) -> Vec<FindingKind> {
    let x: Vec<Vec<bf16>> = (0..RANKS).map(|_| vec![bf16::ONE; 128]).collect();
    findings::kinds(&machine(pass(bug), launches, &x, &[0; RANKS as usize]), 24)
}

#[test]
fn mistakes_with_packets_are_found() {
    assert_eq!(found(Bug::None, 6), []);
    assert!(found(Bug::SingleBank, 4).contains(&FindingKind::LostPacket));
    assert!(found(Bug::NoAnswer, 4).contains(&FindingKind::LostPacket));
    assert_eq!(found(Bug::Untaken, 1), [FindingKind::UntakenPacket]);
    assert_eq!(found(Bug::WrongSlot, 1), [FindingKind::Deadlock]);
    assert_eq!(found(Bug::WrongSender, 1), [FindingKind::WrongSender]);
}

#[test]
fn a_deadlock_over_packets_says_who_waits_for_which() {
    let x: Vec<Vec<bf16>> = (0..RANKS).map(|_| vec![bf16::ONE; 128]).collect();
    let machine = machine(pass(Bug::WrongSlot), 1, &x, &[0; RANKS as usize]);
    let findings = machine.run(&Options::default()).unwrap_err();
    insta::assert_snapshot!(findings.to_string());
}

/// A kernel that sends a tile of packets and takes it again.
fn sent<T: Element>(index: fn() -> Val<u32>) -> Result<Kernel, TraceError> {
    trace(TraceMeta::new("sent", RANKS, 32, 1), |p: &mut Binder| {
        let (x, packets) = (p.arg::<Ptr<T>>("x", 64), p.arg::<Packets<T>>("packets", 64));
        role("all", 1, |_| {
            packets.send(Peers::all(), index(), x.load(0, 16));
            x.store(0, packets.take(index(), 16, 0));
        });
    })
}

#[test]
fn integers_do_not_travel_as_packets() {
    let error = sent::<u32>(|| 0u32.val()).unwrap_err();
    assert!(
        error.message.starts_with("packets of u32 in `packets`: a packet that ends in all ones"),
        "{error}"
    );
    assert!(error.help.contains("LL elements") && error.loc.file.ends_with("packets.rs"), "{error}");
    sent::<i32>(|| 0u32.val()).unwrap_err();
    // Words that hold floats do, whatever their bits; other integers don't.
    let words = |dtype| {
        trace(TraceMeta::new("words", RANKS, 32, 1), |p: &mut Binder| {
            let packets = p.erased::<AnyPackets>("packets", 64, dtype);
            role("all", 1, |_| packets.send(Peers::all(), 0, packets.take(0, 16, 0)));
        })
        .unwrap()
    };
    verify(words(Dtype::U32)).unwrap();
    let refused = verify(words(Dtype::I32)).unwrap_err().to_string();
    assert!(refused.contains("packets are of floats, or of u32 words"), "{refused}");
}

#[test]
fn an_index_within_a_packet_is_refused_before_anything_is_printed() {
    verify(sent::<bf16>(|| rank() * 8).unwrap()).unwrap();
    let refused = verify(sent::<bf16>(|| rank() * 4).unwrap()).unwrap_err();
    let lines: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 2, "the sending and the taking: {refused}");
    assert!(lines.iter().all(|l| l.contains("is not known to be a multiple of 8 elements")), "{refused}");
}

/// The packets whose first loads go out before LL elements are read: none beyond a signal, a wait or a taking.
#[test]
fn looks_cross_no_wait_no_signal_and_no_taking() {
    for (heard, looked) in [(Heard::TakesBoth, 1), (Heard::BlockFlag, 0), (Heard::Flag, 0), (Heard::Ll, 1)] {
        for target in ["cuda:sm_90a", "hip:gfx942"] {
            let target: peerwarp_codegen::family::Target = target.parse().unwrap();
            let kernel = verify(looks(target.warp_size(), heard)).unwrap_or_else(|e| panic!("{e}"));
            let text = emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap().text;
            assert_eq!(text.matches(" look_at_packets(block, ").count(), looked, "{heard:?}: {text}");
        }
    }
}

/// What the simulator finds in the kernels whose packets are looked at early.
#[test]
fn takings_of_one_place_need_an_order() {
    let found = |heard| {
        let kernel = Arc::new(Compiled::new(verify(looks(32, heard)).unwrap_or_else(|e| panic!("{e}"))));
        let mut machine = Machine::new(looks::RANKS);
        machine.buffers_of(kernel.kernel()).unwrap();
        for rank in 0..looks::RANKS {
            machine.write(rank, "x", 0, &[1.0f32; 2 * looks::ROW as usize]).unwrap();
        }
        (0..3).for_each(|_| machine.launch_all(&kernel, &Bindings::new()).unwrap());
        findings::kinds(&machine, 24)
    };
    for ordered in [Heard::TakesBoth, Heard::BlockFlag, Heard::Flag] {
        assert_eq!(found(ordered), [], "{ordered:?}");
    }
    // LL elements say that the other block has taken its packets, but order nothing.
    assert_eq!(found(Heard::Ll), [FindingKind::LostPacket]);
}
