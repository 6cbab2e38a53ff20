//! A prediction of dispatch and combine between nodes, by a model that published figures calibrate. No network card was used.
//!
//! Times in microseconds, each a sum of what has to happen one after the other:
//!
//! ```text
//! one level  = fixed + cards
//! two levels = fixed + begin + max(cards + forward / nodes, forward) + hop + end
//!
//! cards   = max(bytes to other nodes / bandwidth, puts to other nodes / rate)
//! forward = bytes between the GPUs of a node / bandwidth of NVLink
//! ```
//!
//! With one level a row goes to each expert of another node, or all rows of a rank go in one put. With two levels a row goes once to each node
//! that has one of its experts, to the GPU of the same number, which forwards it to the owners; combine sums in the node and puts one row
//! back. What came from the last node is forwarded after all has arrived; the rest is forwarded meanwhile.
//!
//! A way through cards has four calibrated figures: the bandwidth of its card, a fixed part of each phase (launch, latency, counts), and the
//! puts that it is known to take a microsecond. The inputs, which row calibrates what, and which rows are held out are `far_cost.toml`.
//! Routing is uniform. Congestion, and ranks that are late, are not modelled.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use peerwarp_codegen::device::{FarMoved, FarPath};
use serde::Deserialize;

use super::cost::reached;
use super::{MoeShape, RowDtype};
use crate::harness::workload::{Predicted, PredictedTable};

/// The inputs.
static INPUTS: LazyLock<Inputs> = LazyLock::new(|| {
    toml::from_str(include_str!("far_cost.toml")).expect("the embedded inputs are well-formed")
});

/// Worlds that are predicted.
const RANKS: [u32; 3] = [16, 32, 64];

/// Dispatch and combine.
const PHASES: [usize; 2] = [0, 1];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inputs {
    problem: Case,
    near: Near,
    header: Header,
    #[serde(rename = "path")]
    paths: Vec<Way>,
    #[serde(rename = "row")]
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    tokens: u32,
    hidden: u32,
    experts: u32,
    topk: u32,
    /// GPUs of a node.
    node: u32,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Near {
    gbps: f64,
    hop_us: f64,
    begin_us: f64,
    end_us: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    bytes: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Way {
    name: String,
    card: String,
}

/// Published times.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    system: String,
    source: String,
    path: String,
    ranks: u32,
    tokens: Option<u32>,
    #[serde(default = "one")]
    levels: u32,
    puts: Puts,
    /// Where rows are no fp8.
    dispatch_row_bytes: Option<u32>,
    /// Of dispatch and combine.
    us: [f64; 2],
    #[serde(rename = "use")]
    usage: Usage,
}

fn one() -> u32 {
    1
}

/// What a put carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Puts {
    Row,
    /// All rows of a rank.
    Rank,
}

/// What a row of published times is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Usage {
    Bandwidth,
    Fixed,
    Rate,
    HeldOut,
}

impl Usage {
    /// Whether it fixes a figure by the time of a phase.
    fn calibrates(self, phase: usize) -> bool {
        match self {
            Usage::Bandwidth => phase == 1,
            Usage::Fixed => true,
            Usage::Rate => phase == 0,
            Usage::HeldOut => false,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Usage::Bandwidth => "gives the bandwidth",
            Usage::Fixed => "gives the fixed parts",
            Usage::Rate => "gives the rate of puts",
            Usage::HeldOut => "held out",
        }
    }
}

/// A way through cards, calibrated.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Calibrated {
    /// Its latencies are in the fixed parts.
    path: FarPath,
    /// Of dispatch and combine.
    fixed_us: [f64; 2],
}

/// The parts of a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Parts {
    fixed_us: f64,
    /// Bytes of the cards.
    bytes_us: f64,
    /// Puts of the cards.
    puts_us: f64,
    /// What the node adds to that.
    near_us: f64,
}

impl Parts {
    fn us(&self) -> f64 {
        self.fixed_us + self.bytes_us.max(self.puts_us) + self.near_us
    }
}

impl Case {
    /// Bytes of a row of each phase: fp8 with its scales, and bf16.
    fn row_bytes(&self, ranks: u32) -> [u32; 2] {
        let Case { tokens, hidden, experts, topk, .. } = *self;
        let shape = MoeShape { hidden, experts, topk, tokens, ranks, dtype: RowDtype::Fp8 };
        [shape.row_bytes() + shape.scale_bytes(), hidden * shape.dtype.combined().bytes()]
    }

    /// How likely a token has an expert on one of so many equal parts of the ranks.
    fn reached(&self, parts: u32) -> f64 {
        reached(self.experts, self.experts / parts, self.topk)
    }

    fn nodes(&self, ranks: u32) -> u32 {
        ranks / self.node
    }

