//! Operations of the language, in families: rows that several blocks complete by counting, as emitted text.

#[path = "../gpu/op_families.rs"]
mod families;

use families::{Functions, GatherToRoot, Together};

use crate::workload::run;

#[test]
fn blocks_complete_a_row_together() {
    run::<Together>("elements=24 ranks=3 parts=4 warps=2");
    run::<Together>("elements=24 ranks=2 parts=2 protocol=packets");
}

#[test]
fn functions_of_a_family_have_the_bits_of_the_simulator() {
    run::<Functions>("pieces=1 ranks=1");
}

#[test]
fn ranks_have_roles_of_their_own() {
    run::<GatherToRoot>("elements=24 ranks=3 blocks=16");
}
