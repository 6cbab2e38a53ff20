//! Where barriers go: every hazard between lanes gets one, and nothing else does.

use crate::dsl::prelude::*;
use crate::family::{CudaArch, Target};
use crate::ir::{Access, ControlOp, Kernel, MemoryOp, OpKind, Place};
use crate::print::{
    analysis::program::Program,
    facts::{forms::Forms, sync::Barriers},
    layout::spread::Layouts,
};

use super::kernel;

/// What has a barrier before it, in program order: `write s`, `read x`.
fn barriers(k: &Kernel) -> Vec<String> {
    let p = Program::new(k);
    let layouts = Layouts::new(&p, Target::Cuda(CudaArch::Sm90a)).unwrap();
    let b = Barriers::new(&p, &layouts, &Forms::new(&p, &layouts));
    let name = |place| match place {
        Place::Param(id) | Place::Peer(id, _) | Place::All(id, _) => k.params[id.index()].name.clone(),
        Place::Shared(id) => k.shared[id.index()].name.clone(),
    };
    let found = p.ops().iter().filter(|&&id| b.before(id)).map(|&id| {
        let kind = &k.op(id).kind;
        match kind.accesses().as_slice() {
            [a] => {
                let writes =
                    a.access != Access::Load && !matches!(kind, OpKind::Memory(MemoryOp::Tally { .. }));
                format!("{} {}", if writes { "write" } else { "read" }, name(a.place))
            }
            [] if matches!(kind, OpKind::Control(ControlOp::Split { .. })) => "split".into(),
            [] if kind.is_loop() => "loop".into(),
            _ => panic!("a barrier before {kind:?}"),
        }
    });
    found.collect()
}

/// Barriers of a role that has a shared array `s` of 512 words and a buffer `x` of 4096.
#[track_caller]
fn of(body: impl FnOnce(Group, Shared<u32>, Ptr<u32>)) -> Vec<String> {
    let k = kernel(|p| {
        let x = p.arg::<Ptr<u32>>("x", 4096);
        role("main", 2, |b| body(b, shared::<u32>("s", 512), x));
    });
    barriers(&k)
}

#[test]
fn a_store_then_a_read_by_other_lanes() {
    assert_eq!(
        of(|_, s, x| {
            s.store(0, x.load(0, 512));
            x.store(512, s.gather(511 - arange(512), true, 0))
        }),
        ["read s"]
    );
    // One lane stores, every lane reads.
    assert_eq!(
        of(|_, s, x| {
            s.set(3, 1);
            x.set(0, s.get(3))
        }),
        ["read s"]
    );
}

#[test]
fn a_read_then_an_overwrite_by_other_lanes() {
    assert_eq!(
        of(|_, s, x| {
            s.store(0, x.load(0, 512));
            let v = s.get(5);
            s.store(1, splat(v, 511))
        }),
        ["read s", "write s"]
    );
}

#[test]
fn the_same_lane_needs_none() {
    // The same elements with the same layout are the same lane's.
    assert!(
        of(|_, s, x| {
            s.store(0, x.load(0, 512));
            x.store(512, s.load(0, 512))
        })
        .is_empty()
    );
    // Scalar stores are all the first lane's.
    assert!(
        of(|_, s, _| {
            s.set(3, 1);
            s.set(3, 2)
        })
        .is_empty()
    );
    // Another width is another layout: 510 elements go two a lane.
    assert_eq!(
        of(|_, s, x| {
            s.store(0, x.load(0, 512));
            x.store(512, s.load(0, 510))
        }),
        ["read s"]
    );
}

#[test]
fn elements_that_are_apart_need_none() {
    assert!(
        of(|b, s, x| {
            let i = b.index();
            s.set(i, 1);
            x.set(i, s.get(i + 1))
        })
        .is_empty()
    );
    assert_eq!(
        of(|b, s, x| {
            let i = b.index() * 4;
            s.store(i, splat(1u32, 128));
            x.set(0, s.get(i + 127))
        }),
        ["read s"]
    );
    assert!(
        of(|b, s, x| {
            let i = b.index() * 4;
            s.store(i, splat(1u32, 128));
            x.set(0, s.get(i + 128))
        })
        .is_empty()
    );
    assert!(
        of(|b, s, x| {
            let i = b.index() * 4 + 1;
            x.set(0, s.get(i));
            s.store(i + 1, splat(1u32, 128))
        })
        .is_empty()
    );
}

#[kernel]
fn rows_apart(b: Group, _: Shared<u32>, x: Ptr<u32>) {
    for row in b.strided(8) {
        x.store(row * 128, splat(row, 128));
    }
}

#[kernel]
fn rows_that_overlap(b: Group, _: Shared<u32>, x: Ptr<u32>) {
    for row in b.strided(8) {
        x.store(row * 60, splat(row, 128));
    }
}

#[kernel]
fn rows_backwards(b: Group, _: Shared<u32>, x: Ptr<u32>) {
    for row in b.strided(8) {
        x.store((31 - row) * 128, splat(row, 128));
    }
}