    /// Rows that a rank has for other nodes: one for each expert there.
    fn rows_by_expert(&self, ranks: u32) -> f64 {
        let nodes = f64::from(self.nodes(ranks));
        f64::from(self.tokens * self.topk) * (nodes - 1.0) / nodes
    }

    /// The same, one for each node that has an expert.
    fn rows_by_node(&self, ranks: u32) -> f64 {
        let nodes = self.nodes(ranks);
        f64::from(self.tokens * (nodes - 1)) * self.reached(nodes)
    }

    /// Rows that a GPU has for others of its node, those of all nodes together: each token that came, to each owner but itself.
    fn rows_forwarded(&self, ranks: u32) -> f64 {
        let others = f64::from(self.node - 1) / f64::from(self.node);
        f64::from(self.tokens * ranks) * self.reached(ranks) * others
    }
}

fn moved(puts: f64, bytes: f64) -> FarMoved {
    FarMoved { puts: puts.round() as u64, bytes: bytes.round() as u64, ..FarMoved::default() }
}

/// The model.
#[derive(Debug)]
struct Model<'a> {
    inputs: &'a Inputs,
    paths: BTreeMap<&'a str, Calibrated>,
}

impl<'a> Model<'a> {
    /// Calibrated by the rows that are meant for it.
    fn new(inputs: &'a Inputs) -> Model<'a> {
        let mut model = Model { inputs, paths: BTreeMap::new() };
        let rows = |usage: Usage| inputs.rows.iter().filter(move |row| row.usage == usage);
        for way in &inputs.paths {
            let card = |row: &&Row| inputs.paths.iter().any(|w| w.name == row.path && w.card == way.card);
            let widest = rows(Usage::Bandwidth)
                .filter(card)
                .map(|row| model.cards(row)[1].bytes as f64 / row.us[1] / 1e3);
            let gbps = widest.fold(0.0, f64::max);
            let unbound = FarPath { gbps, put_us: 0.0, count_us: 0.0, puts_per_us: f64::INFINITY };
            let mut own = Calibrated { path: unbound, fixed_us: [0.0; 2] };
            let of_way = |row: &&Row| row.path == way.name;
            for row in rows(Usage::Fixed).filter(of_way) {
                let cards = model.cards(row);
                own.fixed_us = PHASES.map(|phase| row.us[phase] - unbound.card_us(&cards[phase]));
            }
            let rate = |row: &Row| model.cards(row)[0].puts as f64 / (row.us[0] - own.fixed_us[0]);
            own.path.puts_per_us = rows(Usage::Rate).filter(of_way).map(rate).fold(0.0, f64::max);
            model.paths.insert(&way.name, own);
        }
        model
    }

    fn case(&self, row: &Row) -> (Case, [u32; 2]) {
        let problem = self.inputs.problem;
        let case = Case { tokens: row.tokens.unwrap_or(problem.tokens), ..problem };
        let bytes = case.row_bytes(row.ranks);
        (case, [row.dispatch_row_bytes.unwrap_or(bytes[0]), bytes[1]])
    }

    /// What the cards of a rank move in each phase of a published row.
    fn cards(&self, row: &Row) -> [FarMoved; 2] {
        let (case, bytes) = self.case(row);
        let rows = match row.levels {
            1 => case.rows_by_expert(row.ranks),
            _ => case.rows_by_node(row.ranks),
        };
        let puts = match row.puts {
            Puts::Row => rows,
            Puts::Rank => f64::from(row.ranks - case.node),
        };
        bytes.map(|bytes| moved(puts, rows * f64::from(bytes)))
    }

    /// What the model says of a published row.
    fn of_row(&self, row: &Row) -> [Parts; 2] {
        let (case, bytes) = self.case(row);
        let (path, cards) = (&self.paths[row.path.as_str()], self.cards(row));
        PHASES.map(|phase| {
            let near = (row.levels > 1).then(|| case.rows_forwarded(row.ranks) * f64::from(bytes[phase]));
            self.parts(path, phase, &cards[phase], near, case.nodes(row.ranks))
        })
    }

    /// What the model says of our two levels.
    fn ours(&self, path: &Calibrated, ranks: u32) -> [Parts; 2] {
        let (case, header) = (self.inputs.problem, self.inputs.header.bytes);
        let (rows, bytes) = (case.rows_by_node(ranks), case.row_bytes(ranks));
        PHASES.map(|phase| {
            let cards = moved(rows, rows * f64::from(bytes[phase] + header));
            let near = case.rows_forwarded(ranks) * f64::from(bytes[phase]);
            self.parts(path, phase, &cards, Some(near), case.nodes(ranks))
        })
    }

    fn parts(
        &self,
        own: &Calibrated,
        phase: usize,
        cards: &FarMoved,
        near: Option<f64>,
        nodes: u32,
    ) -> Parts {
        let near_us = near.map_or(0.0, |bytes| {
            let Near { gbps, hop_us, begin_us, end_us } = self.inputs.near;
            let forward = bytes / gbps / 1e3;
            let cards = own.path.card_us(cards);
            begin_us + (cards + forward / f64::from(nodes)).max(forward) - cards + hop_us + end_us
        });
        Parts {
            fixed_us: own.fixed_us[phase],
            bytes_us: cards.bytes as f64 / own.path.gbps / 1e3,
            puts_us: cards.puts as f64 / own.path.puts_per_us,
            near_us,
        }
    }

    /// How far the model is from a published row, in parts of it.
    fn errors(&self, row: &Row) -> [f64; 2] {
        let said = self.of_row(row);
        PHASES.map(|phase| said[phase].us() / row.us[phase] - 1.0)
    }
}

/// Errors of rows: the mean of their sizes, and the largest, in parts of what was published.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    mean: f64,
    worst: f64,
}

