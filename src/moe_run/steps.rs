//! The host's part of a round on one rank: inputs, the check of dispatch, the expert, the combined rows.

use bytemuck::Pod;
use peerwarp_codegen::sim::HostMemory;

use super::data::Round;
use crate::kernels::moe::Hook;

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
    let rank = memory.rank() as usize;
    let (tokens, ids) = (&round.tokens[rank], &round.routing.ids[rank]);
    let n = ids.len() as u32 / round.shape.topk;
    memory.write("n", 0, &[n])?;
    memory.write("x", 0, &tokens.rows)?;
    memory.write("x_scale", 0, &tokens.scales)?;
    memory.write("ids", 0, &round.ids(memory.rank()))?;
    memory.write("weights", 0, &round.routing.weights[rank])
}

/// Compares all that dispatch yields with the reference, then runs the expert unless dispatch did.
pub(super) fn check_and_run_expert(round: &Round, memory: &mut impl RankMemory) -> Result<(), String> {
    counts(round, memory)?;
    positions(round, memory)?;
    rows(round, memory)?;
    if round.hook == Hook::None { expert(round, memory) } else { Ok(()) }
}

fn counts(round: &Round, memory: &mut impl RankMemory) -> Result<(), String> {
    let grouped = &round.grouped[memory.rank() as usize];
    let most = round.shape.map().at_most() as usize;
    let mut want_rows = grouped.counts.clone();
    want_rows.resize(most, 0);
    let mut want_start = vec![0];
    want_start.extend(want_rows.iter().scan(0, |sum, rows| {
        *sum += rows;
        Some(*sum)
    }));
    let got_rows: Vec<u32> = memory.read("expert_rows", 0, most)?;
    let got_start: Vec<u32> = memory.read("expert_start", 0, most + 1)?;
    same("rows of each expert", &got_rows, &want_rows)?;
    same("first row of each expert", &got_start, &want_start)
}

/// What combine needs of dispatch.
fn positions(round: &Round, memory: &mut impl RankMemory) -> Result<(), String> {
    let grouped = &round.grouped[memory.rank() as usize];
    let most = (round.shape.tokens * round.shape.topk) as usize;
    let n: Vec<u32> = memory.read("n_from", 0, round.shape.ranks as usize)?;
    same("tokens of each source", &n, &round.routing.tokens_per_rank(round.shape.topk))?;
    for (source, want) in grouped.pos.iter().enumerate() {
        let got: Vec<i32> = memory.read("pos", source * most, want.len())?;
        same(&format!("rows of the entries of rank {source}"), &got, want)?;
    }
    Ok(())
}

fn rows(round: &Round, memory: &mut impl RankMemory) -> Result<(), String> {
    let rank = memory.rank();
    let scales = round.shape.scales() as usize;
    for (i, &entry) in round.grouped[rank as usize].rows.iter().enumerate() {
        let want = round.row(rank, entry);
        let got: Vec<u8> = memory.read("rows", i * want.len(), want.len())?;
        same(&format!("bytes of row {i}, which is {entry:?}"), &got, &want)?;
        if scales > 0 && round.hook == Hook::None {
            let got: Vec<f32> = memory.read("row_scale", i * scales, scales)?;
            same(&format!("scales of row {i}, which is {entry:?}"), &got, round.scales(entry))?;
        }
    }
    Ok(())
}

fn expert(round: &Round, memory: &mut impl RankMemory) -> Result<(), String> {
    let rank = memory.rank();
    for (i, &entry) in round.grouped[rank as usize].rows.iter().enumerate() {
        let y = round.expert_row(rank, entry);
        memory.write("y", i * y.len(), &y)?;
    }
    Ok(())
}

/// Keeps what combine yields, as it will be written again in the next round.
pub(super) fn keep(round: &Round, number: u32, memory: &mut impl RankMemory) -> Result<(), String> {
    let bytes = round.out[memory.rank() as usize].len();
    let out: Vec<u8> = memory.read("out", 0, bytes)?;
    memory.write(&kept(number), 0, &out)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &[T], want: &[T]) -> Result<(), String> {
    match got.iter().zip(want).position(|(g, w)| g != w) {
        None => Ok(()),
        Some(i) => Err(format!("{what}: element {i} is {:?}, {:?} is right", got[i], want[i])),
    }
}
