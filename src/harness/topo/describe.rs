//! Machines that are described in TOML: their GPUs, links, and what is between.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::nodes::Nodes;
use crate::input::{InputError, file};

/// Version of the format. Descriptions of another one are refused.
pub const SCHEMA: u32 = 1;

/// The most GPUs of a machine.
pub const MOST_GPUS: u32 = 64;

/// The most hubs, and the most links between two ends.
const MOST_HUBS: usize = 256;
const MOST_LINKS: u32 = 64;

/// Machines that come with the program.
const BUILTIN: [(&str, &str); 5] = [
    ("dgx-1-cube-mesh", include_str!("machines/dgx-1-cube-mesh.toml")),
    ("h200-cx7-nodes", include_str!("machines/h200-cx7-nodes.toml")),
    ("h200-nvswitch-8", include_str!("machines/h200-nvswitch-8.toml")),
    ("mi300x-xgmi-8", include_str!("machines/mi300x-xgmi-8.toml")),
    ("pcie-pairs", include_str!("machines/pcie-pairs.toml")),
];

/// A machine as people write it down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of the format: `1`.
    pub schema: u32,
    /// What it is called.
    pub name: String,
    /// What it is, in one line.
    #[serde(default)]
    pub about: String,
    /// The GPUs' name, as their driver says it.
    pub gpu: String,
    /// How many there are: `gpu0` and so on.
    pub gpus: u32,
    /// What launches take.
    pub times: Times,
    /// What links meet at, beside GPUs.
    #[serde(default, rename = "hub")]
    pub hubs: Vec<Hubs>,
    /// Links.
    #[serde(rename = "link")]
    pub links: Vec<Links>,
    /// More nodes like this one, and the network between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
}

/// What launches take, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// A graph of one kernel.
    pub first_node_us: f64,
    /// Each kernel more.
    pub next_node_us: f64,
    /// From the last byte's arrival to the kernel's end.
    pub tail_us: f64,
}

/// Hubs of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hubs {
    /// What they are.
    pub kind: HubKind,
    /// Their names.
    pub names: Vec<String>,
}

/// What links meet at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HubKind {
    /// NVSwitches.
    Nvswitch,
    /// A PCIe switch.
    PcieSwitch,
    /// A CPU, with its PCIe root ports.
    Socket,
}

/// Links of one kind, each between two ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// What they are.
    pub kind: LinkKind,
    /// How many there are between two ends.
    #[serde(default = "one")]
    pub links: u32,
    /// GB/s that arrive over each, in each direction.
    pub gbps: f64,
    /// GB/s that it is sold for, in each direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nominal_gbps: Option<f64>,
    /// What crossing it takes, in microseconds.
    pub latency_us: f64,
    /// If GPUs have no access to each other's memory across it: GB/s of a copy through the host's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged_gbps: Option<f64>,
    /// Whether it goes from the first end to the second only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_way: bool,
    /// The ends: `gpu0`, or a hub's name.
    pub between: Vec<(String, String)>,
}

fn one() -> u32 {
    1
}

/// What a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// NVLink, between two GPUs or a GPU and an NVSwitch.
    Nvlink,
    /// xGMI between two GPUs.
    Xgmi,
    /// PCIe.
    Pcie,
    /// Between the sockets of two CPUs: QPI, UPI, xGMI.
    Socket,
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Gpu,
    Hub(HubKind),
}

/// Names of the machines that come with the program.
pub fn builtin() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

impl Description {
    /// From what a user says: a machine that comes with the program, or else a file; `field` is the option.
    ///
    /// # Errors
    /// There is no such machine, or its description cannot be used.
    pub fn named(field: &str, name: &str) -> Result<Description, InputError> {
        if let Some((_, text)) = BUILTIN.iter().find(|(known, _)| *known == name.to_lowercase()) {
            return Description::parse(text, name);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|end| end != "toml") {
            let mut error = InputError::unknown(field, name, builtin());
            error.allowed += " or a FILE.toml that describes one";
            return Err(error);
        }
        Description::parse(&file::text(field, path)?, name)
    }

