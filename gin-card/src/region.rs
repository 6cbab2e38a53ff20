//! Memory that NCCL registers: windows, signals and inline values.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cuda::Gpu;
use crate::error::CardError;

/// A space of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The host.
    Host,
    /// A GPU.
    Gpu,
}

/// Bytes of a region that exist.
#[derive(Clone, Copy)]
pub struct Place {
    /// The space of their address.
    pub memory: Memory,
    /// Their address.
    pub address: NonNull<u8>,
}

/// Registered memory.
pub struct Region {
    number: u64,
    first: Place,
    bytes: u64,
    /// Values of signals in GPU memory, which the card alone writes.
    signals: Option<Vec<u64>>,
    /// Whether kernels write signals too, so that a value has to be read before it grows.
    is_reset: bool,
}

// SAFETY: the memory stays until it is deregistered, and any thread may use it.
unsafe impl Send for Region {}

impl Region {
    /// Where so many bytes from an offset on are.
    ///
    /// # Errors
    /// [`CardError::Outside`] if they are not all in the region.
    pub fn place(&self, offset: u64, bytes: u64) -> Result<Place, CardError> {
        let outside = CardError::Outside { region: self.number, offset, bytes, length: self.bytes };
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(outside);
        }
        let address = self.first.address.map_addr(|first| first.saturating_add(offset as usize));
        Ok(Place { memory: self.first.memory, address })
    }

    /// Where a signal is.
    ///
    /// # Errors
    /// [`CardError::Signal`] if the region takes none, or none there; [`CardError::Outside`].
    pub fn signal(&self, offset: u64) -> Result<Place, CardError> {
        let place = self.place(offset, 8)?;
        if self.signals.is_none()
            || !offset.is_multiple_of(8)
            || !place.address.as_ptr().addr().is_multiple_of(8)
        {
            return Err(CardError::Signal { region: self.number, offset });
        }
        Ok(place)
    }

    /// Lets a signal grow, after all that was written before it.
    ///
    /// # Errors
    /// As [`Region::signal`], [`CardError::NoGpu`], [`CardError::Cuda`].
    pub fn grow(&mut self, offset: u64, value: u64, gpu: Option<&Gpu>) -> Result<(), CardError> {
        let place = self.signal(offset)?;
        if place.memory == Memory::Host {
            if let Some(gpu) = gpu {
                gpu.settle()?;
            }
            // SAFETY: the word is aligned, lies in the region, and is read and written atomically while it is registered.
            let word = unsafe { AtomicU64::from_ptr(place.address.as_ptr().cast()) };
            word.fetch_add(value, Ordering::Release);
            return Ok(());
        }
        let gpu = gpu.ok_or(CardError::NoGpu)?;
        let held = self.signals.as_mut().and_then(|signals| signals.get_mut((offset / 8) as usize));
        let held = held.ok_or(CardError::Signal { region: self.number, offset })?;
        if self.is_reset {
            *held = gpu.read_word(place.address)?;
        }
        *held = held.wrapping_add(value);
        gpu.write_word(place.address, *held)
    }
}

/// Regions by number. Ranks register in the same order, so that a number means the same on all of them.
#[derive(Default)]
pub struct Regions {
    all: BTreeMap<u64, Region>,
    /// How many have been registered.
    count: u64,
}

impl Regions {
    /// Keeps a region, and returns its number, from 1.
    pub fn insert(&mut self, first: Place, bytes: u64, takes_signals: bool, is_reset: bool) -> u64 {
        self.count += 1;
        let words = if first.memory == Memory::Gpu { (bytes / 8) as usize } else { 0 };
        let signals = takes_signals.then(|| vec![0; words]);
        self.all.insert(self.count, Region { number: self.count, first, bytes, signals, is_reset });
        self.count
    }

    /// A region.
    ///
    /// # Errors
    /// [`CardError::Handle`] if there is none of this number.
    pub fn get(&mut self, number: u64) -> Result<&mut Region, CardError> {
        let missing = CardError::Handle { what: "region", handle: number as usize };
        self.all.get_mut(&number).ok_or(missing)
    }

    /// Gives up a region.
    ///
    /// # Errors
    /// As [`Regions::get`].
    pub fn remove(&mut self, number: u64) -> Result<(), CardError> {
        let missing = CardError::Handle { what: "region", handle: number as usize };
        self.all.remove(&number).map(|_| ()).ok_or(missing)
    }

    /// Whether this rank has yet to register a region that a peer has registered.
    pub fn is_to_come(&self, number: u64) -> bool {
        number > self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_signals_stay_in_their_region() {
        let mut words = [0u64; 4];
        let first = Place { memory: Memory::Host, address: NonNull::from(&mut words).cast() };
        let mut regions = Regions::default();
        let (window, signals) =
            (regions.insert(first, 32, false, false), regions.insert(first, 32, true, false));
        let said = |e: CardError| e.to_string();
        let region = regions.get(window).unwrap();
        assert_eq!(region.place(8, 24).unwrap().address, NonNull::from(&words[1]).cast());
        let outside = "bytes 8 to 8 + 25 lie outside of region 1, which has 32 bytes";
        assert_eq!(region.place(8, 25).err().map(said).unwrap(), outside);
        assert!(region.place(u64::MAX, 2).is_err());
        assert!(region.signal(0).err().map(said).unwrap().contains("regions registered for signals"));
        let region = regions.get(signals).unwrap();
        assert!(region.signal(4).is_err() && region.signal(32).is_err());
        region.grow(8, 3, None).unwrap();
        region.grow(8, 2, None).unwrap();
        assert_eq!(words, [0, 5, 0, 0]);
        assert!(regions.is_to_come(3) && !regions.is_to_come(2));
        regions.remove(window).unwrap();
        assert_eq!(
            said(regions.remove(window).unwrap_err()),
            "0x1 is no region of this card, or it is closed"
        );
    }
}
