//! Machine code of gfx942.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use peerwarp::build::toolchain::Tool;
use peerwarp::codegen::print::{Source, hip_prelude};

use super::{
    Instruction, Plant, avoids, check, folder, output, packet_sources, places, sources, tool, waits,
};

/// The instructions of `llvm-objdump -d` and their addresses.
pub(super) fn read(listing: &str) -> Vec<(i64, String)> {
    let line = |line: &str| {
        let (text, comment) = line.split_once("//")?;
        let address = i64::from_str_radix(comment.split(':').next()?.trim(), 16).ok()?;
        Some((address, text.trim().to_owned()))
    };
    listing.lines().filter_map(line).collect()
}

/// The address that a branch goes to: a signed 16-bit number of words after it, shown without its sign.
pub(super) fn target(address: i64, text: &str) -> Option<i64> {
    let words = text.starts_with("s_branch") || text.starts_with("s_cbranch");
    let words = words.then(|| text.split_whitespace().nth(1)?.parse::<u16>().ok()).flatten()?;
    Some(address + 4 + 4 * i64::from(words as i16))
}

/// The instructions of a listing, with the ways that branches go.
fn parse(listing: &str) -> Vec<Instruction> {
    let mut texts = read(listing);
    let places: HashMap<i64, usize> = texts.iter().enumerate().map(|(at, (place, _))| (*place, at)).collect();
    let mut record = false;
    for (_, text) in &mut texts {
        // From taking a status record to aborting all ranks, what is stored is neither data nor a flag.
        let telling = record || gives_up(text);
        record = telling && !flag_store(text);
        if telling {
            *text = text.replace("_store_dword", "_store_record");
        }
    }
    let follow = |(at, (address, text)): (usize, &(i64, String))| {
        let op = text.split(' ').next().unwrap_or_default();
        let mut next = if op == "s_branch" || op == "s_endpgm" { vec![] } else { vec![at + 1] };
        if op == "s_branch" || op.starts_with("s_cbranch") {
            let target = target(*address, text).and_then(|t| places.get(&t)).copied();
            // A wave without lanes in a branch skips it. Its lane that arrives at a meeting is never missing, and no lane
            // that skips a write-back signals afterwards: where two signals share their store, it is for those that didn't.
            let skips = |to: &usize| to.checked_sub(at).and(texts.get(at..*to)).unwrap_or_default();
            let there = |t: &str| meeting(t) || write_back(t);
            let arrives = |to: &usize| op == "s_cbranch_execz" && skips(to).iter().any(|(_, t)| there(t));
            next.extend(target.filter(|to| !arrives(to)));
            let around = texts.get(at + 1).is_some_and(|(_, t)| t.starts_with("s_branch"));
            let into = |to: usize| to > at && texts[at..].iter().take(to + 12 - at).any(|(_, t)| meeting(t));
            if op == "s_cbranch_execnz" && around && target.is_some_and(into) {
                next.retain(|&n| n != at + 1);
            }
        }
        Instruction { text: text.clone(), next }
    };
    texts.iter().enumerate().map(follow).collect()
}

fn data_load(text: &str) -> bool {
    text.contains("load_dwordx4") && !text.starts_with("s_load")
}
fn data_store(text: &str) -> bool {
    text.contains("_store_dwordx4")
}
fn flag_store(text: &str) -> bool {
    text.contains("_store_dword ") && text.ends_with("sc0 sc1")
}
fn flag_load(text: &str) -> bool {
    text.contains("_load_dword ") && text.ends_with("sc0 sc1")
}
fn write_back(text: &str) -> bool {
    text == "buffer_wbl2 sc0 sc1"
}
fn invalidate(text: &str) -> bool {
    text == "buffer_inv sc0 sc1"
}
fn stores_done(text: &str) -> bool {
    text.contains("s_waitcnt vmcnt(0)")
}
/// Where a wait has expired: what follows tells all ranks, whatever the group did before.
fn gives_up(text: &str) -> bool {
    text.contains("atomic_cmpswap")
}
/// All of a block, or one warp's arrival where some of its warps meet.
fn meeting(text: &str) -> bool {
    text.starts_with("s_barrier") || text.starts_with("ds_add_u32")
}

