//! How the card misbehaves: settings, and the fate of each put.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::CardError;

const PREFIX: &str = "PEERWARP_GIN_";
const DELAY: &str = "PEERWARP_GIN_DELAY_US";
const SEED: &str = "PEERWARP_GIN_REORDER_SEED";
const SPREAD: &str = "PEERWARP_GIN_SPREAD_US";
const DROP: &str = "PEERWARP_GIN_DROP_PUT";
const PATIENCE: &str = "PEERWARP_GIN_PATIENCE_MS";
const NAMES: [&str; 5] = [DELAY, SEED, SPREAD, DROP, PATIENCE];

/// What variables ask of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How puts land.
    pub manners: Manners,
    /// How long connecting and closing wait for a peer: 1 ms to 10 minutes, 30 s by default.
    pub patience: Duration,
}

/// How puts land at this card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manners {
    /// How long after it is seen a put lands: up to a second.
    pub delay: Duration,
    /// Whether puts overtake each other.
    pub reorder: Option<Reorder>,
    /// The put that never lands: its number among those of a source that carry bytes, from 1.
    pub drop: Option<u64>,
}

/// Puts overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// The same seed draws the same times.
    pub seed: u64,
    /// The most that a put is late: 1 us to a second.
    pub spread: Duration,
}

impl Settings {
    /// The settings of this process's environment.
    ///
    /// # Errors
    /// A variable's value is not allowed, or a variable that begins with `PEERWARP_GIN_` is unknown or does nothing.
    pub fn from_environment() -> Result<Settings, CardError> {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Settings::from_variables(std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))))
    }

    /// The settings that variables ask for; those of other programs are left alone.
    ///
    /// # Errors
    /// As [`Settings::from_environment`].
    pub fn from_variables(
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Settings, CardError> {
        let (mut delay, mut seed, mut spread, mut drop, mut patience) = (None, None, None, None, None);
        for (name, value) in variables.into_iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            match name.as_str() {
                DELAY => delay = Some(number(&name, &value, 0..=1_000_000)?),
                SEED => seed = Some(number(&name, &value, 0..=u64::MAX)?),
                SPREAD => spread = Some(number(&name, &value, 1..=1_000_000)?),
                DROP => drop = Some(number(&name, &value, 1..=u64::MAX)?),
                PATIENCE => patience = Some(number(&name, &value, 1..=600_000)?),
                _ => return Err(CardError::UnknownVariable { name, known: NAMES.join(", ") }),
            }
        }
        if spread.is_some() && seed.is_none() {
            return Err(CardError::Alone { name: SPREAD, needed: SEED });
        }
        let spread = Duration::from_micros(spread.unwrap_or(200));
        let manners = Manners {
            delay: Duration::from_micros(delay.unwrap_or(0)),
            reorder: seed.map(|seed| Reorder { seed, spread }),
            drop,
        };
        Ok(Settings { manners, patience: Duration::from_millis(patience.unwrap_or(30_000)) })
    }
}

fn number(name: &str, value: &str, allowed: RangeInclusive<u64>) -> Result<u64, CardError> {
    let parsed = u64::from_str(value).ok().filter(|number| allowed.contains(number));
    parsed.ok_or_else(|| CardError::Variable {
        name: name.to_owned(),
        value: value.to_owned(),
        allowed: format!("whole numbers from {} to {}", allowed.start(), allowed.end()),
    })
}

/// How a put ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It lands so much later.
    Late(Duration),
    /// It never lands. This is its number among the source's puts with bytes.
    Lost(u64),
}

/// Decides the fates of one source's puts at one card, one after the other.
pub struct Judge {
    manners: Manners,
    random: Option<ChaCha8Rng>,
    /// Puts with bytes so far.
    puts: u64,
}

impl Judge {
    /// A judge whose draws follow from the seed and from both ranks.
    pub fn new(manners: Manners, source: usize, rank: usize) -> Judge {
        let random = manners.reorder.map(|reorder| {
            let mut random = ChaCha8Rng::seed_from_u64(reorder.seed);
            random.set_stream((source as u64) << 32 | rank as u64);
            random
        });
        Judge { manners, random, puts: 0 }
    }

