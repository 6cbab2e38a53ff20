//! Packs inside of a program.

use std::path::Path;
use std::sync::OnceLock;

use super::{PACK_MANIFEST, Pack, PackError, Stored};

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

/// A pack that `include_pack!` has put into the program, and checked while it was compiled. Objects are not copied.
#[derive(Debug)]
pub struct Embedded {
    manifest: &'static str,
    objects: &'static [(&'static str, &'static [u8])],
    pack: OnceLock<Pack>,
}

impl Embedded {
    /// For `include_pack!` only: what it has not checked makes [`Embedded::pack`] panic.
    #[doc(hidden)]
    pub const fn checked(
        manifest: &'static str,
        objects: &'static [(&'static str, &'static [u8])],
    ) -> Embedded {
        Embedded { manifest, objects, pack: OnceLock::new() }
    }

    /// The pack. The first call reads the manifest.
    pub fn pack(&self) -> &Pack {
        self.pack.get_or_init(|| self.read().expect("include_pack! has checked the pack"))
    }

    fn read(&self) -> Result<Pack, PackError> {
        let object = |stored: &Stored| {
            let found = self.objects.iter().find(|(file, _)| *file == stored.file);
            let absent = || std::io::Error::new(std::io::ErrorKind::NotFound, "not in the program");
            let (_, bytes) =
                found.ok_or_else(|| PackError::Io { path: stored.file.clone().into(), source: absent() })?;
            Ok(Bytes::Embedded(bytes))
        };
        Pack::read(Path::new(PACK_MANIFEST), self.manifest.as_bytes(), object)
    }
}