#[kernel]
fn rows_by_table(b: Group, _: Shared<u32>, x: Ptr<u32>) {
    for row in b.strided(8) {
        let to = x.get(row);
        x.store(to * 128 + 1024, splat(row, 128));
    }
}

#[test]
fn rounds_of_a_loop() {
    // Two blocks: the rows of one group are two apart.
    assert!(of(rows_apart).is_empty());
    assert_eq!(of(rows_that_overlap), ["write x"]);
    assert!(of(rows_backwards).is_empty());
    // What a table says could be anything: neither the read nor the write may pass the last round's write.
    assert_eq!(of(rows_by_table), ["read x", "write x"]);
}

#[kernel]
fn rows_of_a_table(b: Group, s: Shared<u32>, x: Ptr<u32>, len: u32, step: u32) {
    for i in b.strided(8) {
        x.store(s.get(i).to_u64() * u64::from(step), splat(i, len));
    }
}

#[kernel]
fn pieces_of_rows_of_a_table(b: Group, s: Shared<u32>, x: Ptr<u32>, pieces: u32) {
    for i in b.strided(8) {
        let row = s.get(i).to_u64() * 300;
        for piece in 0..pieces.val() {
            x.store(row + (piece * 128).to_u64(), splat(i, 128));
        }
        x.store(row + 256, splat(i, 44));
    }
}

#[test]
fn rows_from_a_table() {
    // Equal rows are stored by the same lanes, other rows are apart: wherever the table says.
    assert!(of(|b, s, x| rows_of_a_table(b, s, x, 100, 100)).is_empty());
    assert!(of(|b, s, x| rows_of_a_table(b, s, x, 90, 100)).is_empty());
    assert_eq!(of(|b, s, x| rows_of_a_table(b, s, x, 101, 100)), ["write x"]);
    // In 32 bits the product may wrap to any multiple of 4, so rows of 100 may overlap.
    let wraps = |b: Group, s: Shared<u32>, x: Ptr<u32>| x.store(s.get(b.index()) * 100, splat(1u32, 100));
    let twice = |b: Group, s: Shared<u32>, x: Ptr<u32>| {
        wraps(b, s, x);
        x.store(s.get(b.index() + 1) * 100, splat(1u32, 100));
    };
    assert_eq!(of(twice), ["write x"]);
    let power = |b: Group, s: Shared<u32>, x: Ptr<u32>| {
        x.store(s.get(b.index()) * 128, splat(1u32, 128));
        x.store(s.get(b.index() + 1) * 128, splat(1u32, 128));
    };
    assert!(of(power).is_empty());
    // Two pieces fit before the last one, which is shorter; a third one reaches into the next row.
    assert!(of(|b, s, x| pieces_of_rows_of_a_table(b, s, x, 2)).is_empty());
    assert_eq!(of(|b, s, x| pieces_of_rows_of_a_table(b, s, x, 3)), ["loop", "write x"]);
    // What is read whole by every lane is not the same lane's.
    let read_back = |b: Group, s: Shared<u32>, x: Ptr<u32>| {
        rows_of_a_table(b, s, x, 100, 100);
        s.set(9, x.get(s.get(3).to_u64() * 100));
    };
    assert_eq!(of(read_back), ["read x"]);
}

#[kernel]
fn votes_in_rounds(b: Group, s: Shared<u32>, x: Ptr<u32>) {
    for i in b.strided(8) {
        if (x.load(i * 32, 32) == 0).any() {
            s.store(0, splat(i, 32));
            x.set(4000, s.get(7));
        }
    }
}

#[test]
fn a_vote_is_a_meeting() {
    // The next round's store comes after the vote that follows this round's read.
    assert_eq!(of(votes_in_rounds), ["read s"]);
    // So is a sum of several warps, but no warps meet for one that is never read.
    let sum = |read: bool| {
        move |_: Group, s: Shared<u32>, x: Ptr<u32>| {
            s.store(0, x.load(0, 512));
            let total = x.load(512, 32).sum();
            let value = s.get(5);
            x.set(1024, if read { value + total } else { value });
        }
    };
    assert!(of(sum(true)).is_empty());
    assert_eq!(of(sum(false)), ["read s"]);
}

#[kernel]
fn looked_up_in_rounds(_: Group, s: Shared<u32>, x: Ptr<u32>) {
    s.store(0, x.load(0, 512));
    let mut sum = var(0u32);
    for i in 0..x.get(0) {
        for j in 0..x.get(1) {
            sum += s.get(i + j);
        }
    }
    x.set(2, sum.get());
}

#[kernel]
fn written_in_rounds_too(_: Group, s: Shared<u32>, x: Ptr<u32>) {
    s.store(0, x.load(0, 512));
    for i in 0..x.get(0) {
        let n = s.get(i);
        s.store(0, splat(n, 512));
    }
}

