//! Products of pairs of blocks: what is refused of them by the trace, the verifier and the printers, which blocks the simulator finds that do
//! not multiply by the same, and that other kernels are emitted as if there were no pairs.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::{Dtype, Kernel, verify};
use peerwarp_codegen::print::{EmitInfo, emit, explain};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};

/// What a block multiplies, of all matrices and a counter.
type Multiply = fn(Group, [AnyMatrix; 2], Counter) -> Tile<f32>;

/// A role of so many blocks behind another one's, which store `multiply` of 128 rows each.
fn traced(blocks: u32, before: u32, multiply: Multiply) -> Result<Kernel, String> {
    of_rows(128, blocks, before, multiply)
}

fn of_rows(rows: u32, blocks: u32, before: u32, multiply: Multiply) -> Result<Kernel, String> {
    let kernel = trace(TraceMeta::new("paired", 1, 32, 8), |p| {
        let x: AnyMatrix = p.matrix("x", [512, 64], Dtype::Bf16);
        let w: AnyMatrix = p.matrix("w", [256, 64], Dtype::Bf16);
        let out: AnyMatrix = p.matrix("out", [512, 128], Dtype::F32);
        let next = p.arg::<Counters>("next", 1);
        if before > 0 {
            role("before", before, |_| {});
        }
        role("multiply", blocks, |b| {
            out.rows(b.index() * rows, rows).store_f32(0, multiply(b, [x, w], next.counter(0)));
        });
    });
    kernel.map_err(|e| e.to_string())
}

fn plain(b: Group, [x, w]: [AnyMatrix; 2], _: Counter) -> Tile<f32> {
    b.dot(x.rows(b.index() * 128, 128), w.rows(0, 128).in_pairs(), 2)
}

/// Every other block multiplies twice.
#[kernel]
fn multiplies_again(b: Group, matrices: [AnyMatrix; 2], next: Counter) -> Tile<f32> {
    let mut sums = var(plain(b, matrices, next));
    if b.index() % 2 == 1 {
        sums.set(sums.get().minimum(plain(b, matrices, next)));
    }
    sums.get()
}

/// Blocks multiply as often as they draw.
#[kernel]
fn draws(b: Group, matrices: [AnyMatrix; 2], next: Counter) -> Tile<f32> {
    let mut sums = var(plain(b, matrices, next));
    for i in b.dynamic(2u32, Some(next)) {
        sums.set(sums.get() * i.to_f32());
    }
    sums.get()
}

fn printed(kernel: &Kernel, target: &str) -> Result<String, String> {
    let verified = verify(kernel.clone()).map_err(|e| e.to_string())?;
    let (target, info) = (target.parse().expect("a target"), EmitInfo { command: "a test".into() });
    emit(&verified, target, &info).map(|source| source.text).map_err(|e| e.to_string())
}

/// What the simulator finds of a kernel of four blocks: a message for each seed, of which the fourth stages products.
fn found(multiply: Multiply) -> Vec<Option<String>> {
    let kernel = verify(traced(4, 0, multiply).expect("a kernel")).unwrap_or_else(|e| panic!("{e}"));
    let compiled = Arc::new(Compiled::new(kernel));
    let mut machine = Machine::new(1);
    machine.buffers_of(compiled.kernel()).unwrap();
    machine.write(0, "x", 0, &[0x3f80u16; 512 * 64]).unwrap();
    machine.write(0, "w", 0, &[0x3f80u16; 256 * 64]).unwrap();
    machine.launch_all(&compiled, &Bindings::new()).unwrap();
    let of = |seed| match machine.run(&Options::default().with_seed(seed)) {
        Ok(outcome) => {
            assert_eq!(outcome.memory.read::<f32>(0, "out").unwrap()[0], 64.0);
            None
        }
        Err(findings) => {
            assert!(findings.list.iter().all(|f| f.kind == FindingKind::PairsDiffer), "{findings}");
            Some(findings.list[0].message.clone())
        }
    };
    (0..4).map(of).collect()
}

#[test]
fn blocks_that_do_not_multiply_by_the_same_are_found() {
    assert_eq!(found(plain), [const { None }; 4]);
    let wrong: [(Multiply, &str); 4] = [
        (
            |b, [x, w], _| {
                b.dot(x.rows(b.index() * 128, 128), w.rows(b.index() % 2 * 128, 128).in_pairs(), 2)
            },
            "rows from 128 on, columns [0; 64]",
        ),
        // Blocks 1 and 2 have the same rows, and are no pair.
        (
            |b, [x, w], _| {
                let row = (b.index() + 1) / 2 % 2 * 128;
                b.dot(x.rows(b.index() * 128, 128), w.rows(row, 128).in_pairs(), 2)
            },
            "blocks of a pair multiply by the same",
        ),
        (
            |b, [x, w], _| {
                let w = w.rows(0, 128).columns(b.index() % 2 * 32, 32);
                b.dot(x.rows(b.index() * 128, 128), w.in_pairs(), 2)
            },
            "rows from 0 on, columns [32; 32]",
        ),
        (multiplies_again, "multiplies 1 times more often than block"),
    ];
    for (multiply, words) in wrong {
        for (seed, said) in found(multiply).into_iter().enumerate() {
            assert!(said.as_ref().is_some_and(|said| said.contains(words)), "{words}, seed {seed}: {said:?}");
        }
    }
}

