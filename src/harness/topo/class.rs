//! What joins two GPUs, and its name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What joins two GPUs. Written as `nvidia-smi topo -m` does where that has a word: `NV2`, `PIX`, `PHB`, `SYS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum LinkClass {
    /// So many NVLinks from one to the other: `NV2`.
    NvLink(u32),
    /// So many NVLinks of each to an NVSwitch, for all its peers together: `NVS18`.
    NvSwitch(u32),
    /// So many xGMI links: `XG1`.
    Xgmi(u32),
    /// PCIe, and no further up than a switch: `PIX`.
    PcieSwitch,
    /// PCIe through the CPU of both: `PHB`.
    PcieHost,
    /// PCIe, and the link between the sockets of two CPUs: `SYS`.
    Sockets,
    /// Unknown: `?`.
    Unknown,
}

impl LinkClass {
    /// Whether it is made for GPUs: NVLink or xGMI.
    pub fn is_for_gpus(self) -> bool {
        matches!(self, LinkClass::NvLink(_) | LinkClass::NvSwitch(_) | LinkClass::Xgmi(_))
    }

    /// What it is, in words.
    pub fn words(self) -> String {
        match self {
            LinkClass::NvLink(1) => "one NVLink".into(),
            LinkClass::NvLink(2) => "two NVLinks".into(),
            LinkClass::NvLink(n) => format!("{n} NVLinks"),
            LinkClass::NvSwitch(n) => format!("{n} NVLinks to an NVSwitch"),
            LinkClass::Xgmi(1) => "one xGMI link".into(),
            LinkClass::Xgmi(n) => format!("{n} xGMI links"),
            LinkClass::PcieSwitch => "PCIe, under one switch".into(),
            LinkClass::PcieHost => "PCIe, through the CPU".into(),
            LinkClass::Sockets => "PCIe, across sockets".into(),
            LinkClass::Unknown => "a link without a name".into(),
        }
    }
}

impl fmt::Display for LinkClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkClass::NvLink(n) => write!(f, "NV{n}"),
            LinkClass::NvSwitch(n) => write!(f, "NVS{n}"),
            LinkClass::Xgmi(n) => write!(f, "XG{n}"),
            LinkClass::PcieSwitch => f.write_str("PIX"),
            LinkClass::PcieHost => f.write_str("PHB"),
            LinkClass::Sockets => f.write_str("SYS"),
            LinkClass::Unknown => f.write_str("?"),
        }
    }
}

/// What [`LinkClass`] is read from.
pub const ALLOWED: &str = "NV1 to NV64, NVS1 to NVS64, XG1 to XG64, PIX, PHB, SYS or ?";

impl FromStr for LinkClass {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkClass, String> {
        let counted = |start: &str| {
            let links = text.strip_prefix(start)?.parse::<u32>().ok()?;
            (1..=64).contains(&links).then_some(links)
        };
        let classes = [
            counted("NV").map(LinkClass::NvLink),
            counted("NVS").map(LinkClass::NvSwitch),
            counted("XG").map(LinkClass::Xgmi),
        ];
        match (classes.into_iter().flatten().next(), text) {
            (Some(class), _) => Ok(class),
            (None, "PIX") => Ok(LinkClass::PcieSwitch),
            (None, "PHB") => Ok(LinkClass::PcieHost),
            (None, "SYS") => Ok(LinkClass::Sockets),
            (None, "?") => Ok(LinkClass::Unknown),
            (None, _) => Err(format!("{text:?} is no class of links, which are {ALLOWED}")),
        }
    }
}

impl TryFrom<String> for LinkClass {
    type Error = String;

    fn try_from(text: String) -> Result<LinkClass, String> {
        text.parse()
    }
}

impl From<LinkClass> for String {
    fn from(class: LinkClass) -> String {
        class.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        use LinkClass::{NvLink, NvSwitch, PcieHost, PcieSwitch, Sockets, Unknown, Xgmi};
        for class in [NvLink(2), NvSwitch(18), Xgmi(1), PcieSwitch, PcieHost, Sockets, Unknown] {
            assert_eq!(class.to_string().parse(), Ok(class));
        }
        for bad in ["", "NV", "NV0", "NV65", "NVS", "nv2", "PIXX"] {
            assert!(bad.parse::<LinkClass>().unwrap_err().contains(ALLOWED), "{bad}");
        }
    }
}
