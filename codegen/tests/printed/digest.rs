//! Digests of emitted sources, and excerpts of those that snapshots show in part.

use peerwarp_codegen::print::{Source, code};

/// What a snapshot calls the entry.
pub const ENTRY: &str = "---- The kernel";

/// Roles without some of them, which a last line names: their digest is pinned, and another snapshot shows the same code.
pub fn excerpt(roles: &str, left_out: &[&str]) -> String {
    let name = |part: &str| part.trim_start_matches("// ").split(':').next().unwrap().to_owned();
    let parts: Vec<&str> = roles.split("\n\n// ").collect();
    for of in left_out {
        assert!(parts.iter().any(|part| name(part) == *of), "no role `{of}`");
    }
    let kept = parts.into_iter().filter(|part| !left_out.contains(&name(part).as_str()));
    format!(
        "{}\n\n// Left out: {}",
        kept.collect::<Vec<_>>().join("\n\n// "),
        left_out.join(", ").replace(ENTRY, "the entry")
    )
}

/// A digest of a source: its roles as they are, all else without comments. FNV-1a.
pub fn digest(source: &Source) -> String {
    let text = source.roles().to_owned() + &code(&source.text);
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}
