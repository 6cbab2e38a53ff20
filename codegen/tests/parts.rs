//! Tiles of products that go to other ranks, on the simulator: into inboxes and out of windows, with edges, and each mistake with
//! them is found.

use crate::printed::parts;

use std::sync::Arc;

use half::bf16;
use parts::{COLUMNS, K, RANKS, ROWS, parts};
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::mutate::{every, mutate};
use peerwarp_codegen::ir::{CommOp, Dtype, Kernel, OpKind, Place, Planted, VerifyErrors, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

/// A matrix of small whole numbers.
fn matrix(rows: u32, seed: u32) -> Vec<f32> {
    (0..rows * K).map(|i| ((i * 7 + i / K * 3 + seed * 13) % 17) as f32 - 8.0).collect()
}

fn expected() -> Vec<f32> {
    let sum = |rank: u32, row: u32, column: u32| {
        let (x, w) = (matrix(ROWS, rank), matrix(COLUMNS, 5 + rank));
        (0..K).map(|i| x[(row * K + i) as usize] * w[(column * K + i) as usize]).sum::<f32>()
    };
    let of = |row, column| {
        (0..RANKS).map(|rank| sum(rank, row, column)).map(|s| bf16::from_f32(s).to_f32() + s).sum::<f32>()
    };
    (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| of(row, column))).collect()
}

fn machine(kernel: Planted) -> Machine {
    let kernel = Arc::new(Compiled::planted(kernel));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    let narrow = |m: Vec<f32>| m.into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    for rank in 0..RANKS {
        machine.write(rank, "x", 0, &narrow(matrix(ROWS, rank))).unwrap();
        machine.write(rank, "w", 0, &narrow(matrix(COLUMNS, 5 + rank))).unwrap();
    }
    for _ in 0..3 {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

/// Whether results are right under all of some schedules, and nothing is found.
fn holds(kernel: &Planted, expected: &[f32]) -> bool {
    let machine = machine(kernel.clone());
    (0..6).all(|seed| {
        let outcome = machine.run(&Options::default().with_seed(seed));
        outcome.is_ok_and(|o| (0..RANKS).all(|rank| o.memory.read::<f32>(rank, "out").unwrap() == expected))
    })
}

#[test]
fn tiles_are_put_and_read_where_they_are() {
    for warp_size in [32, 64] {
        assert!(holds(&Planted::new(parts(warp_size)).unwrap(), &expected()));
    }
}

/// Every row, column, flag, rank and epoch that is off by one, signals that are relaxed or left out, and the like.
#[test]
fn every_planted_mistake_shows() {
    let (kernel, expected) = (parts(32), expected());
    let mut shown = 0;
    for mutant in &every(&kernel) {
        let Ok(planted) = mutate(&kernel, &mutant.mutation) else { continue };
        assert!(!holds(&planted, &expected), "nothing shows {mutant}");
        shown += 1;
    }
    assert!(shown >= 40, "{shown} mistakes");
}

/// What the verifier says of a kernel whose put of a matrix is another one.
fn refused(change: impl FnOnce(&mut Kernel)) -> String {
    let mut kernel = parts(32);
    change(&mut kernel);
    verify(kernel).map_err(|e: VerifyErrors| e.to_string()).expect_err("it is wrong")
}

fn puts(kernel: &mut Kernel, change: impl Fn(&mut peerwarp_codegen::ir::PutMatrix)) {
    for op in &mut kernel.ops {
        if let OpKind::Comm(CommOp::PutMatrix(put)) = &mut op.kind {
            change(put);
        }
    }
}

#[test]
fn what_cannot_be_put_is_refused_by_the_verifier() {
    let param = |kernel: &Kernel, name: &str| {
        Place::Param(peerwarp_codegen::ir::ParamId(
            kernel.params.iter().position(|p| p.name == name).unwrap() as u32,
        ))
    };
    let all = [
        ("this rank's own matrix", {
            refused(|k| {
                let out = param(k, "out");
                puts(k, |put| put.to.place = out);
            })
        }),
        ("a window", {
            refused(|k| {
                let window = param(k, "window");
                puts(k, |put| put.to.place = window);
            })
        }),
        ("no matrix", refused(|k| k.params.iter_mut().find(|p| p.name == "inbox").unwrap().columns = None)),
        ("a scalar", refused(|k| puts(k, |put| put.value = put.column))),
        ("to all at once", refused(|k| k.parcels.iter_mut().for_each(|p| p.multicast = true))),
    ];
    let text: Vec<String> = all.iter().map(|(what, said)| format!("{what}\n{said}\n")).collect();
    insta::assert_snapshot!(text.join("\n"));
}

fn said(body: impl FnOnce(&mut Binder)) -> String {
    trace(TraceMeta::new("demo", 2, 32, 4), body).expect_err("it is wrong").to_string()
}

#[test]
fn mistakes_end_the_trace() {
    let with = |act: fn(Group, AnySymMatrix, AnyWindowMatrix, Flags, Epoch, Tile<f32>)| {
        said(move |p| {
            let x: AnyMatrix = p.matrix("x", [64, 128], Dtype::Bf16);
            let inbox = p.matrix("inbox", [128, 64], Dtype::Bf16);
            let (window, flags) = (p.matrix("window", [128, 64], Dtype::Bf16), p.arg("flags", 4));
            let epoch = p.arg::<EpochWord>("epoch", 1).begin();
            role("multiply", 1, |b| {
                act(b, inbox, window, flags, epoch, b.dot(x.rows(0, 64), x.rows(0, 64), 2))
            });
        })
    };
    let all = [
        with(|_, inbox, _, flags, epoch, _| {
            let mut part = send_to(Peers::all());
            part.put_rows_f32(&inbox, 0, 0, splat(1.0, 64));
            part.signal(&flags, 0, epoch);
        }),
        with(|_, inbox, _, _, _, sums| {
            let mut part = send_to(Peers::all());
            part.put_rows_f32(&inbox, 0, 0, sums);
        }),
        with(|_, _, window, flags, epoch, sums| {
            let got = flags.from(1).wait(0, epoch);
            window.rows(0, 64).store_f32(0, sums + window.of(0).rows(&got, 0, 64).load_f32(0, 64));
        }),
        with(|_, _, window, flags, epoch, sums| {
            let got = flags.from(1).wait(0, epoch);
            window.rows(0, 64).store_f32(0, sums + window.of(7).rows(&got, 0, 64).load_f32(0, 64));
        }),
    ];
    insta::assert_snapshot!(all.join("\n\n"));
}
