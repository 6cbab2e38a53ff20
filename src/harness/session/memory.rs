//! What the host reads and writes of a rank's memory.

use crate::harness::workload::{Contents, RankMemory};
use crate::runtime::op::RankOp;

use super::gpu::{POISON, Place};

impl Contents {
    /// Writes it.
    pub(crate) fn write(&self, memory: &mut dyn RankMemory) -> Result<(), String> {
        if !self.repeated {
            return memory.write(&self.buffer, self.at, &self.bytes);
        }
        let (mut at, end) = (self.at, memory.size(&self.buffer)?);
        while at < end && !self.bytes.is_empty() {
            let part = (end - at).min(self.bytes.len() as u64);
            memory.write(&self.buffer, at, &self.bytes[..part as usize])?;
            at += part;
        }
        Ok(())
    }

    /// The same as far as the buffer has room.
    pub(crate) fn up_to_end(mut self, memory: &dyn RankMemory) -> Result<Contents, String> {
        let room = memory.size(&self.buffer)?.saturating_sub(self.at);
        if !self.repeated {
            self.bytes.truncate(usize::try_from(room).unwrap_or(usize::MAX));
        }
        Ok(self)
    }
}

/// What the host sees of a rank of a GPU session in one round.
pub(super) struct Host<'a> {
    pub place: &'a Place,
    pub round: usize,
    pub rank: &'a RankOp,
    pub poisoned: bool,
}

impl RankMemory for Host<'_> {
    fn rank(&self) -> u32 {
        self.rank.rank()
    }

    fn read(&mut self, buffer: &str, at: u64, bytes: usize) -> Result<Vec<u8>, String> {
        if let Some(own) = self.place.operand(buffer, self.round) {
            return own.read(at, bytes).map_err(|e| e.to_string());
        }
        let (ptr, size) = self.rank.buffer(buffer).map_err(|e| e.to_string())?;
        if at + bytes as u64 > size {
            return Err(format!("{buffer} has {size} bytes, not {}", at + bytes as u64));
        }
        let mut found = vec![0; bytes];
        // SAFETY: within a buffer of the operation, as just checked.
        unsafe { self.rank.gpu().download(ptr + at, &mut found).map_err(|e| e.to_string())? };
        Ok(found)
    }

    fn write(&mut self, buffer: &str, at: u64, bytes: &[u8]) -> Result<(), String> {
        let own = self.place.operand(buffer, self.round);
        let own = own.ok_or_else(|| format!("{buffer} is not for the host to write"))?;
        own.write(at, bytes).map_err(|e| e.to_string())
    }

    fn size(&self, buffer: &str) -> Result<u64, String> {
        match self.place.operand(buffer, self.round) {
            Some(own) => Ok(own.bytes()),
            None => self.rank.buffer(buffer).map(|place| place.1).map_err(|e| e.to_string()),
        }
    }

    fn poison(&self) -> Option<u8> {
        self.poisoned.then_some(POISON)
    }
}

/// Whether a buffer holds nothing but [`POISON`] outside of these ranges of bytes.
pub(super) fn untouched(name: &str, bytes: &[u8], written: &[std::ops::Range<usize>]) -> Result<(), String> {
    let own = |at: usize| written.iter().any(|range| range.contains(&at));
    match bytes.iter().enumerate().position(|(at, &byte)| byte != POISON && !own(at)) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} of {name} was written, which is none of its results")),
    }
}
