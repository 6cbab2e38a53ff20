use super::*;
use crate::families::moe::RowDtype;
use crate::runtime::WorldOptions;
use crate::runtime::mock::{Machine, MockGpu, Uncompiled};

#[test]
fn what_is_written_beyond_the_rows_is_found() {
    let mut bytes = [POISON; 9];
    bytes[1] = 0;
    untouched("out", &bytes, 2).unwrap();
    let said = untouched("out", &bytes, 1).unwrap_err();
    assert_eq!(said, "byte 1 of out was written, whose rows end with byte 1");
}

#[test]
fn kernels_that_write_nothing_leave_poison() {
    let shape = MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Fp8 };
    let problem = MoeProblem::uniform(shape, &[3, 1], 1).unwrap();
    let tuning = MoeTuning::defaults(&shape).unwrap();
    let world = World::of_gpus(&MockGpu::all(&Arc::new(Machine::default()), 2), &WorldOptions::default());
    let moe = MoeGpu::new(&problem, &tuning, 1, &Arc::new(world.unwrap()), &Uncompiled).unwrap();
    let ran = moe.poisoned().run(0).unwrap();
    let wrong = ran.wrong_dispatch.unwrap();
    assert!(wrong.starts_with("round 0, rank 0: rows of each expert: byte 0 is 0xff"), "{wrong}");
    assert_eq!((ran.errors.compared, ran.errors.wrong), (4 * 64, 4 * 64));
    assert!(ran.errors.first_wrong.unwrap().contains("NaN"));
}
