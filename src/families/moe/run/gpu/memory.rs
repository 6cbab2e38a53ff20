//! What the host reads and writes of a rank's memory, and what it must find there.

use std::collections::BTreeSet;

use bytemuck::Pod;

use super::{POISON, Place};
use crate::families::moe::MoeRank;
use crate::families::moe::kernels::Layout;
use crate::families::moe::run::data::Round;
use crate::families::moe::run::steps::RankMemory;
use crate::runtime::handles::Buffer;

/// What the host sees of a rank in one round.
pub(super) struct Host<'a> {
    pub place: &'a Place,
    pub number: usize,
    pub rank: &'a MoeRank,
}

impl Host<'_> {
    /// The harness's own buffer of this name.
    fn own(&self, name: &str) -> Option<&Buffer> {
        let io = &self.place.rounds[self.number];
        Some(match name {
            "x" => &io.x,
            "x_scale" => &io.x_scale,
            "n" => &io.n,
            "ids" => &io.ids,
            "weights" => &io.weights,
            "out" => &io.out,
            "y" => &self.place.y,
            _ => return None,
        })
    }

    /// Whether dispatch wrote nothing but its rows.
    pub fn beyond_rows(&mut self, round: &Round) -> Result<(), String> {
        let rank = self.place.rank;
        let places: BTreeSet<u64> = round.places(rank).iter().map(|(place, _)| *place).collect();
        let (row, scales) = round.dispatched_row_bytes();
        let [rows_in, scales_in] = round.way.rows();
        for (name, bytes) in [(rows_in, row), (scales_in, scales)].into_iter().filter(|(_, bytes)| *bytes > 0)
        {
            let all = self.all_of(name)?;
            for (place, row) in (0..).zip(all.chunks(bytes)).filter(|(place, _)| !places.contains(place)) {
                untouched(&format!("{name}, row {place}"), row, 0)?;
            }
        }
        match round.way.layout {
            Layout::Experts => Ok(()),
            Layout::Tokens => {
                let rows = round.grouped[rank as usize].rows.len();
                untouched("gather", &self.all_of("gather")?, 4 * rows)
            }
        }
    }

    fn all_of(&mut self, name: &str) -> Result<Vec<u8>, String> {
        let (_, bytes) = self.rank.buffer(name).map_err(|e| e.to_string())?;
        self.read(name, 0, bytes as usize)
    }
}

impl RankMemory for Host<'_> {
    fn rank(&self) -> u32 {
        self.place.rank
    }

    fn read<T: Pod>(&mut self, name: &str, at: usize, count: usize) -> Result<Vec<T>, String> {
        let from = (at * size_of::<T>()) as u64;
        if let Some(buffer) = self.own(name) {
            return buffer.read(from, count).map_err(|e| e.to_string());
        }
        let (ptr, bytes) = self.rank.buffer(name).map_err(|e| e.to_string())?;
        let mut values = vec![T::zeroed(); count];
        let raw: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        if from + raw.len() as u64 > bytes {
            return Err(format!("{name} has {bytes} bytes, not {}", from + raw.len() as u64));
        }
        // SAFETY: within a buffer of the operation.
        unsafe { self.rank.gpu().download(ptr + from, raw).map_err(|e| e.to_string())? };
        Ok(values)
    }

    fn write<T: Pod>(&mut self, name: &str, at: usize, values: &[T]) -> Result<(), String> {
        let buffer = self.own(name).ok_or_else(|| format!("{name} is not for the host to write"))?;
        buffer.write((at * size_of::<T>()) as u64, values).map_err(|e| e.to_string())
    }
}

/// Whether a buffer holds nothing but [`POISON`] from byte `from` on.
pub(super) fn untouched(name: &str, bytes: &[u8], from: usize) -> Result<(), String> {
    match bytes[from..].iter().position(|&byte| byte != POISON) {
        None => Ok(()),
        Some(at) => Err(format!("byte {} of {name} was written, whose rows end with byte {from}", from + at)),
    }
}
