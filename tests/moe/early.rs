//! Kernels that begin before the launch before them is over may find anything in memory where that one gave up: they stay within
//! their buffers all the same.

use std::sync::Arc;

use peerwarp::codegen::family::Family;
use peerwarp::codegen::ir::{Const, Kernel, ParamKind, verify};
use peerwarp::codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};
use peerwarp::families::moe::kernels::{Layout, Protocol};

use crate::support::{shape, small};

const RANKS: u32 = 4;
const TOKENS: u32 = 16;

/// Bytes without any sense, but for a few zeros.
fn garbage(bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..bytes.div_ceil(4))
        .flat_map(|_| if next() % 8 == 0 { [0; 4] } else { (next() as u32).to_le_bytes() })
        .collect()
}

/// What a launch on garbage does beyond what is allowed.
fn strays(kernel: &Kernel, seed: u64) -> Vec<FindingKind> {
    let compiled = Arc::new(Compiled::new(verify(kernel.clone()).unwrap()));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel).unwrap();
    for rank in 0..RANKS {
        for p in kernel.params.iter().filter(|p| p.kind == ParamKind::Local) {
            let bytes = p.len * u64::from(p.dtype.bytes());
            let content = garbage(bytes, seed * 1000 + u64::from(rank));
            machine.write(rank, &p.name, 0, &content[..bytes as usize]).unwrap();
        }
    }
    let mut scalars = Bindings::new();
    for p in kernel.params.iter().filter(|p| p.kind == ParamKind::Scalar) {
        let value = if p.name == "rows_there" { Const::U32(TOKENS) } else { Const::I32(-1) };
        scalars = scalars.scalar(&p.name, value);
    }
    machine.launch_all(&compiled, &scalars).unwrap();
    let found = machine.run(&Options::default().with_seed(seed)).map_or_else(|f| f.list, |_| vec![]);
    let strays = [FindingKind::OutOfBounds, FindingKind::WrappedIndex, FindingKind::DivisionByZero];
    found.into_iter().map(|f| f.kind).filter(|kind| strays.contains(kind)).collect()
}

#[test]
fn what_begins_early_stays_within_its_buffers_whatever_it_finds() {
    let mut early = vec![];
    for layout in [Layout::ExpertMajor, Layout::RankMajor] {
        for protocol in [Protocol::Flags, Protocol::Packets] {
            let tuning = small(&shape(64, 10, 4, TOKENS, RANKS)).with_layout(layout).with_protocol(protocol);
            let kernels = [tuning.dispatch().trace(32), tuning.combine().trace(32)];
            for kernel in kernels.map(|k| k.unwrap()).iter().filter(|k| k.begins_early) {
                early.push((kernel.name.clone(), layout, protocol));
                for seed in 0..12 {
                    assert_eq!(strays(kernel, seed), [], "{} with seed {seed}", kernel.variant);
                }
            }
        }
    }
    let packets = |name: &str, layout| (name.to_owned(), layout, Protocol::Packets);
    let by_token = Layout::RankMajor;
    let want = [
        packets("dispatch", Layout::ExpertMajor),
        packets("combine", Layout::ExpertMajor),
        packets("dispatch", by_token),
        packets("combine", by_token),
    ];
    assert_eq!(early, want);
}

/// Combine of rows by expert that come with flags takes rows' numbers from memory as they are: it begins when the launch before is over.
#[test]
fn what_does_not_begin_early_may_stray() {
    let tuning = small(&shape(64, 10, 4, TOKENS, RANKS)).with_protocol(Protocol::Flags);
    let combine = tuning.combine().trace(32).unwrap();
    assert!(!combine.begins_early);
    assert!((0..12).any(|seed| !strays(&combine, seed).is_empty()));
}
