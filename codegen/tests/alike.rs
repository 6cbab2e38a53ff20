//! Accesses that all pointers have alike, simulated.

use std::sync::Arc;

use half::bf16;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
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
