//! Global memory of the ranks, and how hosts see it.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;

use super::flags::FlagArray;
use super::shadow::Shadow;
use crate::ir::{FarPart, ParamKind};
use crate::sim::schedule::World;
use crate::sim::setup::{
    error::SimError,
    machine::{Buffer, Machine},
    names::Names,
};
use crate::sim::transport::Messages;

/// Bytes, aligned for every element type.
#[derive(Debug)]
struct Bytes {
    words: Vec<u64>,
    bytes: usize,
}

impl Bytes {
    /// All elements as a type, as far as they are whole.
    fn view<T: Pod>(&self) -> &[T] {
        let whole = self.bytes / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice(&bytemuck::cast_slice::<u64, u8>(&self.words)[..whole])
    }

    fn view_mut<T: Pod>(&mut self) -> &mut [T] {
        let whole = self.bytes / size_of::<T>() * size_of::<T>();
        bytemuck::cast_slice_mut(&mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.words)[..whole])
    }
}

/// One rank's instance of a buffer.
#[derive(Debug)]
pub(crate) struct Block {
    bytes: Bytes,
    /// Where it ends for kernels, in bytes: a caller may pass less than a kernel could use.
    pub end: u64,
    /// Only of plain memory whose accesses are checked.
    pub shadow: Option<Shadow>,
    /// Only of a flag array, of ranks or of blocks.
    pub flags: Option<FlagArray>,
    /// Only of a buffer of messages.
    pub messages: Option<Messages>,
}

impl Block {
    pub fn new(kind: ParamKind, bytes: u64, checked: bool) -> Block {
        let of_flags = matches!(kind, ParamKind::Flags | ParamKind::Counts | ParamKind::BlockFlags);
        let flags = of_flags.then(|| FlagArray::new(bytes / 4));
        let checked = checked && is_plain(kind);
        // Zeroed memory comes from the system as untouched pages: an unused part of a buffer costs nothing.
        let content = Bytes { words: vec![0; bytes.div_ceil(8) as usize], bytes: bytes as usize };
        let shadow = checked.then(|| Shadow::new(bytes));
        Block { bytes: content, end: bytes, shadow, flags, messages: kind.transport().map(Messages::new) }
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.view()
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.view_mut()
    }

    /// All elements as a type that divides the size.
    pub fn view<T: Pod>(&self) -> &[T] {
        self.bytes.view()
    }

    pub fn view_mut<T: Pod>(&mut self) -> &mut [T] {
        self.bytes.view_mut()
    }
}

/// Whether it is memory that may be read and written as one likes.
pub(crate) fn is_plain(kind: ParamKind) -> bool {
    match kind {
        ParamKind::Local
        | ParamKind::Symmetric
        | ParamKind::Window
        | ParamKind::Counters
        | ParamKind::Far(FarPart::Outbox | FarPart::Inbox)
        | ParamKind::Scalar => true,
        ParamKind::Flags
        | ParamKind::Counts
        | ParamKind::BlockFlags
        | ParamKind::EpochWord
        | ParamKind::Far(FarPart::Counts)
        | ParamKind::Messages(_) => false,
    }
}

/// The memory that a run left behind.
#[derive(Debug)]
pub struct Memory {
    ranks: Vec<Vec<(Bytes, Option<Shadow>)>>,
    names: Arc<Names>,
}

impl Memory {
    pub(crate) fn new(ranks: Vec<Vec<Block>>, names: Arc<Names>) -> Memory {
        let content =
            |blocks: Vec<Block>| blocks.into_iter().map(|block| (block.bytes, block.shadow)).collect();
        Memory { ranks: ranks.into_iter().map(content).collect(), names }
    }

    /// The content of a rank's buffer as elements of type `T`. Memory without a write is zero, and so is a packet buffer: all
    /// packets have been taken.
    pub fn read<T: Pod>(&self, rank: u32, name: &str) -> Result<&[T], SimError> {
        Ok(self.content(rank, name)?.0.view())
    }

    /// The bytes of a rank's buffer that were written, in the run or before it: as ranges, in order. All of them, where accesses to
    /// the buffer were not checked.
    pub fn written(&self, rank: u32, name: &str) -> Result<Vec<Range<u64>>, SimError> {
        let (bytes, shadow) = self.content(rank, name)?;
        let all = || std::iter::once(0..bytes.bytes as u64).collect();
        Ok(shadow.as_ref().map_or_else(all, Shadow::written))
    }

