use peerwarp_codegen::family::{CudaArch, Target};

use super::*;
use crate::harness::trace::sync::ClockSync;
use peerwarp_codegen::family::Family;
use peerwarp_codegen::print::WaitSite;

fn names() -> Vec<KernelNames> {
    let strings = |all: &[&str]| all.iter().map(|s| s.to_string()).collect();
    vec![KernelNames {
        id: kernel_id("exchange"),
        variant: "exchange".into(),
        roles: strings(&["route", "send", "recv"]),
        parameters: strings(&["x", "row_flag"]),
        waits: [120, 240].map(|line| WaitSite { file: "src/kernels/exchange.rs".into(), line }).into(),
    }]
}

fn expired() -> Status {
    Status {
        aborted: 1,
        filled: 1,
        kernel: kernel_id("exchange"),
        index: 9,
        rank: 0,
        role: 2,
        block: 40,
        peer: 3,
        flag: 1,
        site: 1,
        expected: 8,
        seen: 7,
        inactive: 0,
    }
}

/// The record of a rank of the only node.
fn at(rank: u32, status: Status) -> Record {
    Record { rank, first: 0, status }
}

#[test]
fn all_zero_is_well() {
    assert_eq!(Aborted::of(&[at(0, Status::default()), at(1, Status::default())], &names()), None);
}

#[test]
fn a_record_is_reported_by_names() {
    let told = Status { aborted: 1, ..Status::default() };
    let aborted = Aborted::of(&[at(1, told), at(0, expired())], &names()).unwrap();
    assert_eq!(aborted.rank, 0);
    insta::assert_snapshot!(aborted, @"rank 0 waited in vain for rank 3: row_flag[9] was to reach epoch 8 and is 7 (exchange, role recv, block 40, exchange.rs:240); reset the world before it is used again");
}

#[test]
fn a_block_of_the_rank_itself_is_reported_by_its_role() {
    let status = Status { peer: 1 << 31 | 1 << 16 | 12, ..expired() };
    let aborted = Aborted::of(&[at(0, status)], &names()).unwrap();
    assert_eq!(aborted.wait.as_ref().unwrap().peer, 0);
    insta::assert_snapshot!(aborted, @"rank 0 waited in vain for block 12 of its own role send: row_flag[9] was to reach epoch 8 and is 7 (exchange, role recv, block 40, exchange.rs:240); reset the world before it is used again");
    let status = Status { peer: u32::MAX, ..expired() };
    let told = Aborted::of(&[at(0, status)], &names()).unwrap().to_string();
    assert!(told.contains("some block of its own roles"), "{told}");
    let status = Status { peer: 1 << 31 | 1 << 16 | 0xffff, ..expired() };
    let told = Aborted::of(&[at(0, status)], &names()).unwrap().to_string();
    assert!(told.contains("some block of its own role send"), "{told}");
}

#[test]
fn another_processs_wait_is_its_own_to_tell() {
    let told = Status { aborted: 6, ..Status::default() };
    let aborted = Aborted::of(&[at(1, told)], &names()).unwrap();
    assert_eq!((aborted.rank, &aborted.wait), (5, &None));
    insta::assert_snapshot!(aborted, @"rank 5 gave up waiting; its own error says for what; reset the world before it is used again");
}

#[test]
fn of_two_that_gave_up_one_of_ours_is_reported() {
    // Rank 2 is another process's, and was the first to write here.
    let status = Status { aborted: 3, ..expired() };
    assert_eq!(Aborted::of(&[at(0, status)], &names()).unwrap().rank, 0);
}

#[test]
fn strangers_are_told_by_number() {
    let status = Status { kernel: 1, role: 7, flag: 5, ..expired() };
    let wait = Aborted::of(&[at(0, status)], &names()).unwrap().wait.unwrap();
    assert_eq!((wait.kernel.as_str(), wait.role.as_str()), ("kernel 0x0000000000000001", "role 7"));
    assert_eq!(wait.flag, "parameter 5");
}

#[test]
fn a_kernel_without_a_table_of_waits_has_lines() {
    let mut old = names();
    old[0].waits.clear();
    let status = Status { site: 240, ..expired() };
    let aborted = Aborted::of(&[at(0, status)], &old).unwrap();
    assert_eq!((aborted.wait.as_ref().unwrap().line, &aborted.wait.as_ref().unwrap().file), (240, &None));
    assert!(aborted.to_string().contains("role recv, block 40, line 240)"), "{aborted}");
}

#[test]
fn emitted_sources_call_themselves_and_lay_the_record_out_so() {
    let config = ClockSync { ranks: 2, rounds: 4 };
    let kernel = config.trace(32).unwrap();
    let info = peerwarp_codegen::print::EmitInfo { command: String::new() };
    let source = peerwarp_codegen::print::emit(
        &peerwarp_codegen::ir::verify(kernel).unwrap(),
        Target::Cuda(CudaArch::Sm90a),
        &info,
    )
    .unwrap();
    let id = format!("kernel_id = {:#018x}ull", kernel_id(&config.variant_name()));
    assert!(source.text.contains(&id), "{id}");
    let start = source.text.find("struct Status {").unwrap();
    let text = &source.text[start..];
    let body = &text[..text.find("};").unwrap()];
    let members: Vec<&str> = body.lines().skip(1).filter_map(|l| l.trim().split(';').next()).collect();
    let members: Vec<&str> = members.into_iter().filter(|m| !m.is_empty()).collect();
    assert_eq!(
        members,
        [
            "u32 aborted",
            "u32 filled",
            "u64 kernel",
            "u64 index",
            "u32 rank",
            "u32 role",
            "u32 block",
            "u32 peer",
            "u32 flag",
            "u32 site",
            "u32 expected",
            "u32 seen",
            "u64 inactive"
        ]
    );
    assert_eq!(size_of::<Status>(), 64);
}

#[test]
fn ranks_of_a_record_count_those_of_its_node_and_those_of_far_channels_all() {
    let record = |peer| Record {
        rank: 5,
        first: 4,
        status: Status { aborted: 2, filled: 1, rank: 1, peer, ..expired() },
    };
    let peer = |peer| {
        let aborted = Aborted::of(&[record(peer)], &names()).unwrap();
        (aborted.rank, aborted.wait.unwrap().peer)
    };
    assert_eq!(peer(2), (5, 6));
    assert_eq!(peer(FAR | 2), (5, 2));
    assert_eq!(peer(OWN_BLOCKS | 2), (5, 5));
}