    /// Parses a description; `origin` is its file's name for errors.
    ///
    /// # Errors
    /// It is no description, of another version, or says something that cannot be.
    pub fn parse(text: &str, origin: &str) -> Result<Description, InputError> {
        check_schema(text, origin, SCHEMA, "a machine")?;
        let described: Description = toml::from_str(text).map_err(|e| malformed(origin, &e, "a machine"))?;
        described.check(origin)?;
        Ok(described)
    }

    fn check(&self, origin: &str) -> Result<(), InputError> {
        named(&format!("{origin}: name"), &self.name)?;
        named(&format!("{origin}: gpu"), &self.gpu)?;
        if !(2..=MOST_GPUS).contains(&self.gpus) {
            let allowed = format!("2 to {MOST_GPUS}");
            return Err(InputError::not_allowed(format!("{origin}: gpus"), self.gpus, allowed));
        }
        let times = [
            ("first_node_us", self.times.first_node_us),
            ("next_node_us", self.times.next_node_us),
            ("tail_us", self.times.tail_us),
        ];
        for (name, value) in times {
            time(&format!("{origin}: times.{name}"), value)?;
        }
        let ends = self.ends(origin)?;
        let mut taken = BTreeSet::new();
        for (number, links) in self.links.iter().enumerate() {
            links.check(&format!("{origin}: link {}", number + 1), &ends, &mut taken)?;
        }
        self.nodes.as_ref().map_or(Ok(()), |nodes| nodes.check(origin, self.gpus))
    }

    /// What links can end at, by name.
    pub(super) fn ends(&self, origin: &str) -> Result<BTreeMap<String, End>, InputError> {
        let mut ends: BTreeMap<String, End> =
            (0..self.gpus).map(|gpu| (format!("gpu{gpu}"), End::Gpu)).collect();
        let hubs = self.hubs.iter().flat_map(|hubs| hubs.names.iter().map(|name| (name, hubs.kind)));
        for (name, kind) in hubs {
            let field = || format!("{origin}: hub.names");
            let own = name.starts_with("gpu") || name.trim().is_empty() || name.chars().any(char::is_control);
            if own {
                let allowed = "names that do not begin with `gpu`";
                return Err(InputError::not_allowed(field(), format!("{name:?}"), allowed));
            }
            if ends.insert(name.clone(), End::Hub(kind)).is_some() {
                return Err(InputError::conflict(field(), name, "another hub", "each name once"));
            }
            if ends.len() - self.gpus as usize > MOST_HUBS {
                return Err(InputError::not_allowed(field(), name, format!("{MOST_HUBS} hubs at most")));
            }
        }
        Ok(ends)
    }
}

impl Links {
    /// `at` says where it stands, and `taken` has the directed links before it.
    fn check(
        &self,
        at: &str,
        ends: &BTreeMap<String, End>,
        taken: &mut BTreeSet<(String, String, String)>,
    ) -> Result<(), InputError> {
        if !(1..=MOST_LINKS).contains(&self.links) {
            return Err(InputError::not_allowed(
                format!("{at}.links"),
                self.links,
                format!("1 to {MOST_LINKS}"),
            ));
        }
        rate(&format!("{at}.gbps"), self.gbps)?;
        self.nominal_gbps.map_or(Ok(()), |gbps| rate(&format!("{at}.nominal_gbps"), gbps))?;
        self.staged_gbps.map_or(Ok(()), |gbps| rate(&format!("{at}.staged_gbps"), gbps))?;
        time(&format!("{at}.latency_us"), self.latency_us)?;
        let field = format!("{at}.between");
        for (from, to) in &self.between {
            let end = |name: &str| {
                let known = ends.keys().map(String::as_str);
                ends.get(name).copied().ok_or_else(|| InputError::unknown(&field, name, known))
            };
            let both = (end(from)?, end(to)?);
            if !self.kind.joins(both.0, both.1) {
                let shown = format!("{from}, {to}");
                return Err(InputError::not_allowed(&field, shown, self.kind.allowed()));
            }
            let directions = [(from, to), (to, from)];
            let kind = format!("{:?}", self.kind).to_lowercase();
            for (a, b) in &directions[..if self.one_way { 1 } else { 2 }] {
                if a == b || !taken.insert((kind.clone(), (*a).clone(), (*b).clone())) {
                    let allowed =
                        "two ends, and each two once for each kind of link: `links` says how many there are";
                    return Err(InputError::not_allowed(&field, format!("{from}, {to}"), allowed));
                }
            }
        }
        Ok(())
    }
}