/// What is wrong with a kernel that waits so often.
fn complaints(listing: &str, waits: usize) -> Vec<String> {
    let code = parse(listing);
    let count = |what: fn(&str) -> bool| code.iter().filter(|i| what(&i.text)).count();
    // The stores that a signal follows: puts.
    let mut puts = places(&code, data_store);
    puts.retain(|&at| avoids(&code, &[at], flag_store, gives_up));
    let mut said = vec![];
    let mut expect = |holds: bool, complaint: &str| {
        if !holds {
            said.push(complaint.to_string());
        }
    };
    expect(count(data_load) > 0, "load: rows are not loaded 16 bytes at a time");
    expect(!puts.is_empty(), "store: rows are not stored 16 bytes at a time");
    expect(
        count(|t| t.contains("_store_short") || t.contains("_store_byte")) == 0,
        "store: elements are stored one by one",
    );
    expect(count(|t| t.starts_with("scratch_")) == 0, "local memory: something lies in scratch");
    expect(count(flag_store) > 0, "store_release_system: no flag is stored at system scope");
    expect(
        !avoids(&code, &puts, flag_store, |t| write_back(t) || gives_up(t)),
        "store_release_system: a flag is stored without writing the cache back after the data",
    );
    expect(
        !avoids(&code, &puts, flag_store, |t| meeting(t) || gives_up(t)),
        "signal_rank: a flag is stored before the group has met after its data",
    );
    expect(
        !avoids(&code, &puts, flag_store, stores_done),
        "stores_done: a flag is stored without waiting for the stores before it",
    );
    expect(
        !avoids(&code, &places(&code, write_back), flag_store, stores_done),
        "store_release_system: a flag is stored before the cache was written back",
    );
    expect(count(flag_load) >= 2 * waits, "load_relaxed_system: flags are not polled at system scope");
    expect(count(invalidate) >= waits, "acquire_system: polls leave stale lines in the cache");
    // The first one is no poll: it looks at the world's status when the kernel starts.
    let polls = places(&code, flag_load).split_off(1.min(count(flag_load)));
    expect(
        !avoids(&code, &polls, data_load, meeting),
        "wait_flag: data is loaded before the group has met after the poll",
    );
    said
}

/// What is wrong with a kernel whose rows are packets, of two halves each.
fn packet_complaints(listing: &str) -> Vec<String> {
    let code = parse(listing);
    let count = |op: &str| code.iter().filter(|i| i.text.contains(op) && i.text.ends_with("sc0 sc1")).count();
    let expectations = [
        (count("_store_dwordx2 ") > 0, "store_packet: no halves of packets are stored at system scope"),
        (count("_load_dwordx2 ") > 0, "load_packet: no halves of packets are loaded at system scope"),
        (!code.iter().any(|i| i.text.starts_with("scratch_")), "local memory: something lies in scratch"),
    ];
    expectations.into_iter().filter(|e| !e.0).map(|e| e.1.to_string()).collect()
}

const PACKETS: &[Plant] = &[
    Plant { primitive: "store_packet", edit: |l| Some(l.replace("_store_dwordx2 ", "_store_dword ")) },
    Plant { primitive: "load_packet", edit: |l| Some(l.replace("sc0 sc1", "sc1")) },
    Plant { primitive: "local memory", edit: |l| Some(l.replace("s_endpgm", "scratch_load_dword v0")) },
];

/// An instruction that does nothing in the place of another one, so that branches to it stay right.
fn without(line: &str, what: &str) -> Option<String> {
    let code = line.split_once("//").filter(|(text, _)| text.contains(what));
    Some(code.map_or(line.to_string(), |(_, address)| format!("s_nop 0 //{address}")))
}

