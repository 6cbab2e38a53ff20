//! A rank dies after any of its stores, and the others go on without it.

use peerwarp::codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::harness::check::{Exploration, Wrong, WrongDeath, deaths};
use peerwarp::harness::suite;
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Inputs, Turn, Workload};
use peerwarp::prelude::*;

use super::support::config;

/// Deaths of a case: after every store of a small one.
const DEATHS: u64 = 120;

#[track_caller]
fn first_wrong<F: Workload>(settings: &str, deaths_of: u64) -> Option<WrongDeath> {
    let inputs = Inputs { seed: 3, rounds: 4, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 1, resident_blocks: None };
    let variants = [config::<F>(settings).into_variant()];
    deaths(suite::of::<F>(), &variants, &exploration, deaths_of, || {})
        .unwrap_or_else(|e| panic!("{settings}: {e}"))
}

#[track_caller]
fn survives<F: Workload>(settings: &str) {
    let found = first_wrong::<F>(settings, DEATHS);
    assert!(found.is_none(), "{settings}: {found:?}");
}

#[test]
fn reductions_go_on() {
    for op in ["sum", "max"] {
        let key = format!("elements=1500 ranks=4 dtype=f32 op={op} chunk=256 warps=2");
        for protocol in ["packets", "flags"] {
            for algorithm in ["one-shot", "two-shot"] {
                survives::<AllReduce>(&format!(
                    "{key} algorithm={algorithm} protocol={protocol} senders=0 blocks=2"
                ));
            }
            survives::<ReduceScatter>(&format!("{key} protocol={protocol} blocks=2"));
        }
        for algorithm in ["pull", "pull-two-shot"] {
            survives::<AllReduce>(&format!("{key} algorithm={algorithm} protocol=flags senders=0 blocks=2"));
        }
        for shots in ["one", "two"] {
            survives::<RegisteredAllReduce>(&format!("{key} shots={shots} blocks=2"));
        }
    }
}

#[test]
fn exchanges_go_on() {
    for protocol in ["packets", "flags"] {
        for in_place in [false, true] {
            let how = format!(
                "ranks=3 dtype=bf16 in_place={in_place} protocol={protocol} chunk=256 warps=2 blocks=2"
            );
            survives::<AllGather>(&format!("elements=700 {how}"));
            survives::<AllToAll>(&format!("elements=1500 {how}"));
            survives::<Broadcast>(&format!("elements=700 root=1 {how}"));
            survives::<RaggedAllToAll>(&format!("capacity=400 {how}"));
        }
    }
    survives::<AllGather>("elements=700 ranks=4 dtype=f32 algorithm=pull protocol=flags chunk=256 warps=2");
}

/// Launches without an element, too, in which ranks have nothing to wait for but each other's credits.
#[test]
fn launches_of_any_length_go_on() {
    for (protocol, length) in [("packets", "device"), ("flags", "host"), ("flags", "device")] {
        let key =
            format!("length={length} row=4 ranks=4 dtype=f32 protocol={protocol} chunk=256 warps=2 blocks=2");
        for algorithm in ["one-shot", "two-shot"] {
            survives::<AllReduce>(&format!("elements=1792 {key} algorithm={algorithm} senders=0"));
        }
        survives::<ReduceScatter>(&format!("elements=2800 {key} op=max"));
        survives::<AllGather>(&format!("elements=700 {key}"));
        survives::<AllToAll>(&format!("elements=2800 {key} in_place=true"));
        survives::<Broadcast>(&format!("elements=700 root=1 {key}"));
        let each = key.replace(&format!("length={length}"), "length=each");
        survives::<AllGather>(&format!("elements=700 {each}"));
        survives::<ReduceScatter>(&format!("elements=2800 {each}"));
    }
    let key = "length=device row=4 ranks=4 dtype=f32 protocol=flags chunk=256 warps=2 blocks=2";
    for algorithm in ["pull", "pull-two-shot"] {
        survives::<AllReduce>(&format!("elements=1792 {key} algorithm={algorithm} senders=0"));
    }
    let norm = "elements=2560 hook=rms-norm hidden=320 ranks=4 dtype=f32 warps=4 blocks=2 senders=0";
    survives::<AllReduce>(&format!("{norm} algorithm=two-shot length=device row=320"));
}

