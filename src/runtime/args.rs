//! The argument struct of a kernel, filled by the names of its members.

use peerwarp_codegen::print::{ArgField, ArgsLayout, TensorMap};

use super::RuntimeError;
use super::far::FarArgs;
use super::gpu::{DevicePtr, Gpu};

/// A member's place in the struct, found once and written any number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    word: usize,
}

/// The place of a member of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    field: usize,
}

/// A map of a matrix. Once it has been made: which word is the pointer that it was made of, and what that was.
#[derive(Clone, Debug)]
struct Mapped {
    map: TensorMap,
    made: Option<(usize, DevicePtr)>,
}

/// The argument struct of one kernel on one rank.
#[derive(Clone, Debug)]
pub struct KernelArgs {
    kernel: String,
    fields: Vec<ArgField>,
    set: Vec<bool>,
    maps: Vec<Mapped>,
    words: Vec<u64>,
}

impl KernelArgs {
    /// With nothing set.
    pub fn new(kernel: &str, layout: &ArgsLayout) -> KernelArgs {
        let fields = layout.fields.clone();
        let (set, words) = (vec![false; fields.len()], vec![0; (layout.bytes as usize).div_ceil(8)]);
        let maps = layout.maps.iter().map(|map| Mapped { map: map.clone(), made: None }).collect();
        KernelArgs { kernel: kernel.to_owned(), fields, set, maps, words }
    }

    /// Sets a pointer or another number of 8 bytes.
    pub fn set_u64(&mut self, name: &str, value: u64) -> Result<(), RuntimeError> {
        self.set(name, &value.to_ne_bytes())
    }

    /// Sets a number of 4 bytes.
    pub fn set_u32(&mut self, name: &str, value: u32) -> Result<(), RuntimeError> {
        self.set(name, &value.to_ne_bytes())
    }

    /// Sets what carries far channels.
    pub(super) fn set_far(&mut self, far: &FarArgs) -> Result<(), RuntimeError> {
        self.set("far", bytemuck::bytes_of(far))
    }

    /// Sets the pointers of a symmetric buffer, one for each rank.
    pub fn set_pointers(&mut self, name: &str, all: &[DevicePtr]) -> Result<(), RuntimeError> {
        self.set(name, bytemuck::cast_slice(all))
    }

    /// The place of a pointer that changes from launch to launch. It counts as set, to null.
    pub fn slot(&mut self, name: &str) -> Result<Slot, RuntimeError> {
        self.set_u64(name, 0)?;
        let at = self.find(name)?;
        Ok(Slot { word: self.fields[at].offset as usize / 8 })
    }

    /// The place of the pointers of all ranks, which change from launch to launch. They count as set, to null.
    pub(crate) fn slots(&mut self, name: &str) -> Result<Slot, RuntimeError> {
        let ArgField { offset, bytes, .. } = self.fields[self.find(name)?];
        self.set(name, &vec![0; bytes as usize])?;
        Ok(Slot { word: offset as usize / 8 })
    }

    /// Writes the pointers of all ranks to their place.
    pub(crate) fn write_all(&mut self, slot: Slot, all: impl ExactSizeIterator<Item = DevicePtr>) {
        let words = &mut self.words[slot.word..slot.word + all.len()];
        words.iter_mut().zip(all).for_each(|(word, ptr)| *word = ptr);
    }

    /// Writes a pointer to its place.
    pub fn write(&mut self, slot: Slot, ptr: DevicePtr) {
        self.words[slot.word] = ptr;
    }

    /// The place of a number that changes from launch to launch.
    pub(crate) fn place(&self, name: &str) -> Result<Place, RuntimeError> {
        self.find(name).map(|field| Place { field })
    }

    /// Writes a number to its place.
    pub(crate) fn put(&mut self, place: Place, value: &[u8]) {
        let ArgField { offset, bytes, .. } = self.fields[place.field];
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        all[offset as usize..][..bytes as usize].copy_from_slice(value);
        self.set[place.field] = true;
    }

    /// Whether everything has been set but what is put into these places later.
    pub(crate) fn ready_but_for(&self, later: &[Place]) -> Result<(), RuntimeError> {
        let missing = |at: &usize| !self.set[*at] && !later.contains(&Place { field: *at });
        match (0..self.set.len()).find(missing) {
            None => Ok(()),
            Some(at) => Err(self.wrong(&self.fields[at].name, "has not been set".into())),
        }
    }

    /// Lets a GPU make the maps of matrices that have been passed at another place than the last time.
    pub(crate) fn map_matrices(&mut self, gpu: &dyn Gpu) -> Result<(), RuntimeError> {
        for at in 0..self.maps.len() {
            let Mapped { map, made } = &self.maps[at];
            let word = match made {
                Some((word, _)) => *word,
                None => self.pointer_of(map)?,
            };
            let now = Some((word, self.words[word]));
            if *made != now {
                let (words, first) = (gpu.tensor_map(self.words[word], map)?, map.offset as usize / 8);
                self.words[first..][..words.len()].copy_from_slice(&words);
                self.maps[at].made = now;
            }
        }
        Ok(())
    }

