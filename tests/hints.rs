//! Hints: credits and banks that a kernel is clean without are told, and those that it needs are not.

use peerwarp::families::collectives::AllReduce;
use peerwarp::harness::check::Exploration;
use peerwarp::harness::elements::encode;
use peerwarp::harness::hints::hints;
use peerwarp::harness::suite;
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Inputs, Turn, Workload};
use peerwarp::prelude::*;

const WORDS: u32 = 32;

/// Words of all ranks to all, by flags with credits, which flags do not need.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "echo", kernel = echo, args = EchoArgs, warps = warps)]
pub struct Echo {
    /// World size.
    #[key(short = "r", range = 2..=8, ranks)]
    pub ranks: u32,
    /// Whether each rank signals all ranks that it has read, and waits for that: then no data are sent to a rank that may still read.
    #[key(short = "a")]
    pub answers: bool,
    /// Warps of a block.
    #[tune(short = "w", values = [1], default = 1)]
    pub warps: u32,
}

impl Legal for Echo {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = Echo)]
pub struct EchoArgs {
    /// This rank's words.
    #[input]
    #[len(|_| WORDS.into())]
    pub x: Ptr<f32>,
    /// All ranks' words.
    #[output]
    #[len(|c| u64::from(WORDS * c.ranks))]
    pub out: Ptr<f32>,
    /// Words of a rank.
    #[channel(|c| ChannelShape::new(Transport::Flags, c.ranks, Slots::BySender(1)).credits(true))]
    #[len(WORDS)]
    pub words: Channel<f32>,
    /// That a rank has read.
    #[channel(|c| ChannelShape::new(Transport::Flags, c.ranks, Slots::BySender(1)).banks(1))]
    #[len(|c| u32::from(c.answers))]
    pub answers: Option<Channel<u32>>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Sends each rank's words to all.
#[kernel]
pub fn echo(c: &Echo, a: &EchoArgs) {
    let epoch = a.epoch.begin();
    let words = a.words.open(epoch);
    let answers = a.answers.as_ref().map(|answers| answers.open(epoch));
    role("all", 1, |_| {
        let message = words.to(Peers::all()).slot(0);
        message.put(0, a.x.load(0, WORDS));
        message.done();
        for from in 0..c.ranks.val() {
            a.out.store(from * WORDS, words.from(from).slot(0).load(0, WORDS));
        }
        if let Some(answers) = answers {
            let message = answers.to(Peers::all()).slot(0);
            message.put(0, splat(1u32, 1));
            message.done();
            for from in 0..c.ranks.val() {
                // Waits.
                let _read = answers.from(from).slot(0);
            }
        }
    });
    words.credits();
}

impl Workload for Echo {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::of("x", &words(turn))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let all: Vec<f32> = (0..self.ranks).flat_map(|rank| words(Turn { rank, ..turn })).collect();
        vec![Expected::exactly("out", Dtype::F32, encode(Dtype::F32, &all))]
    }
}

fn words(turn: Turn) -> Vec<f32> {
    (0..WORDS).map(|i| (i + 100 * turn.rank + 1000 * turn.round) as f32).collect()
}

/// The hints for a configuration.
fn told<F: Workload>(settings: &[(&str, &str)]) -> Vec<String> {
    let config = F::from_settings(settings).unwrap_or_else(|e| panic!("{settings:?}: {e}"));
    let inputs = Inputs { rounds: 4, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 12, resident_blocks: None };
    let found = hints(suite::of::<F>(), &[config.into_variant()], &exploration, || {});
    found.iter().map(ToString::to_string).collect()
}

const CREDITS: &str = "the credits of `words` are not needed: the kernel is clean without them in 12 seeds";

#[test]
fn what_is_not_needed_is_reported() {
    let bank = "the second bank of `words` is not needed: the kernel is clean with one in 12 seeds";
    assert_eq!(told::<Echo>(&[("ranks", "3"), ("answers", "true")]), [CREDITS, bank]);
}

#[test]
fn what_is_needed_is_not() {
    assert_eq!(told::<Echo>(&[("ranks", "3"), ("answers", "false")]), [CREDITS], "a bank is needed");
    let key = [("elements", "600"), ("ranks", "3"), ("dtype", "f32"), ("warps", "1"), ("chunk", "256")];
    for rest in [
        [("algorithm", "one-shot"), ("protocol", "packets")],
        [("algorithm", "one-shot"), ("protocol", "flags")],
    ] {
        assert_eq!(told::<AllReduce>(&[&key[..], &rest].concat()), [""; 0], "{rest:?}");
    }
}
