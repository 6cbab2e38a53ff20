//! Operations of the language: GPUs compute functions to the simulator's bit, and blocks complete rows by counting.

use super::cases::{cases, cases_of};
use super::op_families::{Functions, GatherToRoot, Together};

#[test]
fn functions_have_the_bits_of_the_simulator() {
    cases_of(1, "functions", 2, |cases| {
        cases.run::<Functions>("pieces=1 ranks=1");
        cases.run::<Functions>("pieces=256 ranks=1 warps=8");
    });
}

#[test]
fn blocks_complete_a_row_together() {
    cases("together", 6, |cases| {
        for protocol in ["flags", "packets", "ll"] {
            cases.run::<Together>(&format!("elements=256 ranks=2 parts=4 protocol={protocol}"));
            cases.run::<Together>(&format!("elements=64 ranks=2 parts=16 warps=2 protocol={protocol}"));
        }
        cases.run::<Together>("elements=1001 ranks=2 parts=2");
    });
}

#[test]
fn ranks_have_roles_of_their_own() {
    cases("gather_to_root", 3, |cases| {
        cases.run::<GatherToRoot>("elements=4096 ranks=2");
        cases.run::<GatherToRoot>("elements=1001 ranks=2 blocks=1");
        // Together more blocks than an H100 holds at once, if ranks had all of them.
        cases.run::<GatherToRoot>("elements=65536 ranks=2 blocks=128");
    });
}
