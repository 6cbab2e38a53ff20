//! SASS of sm_90a, and the PTX that it came from.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use peerwarp::build::toolchain::Tool;
use peerwarp::codegen::print::Source;

use super::{
    Instruction, Plant, avoids, check, folder, output, packet_sources, places, sources, tool, waits,
};

/// The instructions of `nvdisasm -c`, with the ways that branches go.
pub(super) fn parse(listing: &str) -> Vec<Instruction> {
    let mut labels = HashMap::new();
    let mut texts = vec![];
    for line in listing.lines() {
        let line = line.trim();
        if let Some(label) = line.strip_suffix(':').filter(|l| l.starts_with(".L")) {
            labels.insert(label.to_string(), texts.len());
        } else if let Some((_, rest)) = line.strip_prefix("/*").and_then(|l| l.split_once("*/")) {
            texts.push(rest.trim().trim_end_matches(';').trim().to_string());
        }
    }
    let follow = |(at, text): (usize, &String)| {
        let conditional = text.starts_with('@') || text.contains(".DIV") || text.contains("CALL");
        let op = text.trim_start_matches(|c| c != ' ').trim();
        let op = if text.starts_with('@') { op } else { text };
        let target =
            text.split_once("`(").and_then(|(_, l)| l.split_once(')')).and_then(|(l, _)| labels.get(l));
        // What names a label for later (BSSY) goes on; a branch or an exit without a condition does not.
        let leaves =
            !conditional && (op.starts_with("BRA") || op.starts_with("EXIT") || op.starts_with("RET"));
        let mut next = if leaves { vec![] } else { vec![at + 1] };
        if op.starts_with("BRA") {
            next.extend(target);
        }
        Instruction { text: text.clone(), next }
    };
    texts.iter().enumerate().map(follow).collect()
}

fn data_load(text: &str) -> bool {
    text.contains("LDG.E.128")
}
fn data_store(text: &str) -> bool {
    text.contains("STG.E.128")
}
fn flag_store(text: &str) -> bool {
    text.contains("STG.E.STRONG.SYS")
}
fn flag_load(text: &str) -> bool {
    text.contains("LDG.E.STRONG.SYS")
}
fn system_fence(text: &str) -> bool {
    text.contains("MEMBAR") && text.contains(".SYS")
}
/// Where a wait has expired: what follows tells all ranks, whatever the group did before.
fn gives_up(text: &str) -> bool {
    text.contains("ATOMG.E.CAS")
}
fn barrier(text: &str) -> bool {
    text.contains("BAR.SYNC") || text.contains("BAR.RED")
}

/// What is wrong with a kernel that waits so often.
fn sass_complaints(listing: &str, waits: usize) -> Vec<String> {
    let code = parse(listing);
    let count = |what: fn(&str) -> bool| code.iter().filter(|i| what(&i.text)).count();
    let mut said = vec![];
    let mut expect = |holds: bool, complaint: &str| {
        if !holds {
            said.push(complaint.to_string());
        }
    };
    expect(count(data_load) > 0, "load: rows are not loaded 16 bytes at a time");
    expect(count(data_store) > 0, "store: rows are not stored 16 bytes at a time");
    expect(count(|t| t.contains("LDG.E.U16")) == 0, "load: elements are loaded one by one");
    expect(
        count(|t| t.contains("STG.E.U16") || t.contains("STG.E.U8")) == 0,
        "store: elements are stored one by one",
    );
    expect(count(|t| t.contains("LDL") || t.contains("STL")) == 0, "local memory: something was spilled");
    expect(count(flag_store) > 0, "store_release_system: no store at system scope");
    expect(count(|t| t.contains("STG.E.STRONG.GPU")) == 0, "store_release_system: a store at gpu scope");
    expect(
        !avoids(&code, &places(&code, data_store), flag_store, |t| system_fence(t) || gives_up(t)),
        "store_release_system: a flag is stored without a system fence after the data",
    );
    expect(
        !avoids(&code, &places(&code, data_store), flag_store, |t| barrier(t) || gives_up(t)),
        "signal_rank: a flag is stored before the group has met after its data",
    );
    expect(count(flag_load) >= 2 * waits, "load_relaxed_system: flags are not polled at system scope");
    expect(
        count(|t| t.contains("LDG.E.STRONG.GPU")) == 0,
        "load_relaxed_system: a flag is polled at gpu scope",
    );
    expect(
        count(|t| t.contains("CCTL.IVALL")) >= waits,
        "acquire_system: polls leave stale lines in the cache",
    );
    // The first one is no poll: it looks at the world's status when the kernel starts.
    let polls = places(&code, flag_load).split_off(1.min(count(flag_load)));
    expect(
        !avoids(&code, &polls, data_load, barrier),
        "wait_flag: data is loaded before the group has met after the poll",
    );
    said
}

