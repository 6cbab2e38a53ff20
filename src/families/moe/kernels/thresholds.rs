//! The thresholds that default plans follow: data, `thresholds.toml`, in which the first row that a key meets says a number.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use peerwarp_codegen::ir::PACKET_BYTES;
use serde::Deserialize;

use super::layout::Layout;
use super::protocol::Protocol;

/// The rows of each choice, by launch and choice.
static TABLE: LazyLock<BTreeMap<String, BTreeMap<String, Vec<Row>>>> = LazyLock::new(|| {
    toml::from_str(include_str!("thresholds.toml")).expect("the embedded thresholds are well-formed")
});

/// A number, and for which keys.
#[derive(Deserialize)]
struct Row {
    #[serde(rename = "use")]
    amount: Amount,
    #[serde(flatten)]
    when: BTreeMap<String, Wanted>,
}

/// What a condition wants of a fact.
#[derive(Deserialize)]
#[serde(untagged)]
enum Wanted {
    Truth(bool),
    Number(u32),
}

/// The number that a row says.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Amount {
    Fixed(u32),
    Scaled { per: String, times: u32, least: u32, most: u32 },
}

/// What is known of a key: numbers by name, 1 for what holds and 0 for what does not.
pub(super) struct Facts(BTreeMap<&'static str, u32>);

/// What dispatch and combine know alike of the rows of a key.
pub(super) struct Rows {
    pub hidden: u32,
    pub tokens: u32,
    pub ranks: u32,
    pub layout: Layout,
    /// Bytes of a row.
    pub bytes: u32,
    /// Whether rows may go as packets.
    pub survive_packets: bool,
}

/// The warps that move a row of so many bytes together, where rows travel so.
pub(super) fn group_warps(protocol: Protocol, tokens: u32, row_bytes: u32) -> u32 {
    let packets = (protocol == Protocol::Packets).into();
    Facts([("tokens", tokens), ("packets", packets)].into()).with_group_warps(row_bytes).0["group_warps"]
}

impl Facts {
    /// Those of rows.
    pub fn of(rows: &Rows) -> Facts {
        let Rows { hidden, tokens, ranks, layout, bytes, survive_packets } = *rows;
        Facts::of_tokens(tokens, ranks)
            .with("by_expert", layout.by_expert())
            .with("whole_packets", hidden.is_multiple_of(PACKET_BYTES))
            .with("survives_packets", survive_packets)
            .with_choice("packets")
            .with_group_warps(bytes)
    }

    /// Those of so many tokens of each of so many ranks.
    pub fn of_tokens(tokens: u32, ranks: u32) -> Facts {
        Facts([("tokens", tokens), ("ranks", ranks), ("rows", tokens * ranks)].into())
    }

    /// With one more.
    pub fn with(mut self, fact: &'static str, value: impl Into<u32>) -> Facts {
        self.0.insert(fact, value.into());
        self
    }

    fn with_choice(self, fact: &'static str) -> Facts {
        let chosen = self.choose("rows", fact);
        self.with(fact, chosen)
    }

    /// With the steps in which a warp goes through a row, four vectors a lane each, and the warps of a group that these ask for.
    fn with_group_warps(self, row_bytes: u32) -> Facts {
        self.with("row_steps", row_bytes.div_ceil(16 * 32 * 4)).with_choice("group_warps")
    }

    /// How rows travel.
    pub fn protocol(&self) -> Protocol {
        if self.0["packets"] == 1 { Protocol::Packets } else { Protocol::Flags }
    }

    /// What the table says for a launch.
    pub fn choose(&self, launch: &str, choice: &str) -> u32 {
        let mut rows = TABLE[launch][choice].iter();
        let row = rows.find(|row| row.is_met(self)).expect("the last row has no conditions");
        match &row.amount {
            Amount::Fixed(number) => *number,
            Amount::Scaled { per, times, least, most } => {
                (self.0[per.as_str()] * times).next_power_of_two().clamp(*least, *most)
            }
        }
    }
}

impl Row {
    fn is_met(&self, facts: &Facts) -> bool {
        self.when.iter().all(|(condition, wanted)| {
            let wanted = match wanted {
                Wanted::Truth(truth) => u32::from(*truth),
                Wanted::Number(number) => *number,
            };
            match (condition.strip_suffix("_from"), condition.strip_suffix("_to")) {
                (Some(fact), _) => facts.0[fact] >= wanted,
                (_, Some(fact)) => facts.0[fact] <= wanted,
                (None, None) => facts.0[condition.as_str()] == wanted,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::Phase;
    use super::*;
    use crate::families::moe::{MoeKey, MoeShape, RowDtype};

    /// What a table asks of a launch that its facts do not know.
    fn unknown(facts: &Facts, launch: &str) -> Vec<String> {
        let rows = TABLE[launch].values().flatten();
        let asked = rows.flat_map(|row| {
            let per = match &row.amount {
                Amount::Fixed(_) => None,
                Amount::Scaled { per, .. } => Some(per.as_str()),
            };
            let named = row.when.keys().map(|name| name.trim_end_matches("_from").trim_end_matches("_to"));
            named.chain(per).map(str::to_owned).collect::<Vec<_>>()
        });
        asked.filter(|fact| !facts.0.contains_key(fact.as_str())).collect()
    }

    #[test]
    fn tables_ask_what_is_known() {
        let key = MoeKey::new(MoeShape {
            hidden: 64,
            experts: 8,
            topk: 2,
            tokens: 8,
            ranks: 2,
            dtype: RowDtype::Fp8,
        });
        assert_eq!(unknown(&key.dispatch(Phase::Both).facts(), "dispatch"), [""; 0]);
        assert_eq!(unknown(&key.dispatch(Phase::Both).facts(), "rows"), [""; 0]);
        assert_eq!(unknown(&key.combine(Phase::Both).facts(), "combine"), [""; 0]);
        assert_eq!(unknown(&key.round_trip().facts(), "round_trip"), [""; 0]);
    }

    #[test]
    fn each_choice_ends_in_a_row_for_all_keys() {
        for choice in TABLE.values().flat_map(BTreeMap::values) {
            assert!(
                choice.iter().all(|row| row.when.is_empty() == std::ptr::eq(row, &choice[choice.len() - 1]))
            );
        }
    }
}
