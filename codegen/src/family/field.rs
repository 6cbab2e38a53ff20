//! Configuration fields: what they are called and which values they may have.

use std::fmt;

use serde::{Serialize, Serializer};

use super::value::AUTO;
use super::{FieldType, Illegal, Value};

/// Where a field's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldRole {
    /// From the problem: the user must give it, unless it has a default.
    Key,
    /// Chosen by tuning: has a default.
    Tune,
}

/// The values a field may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Whole numbers from `min` to `max`, both included, that `multiple_of` divides.
    Range {
        /// Smallest.
        min: i128,
        /// Largest.
        max: i128,
        /// Divisor, 1 for every number.
        multiple_of: i128,
        /// Whether a rule may choose the number: `auto`, before all of them.
        auto: bool,
    },
    /// These and no others, in the order candidates are listed.
    Values(Vec<Value>),
}

impl Allowed {
    /// Whether a value is one of them.
    pub fn contains(&self, value: Value) -> bool {
        match (self, value) {
            (Allowed::Range { min, max, multiple_of, .. }, Value::Int(v)) => {
                (min..=max).contains(&&v) && v % multiple_of == 0
            }
            (Allowed::Range { auto, .. }, v) => *auto && v == Value::Name(AUTO),
            (Allowed::Values(values), v) => values.contains(&v),
        }
    }

    /// How many values there are.
    pub fn count(&self) -> u128 {
        match self {
            Allowed::Range { auto, .. } => self.numbers() + u128::from(*auto),
            Allowed::Values(values) => values.len() as u128,
        }
    }

    /// How many numbers a range has.
    fn numbers(&self) -> u128 {
        match (self, self.first_multiple()) {
            (Allowed::Range { max, multiple_of, .. }, Some(first)) if first <= *max => {
                ((max - first) / multiple_of) as u128 + 1
            }
            _ => 0,
        }
    }

    /// The `n`-th value, from 0.
    pub fn nth(&self, n: u128) -> Option<Value> {
        if n >= self.count() {
            return None;
        }
        match self {
            Allowed::Range { auto: true, .. } if n == 0 => Some(Value::Name(AUTO)),
            Allowed::Range { multiple_of, auto, .. } => {
                let n = n as i128 - i128::from(*auto);
                self.first_multiple().map(|first| Value::Int(first + n * multiple_of))
            }
            Allowed::Values(values) => values.get(n as usize).copied(),
        }
    }

    /// The allowed number closest to a number that is not allowed.
    pub fn nearest(&self, value: i128) -> Option<Value> {
        match self {
            Allowed::Range { min, max, multiple_of, auto } => {
                let first = self.first_multiple()?;
                let most = self.numbers().checked_sub(1)?;
                let at = (value.clamp(*min, *max) - first).max(0) as u128;
                let step = *multiple_of as u128;
                self.nth(((at + step / 2) / step).min(most) + u128::from(*auto))
            }
            Allowed::Values(values) => values
                .iter()
                .filter_map(|v| if let Value::Int(v) = v { Some(*v) } else { None })
                .min_by_key(|v| v.abs_diff(value))
                .map(Value::Int),
        }
    }

    /// Which of them a value is, or the one closest to it; 0 when there is none.
    pub fn position(&self, value: Value) -> u128 {
        let nearest = match value {
            Value::Int(number) => self.nearest(number),
            Value::Bool(_) | Value::Name(_) => Some(value),
        };
        match (self, nearest) {
            (Allowed::Range { multiple_of, auto, .. }, Some(Value::Int(number))) => {
                let at = |first| ((number - first) / multiple_of) as u128 + u128::from(*auto);
                self.first_multiple().map_or(0, at)
            }
            (Allowed::Values(values), Some(nearest)) => {
                values.iter().position(|v| *v == nearest).unwrap_or(0) as u128
            }
            (Allowed::Range { .. }, _) | (Allowed::Values(_), None) => 0,
        }
    }

    fn first_multiple(&self) -> Option<i128> {
        match self {
            Allowed::Range { min, multiple_of, .. } => {
                Some(min.div_euclid(*multiple_of) + i128::from(min.rem_euclid(*multiple_of) != 0))
                    .map(|n| n * multiple_of)
            }
            Allowed::Values(_) => None,
        }
    }
}

/// In words that complete "it must be ..".
impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Allowed::Range { auto: true, min, max, multiple_of } => {
                let numbers = Allowed::Range { auto: false, min: *min, max: *max, multiple_of: *multiple_of };
                write!(f, "{AUTO} or {numbers}")
            }
            Allowed::Range { min, max, .. } if min == max => write!(f, "{min}"),
            Allowed::Range { min, max, multiple_of: 1, .. } => {
                write!(f, "a whole number from {min} to {max}")
            }
            Allowed::Range { min, max, multiple_of, .. } => {
                write!(f, "a multiple of {multiple_of} from {min} to {max}")
            }
            Allowed::Values(values) => match values.as_slice() {
                [only] => only.fmt(f),
                [first, second] => write!(f, "{first} or {second}"),
                many => {
                    let names: Vec<String> = many.iter().map(Value::to_string).collect();
                    write!(f, "one of {}", names.join(", "))
                }
            },
        }
    }
}