    /// The fate of the next put, which carries bytes or a signal alone.
    pub fn fate(&mut self, carries_bytes: bool) -> Fate {
        self.puts += u64::from(carries_bytes);
        let spread = self.manners.reorder.map_or(Duration::ZERO, |reorder| reorder.spread);
        let more = self.random.as_mut().map_or(0, |random| random.random_range(0..=spread.as_nanos() as u64));
        if carries_bytes && self.manners.drop == Some(self.puts) {
            return Fate::Lost(self.puts);
        }
        Fate::Late(self.manners.delay + Duration::from_nanos(more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let owned =
            variables.iter().map(|(name, value)| (format!("PEERWARP_GIN_{name}"), (*value).to_owned()));
        Settings::from_variables(owned.chain([("HOME".to_owned(), "/x".to_owned())]))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn variables_ask_for_misbehaviour() {
        let plain = settings(&[]).unwrap();
        assert_eq!(plain, Settings { manners: Manners::default(), patience: Duration::from_secs(30) });
        let all = [
            ("DELAY_US", "5"),
            ("REORDER_SEED", "7"),
            ("SPREAD_US", "9"),
            ("DROP_PUT", "3"),
            ("PATIENCE_MS", "1"),
        ];
        let us = Duration::from_micros;
        let reorder = Some(Reorder { seed: 7, spread: us(9) });
        let manners = Manners { delay: us(5), reorder, drop: Some(3) };
        assert_eq!(settings(&all).unwrap(), Settings { manners, patience: Duration::from_millis(1) });
        assert_eq!(settings(&[("REORDER_SEED", "7")]).unwrap().manners.reorder.unwrap().spread, us(200));
    }

    #[test]
    fn a_bad_value_is_named() {
        let said = |name, value| settings(&[(name, value)]).unwrap_err();
        assert_eq!(
            said("DELAY_US", "1ms"),
            "PEERWARP_GIN_DELAY_US is `1ms`, and whole numbers from 0 to 1000000 are allowed"
        );
        assert_eq!(
            said("DROP_PUT", "0"),
            "PEERWARP_GIN_DROP_PUT is `0`, and whole numbers from 1 to 18446744073709551615 are allowed"
        );
        assert!(said("SPREAD_US", "1000001").contains("from 1 to 1000000"));
        assert!(said("PATIENCE_MS", "-1").contains("from 1 to 600000"));
        assert!(said("REORDER_SEED", "").contains("is ``"));
        assert!(
            said("DELAY", "1")
                .starts_with("PEERWARP_GIN_DELAY is no setting of the card: PEERWARP_GIN_DELAY_US, ")
        );
        assert_eq!(
            said("SPREAD_US", "9"),
            "PEERWARP_GIN_SPREAD_US is set, and does nothing without PEERWARP_GIN_REORDER_SEED: set both, or neither"
        );
    }

    #[test]
    fn fates_follow_from_the_seed_and_the_ranks() {
        let spread = Duration::from_micros(50);
        let manners =
            |seed| Manners { delay: spread, reorder: Some(Reorder { seed, spread }), drop: Some(2) };
        let fates = |seed, source| {
            let mut judge = Judge::new(manners(seed), source, 0);
            [true, false, true, true, true].map(|bytes| judge.fate(bytes))
        };
        assert_eq!(fates(1, 1), fates(1, 1));
        assert_ne!(fates(1, 1), fates(2, 1));
        assert_ne!(fates(1, 1), fates(1, 2));
        // A signal alone is not counted.
        assert_eq!(fates(1, 1)[2], Fate::Lost(2));
        let late = |fate| matches!(fate, Fate::Late(time) if time >= spread && time <= 2 * spread);
        assert_eq!(fates(1, 1).into_iter().filter(|fate| late(*fate)).count(), 4);
        assert_eq!(Judge::new(Manners::default(), 0, 0).fate(true), Fate::Late(Duration::ZERO));
    }
}
