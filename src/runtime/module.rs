//! Whether a compiled module is whole: drivers take an address without a length, and read as far as the module says.

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use super::RuntimeError;

/// First bytes of NVIDIA's containers of several modules.
const FATBIN: [u8; 4] = 0xba55_ed50u32.to_le_bytes();

/// First bytes of LLVM's containers of several modules.
const BUNDLE: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";

/// Refuses a module that says of itself that it is longer than it is, or whose length is unknown.
pub(super) fn check(module: &[u8]) -> Result<(), RuntimeError> {
    let found = match module {
        [0x7f, b'E', b'L', b'F', ..] => elf(module),
        _ if module.starts_with(&FATBIN) => fatbin(module),
        _ if module.starts_with(BUNDLE) => bundle(module),
        // PTX, which drivers read as a string.
        [.., 0] if module[..module.len() - 1].is_ascii() => Some(()),
        _ => None,
    };
    found.ok_or_else(|| {
        let allowed = "a whole ELF object, fat binary or offload bundle, or PTX that ends with NUL";
        RuntimeError::invalid("module", format!("{} bytes", module.len()), allowed)
    })
}

/// Whether all headers, sections and segments are there.
fn elf(module: &[u8]) -> Option<()> {
    let header = FileHeader64::<object::Endianness>::parse(module).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.section_headers(endian, module).ok()?;
    sections.iter().try_for_each(|section| section.data(endian, module).ok().map(|_| ()))?;
    let segments = header.program_headers(endian, module).ok()?;
    segments.iter().try_for_each(|segment| segment.data(endian, module).ok().map(|_| ()))
}

/// Containers of modules one after the other, each with its length.
fn fatbin(module: &[u8]) -> Option<()> {
    let header = u64::from(u16::from_le_bytes(module.get(6..8)?.try_into().ok()?));
    let rest = number(module, 8)?;
    (header.checked_add(rest)? <= module.len() as u64).then_some(())
}

/// How many modules there are, and of each where it is, how long, and the length of its name and the name.
fn bundle(module: &[u8]) -> Option<()> {
    let mut at = BUNDLE.len();
    let count = number(module, at)?;
    at += 8;
    for _ in 0..count {
        let [offset, bytes, name] = [number(module, at)?, number(module, at + 8)?, number(module, at + 16)?];
        let end = offset.checked_add(bytes)?;
        at = at.checked_add(24)?.checked_add(usize::try_from(name).ok()?)?;
        if end > module.len() as u64 || at > module.len() {
            return None;
        }
    }
    Some(())
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(module: &[u8]) -> bool {
        check(module).is_ok()
    }

    #[test]
    #[cfg_attr(miri, ignore = "the program is no object there")]
    fn objects_that_were_cut_short_are_refused() {
        // This program is one; its last bytes are section headers.
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(whole(&own));
        for cut in [1, own.len() / 2, own.len() - 64, own.len() - 4] {
            assert!(!whole(&own[..own.len() - cut]), "without its last {cut} bytes");
        }
        assert!(!whole(b"") && !whole(b"\x7fELF") && !whole(&[7; 100]));
    }

    #[test]
    fn containers_that_were_cut_short_are_refused() {
        let mut fatbin = [&FATBIN[..], &[1, 0, 16, 0]].concat();
        fatbin.extend(8u64.to_le_bytes());
        fatbin.extend([0; 8]);
        assert!(whole(&fatbin) && !whole(&fatbin[..23]) && !whole(&fatbin[..10]));
        let name = b"hip-amdgcn";
        let mut bundle = BUNDLE.to_vec();
        let offset = (BUNDLE.len() + 8 + 24 + name.len()) as u64;
        [1, offset, 4, name.len() as u64].into_iter().for_each(|n| bundle.extend(n.to_le_bytes()));
        bundle.extend([&name[..], &[1, 2, 3, 4]].concat());
        assert!(whole(&bundle));
        assert!([1, 5, 20, 40].into_iter().all(|cut| !whole(&bundle[..bundle.len() - cut])));
        let many = [BUNDLE, &u64::MAX.to_le_bytes()[..]].concat();
        assert!(!whole(&many));
    }

    #[test]
    fn texts_end_with_nul() {
        assert!(whole(b".version 9.0\n.target sm_90\n\0"));
        let said = check(b".version 9.0\n").unwrap_err().to_string();
        assert!(said.starts_with("module = 13 bytes: a whole ELF object"), "{said}");
    }
}