    fn content(&self, rank: u32, name: &str) -> Result<&(Bytes, Option<Shadow>), SimError> {
        let ranks = self.ranks.len() as u32;
        let memory = self.ranks.get(rank as usize).ok_or(SimError::UnknownRank { rank, ranks })?;
        Ok(&memory[self.names.find(name)?])
    }
}

/// A rank's memory as a host step of its program sees it. Accesses are checked like those of kernels.
#[derive(Debug)]
pub struct HostMemory<'a, 'm> {
    world: &'a mut World<'m>,
    rank: u32,
}

impl<'a, 'm> HostMemory<'a, 'm> {
    pub(crate) fn new(world: &'a mut World<'m>, rank: u32) -> HostMemory<'a, 'm> {
        HostMemory { world, rank }
    }

    /// The rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Size of a buffer in bytes, up to where it ends.
    pub fn size(&self, name: &str) -> Result<u64, SimError> {
        let buffer = self.world.machine.find(name)?;
        Ok(self.world.memory[self.rank as usize][buffer].end)
    }

    /// Copies elements out of a buffer; `range` counts elements of type `T`. A packet buffer is read as zeros: only agents that
    /// take packets sees what arrives.
    pub fn read<T: Pod>(&mut self, name: &str, range: Range<u64>) -> Result<Vec<T>, SimError> {
        self.view(name, range).map(<[T]>::to_vec)
    }

    /// As [`HostMemory::read`], in place.
    ///
    /// # Errors
    /// There is no such buffer, or it ends before the range does.
    pub fn view<T: Pod>(&mut self, name: &str, range: Range<u64>) -> Result<&[T], SimError> {
        let (buffer, from, to) = self.range::<T>(name, range.clone())?;
        self.world.host_read(self.rank, buffer, from, to);
        let all = self.world.memory[self.rank as usize][buffer].view::<T>();
        Ok(&all[range.start as usize..range.end as usize])
    }

    /// Writes elements to a buffer; `at` counts elements of type `T`.
    pub fn write<T: Pod>(&mut self, name: &str, at: u64, data: &[T]) -> Result<(), SimError> {
        let (buffer, from, to) = self.range::<T>(name, at..at + data.len() as u64)?;
        let kind = self.world.machine.buffers[buffer].kind;
        if !is_plain(kind) {
            return Err(SimError::NotPlain { name: name.into(), kind: kind.noun() });
        }
        self.world.host_write(self.rank, buffer, from, to);
        let bytes = self.world.memory[self.rank as usize][buffer].bytes_mut();
        bytes[from as usize..to as usize].copy_from_slice(bytemuck::cast_slice(data));
        Ok(())
    }

    /// Lets the rank's instance of a buffer end after so many bytes, from here on: kernels and hosts that go beyond are found.
    /// It may grow again, up to what was declared.
    ///
    /// # Errors
    /// There is no such buffer, or it was declared with less.
    pub fn end(&mut self, name: &str, bytes: u64) -> Result<(), SimError> {
        let buffer = self.world.machine.find(name)?;
        let most = self.world.machine.buffers[buffer].bytes;
        if bytes > most {
            return Err(SimError::OutOfBounds { name: name.into(), from: 0, to: bytes, bytes: most });
        }
        self.world.memory[self.rank as usize][buffer].end = bytes;
        Ok(())
    }

    fn range<T>(&self, name: &str, range: Range<u64>) -> Result<(usize, u64, u64), SimError> {
        let buffer = self.world.machine.find(name)?;
        let size = size_of::<T>() as u64;
        let bytes = self.world.memory[self.rank as usize][buffer].end;
        let (from, to) = (range.start.saturating_mul(size), range.end.saturating_mul(size));
        if from > to || to > bytes {
            return Err(SimError::OutOfBounds { name: name.into(), from, to, bytes });
        }
        Ok((buffer, from, to))
    }
}

/// The ranks' memory before the run: buffers, and what is written to them beforehand.
pub(crate) fn initial(machine: &Machine, checked: bool) -> Vec<Vec<Block>> {
    let block = |buffer: &Buffer| {
        let mut block = Block::new(buffer.kind, buffer.bytes, checked);
        if let Some(flags) = &mut block.flags {
            flags.grows = buffer.grows;
        }
        block
    };
    let blocks = || machine.buffers.iter().map(block).collect();
    (0..machine.ranks).map(|_| blocks()).collect()
}