/// What is wrong with the PTX of a kernel.
fn ptx_complaints(listing: &str, waits: usize) -> Vec<String> {
    let count = |what: &str| listing.lines().filter(|l| l.contains(what)).count();
    let mut said = vec![];
    let mut expect = |holds: bool, complaint: &str| {
        if !holds {
            said.push(complaint.to_string());
        }
    };
    expect(count("st.global.v4.b32") > 0, "store: no vector stores");
    expect(count("ld.global.v4") > 0, "load: no vector loads");
    expect(count("st.release.sys.global.u32") > 0, "store_release_system: no release at system scope");
    expect(count("ld.relaxed.sys.global.u32") >= 2 * waits, "load_relaxed_system: no relaxed polls");
    expect(count("fence.acquire.sys") >= waits, "acquire_system: polls without an acquiring fence");
    // From a poll to its fence nothing but flags, status and clock is read. The first one looks at the status alone.
    let mut polling = false;
    let start = listing.lines().position(|l| l.contains("ld.relaxed.sys")).map_or(0, |at| at + 1);
    for line in listing.lines().skip(start) {
        if line.contains("ld.relaxed.sys") {
            polling = true;
        } else if line.contains("fence.acquire.sys") {
            polling = false;
        } else if polling && line.contains("ld.global.v4") {
            expect(false, "wait_flag: data is loaded between a poll and its fence");
        }
    }
    said
}

/// What is wrong with a kernel whose rows are packets.
fn packet_complaints(listing: &str, ll: bool) -> Vec<String> {
    let code = parse(listing);
    let count = |what: &str| code.iter().filter(|i| i.text.contains(what)).count();
    let expectations = [
        (count("STG.E.128.STRONG.SYS") > 0, "store_packet: packets are not stored as one"),
        (count("LDG.E.128.STRONG.SYS") > 0, "load_packet: packets are not loaded as one"),
        // LL elements are 64 bits; of packets, these would be halves.
        (ll || count("STG.E.64.STRONG") == 0, "store_packet: halves of packets are stored"),
        (ll || count("LDG.E.64.STRONG") == 0, "load_packet: halves of packets are loaded"),
        (!ll || count("STG.E.64.STRONG.SYS") > 0, "send_ll: an element goes without its epoch"),
        (!ll || count("LDG.E.64.STRONG.SYS") > 0, "load_ll: an element comes without its epoch"),
        (count("STG.E.128.STRONG.GPU") == 0, "store_packet: a store at gpu scope"),
        (count("LDG.E.128.STRONG.GPU") == 0, "load_packet: a load at gpu scope"),
        (count("LDL") + count("STL") == 0, "local memory: something was spilled"),
    ];
    expectations.into_iter().filter(|e| !e.0).map(|e| e.1.to_string()).collect()
}

const PACKETS: &[Plant] = &[
    Plant { primitive: "store_packet", edit: |l| instead(l, "STG.E.128.STRONG.SYS", "STG.E.128.STRONG.GPU") },
    Plant { primitive: "load_packet", edit: |l| instead(l, "LDG.E.128.STRONG.SYS", "LDG.E.64.STRONG.SYS") },
    Plant { primitive: "local memory", edit: |l| instead(l, "EXIT", "LDL R0, [R1]") },
];

fn without(line: &str, what: &str) -> Option<String> {
    (!line.contains(what)).then(|| line.to_string())
}
fn instead(line: &str, what: &str, other: &str) -> Option<String> {
    Some(line.replace(what, other))
}

