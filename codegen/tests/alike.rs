//! Accesses that all pointers have alike, simulated.

use std::sync::Arc;

use half::bf16;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace, trace_args};
use peerwarp_codegen::ir::{Dtype, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

use crate::printed::alike::{LEN, alike};

#[test]
fn floats_are_gathered_scattered_and_repeated() {
    let kernel = Arc::new(Compiled::new(verify(alike(32)).unwrap_or_else(|e| panic!("{e}"))));
    let mut machine = Machine::new(1);
    machine.buffers_of(kernel.kernel()).unwrap();
    let x: Vec<bf16> = (0..LEN).map(|i| bf16::from_f32(i as f32 - 20.0)).collect();
    let bias: Vec<f32> = (0..LEN).map(|i| (i % 5) as f32).collect();
    machine.write(0, "x", 0, &x).unwrap();
    machine.write(0, "bias", 0, &bias).unwrap();
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    let memory = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}")).memory;
    let x = |i: u32| if i < LEN - 8 { i as f32 - 20.0 } else { -1.0 };
    let turned: Vec<bf16> = (0..LEN).rev().map(|i| bf16::from_f32(2.0 * x(i))).collect();
    assert_eq!(memory.read::<bf16>(0, "turned").unwrap(), turned);
    let gathered: Vec<f32> = (0..LEN).map(|i| if i > 0 { x(LEN - 1 - i) } else { 0.5 }).collect();
    assert_eq!(memory.read::<f32>(0, "gathered").unwrap(), gathered);
    let row: Vec<f32> = (0..LEN).map(|i| x(i) + bias[i as usize]).collect();
    assert_eq!(memory.read::<f32>(0, "rows").unwrap(), row.repeat(LEN as usize));
    let most = row.iter().copied().fold(f32::MIN, f32::max);
    assert_eq!(memory.read::<bf16>(0, "most").unwrap(), vec![bf16::from_f32(most); LEN as usize]);
}

#[test]
fn a_matrix_of_one_column_is_no_operand_of_a_product() {
    let kernel = trace(TraceMeta::new("thin", 1, 32, 4), |p: &mut Binder| {
        let thin = p.matrix::<AnyMatrix>("thin", [64, 1], Dtype::Bf16);
        role("multiply", 1, |b| {
            let sums = b.dot(thin.rows(0, 64), thin.rows(0, 64), 2);
            thin.rows(0, 64).store_f32(0, sums);
        });
    });
    let refused = kernel.map(|kernel| verify(kernel).unwrap_err().to_string());
    let refused = refused.unwrap_or_else(|e| e.to_string());
    assert!(refused.contains("`thin` has rows of 1 elements, which are no whole 16 bytes"), "{refused}");
}

#[test]
fn flags_of_blocks_are_awaited_as_those_of_ranks() {
    let text = |wait: fn(BlockFlags, Epoch)| {
        let kernel = trace(TraceMeta::new("waits", 1, 32, 1), |p: &mut Binder| {
            let done = p.arg::<BlockFlags>("done", 8);
            let epoch = p.arg::<EpochWord>("epoch", 1).begin();
            role("sets", 4, |b| {
                done.signal(b.index() * 2, epoch);
                done.signal(b.index() * 2 + 1, epoch);
            });
            role("waits", 1, |_| wait(done, epoch));
        });
        kernel.unwrap_or_else(|e| panic!("{e}")).to_string()
    };
    let from_the_third = text(|done, epoch| done.wait_all(4, 4, 2, epoch));
    assert!(from_the_third.contains("block_wait @done[4; 4] =="), "{from_the_third}");
    assert!(from_the_third.contains("from block 2 on, 2 a block"), "{from_the_third}");
    assert_eq!(from_the_third, text(|done, epoch| done.from(2).wait_all(4, 4, 2, epoch)));
}

/// Matrices whose types say their elements.
#[derive(KernelArgs)]
#[args(config = u32)]
struct Typed {
    #[input]
    #[shape(|k| [64, *k])]
    x: Matrix<bf16>,
    #[shape(|k| [64, *k])]
    inbox: SymMatrix<bf16>,
    #[shape(|_| [64, 64])]
    shown: WindowMatrix<f32>,
    #[len(|_| 2)]
    there: Flags,
    epoch: EpochWord,
}

/// The same, whose elements the config chooses.
#[derive(KernelArgs)]
#[args(config = u32)]
struct Chosen {
    #[input]
    #[shape(|k| [64, *k])]
    #[dtype(|_| Dtype::Bf16)]
    x: AnyMatrix,
    #[shape(|k| [64, *k])]
    #[dtype(|_| Dtype::Bf16)]
    inbox: AnySymMatrix,
    #[shape(|_| [64, 64])]
    #[dtype(|_| Dtype::F32)]
    shown: AnyWindowMatrix,
    #[len(|_| 2)]
    there: Flags,
    epoch: EpochWord,
}

#[test]
fn matrices_of_a_type_are_those_of_a_chosen_one() {
    macro_rules! text {
        ($args:ident) => {{
            let meta = TraceMeta::new("pairs", 2, 32, 4);
            let kernel = trace_args::<$args>(meta, &128, |_, a| {
                let epoch = a.epoch.begin();
                role("multiply", 1, |b| {
                    let peer = (rank() + 1) % 2;
                    let x = a.x.rows(0, 64);
                    let mut parcel = send_to(Peers::rank(peer));
                    parcel.put_rows_f32(&a.inbox, 0, 0, x.load_f32(0, 128));
                    parcel.signal(&a.there, 0, epoch);
                    let got = a.there.from(peer).wait(0, epoch);
                    a.shown.rows(0, 64).store_f32(0, b.dot(a.inbox.rows(&got, 0, 64), x, 2));
                    a.shown.signal(Peers::rank(peer), &a.there, 1, epoch);
                    let seen = a.there.from(peer).wait(1, epoch);
                    a.shown.rows(0, 64).store_f32(0, a.shown.of(peer).rows(&seen, 0, 64).load_f32(0, 64));
                });
            });
            kernel.unwrap_or_else(|e| panic!("{e}")).to_string()
        }};
    }
    let typed = text!(Typed);
    assert_eq!(typed, text!(Chosen));
    assert!(typed.contains("bf16"), "{typed}");
}

#[test]
fn elements_of_a_matrix_of_a_type_have_that_type() {
    let kernel = trace(TraceMeta::new("ends", 1, 32, 1), |p: &mut Binder| {
        let x = p.matrix::<Matrix<f32>>("x", [8, 4], Dtype::F32);
        role("ends", 1, |_| {
            let (first, last): (Val<f32>, Val<f32>) = (x.elements().get(0), x.elements().get(31));
            x.elements().set(0, first + last);
        });
    });
    assert!(kernel.unwrap().to_string().contains("@x[31]"));
}
