//! Digests of emitted sources that no snapshot shows.

use peerwarp_codegen::print::{Source, code};

/// A digest of a source: its roles as they are, all else without comments. FNV-1a.
pub fn digest(source: &Source) -> String {
    let text = source.roles().to_owned() + &code(&source.text);
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