    /// The word with the pointer to a map's matrix: of several, this rank's.
    fn pointer_of(&self, map: &TensorMap) -> Result<usize, RuntimeError> {
        let first = self.fields[self.find(&map.of)?].offset as usize;
        let rank = self.fields[self.find("rank")?].offset as usize;
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        let rank: u32 = bytemuck::pod_read_unaligned(&bytes[rank..][..4]);
        Ok(first / 8 + if map.symmetric { rank as usize } else { 0 })
    }

    /// The struct, if everything has been set.
    pub fn ready(&self) -> Result<&[u64], RuntimeError> {
        let fields = self.fields.iter().zip(&self.set).map(|(field, set)| (&field.name, *set));
        let maps = self.maps.iter().map(|mapped| (&mapped.map.name, mapped.made.is_some()));
        match fields.chain(maps).find(|(_, set)| !set) {
            None => Ok(&self.words),
            Some((name, _)) => Err(self.wrong(name, "has not been set".into())),
        }
    }

    fn set(&mut self, name: &str, value: &[u8]) -> Result<(), RuntimeError> {
        let at = self.find(name)?;
        let ArgField { offset, bytes, .. } = self.fields[at];
        if value.len() != bytes as usize {
            return Err(self.wrong(name, format!("takes {bytes} bytes, not {}", value.len())));
        }
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        all[offset as usize..][..value.len()].copy_from_slice(value);
        self.set[at] = true;
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize, RuntimeError> {
        let found = self.fields.iter().position(|f| f.name == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.fields.iter().map(|f| f.name.as_str()).collect();
            self.wrong(name, format!("there is no such member; there are {}", known.join(", ")))
        })
    }

    fn wrong(&self, field: &str, problem: String) -> RuntimeError {
        RuntimeError::Argument { kernel: self.kernel.clone(), field: field.to_owned(), problem }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use peerwarp_codegen::ir::Dtype;

    use super::*;
    use crate::runtime::mock::{Machine, MockGpu};

    fn args() -> KernelArgs {
        let field = |name: &str, offset, bytes| ArgField { name: name.into(), offset, bytes };
        let fields = vec![field("x", 0, 8), field("inbox", 8, 16), field("rank", 24, 4)];
        KernelArgs::new("k", &ArgsLayout { fields, maps: vec![], bytes: 32 })
    }

    #[test]
    fn members_stand_at_their_offsets() {
        let mut args = args();
        let x = args.slot("x").unwrap();
        let inbox = args.slots("inbox").unwrap();
        args.write_all(inbox, [0xa, 0xb].into_iter());
        args.set_u32("rank", 3).unwrap();
        args.write(x, 0x1000);
        let bytes: &[u8] = bytemuck::cast_slice(args.ready().unwrap());
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!([u64_at(0), u64_at(8), u64_at(16)], [0x1000, 0xa, 0xb]);
        assert_eq!((u32::from_ne_bytes(bytes[24..28].try_into().unwrap()), bytes.len()), (3, 32));
    }

    #[test]
    fn matrices_are_mapped_when_they_have_moved() {
        let machine = Machine::default();
        let gpu = MockGpu::all(&machine, 1).remove(0);
        let field = |name: &str, offset, bytes| ArgField { name: name.into(), offset, bytes };
        let fields = vec![field("x", 0, 8), field("inbox", 8, 16), field("rank", 24, 4)];
        let map = |of: &str, offset| TensorMap {
            name: format!("{of}_boxes"),
            offset,
            of: of.into(),
            symmetric: of == "inbox",
            dtype: Dtype::Bf16,
            rows: 8,
            columns: 64,
            box_rows: 128,
        };
        let layout = ArgsLayout { fields, maps: vec![map("x", 128), map("inbox", 256)], bytes: 384 };
        let mut args = KernelArgs::new("k", &layout);
        let x = args.slot("x").unwrap();
        args.set_pointers("inbox", &[0xa000, 0xb000]).unwrap();
        args.set_u32("rank", 1).unwrap();
        let said = args.ready().unwrap_err().to_string();
        assert_eq!(said, "argument `x_boxes` of k: has not been set");
        for (at, made) in [(0x1000, 2), (0x1000, 2), (0x2000, 3)] {
            args.write(x, at);
            args.map_matrices(&*gpu).unwrap();
            assert_eq!(machine.maps.load(Ordering::Relaxed), made, "only what has moved is mapped again");
            let words = args.ready().unwrap();
            assert_eq!((words[16], words[32]), (at, 0xb000), "the mock's maps begin with the matrix");
        }
    }

    #[test]
    fn what_does_not_fit_is_reported() {
        let mut args = args();
        let said = |r: Result<(), RuntimeError>| r.unwrap_err().to_string();
        assert_eq!(said(args.ready().map(|_| ())), "argument `x` of k: has not been set");
        assert_eq!(
            said(args.set_u64("y", 1)),
            "argument `y` of k: there is no such member; there are x, inbox, rank"
        );
        assert_eq!(said(args.set_pointers("inbox", &[1])), "argument `inbox` of k: takes 16 bytes, not 8");
        assert_eq!(said(args.set_u64("rank", 1)), "argument `rank` of k: takes 4 bytes, not 8");
    }
}