fn spread(all: &[f64]) -> Spread {
    let worst = all.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(0.0);
    Spread { mean: all.iter().map(|e| e.abs()).sum::<f64>() / all.len().max(1) as f64, worst }
}

/// What a reader has to know.
const ABOUT: [&str; 2] = [
    "a prediction: no network card was used; inputs and sources are src/families/moe/far_cost.toml",
    "of cards the slower of bytes and puts counts; puts are at the rate that is known to be reached at least",
];

/// Held-out figures, by how much like a calibrating one they are.
const HELD_OUT: [&str; 3] =
    ["systems that calibrate, other sizes", "other systems in one level", "other systems in two levels"];

impl Model<'_> {
    /// The errors of all times that calibrate nothing, as [`HELD_OUT`] names them.
    fn held_out(&self) -> [Spread; 3] {
        let mut errors = [vec![], vec![], vec![]];
        let name = |row: &Row| row.system.split(',').next().map(str::to_owned);
        for row in &self.inputs.rows {
            let calibrates = |other: &Row| {
                matches!(other.usage, Usage::Fixed | Usage::Bandwidth) && name(other) == name(row)
            };
            let kind = match (self.inputs.rows.iter().any(calibrates), row.levels) {
                (true, _) => 0,
                (false, 1) => 1,
                (false, _) => 2,
            };
            let own = self.errors(row);
            errors[kind].extend(
                PHASES.iter().filter(|phase| !row.usage.calibrates(**phase)).map(|phase| own[*phase]),
            );
        }
        errors.map(|own| spread(&own))
    }
}

/// What dispatch and combine in two levels should take over network cards, and how far the model is from published figures.
pub fn predicted() -> Predicted {
    let model = Model::new(&INPUTS);
    let Case { tokens, .. } = INPUTS.problem;
    let us = |us: f64| format!("{us:.0}");
    let percent = |part: f64| format!("{:+.0} %", 100.0 * part);
    let mut ours = vec![];
    for way in &INPUTS.paths {
        for ranks in RANKS {
            let parts = model.ours(&model.paths[way.name.as_str()], ranks);
            let mut row = vec![way.name.clone(), format!("EP{ranks}")];
            for phase in parts {
                let Parts { fixed_us, bytes_us, puts_us, near_us } = phase;
                row.extend([phase.us(), fixed_us, bytes_us, puts_us, near_us].map(us));
            }
            row.push(us(parts[0].us() + parts[1].us()));
            ours.push(row);
        }
    }
    let published = |row: &Row| {
        let (said, errors) = (model.of_row(row), model.errors(row));
        let mut cells = vec![row.system.clone(), row.path.clone(), format!("EP{}", row.ranks)];
        for phase in PHASES {
            cells.extend([us(row.us[phase]), us(said[phase].us()), percent(errors[phase])]);
        }
        cells.extend([row.usage.words().to_owned(), row.source.clone()]);
        cells
    };
    let held = HELD_OUT.iter().zip(model.held_out()).map(|(what, s)| {
        format!("held out, {what}: {:.0} % off on average, {} at worst", 100.0 * s.mean, percent(s.worst))
    });
    let heads = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Predicted {
        title: format!(
            "Prediction: MoE of DeepSeek-V3 between nodes, {tokens} tokens a rank, fp8 there and bf16 back, two levels"
        ),
        notes: ABOUT.iter().map(|note| (*note).to_owned()).chain(held).collect(),
        tables: vec![
            PredictedTable {
                title: "Two levels, us".into(),
                head: heads(&[
                    "way", "world", "dispatch", "fixed", "bytes", "puts", "node", "combine", "fixed",
                    "bytes", "puts", "node", "both",
                ]),
                rows: ours,
            },
            PredictedTable {
                title: "Published, and what the model says of it, us".into(),
                head: heads(&[
                    "system", "way", "world", "dispatch", "model", "off", "combine", "model", "off", "use",
                    "source",
                ]),
                rows: INPUTS.rows.iter().map(published).collect(),
            },
        ],
    }
}

#[cfg(test)]
#[path = "far_cost_tests.rs"]
mod tests;