const PLANTS: &[Plant] = &[
    Plant { primitive: "load", edit: |l| Some(l.replace("load_dwordx4", "load_dwordx2")) },
    Plant { primitive: "store", edit: |l| Some(l.replace("_store_dwordx4", "_store_short")) },
    Plant { primitive: "local memory", edit: |l| Some(l.replace("s_endpgm", "scratch_load_dword v0")) },
    Plant { primitive: "store_release_system", edit: |l| without(l, "buffer_wbl2 sc0 sc1") },
    Plant {
        primitive: "store_release_system",
        edit: |l| Some(l.replace("buffer_wbl2 sc0 sc1", "buffer_wbl2 sc1")),
    },
    Plant { primitive: "store_release_system", edit: |l| without(l, "s_waitcnt vmcnt(0)") },
    Plant { primitive: "stores_done", edit: |l| without(l, "s_waitcnt vmcnt(0)") },
    Plant {
        primitive: "load_relaxed_system",
        edit: |l| Some(if l.contains("_load_dword ") { l.replace("sc0 sc1", "sc1") } else { l.into() }),
    },
    Plant { primitive: "acquire_system", edit: |l| Some(l.replace("buffer_inv sc0 sc1", "buffer_inv sc1")) },
    Plant { primitive: "signal_rank", edit: |l| without(&without(l, "ds_add_u32")?, "s_barrier") },
    Plant { primitive: "wait_flag", edit: |l| without(&without(l, "ds_add_u32")?, "s_barrier") },
];

/// A folder with what emitted sources include.
pub(super) fn folder_with_prelude(name: &str) -> PathBuf {
    let dir = folder(name);
    std::fs::create_dir_all(dir.join("hip")).expect("the target folder is writable");
    std::fs::write(dir.join("hip/hip_runtime.h"), hip_prelude().unwrap())
        .expect("the target folder is writable");
    dir
}

/// The machine code of a source, which spills nothing.
#[track_caller]
pub(super) fn compiled(clang: &Path, readelf: &Path, dir: &Path, source: &Source, arch: &str) -> PathBuf {
    let path = dir.join(&source.file_name);
    std::fs::write(&path, &source.text).expect("the target folder is writable");
    let code = path.with_extension(arch);
    output(
        Command::new(clang)
            .args(["-x", "hip", &format!("--offload-arch={arch}"), "--cuda-device-only", "-nogpuinc"])
            .args(["-nogpulib", "--no-gpu-bundle-output", "-std=c++17", "-O3", "-I"])
            .arg(dir)
            .arg("-o")
            .arg(&code)
            .arg(&path),
    );
    let notes = output(Command::new(readelf).arg("--notes").arg(&code));
    for wanted in [".private_segment_fixed_size: 0", ".vgpr_spill_count: 0"] {
        assert!(notes.contains(wanted), "{} for {arch}: no {wanted}\n{notes}", source.entry);
    }
    code
}

#[test]
fn gfx942_does_what_the_protocol_relies_on() {
    let (Some(clang), Some(objdump), Some(readelf)) =
        (tool(Tool::Clang), tool(Tool::Objdump), tool(Tool::Readelf))
    else {
        return;
    };
    let dir = folder_with_prelude("amd");
    for arch in ["gfx90a", "gfx942"] {
        let target = format!("hip:{arch}");
        let (flags, packets) = (sources(&target), packet_sources(&target));
        let all = flags.iter().map(|s| (s, false)).chain(packets.iter().map(|s| (s, true)));
        for (source, packets) in all {
            let code = compiled(&clang, &readelf, &dir, source, arch);
            if arch == "gfx942" {
                let waits = waits(source);
                let listing = output(Command::new(&objdump).args(["-d", "--mcpu=gfx942"]).arg(&code));
                if packets {
                    check(&source.entry, &listing, packet_complaints, PACKETS);
                    continue;
                }
                assert!(waits > 0, "{} waits for nothing", source.entry);
                check(&source.entry, &listing, |text| complaints(text, waits), PLANTS);
            }
        }
    }
}