/// The largest of all ranks' numbers, element by element.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "largest", kernel = largest, args = LargestArgs, warps = warps)]
struct Largest {
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    ranks: u32,
    /// What of other ranks is looked at.
    #[key(default = Whose::Active)]
    whose: Whose,
    /// Warps of a block.
    #[tune(short = "w", values = [1], default = 1)]
    warps: u32,
}

/// Whose numbers count.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whose {
    /// Those of active ranks.
    Active,
    /// Whatever comes.
    All,
}

impl Legal for Largest {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = Largest)]
struct LargestArgs {
    /// A rank's numbers.
    #[input]
    #[len(32)]
    x: Ptr<f32>,
    /// The largest.
    #[output]
    #[len(32)]
    out: Ptr<f32>,
    /// All ranks' numbers.
    #[channel(|c| ChannelShape::new(Transport::Ll, c.ranks, Slots::BySender(1)))]
    #[len(32)]
    numbers: Channel<f32>,
    /// Counts launches.
    epoch: EpochWord,
}

#[kernel]
fn largest(c: &Largest, a: &LargestArgs) {
    let numbers = a.numbers.open(a.epoch.begin());
    role("all", 1, |b| {
        let own = a.x.load(0, 32);
        let message = numbers.to(Peers::others()).slot(0);
        message.put(0, own);
        message.done();
        let mut best = var(own);
        for i in 1..c.ranks.val() {
            let from = (rank() + i) % c.ranks;
            let theirs = numbers.from(from).slot(0).load(0, 32);
            let counted = match c.whose {
                Whose::Active => is_active(from).splat(32).select(theirs, f32::NEG_INFINITY),
                Whose::All => theirs,
            };
            best.set(best.get().maximum(counted));
        }
        if b.index() == 0 {
            a.out.store(0, best.get());
        }
    });
    numbers.credits();
}

impl Largest {
    /// Negative numbers: zeros are larger.
    fn numbers(turn: Turn) -> Vec<f32> {
        (0..32).map(|i| -1.0 - ((i * 7 + turn.rank * 13 + turn.round * 5) % 31) as f32).collect()
    }
}

impl Workload for Largest {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::of("x", &Largest::numbers(turn))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        self.expected_without(turn, 0).unwrap_or_default()
    }

    fn expected_without(&self, turn: Turn, inactive: u64) -> Option<Vec<Expected>> {
        let active = (0..self.ranks).filter(|rank| inactive >> rank & 1 == 0);
        let all: Vec<Vec<f32>> = active.map(|rank| Largest::numbers(Turn { rank, ..turn })).collect();
        let most: Vec<f32> = (0..32).map(|i| all.iter().map(|x| x[i]).fold(f32::MIN, f32::max)).collect();
        let bytes = most.iter().flat_map(|x| x.to_le_bytes()).collect();
        Some(vec![Expected::exactly("out", Dtype::F32, bytes)])
    }
}

#[test]
fn a_kernel_for_which_zeros_count_is_found() {
    survives::<Largest>("ranks=3 whose=active");
    let WrongDeath { without, wrong, .. } =
        first_wrong::<Largest>("ranks=3 whose=all", DEATHS).expect("zeros are larger");
    assert!(matches!(wrong, Wrong::Result(_)), "{wrong:?}");
    assert_eq!(without.map(u64::count_ones), Some(1));
}

#[test]
fn worlds_that_cannot_go_on_are_refused() {
    let inputs = Inputs { seed: 3, rounds: 1, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 1, resident_blocks: None };
    let alone = [config::<AllReduce>("elements=8 ranks=1 dtype=f32").into_variant()];
    let refused = deaths(suite::of::<AllReduce>(), &alone, &exploration, 5, || {}).unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("--deaths") && said.contains("at least 2 ranks"), "{said}");
}
