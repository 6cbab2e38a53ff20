//! Packs inside of a program.

use std::path::Path;

use super::{PACK_MANIFEST, Pack, PackError};

/// Where an object's bytes are.
#[derive(Debug)]
pub(super) enum Bytes {
    /// In the program.
    Embedded(&'static [u8]),
    /// On the heap.
    Read(Vec<u8>),
}

impl Bytes {
    pub fn get(&self) -> &[u8] {
        match self {
            Bytes::Embedded(bytes) => bytes,
            Bytes::Read(bytes) => bytes,
        }
    }
}

/// A pack that `include_pack!` has put into the program: every object is there, and is the one that the manifest means.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    manifest: &'static str,
    objects: &'static [(&'static str, &'static [u8])],
}

impl Embedded {
    /// For `include_pack!`, which checks what it gives.
    #[doc(hidden)]
    pub const fn checked(
        manifest: &'static str,
        objects: &'static [(&'static str, &'static [u8])],
    ) -> Embedded {
        Embedded { manifest, objects }
    }

    /// Reads the manifest. Objects stay where they are, in the program.
    ///
    /// # Errors
    /// The manifest was edited by hand into something that is none.
    pub fn open(&self) -> Result<Pack, PackError> {
        Pack::read(Path::new(PACK_MANIFEST), self.manifest.as_bytes(), |stored| {
            let found = self.objects.iter().find(|(file, _)| *file == stored.file);
            let (_, bytes) = found.ok_or_else(|| {
                let source = std::io::Error::new(std::io::ErrorKind::NotFound, "not in the program");
                PackError::Io { path: stored.file.clone().into(), source }
            })?;
            Ok(Bytes::Embedded(bytes))
        })
    }
}
