//! The host's part of a round between dispatch and combine on one rank: the check of dispatch, and the experts.

use std::collections::BTreeSet;

use super::data::Round;
use crate::harness::workload::RankMemory;

/// Compares all that dispatch yields on a rank of a node with the reference of the node, then runs the experts unless dispatch did.
pub(super) fn check_and_run_expert(
    (round, rank): (&Round, u32),
    memory: &mut dyn RankMemory,
) -> Result<(), String> {
    if let Some(poison) = memory.poison() {
        beyond_rows((round, rank), memory, poison)?;
    }
    for expected in round.dispatched(rank) {
        if !memory.holds(expected.buffer, expected.at, &expected.bytes)? {
            let got = memory.read(expected.buffer, expected.at, expected.bytes.len())?;
            expected.wrong(&got).map_or(Ok(()), Err)?;
        }
    }
    for (at, y) in round.experts_outputs(rank) {
        memory.write("y", at, &y)?;
    }
    Ok(())
}

/// Whether dispatch wrote nothing but its rows and what belongs to them.
fn beyond_rows((round, rank): (&Round, u32), memory: &mut dyn RankMemory, poison: u8) -> Result<(), String> {
    let places: BTreeSet<u64> = round.places(rank).iter().map(|(place, _)| *place).collect();
    let (row, scales) = round.dispatched_row_bytes();
    let [rows_in, scales_in] = round.semantics.rows();
    for (name, bytes) in [(rows_in, row), (scales_in, scales)].into_iter().filter(|(_, bytes)| *bytes > 0) {
        let all = all_of(name, memory)?;
        for (place, row) in (0..).zip(all.chunks(bytes)).filter(|(place, _)| !places.contains(place)) {
            untouched(&format!("{name}, row {place}"), row, 0, poison)?;
        }
    }
    if round.semantics.key.layout.by_expert() {
        return Ok(());
    }
    let rows = round.grouped[rank as usize].rows.len();
    untouched("gather", &all_of("gather", memory)?, 4 * rows, poison)
}

fn all_of(name: &str, memory: &mut dyn RankMemory) -> Result<Vec<u8>, String> {
    let bytes = memory.size(name)?;
    memory.read(name, 0, bytes as usize)
}

/// Whether a buffer holds nothing but poison from byte `from` on.
fn untouched(name: &str, bytes: &[u8], from: usize, poison: u8) -> Result<(), String> {
    match bytes[from..].iter().position(|&byte| byte != poison) {
        None => Ok(()),
        Some(at) => Err(format!("byte {} of {name} was written, whose rows end with byte {from}", from + at)),
    }
}