const SASS: &[Plant] = &[
    Plant { primitive: "load", edit: |l| instead(l, "LDG.E.128", "LDG.E.64") },
    Plant { primitive: "store", edit: |l| instead(l, "STG.E.128", "STG.E.U16") },
    Plant { primitive: "local memory", edit: |l| instead(l, "EXIT", "STL [R1], R0") },
    Plant { primitive: "store_release_system", edit: |l| instead(l, "STG.E.STRONG.SYS", "STG.E.STRONG.GPU") },
    Plant { primitive: "store_release_system", edit: |l| instead(l, "MEMBAR.ALL.SYS", "MEMBAR.ALL.GPU") },
    Plant { primitive: "signal_rank", edit: |l| without(l, "BAR.SYNC") },
    Plant { primitive: "load_relaxed_system", edit: |l| instead(l, "LDG.E.STRONG.SYS", "LDG.E.STRONG.GPU") },
    Plant { primitive: "acquire_system", edit: |l| without(l, "CCTL.IVALL") },
    Plant { primitive: "wait_flag", edit: |l| without(l, "BAR.RED") },
];

const PTX: &[Plant] = &[
    Plant { primitive: "store", edit: |l| instead(l, "st.global.v4.b32", "st.global.u16") },
    Plant { primitive: "load", edit: |l| instead(l, "ld.global.v4", "ld.global") },
    Plant { primitive: "store_release_system", edit: |l| instead(l, "st.release.sys", "st.release.gpu") },
    Plant { primitive: "load_relaxed_system", edit: |l| instead(l, "ld.relaxed.sys", "ld.relaxed.gpu") },
    Plant { primitive: "acquire_system", edit: |l| without(l, "fence.acquire.sys") },
    Plant { primitive: "wait_flag", edit: |l| instead(l, "fence.acquire.sys", "ld.global.v4.u32") },
];

/// Compiles a source; the paths of the machine code and of the PTX.
fn compiled(nvcc: &Path, source: &Source) -> (PathBuf, PathBuf) {
    compiled_text(nvcc, &source.file_name, &source.text)
}

/// Compiles a text of one or several sources; the paths of the machine code and of the PTX.
pub(super) fn compiled_text(nvcc: &Path, file_name: &str, text: &str) -> (PathBuf, PathBuf) {
    let (cubin, ptx, said) = compile(nvcc, file_name, text);
    let spills = said.lines().filter(|l| l.contains("stack frame") && !l.contains(" 0 bytes stack"));
    assert_eq!(spills.filter(|l| !l.trim().starts_with("0 bytes")).count(), 0, "{said}");
    (cubin, ptx)
}

/// Compiles a text; the paths of the machine code and of the PTX, and what the compiler says.
pub(super) fn compile(nvcc: &Path, file_name: &str, text: &str) -> (PathBuf, PathBuf, String) {
    compile_for("sm_90a", nvcc, file_name, text)
}

/// The same for another architecture.
pub(super) fn compile_for(
    arch: &str,
    nvcc: &Path,
    file_name: &str,
    text: &str,
) -> (PathBuf, PathBuf, String) {
    let path = folder(if arch == "sm_90a" { "nvidia" } else { arch }).join(file_name);
    std::fs::write(&path, text).expect("the target folder is writable");
    let (cubin, ptx) = (path.with_extension("cubin"), path.with_extension("ptx"));
    // As nvcc does it for a cubin, but keeping what is between.
    let said = [(&path, "-ptx", &ptx), (&ptx, "-cubin", &cubin)].map(|(from, how, to)| {
        output(
            Command::new(nvcc)
                .args(["-std=c++17", "-O3", "-arch", arch, "-Xptxas", "-v", how, "-o"])
                .arg(to)
                .arg(from),
        )
    });
    (cubin, ptx, said.concat())
}

#[test]
fn sm_90a_does_what_the_protocol_relies_on() {
    let (Some(nvcc), Some(nvdisasm)) = (tool(Tool::Nvcc), tool(Tool::Nvdisasm)) else { return };
    for source in sources("cuda:sm_90a") {
        let (cubin, ptx) = compiled(&nvcc, &source);
        let waits = waits(&source);
        assert!(waits > 0, "{} waits for nothing", source.entry);
        let listing = output(Command::new(&nvdisasm).arg("-c").arg(&cubin));
        check(&source.entry, &listing, |text| sass_complaints(text, waits), SASS);
        let listing = std::fs::read_to_string(&ptx).expect("nvcc wrote it");
        check(&source.entry, &listing, |text| ptx_complaints(text, waits), PTX);
    }
    for source in packet_sources("cuda:sm_90a") {
        let (cubin, _) = compiled(&nvcc, &source);
        let listing = output(Command::new(&nvdisasm).arg("-c").arg(&cubin));
        let ll = source.text.contains("send_ll");
        check(&source.entry, &listing, |text| packet_complaints(text, ll), PACKETS);
    }
}
