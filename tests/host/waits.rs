//! Waits that expire: nothing hangs, and the record says who waited for whom, where, and for what.

use peerwarp::codegen::ir::ParamKind;
use peerwarp::families::moe::kernels::{Dispatch, Hook, Layout, Protocol};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeProblem, MoeShape, RowDtype};

use crate::build::{Language, Mode};
use crate::job::STATUS;
use crate::moe::{MoeHost, Plan};

/// The record that a wait leaves, as `templates/*/kernel.hbs` lays it out.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Status {
    pub aborted: u32,
    pub filled: u32,
    pub kernel: u64,
    pub index: u64,
    pub rank: u32,
    pub role: u32,
    pub block: u32,
    pub peer: u32,
    pub flag: u32,
    pub site: u32,
    pub expected: u32,
    pub seen: u32,
}

const SOURCE: &str = include_str!("../../src/families/moe/kernels/wire.rs");

#[test]
fn a_rank_that_does_not_launch_is_named() {
    let few = MoeShape { hidden: 32, experts: 6, topk: 2, tokens: 2, ranks: 3, dtype: RowDtype::Bf16 };
    // So many entries that their senders count them.
    let many = MoeShape { experts: 36, topk: 32, tokens: 8, ..few };
    let cases = [(few, Protocol::Flags), (few, Protocol::Packets), (many, Protocol::Packets)];
    for (language, (shape, protocol)) in Language::ALL.into_iter().flat_map(|l| cases.map(|case| (l, case))) {
        let problem = MoeProblem::uniform(shape, &[2, 2, 2], 3).unwrap();
        let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap().small();
        let mut tuning = tuning.with_protocol(protocol);
        // One record a rank.
        tuning.plan.dispatch.chunk = shape.tokens;
        let silent = 1;
        let plan = Plan { silent: Some(silent), start_after: 6, ..Plan::new(language, 1) };
        let mut host = MoeHost::new(&problem, &tuning, plan);
        let before: Vec<usize> = host.job.read_bytes();
        for rank in 0..shape.ranks {
            host.job.read(rank, STATUS, 0..size_of::<Status>() as u64);
            host.job.read(rank, "epoch", 0..8);
        }
        for run in host.job.run(&host.program(Mode::Fast), 0..8) {
            for (rank, read) in run.read.iter().enumerate().filter(|(rank, _)| *rank as u32 != silent) {
                let (status, word) = read[before[rank]..].split_at(size_of::<Status>());
                let status: Status = bytemuck::pod_read_unaligned(status);
                assert_ne!(status.aborted, 0, "rank {rank} gets the record, seed {}", run.seed);
                assert_eq!(word, 7u64.to_le_bytes(), "all blocks of rank {rank} have begun epoch 7");
                if status.filled == 1 {
                    check(&host, rank as u32, silent, &tuning.dispatch(), status);
                }
            }
            let filled = |read: &Vec<u8>, rank: usize| read[before[rank] + 4] == 1;
            assert!(run.read.iter().enumerate().any(|(rank, read)| filled(read, rank)), "a record is left");
        }
    }
}

#[test]
fn launches_of_an_aborted_world_leave_at_once() {
    let shape = MoeShape { hidden: 32, experts: 6, topk: 2, tokens: 2, ranks: 3, dtype: RowDtype::Bf16 };
    let problem = MoeProblem::uniform(shape, &[2, 2, 2], 3).unwrap();
    let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor)
        .unwrap()
        .small()
        .with_protocol(Protocol::Flags);
    for language in Language::ALL {
        let mut host = MoeHost::new(&problem, &tuning, Plan::new(language, 1));
        let before: Vec<usize> = host.job.read_bytes();
        let aborted = Status { aborted: 1, ..bytemuck::Zeroable::zeroed() };
        let flags = u64::from(shape.ranks * shape.tokens) * 4;
        for rank in 0..shape.ranks {
            host.job.write_first(rank, STATUS, bytemuck::bytes_of(&aborted));
            for buffer in ["row_flag", "return_flag"] {
                host.job.read(rank, buffer, 0..flags);
            }
        }
        for run in host.job.run(&host.program(Mode::Fast), 0..4) {
            for (rank, read) in run.read.iter().enumerate() {
                let flags = &read[before[rank]..];
                assert!(flags.iter().all(|&b| b == 0), "{language:?}: rank {rank} signals {flags:?}");
            }
        }
    }
}

/// Checks the record of a wait for a rank's records.
fn check(host: &MoeHost, rank: u32, silent: u32, dispatch: &Dispatch, status: Status) {
    let kernel = &host.emitted[0].kernel;
    let named = |name: &str| kernel.params.iter().position(|p| p.name == name);
    // What may wait first, for any of a record's elements, of which there are so many.
    let entries = u64::from(dispatch.record_entries());
    let waits: &[_] = match (dispatch.protocol, dispatch.receivers_count()) {
        (Protocol::Flags | Protocol::Bulk, _) => {
            &[("rec_flag", ParamKind::Flags, "flag.wait_all(", "recv", 1)]
        }
        (Protocol::Packets, false) => &[("ll_n", ParamKind::Ll, "n.gather(record + l.bank", "recv", 1)],
        (Protocol::Packets, true) => &[
            ("ll_route", ParamKind::Ll, "a.ll_route.gather(entry", "recv", entries),
            ("ll_weight", ParamKind::Ll, "a.ll_weight?.load(first", "entries", entries),
            ("ll_n", ParamKind::Ll, "n.gather(record + l.bank", "entries", 1),
        ],
    };
    let named_so = waits.iter().find(|(name, ..)| named(name) == Some(status.flag as usize));
    let &(_, kind, wait, role, elements) = named_so.unwrap_or_else(|| panic!("{status:?}"));
    let flag = status.flag as usize;
    assert_eq!(kernel.params[flag].kind, kind);
    let line = 1 + SOURCE.lines().position(|l| l.contains(wait)).expect("dispatch waits") as u32;
    let place = &host.emitted[0].source.waits[status.site as usize];
    assert_eq!((place.file.rsplit('/').next(), place.line), (Some("wire.rs"), line));
    let role = kernel.roles.iter().position(|r| r.name == role).expect("dispatch waits there") as u32;
    let first = kernel.roles[..role as usize].iter().map(|r| r.blocks).sum::<u32>();
    let blocks = first..first + kernel.roles[role as usize].blocks;
    assert!(blocks.contains(&status.block), "{status:?}");
    // One record or flag a rank; epoch 7 has the bank of odd ones.
    let (peer, flag) = (silent, flag as u32);
    let index = u64::from(3 + silent) * elements + status.index % elements;
    let Status { kernel, block, .. } = status;
    let want = Status {
        aborted: status.aborted,
        filled: 1,
        kernel,
        index,
        rank,
        role,
        block,
        peer,
        flag,
        site: status.site,
        expected: 7,
        seen: 0,
    };
    assert_eq!(status, want);
    let id = format!("kernel_id = {kernel:#018x}ull");
    assert!(host.texts[0].text.contains(&id), "{id}");
}