#[test]
fn pairs_are_even_and_alone() {
    for (blocks, before, fits) in [(4, 0, true), (2, 2, true), (3, 0, false), (2, 1, false), (3, 1, false)] {
        let said = printed(&traced(blocks, before, plain).unwrap(), "cuda:sm_100a");
        match said {
            Ok(text) => assert!(fits && text.contains("cta_group::2") && !text.contains("cta_group::1")),
            Err(said) => {
                assert!(!fits && said.contains("multiplies in pairs"), "{blocks} behind {before}: {said}");
            }
        }
    }
    let kernel = verify(traced(2, 0, plain).unwrap()).unwrap();
    let told = explain(&kernel, "cuda:sm_100a".parse().unwrap()).unwrap();
    let said = told.roles[0].multiplies.clone().expect("it multiplies");
    for words in ["`tcgen05.mma.cta_group::2.kind::f16`", "for two neighbouring blocks", "lie in 256 columns"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    let left = traced(2, 0, |b, [x, w], _| b.dot(x.rows(0, 128).in_pairs(), w.rows(0, 128), 2));
    assert!(left.unwrap_err().contains("blocks of a pair have the same rows of the right one"));
    let mut kernel = traced(2, 0, plain).unwrap();
    kernel.shared[0].len -= 1;
    let said = verify(kernel).unwrap_err().to_string();
    assert!(said.contains("has 49150 bytes; 49152 are needed"), "a block has half of the right rows: {said}");
}

#[test]
fn targets_and_kernels_without_pairs_refuse_them() {
    let kernel = traced(2, 0, plain).unwrap();
    for target in Target::all().filter(|target| target.warp_size() == 32) {
        let said = printed(&kernel, &target.to_string());
        assert_eq!(said.is_ok(), target.has_pairs(), "{target}");
        if let Err(said) = said {
            assert!(said.contains("rows of `w`") && said.contains("leave `pair` at false"), "{said}");
        }
    }
    let hindered: [(Multiply, &str); 3] = [
        (
            |b, [x, w], next| plain(b, [x, w], next) + b.dot(x.rows(0, 128), w.rows(0, 128), 2),
            "all products of a kernel are made in pairs",
        ),
        (
            |b, matrices, next| {
                let sums = plain(b, matrices, next);
                sums - sums.row_max()
            },
            "warps meet in this reduction",
        ),
        (draws, "draw numbers of their own"),
    ];
    let few: Multiply = |b, [x, w], _| b.dot(x.rows(b.index() * 64, 64), w.rows(0, 128).in_pairs(), 2);
    let few = (of_rows(64, 2, 0, few), "128 rows of a product or 256");
    let all = hindered.map(|(multiply, words)| (traced(2, 0, multiply), words));
    let apart = [
        (waiting(Waits::ForNoEpoch), "begins no epoch"),
        (waiting(Waits::AndReads), "numbers by themselves that other blocks write"),
    ];
    for (kernel, words) in all.into_iter().chain([few]).chain(apart) {
        let kernel = kernel.unwrap_or_else(|e| panic!("{e}"));
        let said = printed(&kernel, "cuda:sm_103a").expect_err("no pairs");
        assert!(said.contains(words) && said.contains("leave `pair` at false"), "{words}: {said}");
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Waits {
    InAnEpoch,
    /// Blocks ask by themselves whether the world is aborted.
    ForNoEpoch,
    /// Blocks read which rows they multiply, behind a wait.
    AndReads,
}

/// A role of pairs behind one that sends, which waits for rows of the other rank.
fn waiting(waits: Waits) -> Result<Kernel, String> {
    let kernel = trace(TraceMeta::new("paired", 2, 32, 8), |p| {
        let [x, out] = ["x", "out"].map(|name| p.matrix::<AnyMatrix>(name, [512, 64], Dtype::Bf16));
        let (rows, came) = (p.arg::<Ptr<u32>>("rows", 4), p.arg::<Flags>("came", 1));
        let made = p.arg::<BlockFlags>("made", 1);
        let word = p.arg::<EpochWord>("word", 1);
        let epoch = if waits == Waits::ForNoEpoch { word.peek() } else { word.begin() };
        role("send", 2, |b| {
            if waits == Waits::AndReads {
                rows.set(b.index(), 128u32);
                made.signal(0, epoch);
            }
            came.signal(Peers::others(), 0, epoch);
        });
        role("multiply", 2, |b| {
            let row = if waits == Waits::AndReads {
                made.from(0).wait(0, epoch);
                rows.get(0)
            } else {
                let _ = came.from(1u32.val() - rank()).wait(0, epoch);
                0u32.val()
            };
            let sums = b.dot(x.rows(row + b.index() * 128, 128), x.rows(0, 64).in_pairs(), 2);
            out.rows(b.index() * 128, 128).store_f32(0, sums);
        });
    });
    kernel.map_err(|e| e.to_string())
}

/// Both blocks begin what the first one begins, and launchers ask how many pairs are resident.
#[test]
fn pairs_that_wait_begin_together() {
    let text = |kernel: Kernel| printed(&kernel, "cuda:sm_100a").unwrap_or_else(|e| panic!("{e}"));
    let paired = text(waiting(Waits::InAnEpoch).unwrap());
    let ordered = ["= begin_epoch_in_pair(args, args.word, 4);", "== 0) return;"];
    let places = ordered.map(|what| paired.find(what).unwrap_or_else(|| panic!("{what}: {paired}")));
    assert!(places[0] < places[1] && paired.contains("const InPair<"), "{paired}");
    let launches = |text: &str| {
        let [pairs, each] = ["MaxActiveClusters(&pairs", "MaxActiveBlocksPerMultiprocessor(&each"]
            .map(|what| text.matches(&format!("cudaOccupancy{what}, kernel(), ")).count());
        (pairs, each)
    };
    assert_eq!(launches(&paired), (1, 0));
    let alone = text(of_rows(128, 2, 0, |b, [x, w], _| b.dot(x.rows(0, 128), w.rows(0, 128), 2)).unwrap());
    assert!(launches(&alone) == (0, 1) && !alone.contains("in_pair"));
}
