//! What a kernel uses, from what its compiler says (NVIDIA) or from the object itself (AMD).

use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Endianness, elf};
use object::{Object, ObjectSection};
use serde::Deserialize;

use super::manifest::Resources;

/// Reads what `ptxas -v` says of an entry, and of the functions that it calls without inlining them:
///
/// ```text
/// ptxas info    : Compiling entry function 'NAME' for 'sm_90a'
/// ptxas info    : Function properties for NAME
///     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
/// ptxas info    : Used 63 registers, used 16 barriers, 208 bytes smem
/// ```
pub(super) fn from_ptxas(log: &str, entry: &str) -> Result<Resources, String> {
    let absent = |what: &str| format!("ptxas says nothing of the {what} of {entry}; it says: {log}");
    let begins = format!("Compiling entry function '{entry}'");
    let mut used = Resources::default();
    let mut frames = 0;
    for line in log.lines().skip_while(|l| !l.contains(&begins)).skip(1) {
        if let Some(frame) = number_before(line, " bytes stack frame") {
            let spills =
                number_before(line, " bytes spill stores").zip(number_before(line, " bytes spill loads"));
            let (stores, loads) = spills.ok_or_else(|| absent("spills"))?;
            frames += 1;
            used.local_bytes += frame;
            used.spill_store_bytes += stores;
            used.spill_load_bytes += loads;
        } else if line.contains(": Used ") && frames > 0 {
            used.registers = number_before(line, " registers").ok_or_else(|| absent("registers"))?;
            // Left out where there is none.
            used.static_shared_bytes = number_before(line, " bytes smem").unwrap_or(0);
            return Ok(used);
        }
    }
    Err(absent(if frames == 0 { "stack" } else { "registers" }))
}

/// The number right before some words.
fn number_before(line: &str, words: &str) -> Option<u32> {
    let head = &line[..line.find(words)?];
    let start = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
    head[start..].parse().ok()
}

/// The type of the note in which an AMD code object describes its kernels, as MessagePack.
const NT_AMDGPU_METADATA: u32 = 32;

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "amdhsa.kernels")]
    kernels: Vec<KernelMetadata>,
}

#[derive(Deserialize)]
struct KernelMetadata {
    #[serde(rename = ".name")]
    name: String,
    #[serde(rename = ".vgpr_count")]
    vgprs: u32,
    #[serde(rename = ".agpr_count", default)]
    agprs: u32,
    #[serde(rename = ".sgpr_count")]
    sgprs: u32,
    #[serde(rename = ".group_segment_fixed_size")]
    shared: u32,
    #[serde(rename = ".private_segment_fixed_size")]
    scratch: u32,
    #[serde(rename = ".vgpr_spill_count", default)]
    vgpr_spills: u32,
    #[serde(rename = ".sgpr_spill_count", default)]
    sgpr_spills: u32,
}

/// Reads what an AMD code object says of an entry.
pub(super) fn from_code_object(bytes: &[u8], entry: &str) -> Result<Resources, String> {
    let note = amd_note(bytes)?.ok_or("the code object has no metadata")?;
    let metadata: Metadata =
        rmp_serde::from_slice(&note).map_err(|e| format!("the code object's metadata: {e}"))?;
    let kernel = metadata.kernels.iter().find(|k| k.name == entry);
    let k = kernel.ok_or_else(|| format!("the code object has no kernel {entry}"))?;
    Ok(Resources {
        registers: k.vgprs,
        accumulators: k.agprs,
        scalar_registers: k.sgprs,
        static_shared_bytes: k.shared,
        local_bytes: k.scratch,
        spilled_registers: k.vgpr_spills,
        spilled_scalar_registers: k.sgpr_spills,
        code_bytes: section(bytes, ".text")?.len() as u32,
        ..Resources::default()
    })
}

/// Bytes of an instruction of NVIDIA's since sm_70, and what the lower twelve bits are of the one that does nothing.
const SASS_BYTES: usize = 16;
const SASS_NOP: u16 = 0x918;

/// Reads how much code there is in a cubin of an entry, and of functions that it calls without inlining them.
pub(super) fn code_of_cubin(bytes: &[u8], entry: &str, used: &mut Resources) -> Result<(), String> {
    let code = section(bytes, &format!(".text.{entry}"))?;
    let fills = |i: &&[u8]| u16::from_le_bytes([i[0], i[1]]) & 0xfff == SASS_NOP;
    let filled = code.chunks_exact(SASS_BYTES).rev().take_while(fills).count();
    used.instructions = (code.len() / SASS_BYTES - filled) as u32;
    used.code_bytes = used.instructions * SASS_BYTES as u32;
    Ok(())
}

/// A section's content.
fn section<'data>(bytes: &'data [u8], name: &str) -> Result<&'data [u8], String> {
    let wrong = |e: object::Error| format!("the object: {e}");
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(bytes).map_err(wrong)?;
    let section = file.section_by_name(name).ok_or_else(|| format!("the object has no section {name}"))?;
    section.data().map_err(wrong)
}

fn amd_note(bytes: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let wrong = |e: object::Error| format!("the code object: {e}");
    let file: ElfFile64<'_, Endianness> = ElfFile64::parse(bytes).map_err(wrong)?;
    let header = file.elf_header();
    let endian = file.endian();
    if header.e_machine.get(endian) != elf::EM_AMDGPU {
        return Err("the code object is not for AMD GPUs".into());
    }
    let sections = header.sections(endian, bytes).map_err(wrong)?;
    for section in sections.iter() {
        let Some(mut notes) = section.notes(endian, bytes).map_err(wrong)? else { continue };
        while let Some(note) = notes.next().map_err(wrong)? {
            if note.name() == b"AMDGPU" && note.n_type(endian) == NT_AMDGPU_METADATA {
                return Ok(Some(note.desc().to_vec()));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other_k' for 'sm_90a'
ptxas info    : Function properties for other_k
    8 bytes stack frame, 4 bytes spill stores, 2 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    32 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Function properties for helper
    0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 63 registers, used 16 barriers, 208 bytes smem
ptxas info    : Compile time = 222.808 ms
";

    #[test]
    fn ptxas_says_what_an_entry_uses() {
        let used = from_ptxas(LOG, "k").unwrap();
        let spills = (used.local_bytes, used.spill_store_bytes, used.spill_load_bytes);
        assert_eq!((used.registers, used.static_shared_bytes, spills), (63, 208, (32, 20, 20)));
        let other = from_ptxas(LOG, "other_k").unwrap();
        assert_eq!((other.registers, other.static_shared_bytes, other.local_bytes), (255, 0, 8));
    }

    #[test]
    fn a_log_without_the_entry_is_an_error_that_quotes_it() {
        let error = from_ptxas(LOG, "absent").unwrap_err();
        assert!(
            error.starts_with("ptxas says nothing of the stack of absent") && error.ends_with(LOG),
            "{error}"
        );
        let cut = &LOG[..LOG.find("ptxas info    : Used 63").unwrap()];
        assert!(from_ptxas(cut, "k").unwrap_err().contains("nothing of the registers of k"));
    }

    #[test]
    fn what_is_no_code_object_is_reported() {
        assert!(from_code_object(b"", "k").unwrap_err().starts_with("the code object: "));
        assert!(from_code_object(&[0x7f; 4096], "k").unwrap_err().starts_with("the code object: "));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(from_code_object(&own, "k").unwrap_err(), "the code object is not for AMD GPUs");
    }
}