impl Serialize for Allowed {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// What a field is when the user does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldDefault {
    /// The user must say.
    None,
    /// Always this.
    Value(Value),
    /// Computed from the key fields.
    FromKey,
}

impl fmt::Display for FieldDefault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FieldDefault::None => f.write_str("none"),
            FieldDefault::Value(value) => value.fmt(f),
            FieldDefault::FromKey => f.write_str("chosen by the key"),
        }
    }
}

impl Serialize for FieldDefault {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            FieldDefault::None => to.serialize_none(),
            FieldDefault::Value(value) => value.serialize(to),
            FieldDefault::FromKey => to.serialize_str("chosen by the key"),
        }
    }
}

/// A field of a family's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FieldInfo {
    /// Name of the Rust field.
    pub name: &'static str,
    /// Where its value comes from.
    pub role: FieldRole,
    /// What precedes its value in variant names, when the author chose it.
    pub short: Option<&'static str>,
    /// What it means, in a sentence.
    pub help: &'static str,
    /// The values it may have.
    pub allowed: Allowed,
    /// What it is when the user does not say; of keys, none or a value.
    pub default: FieldDefault,
    /// Whether it is the world size.
    pub ranks: bool,
    /// Whether it is the number of nodes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nodes: bool,
    /// Whether a variant with more of it does as well for a problem with less.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub covers: bool,
    /// Whether variant names leave it out where it has its default.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub omitted: bool,
    /// Whether a smaller number takes less of a device.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shrinks: bool,
    /// Whether a rule chooses it from the other fields where it is `auto`, its default.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_rule: bool,
}

impl FieldInfo {
    /// A field that comes from the problem, with every value that its type can hold.
    pub fn key<T: FieldType>(name: &'static str) -> FieldInfo {
        FieldInfo {
            name,
            role: FieldRole::Key,
            short: None,
            help: "",
            allowed: T::domain(),
            default: FieldDefault::None,
            ranks: false,
            nodes: false,
            covers: false,
            omitted: false,
            shrinks: false,
            by_rule: false,
        }
    }

    /// A field that tuning chooses, with every value that its type can hold.
    pub fn tune<T: FieldType>(name: &'static str) -> FieldInfo {
        FieldInfo { role: FieldRole::Tune, ..FieldInfo::key::<T>(name) }.allow(T::domain())
    }

    /// With a short name: lower-case letters.
    pub fn short(self, short: &'static str) -> FieldInfo {
        FieldInfo { short: Some(short), ..self }
    }

    /// With an explanation.
    pub fn help(self, help: &'static str) -> FieldInfo {
        FieldInfo { help, ..self }
    }

    /// Restricted to the multiples of `multiple_of` (1 for every number; above 0) in a range, ends included.
    pub fn range<T: FieldType>(self, min: T, max: T, multiple_of: T) -> FieldInfo {
        self.in_range([min, max, multiple_of], false)
    }

    /// Restricted to `auto` and the multiples of `multiple_of` in a range, ends included.
    pub fn auto_or_range<T: FieldType>(self, min: T, max: T, multiple_of: T) -> FieldInfo {
        self.in_range([min, max, multiple_of], true)
    }

    fn in_range<T: FieldType>(self, range: [T; 3], auto: bool) -> FieldInfo {
        let [Value::Int(min), Value::Int(max), Value::Int(multiple_of)] = range.map(T::to_value) else {
            return self;
        };
        self.allow(Allowed::Range { min, max, multiple_of: multiple_of.max(1), auto })
    }

    /// Restricted to these values.
    pub fn values<T: FieldType>(self, values: &[T]) -> FieldInfo {
        let values = values.iter().map(|v| v.to_value()).collect();
        self.allow(Allowed::Values(values))
    }

    /// With another default than the first of the allowed values.
    pub fn default_value<T: FieldType>(self, value: T) -> FieldInfo {
        FieldInfo { default: FieldDefault::Value(value.to_value()), ..self }
    }

    /// With a default that is computed from the key.
    pub fn default_from_key(self) -> FieldInfo {
        FieldInfo { default: FieldDefault::FromKey, ..self }
    }

    /// Its default, if that does not depend on the key.
    pub fn constant(&self) -> Option<Value> {
        match self.default {
            FieldDefault::Value(value) => Some(value),
            FieldDefault::None | FieldDefault::FromKey => None,
        }
    }