impl LinkKind {
    fn joins(self, a: End, b: End) -> bool {
        let gpus = |a: End, b: End| (a, b) == (End::Gpu, End::Gpu);
        let switched = |a: End, b: End| (a, b) == (End::Gpu, End::Hub(HubKind::Nvswitch));
        match self {
            LinkKind::Nvlink => gpus(a, b) || switched(a, b) || switched(b, a),
            LinkKind::Xgmi => gpus(a, b),
            LinkKind::Pcie => !gpus(a, b) && ![a, b].contains(&End::Hub(HubKind::Nvswitch)),
            LinkKind::Socket => (a, b) == (End::Hub(HubKind::Socket), End::Hub(HubKind::Socket)),
        }
    }

    fn allowed(self) -> &'static str {
        match self {
            LinkKind::Nvlink => "two GPUs, or a GPU and a hub of kind nvswitch, for nvlink",
            LinkKind::Xgmi => "two GPUs, for xgmi",
            LinkKind::Pcie => "GPUs, PCIe switches and sockets, one of them no GPU, for pcie",
            LinkKind::Socket => "two hubs of kind socket, for socket",
        }
    }
}

/// Refuses files of another version before anything else of them is looked at: they have other fields.
pub(super) fn check_schema(text: &str, origin: &str, schema: u32, what: &str) -> Result<(), InputError> {
    let any: toml::Table = text.parse().map_err(|e| malformed(origin, &e, what))?;
    let field = format!("{origin}: schema");
    match any.get("schema") {
        Some(toml::Value::Integer(n)) if *n == i64::from(schema) => Ok(()),
        Some(other) => Err(InputError::not_allowed(
            field,
            other,
            format!("{schema}, the version that this program reads"),
        )),
        None => Err(InputError::missing(field, schema.to_string())),
    }
}

pub(super) fn malformed(origin: &str, error: &toml::de::Error, what: &str) -> InputError {
    let allowed = format!("TOML that describes {what}, as docs/how-to/topo.md says");
    InputError::malformed(origin, "", error.to_string().trim_end(), allowed)
}

/// A name.
pub(super) fn named(field: &str, text: &str) -> Result<(), InputError> {
    match text.trim().is_empty() || text.chars().any(char::is_control) {
        true => Err(InputError::not_allowed(field, format!("{text:?}"), "a name")),
        false => Ok(()),
    }
}

/// A bandwidth.
pub(super) fn rate(field: &str, gbps: f64) -> Result<(), InputError> {
    match gbps.is_finite() && (1e-3..=1e6).contains(&gbps) {
        true => Ok(()),
        false => Err(InputError::not_allowed(field, gbps, "0.001 to 1000000 GB/s")),
    }
}

/// A time.
pub(super) fn time(field: &str, us: f64) -> Result<(), InputError> {
    match us.is_finite() && (0.0..=1e6).contains(&us) {
        true => Ok(()),
        false => Err(InputError::not_allowed(field, us, "0 to 1000000 microseconds")),
    }
}

#[cfg(test)]
#[path = "describe_tests.rs"]
pub(super) mod tests;