#[test]
fn what_came_before_a_loop_is_met_before_it() {
    assert_eq!(of(looked_up_in_rounds), ["loop"]);
    // A barrier in every round is needed anyway, and one before the loop would be one more.
    assert_eq!(of(written_in_rounds_too), ["read s", "write s"]);
}

#[kernel]
fn around_the_back_edge(b: Group, s: Shared<u32>, x: Ptr<u32>) {
    for i in 0..b.index() {
        x.set(i + 1, s.get(511 - i));
        s.store(0, splat(i, 512));
    }
}

#[kernel]
fn left_by_break(b: Group, s: Shared<u32>, x: Ptr<u32>) {
    for i in 0..b.index() {
        if i == 3 {
            s.store(0, splat(i, 512));
            break;
        }
    }
    x.set(1, s.get(9));
}

#[kernel]
fn skipped_by_continue(b: Group, s: Shared<u32>, x: Ptr<u32>) {
    for i in 0..b.index() {
        x.set(i + 1, s.get(9));
        if i == 3 {
            s.store(0, splat(i, 512));
            continue;
        }
    }
}

#[test]
fn exits_carry_what_was_touched() {
    assert_eq!(of(around_the_back_edge), ["read s", "write s"]);
    assert_eq!(of(left_by_break), ["read s"]);
    assert_eq!(of(skipped_by_continue), ["read s", "write s"]);
}

#[kernel]
fn one_arm(b: Group, s: Shared<u32>, x: Ptr<u32>) {
    if b.index() == 0 {
        s.store(0, splat(1u32, 512));
    }
    x.set(0, s.get(5));
}

#[kernel]
fn both_in_arms(b: Group, s: Shared<u32>, x: Ptr<u32>) {
    if b.index() == 0 {
        s.store(0, splat(1u32, 512));
    } else {
        x.set(0, s.get(5));
    }
}

#[test]
fn arms() {
    assert_eq!(of(one_arm), ["read s"]);
    // Control flow is uniform: a group takes one arm.
    assert!(of(both_in_arms).is_empty());
}

#[test]
fn a_split_is_met_when_groups_touch_what_the_block_did() {
    let k = |touch: fn(Shared<u32>, Ptr<u32>, Group)| {
        of(move |b, s, x| {
            s.store(0, splat(1u32, 512));
            b.split(1, |g| touch(s, x, g));
        })
    };
    assert_eq!(k(|s, x, g| x.set(g.index() + 1024, s.get(7))), ["split"]);
    assert!(k(|_, x, g| x.set(g.index() + 1024, 7)).is_empty());
    // The lanes of a group are not those of the block, so the same tile is spread over other threads.
    assert_eq!(k(|s, x, _| x.store(1024, s.load(0, 512))), ["split"]);
}

#[test]
fn after_a_split_all_groups_have_met() {
    let body = |b: Group, s: Shared<u32>, x: Ptr<u32>| {
        b.split(1, |g| s.set(g.in_block(), 1));
        x.set(0, s.get(3));
    };
    assert!(of(body).is_empty());
}

#[test]
fn waits_and_signals_are_barriers_and_puts_are_not_ordered() {
    let k = kernel(|p| {
        let x = p.arg::<Ptr<u32>>("x", 4096);
        let inbox = p.arg::<Sym<u32>>("inbox", 4096);
        let flag = p.arg::<Flags>("flag", 16);
        let word = p.arg::<EpochWord>("epoch", 1);
        let epoch = word.begin();
        role("main", 1, |_| {
            let mut parcel = send_to(Peers::all());
            parcel.put(&inbox, 0, x.load(0, 512));
            // Puts of one parcel, even to the same place, are published together.
            parcel.put(&inbox, 1, x.load(512, 512));
            x.store(4, splat(0u32, 64));
            parcel.signal(&flag, rank(), epoch);
            x.set(9, 1);
            let got = flag.from(1).wait(0, epoch);
            x.store(9, inbox.load(&got, 0, 64));
            // A put may go to this very rank: not before all lanes have read.
            let mut parcel = send_to(Peers::rank(1));
            parcel.put(&inbox, 8, x.load(2048, 512));
            parcel.signal(&flag, 1, epoch);
        });
    });
    assert_eq!(barriers(&k), ["write x", "write inbox"]);
}

#[test]
fn a_peers_window_may_be_this_ranks_own() {
    let k = kernel(|p| {
        let (window, out) = (p.arg::<Window<u32>>("window", 512), p.arg::<Ptr<u32>>("out", 512));
        let (ready, epoch) = (p.arg::<Flags>("ready", 8), p.arg::<EpochWord>("epoch", 1).begin());
        role("main", 1, |_| {
            window.signal(Peers::all(), &ready, rank(), epoch);
            let got = ready.wait_all(0, ranks(), 1, epoch);
            window.store(0, arange(512));
            // Without a wait in between: what another lane has stored.
            out.store(0, window.of(rank()).gather(&got, 511 - arange(512), true, 0));
        });
    });
    assert_eq!(barriers(&k), ["read window"]);
}
