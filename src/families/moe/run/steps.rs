//! The host's part of a round on one rank: inputs, the check of dispatch, the expert, the combined rows.

use bytemuck::Pod;
use peerwarp_codegen::sim::HostMemory;

use super::data::Round;

/// One rank's memory, simulated or a GPU's, by the names of the kernels' parameters. Positions count values.
pub(super) trait RankMemory {
    /// Whose it is.
    fn rank(&self) -> u32;
    /// `count` values of a buffer.
    fn read<T: Pod>(&mut self, name: &str, at: usize, count: usize) -> Result<Vec<T>, String>;
    /// Overwrites a part of a buffer.
    fn write<T: Pod>(&mut self, name: &str, at: usize, values: &[T]) -> Result<(), String>;
}

impl RankMemory for HostMemory<'_, '_> {
    fn rank(&self) -> u32 {
        HostMemory::rank(self)
    }

    fn read<T: Pod>(&mut self, name: &str, at: usize, count: usize) -> Result<Vec<T>, String> {
        HostMemory::read(self, name, at as u64..(at + count) as u64).map_err(|e| e.to_string())
    }

    fn write<T: Pod>(&mut self, name: &str, at: usize, values: &[T]) -> Result<(), String> {
        HostMemory::write(self, name, at as u64, values).map_err(|e| e.to_string())
    }
}

/// Name of the buffer that keeps what a round's combine yields.
pub(super) fn kept(round: u32) -> String {
    format!("out_of_round_{round}")
}

/// Writes what the rank sends.
pub(super) fn load(round: &Round, memory: &mut impl RankMemory) -> Result<(), String> {
    let sent = round.inputs(memory.rank());
    memory.write("n", 0, &[sent.n])?;
    memory.write("x", 0, &sent.x)?;
    if !sent.x_scale.is_empty() {
        memory.write("x_scale", 0, &sent.x_scale)?;
    }
    memory.write("ids", 0, &sent.ids)?;
    memory.write("weights", 0, &sent.weights)
}

/// Compares all that dispatch yields with the reference, then runs the experts unless dispatch did.
pub(super) fn check_and_run_expert(round: &Round, memory: &mut impl RankMemory) -> Result<(), String> {
    for expected in round.dispatched(memory.rank()) {
        let got: Vec<u8> = memory.read(expected.buffer, expected.at as usize, expected.bytes.len())?;
        expected.wrong(&got).map_or(Ok(()), Err)?;
    }
    for (at, y) in round.experts_outputs(memory.rank()) {
        memory.write("y", at as usize, &y)?;
    }
    Ok(())
}

/// Keeps what combine yields, as it will be written again in the next round.
pub(super) fn keep(round: &Round, number: u32, memory: &mut impl RankMemory) -> Result<(), String> {
    let bytes = round.out[memory.rank() as usize].len();
    let out: Vec<u8> = memory.read("out", 0, bytes)?;
    memory.write(&kept(number), 0, &out)
}
