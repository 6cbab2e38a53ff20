//! Which memory the capacities of one operation may share: what one rank alone touches, and nothing that others store to.

use std::sync::Arc;

use peerwarp::codegen::dsl::{Binding, ParamSpec};
use peerwarp::codegen::family::Family;
use peerwarp::codegen::ir::{Const, ParamKind, verify};
use peerwarp::codegen::sim::{Bindings, Compiled, Findings, Machine, Options};
use peerwarp::families::moe::MoeProblem;
use peerwarp::families::moe::kernels::{Layout, Protocol};
use peerwarp::families::moe::run::MoeTuning;

use crate::support::{shape, small};

const RANKS: u32 = 3;
const HIDDEN: u32 = 64;

/// What the small capacity shares with the large one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shared {
    /// Nothing.
    Nothing,
    /// What dispatch leaves for the experts and for combine of its own rank.
    Local,
    /// Inboxes, returns and their flags as well, in the epochs of both.
    Channels,
}

impl Shared {
    /// Whether both capacities have one buffer for a parameter.
    fn is_of(self, param: &ParamSpec) -> bool {
        let channels =
            ["inbox", "row_flag", "inbox_packets", "returns", "return_flag", "return_packets", "epoch"];
        let own = param.binding == Binding::State;
        (self != Shared::Nothing && own && param.kind == ParamKind::Local)
            || (self == Shared::Channels && channels.contains(&param.name.as_str()))
    }
}

/// Rounds of two capacities in turn.
fn machine(small_one: &MoeTuning, large_one: &MoeTuning, shared: Shared, seed: u64) -> Machine {
    let mut machine = Machine::new(RANKS);
    let mut launches = vec![];
    for (tuning, suffix, counts) in [(small_one, "_few", [0, 2, 2]), (large_one, "", [6, 6, 0])] {
        let kernels = [
            (tuning.dispatch().params(), tuning.dispatch().trace(32).unwrap(), "epoch"),
            (tuning.combine().params(), tuning.combine().trace(32).unwrap(), "combine_epoch"),
        ];
        for (params, kernel, epoch) in kernels {
            let kernel = Arc::new(Compiled::new(verify(kernel).unwrap()));
            let mut bound = Bindings::new();
            for param in params.iter().filter(|p| p.kind != ParamKind::Scalar) {
                let name = if param.name == "epoch" { epoch } else { param.name.as_str() };
                let name = if shared.is_of(param) { name.to_owned() } else { format!("{name}{suffix}") };
                machine.buffer(&name, param.kind, param.dtype, param.len).unwrap();
                bound = bound.buffer(&param.name, &name);
            }
            launches.push((kernel, bound, counts));
        }
        give(&mut machine, tuning, suffix, &MoeProblem::uniform(tuning.key.shape, &counts, seed).unwrap());
    }
    for rank in 0..RANKS {
        for (kernel, bound, counts) in launches.iter().cycle().take(4 * 4) {
            let rows = Const::U32(counts[rank as usize]);
            let numbers = bound.clone().scalar("rows_there", rows).scalar("empty_id", Const::I32(-1));
            machine.launch(rank, kernel, &numbers).unwrap();
        }
    }
    machine
}

/// Writes what callers pass to one capacity: all rows and outputs are zeros.
fn give(machine: &mut Machine, tuning: &MoeTuning, suffix: &str, problem: &MoeProblem) {
    let routing = problem.routing(0);
    let called = |name: &str| format!("{name}{suffix}");
    for rank in 0..RANKS {
        let (ids, weights) = (&routing.ids[rank as usize], &routing.weights[rank as usize]);
        let n = ids.len() as u32 / tuning.key.shape.topk;
        machine.write(rank, &called("n"), 0, &[n]).unwrap();
        machine.write(rank, &called("ids"), 0, ids).unwrap();
        machine.write(rank, &called("weights"), 0, weights).unwrap();
        machine.write(rank, &called("x"), 0, &vec![0u16; (n * HIDDEN) as usize]).unwrap();
        let y = vec![0u16; (tuning.combine().room().places * u64::from(HIDDEN)) as usize];
        machine.write(rank, &called("y"), 0, &y).unwrap();
    }
}

/// The first findings of some schedules.
fn found(shared: Shared, layout: Layout, protocol: Protocol) -> Option<Box<Findings>> {
    let tuning =
        |tokens| small(&shape(HIDDEN, 5, 2, tokens, RANKS)).with_layout(layout).with_protocol(protocol);
    (0..12).find_map(|seed| {
        let machine = machine(&tuning(2), &tuning(6), shared, seed);
        machine.run(&Options::default().with_seed(seed)).err()
    })
}

#[test]
fn capacities_share_what_is_of_one_rank_and_nothing_that_others_store_to() {
    for layout in [Layout::RankMajor, Layout::ExpertMajor] {
        for protocol in [Protocol::Flags, Protocol::Packets] {
            for shared in [Shared::Nothing, Shared::Local] {
                let found = found(shared, layout, protocol);
                assert!(found.is_none(), "{shared:?}, {layout:?}, {protocol:?}: {}", found.unwrap());
            }
            // A slot of the one capacity is several of the other, and another source's: who stores to it has not heard that it was read.
            let found = found(Shared::Channels, layout, protocol);
            assert!(
                found.is_some(),
                "{layout:?}, {protocol:?}: channels of two capacities did not disturb each other"
            );
        }
    }
}