    fn allow(self, allowed: Allowed) -> FieldInfo {
        let default = match (self.role, allowed.nth(0)) {
            (FieldRole::Tune, Some(first)) => FieldDefault::Value(first),
            _ => FieldDefault::None,
        };
        FieldInfo { allowed, default, ..self }
    }

    /// Marked as the world size.
    pub fn ranks(self) -> FieldInfo {
        FieldInfo { ranks: true, ..self }
    }

    /// Marked as the number of nodes.
    pub fn nodes(self) -> FieldInfo {
        FieldInfo { nodes: true, ..self }
    }

    /// Marked as one of which a variant with more does as well.
    pub fn covers(self) -> FieldInfo {
        FieldInfo { covers: true, ..self }
    }

    /// Marked as one that variant names leave out where it has its default.
    pub fn omitted(self) -> FieldInfo {
        FieldInfo { omitted: true, ..self }
    }

    /// Marked as one of which a smaller number takes less of a device: shared memory, or blocks.
    pub fn shrinks(self) -> FieldInfo {
        FieldInfo { shrinks: true, ..self }
    }

    /// The next smaller numbers, the largest first: of a menu all of them, of a range each an eighth smaller than the one before.
    pub fn smaller(&self, value: Value) -> Vec<Value> {
        let Value::Int(value) = value else { return vec![] };
        let mut found: Vec<i128> = match &self.allowed {
            Allowed::Range { .. } => {
                let less = |v: &i128| (*v > 1).then(|| *v - (*v / 8).max(1));
                std::iter::successors(less(&value), less).collect()
            }
            Allowed::Values(values) => {
                values.iter().filter_map(|v| if let Value::Int(v) = v { Some(*v) } else { None }).collect()
            }
        };
        found.retain(|v| *v < value && self.allowed.contains(Value::Int(*v)));
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.into_iter().map(Value::Int).collect()
    }

    /// Marked as one that a rule chooses where it is `auto`. Names leave it out there.
    pub fn by_rule(self) -> FieldInfo {
        FieldInfo { omitted: true, by_rule: true, ..self }
    }

    /// Restricted to `auto` and these values.
    pub fn auto_or<T: FieldType>(self, values: &[T]) -> FieldInfo {
        let values = values.iter().map(|v| Some(*v).to_value());
        self.allow(Allowed::Values([None::<T>.to_value()].into_iter().chain(values).collect()))
    }

    /// Whether names and descriptions of variants leave it out where it has this value.
    pub fn is_left_out(&self, value: Value) -> bool {
        self.omitted && self.constant() == Some(value)
    }

    /// Whether a user who writes `name` means this field: its name (with `-` or `_`) or its short name.
    pub fn answers_to(&self, name: &str) -> bool {
        self.short == Some(name) || self.long() == name.replace('_', "-")
    }

    /// The name as a command-line option writes it, without dashes in front: `send-blocks`.
    pub fn long(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Reads a value as users write it: a decimal number, `true` or `false`, a variant's name.
    pub fn parse(&self, text: &str) -> Result<Value, Illegal> {
        let text = text.trim();
        let value = match self.allowed {
            Allowed::Range { auto: true, .. } if text == AUTO => Some(Value::Name(AUTO)),
            Allowed::Range { .. } => text.parse().ok().map(Value::Int),
            Allowed::Values(ref values) => {
                let same = |v: &Value| v.to_string() == text;
                values.iter().copied().find(same).or_else(|| text.parse().ok().map(Value::Int))
            }
        };
        match value {
            Some(value) => self.check(value),
            None => Err(self.illegal(text)),
        }
    }

    /// The value, when it is allowed.
    pub fn check(&self, value: Value) -> Result<Value, Illegal> {
        if self.allowed.contains(value) { Ok(value) } else { Err(self.illegal(&value.to_string())) }
    }

    fn illegal(&self, given: &str) -> Illegal {
        let near = match (&self.allowed, given.parse()) {
            (_, Ok(number)) => self.allowed.nearest(number).map(|v| v.to_string()),
            (Allowed::Values(values), Err(_)) => {
                let names: Vec<String> = values.iter().map(Value::to_string).collect();
                super::suggest::nearest(given, names.iter().map(String::as_str)).map(str::to_owned)
            }
            (Allowed::Range { .. }, Err(_)) => None,
        };
        let nearest = near.map_or_else(String::new, |n| format!(" (nearest: {n})"));
        Illegal::new(self.name, given, format!("{}{nearest}", self.allowed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn allowed_values_in_words() {
        let words = |min, max, multiple_of| Allowed::Range { min, max, multiple_of, auto: false }.to_string();
        assert_eq!(words(1, 8, 1), "a whole number from 1 to 8");
        assert_eq!(words(-8, 8, 4), "a multiple of 4 from -8 to 8");
        assert_eq!(words(3, 3, 1), "3");
        let menu =
            |values: &[i128]| Allowed::Values(values.iter().map(|v| Value::Int(*v)).collect()).to_string();
        assert_eq!([menu(&[4]), menu(&[4, 8]), menu(&[1, 2, 3])], ["4", "4 or 8", "one of 1, 2, 3"]);
    }

    #[test]
    fn a_user_may_write_a_name_in_three_ways() {
        let field = FieldInfo::tune::<u32>("send_blocks").short("s");
        assert!(["send_blocks", "send-blocks", "s"].iter().all(|name| field.answers_to(name)));
        assert!(["sendblocks", "S", "", "send_block"].iter().all(|name| !field.answers_to(name)));
        assert!(!FieldInfo::key::<u32>("x").answers_to(""));
    }

    #[test]
    fn a_restriction_that_makes_no_sense_for_the_type_changes_nothing() {
        let flag = FieldInfo::tune::<bool>("flag");
        assert_eq!(flag.clone().range(false, true, true), flag);
        // Nothing is a multiple of 0; the derive refuses it where it is a literal.
        let any = FieldInfo::key::<u32>("any").range(1, 8, 0);
        assert_eq!(any.allowed, Allowed::Range { min: 1, max: 8, multiple_of: 1, auto: false });
    }

    #[test]
    fn a_rule_may_choose_a_number_of_a_range() {
        let blocks =
            FieldInfo::tune::<Option<u32>>("blocks").short("bl").auto_or_range::<u32>(1, 1024, 1).by_rule();
        assert_eq!(blocks.allowed.to_string(), "auto or a whole number from 1 to 1024");
        assert_eq!(blocks.default, FieldDefault::Value(Value::Name(AUTO)));
        assert_eq!([blocks.parse("auto"), blocks.parse("64")], [Ok(Value::Name(AUTO)), Ok(Value::Int(64))]);
        let said = blocks.parse("0").unwrap_err().to_string();
        assert!(said.contains("auto or a whole number from 1 to 1024 (nearest: 1)"), "{said}");
        assert!(blocks.parse("rule").is_err());
        assert_eq!(blocks.smaller(Value::Int(8)).first(), Some(&Value::Int(7)));
    }

    #[test]
    fn an_empty_menu_allows_nothing() {
        let none = FieldInfo::tune::<u32>("none").values::<u32>(&[]);
        assert_eq!((none.allowed.count(), none.allowed.nth(0), none.allowed.nearest(3)), (0, None, None));
        assert_eq!(none.default, FieldDefault::None);
        assert!(none.parse("1").is_err());
    }

    #[test]
    fn the_widest_types_do_not_overflow() {
        let all = i64::domain();
        assert_eq!(all.count(), 1 << 64);
        assert_eq!(all.nth(0), Some(Value::Int(i64::MIN.into())));
        assert_eq!(all.nearest(i128::MAX), Some(Value::Int(i64::MAX.into())));
        assert_eq!(u64::domain().nearest(i128::MIN), Some(Value::Int(0)));
        assert!(u64::domain().contains(Value::Int(u64::MAX.into())));
        assert!(!u64::domain().contains(Value::Int(i128::from(u64::MAX) + 1)));
    }

    proptest! {
        #[test]
        fn a_range_counts_lists_and_approximates_what_it_contains(
            min in -60..60i128, len in 0..60i128, multiple_of in 1..20i128, given in -200..200i128, auto: bool,
        ) {
            let range = Allowed::Range { min, max: min + len, multiple_of, auto };
            let inside: Vec<i128> = (-200..200).filter(|v| range.contains(Value::Int(*v))).collect();
            for v in &inside {
                prop_assert!(*v >= min && *v <= min + len && v % multiple_of == 0);
            }
            prop_assert_eq!(range.contains(Value::Name(AUTO)), auto);
            let rule = auto.then_some(Value::Name(AUTO));
            prop_assert_eq!(rule.map(|rule| range.position(rule)), rule.map(|_| 0));
            let all: Vec<_> = rule.into_iter().chain(inside.iter().map(|v| Value::Int(*v))).collect();
            prop_assert_eq!(range.count(), all.len() as u128);
            let listed: Vec<_> = (0..all.len() as u128 + 1).filter_map(|n| range.nth(n)).collect();
            prop_assert_eq!(&listed, &all);
            let distance = |v: Value| if let Value::Int(v) = v { v.abs_diff(given) } else { u128::MAX };
            let closest = inside.iter().map(|v| v.abs_diff(given)).min();
            prop_assert_eq!(range.nearest(given).map(distance), closest);
            let nearest = range.nearest(given).or(range.nth(0));
            prop_assert_eq!(range.nth(range.position(Value::Int(given))), nearest);
        }
    }
}
