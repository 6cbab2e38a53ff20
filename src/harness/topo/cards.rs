//! The network cards of this machine, as Linux shows RDMA devices in `/sys/class/infiniband`.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::class::LinkClass;
use super::measure::{Place, pcie};

/// A network card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Its RDMA device: `mlx5_0`.
    pub name: String,
    /// Gb/s of its active ports, or of all where none is active, as the driver says it; none where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gbit: Option<f64>,
    /// What its first port is on: `InfiniBand` or `Ethernet`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layer: String,
    /// Whether a port is active.
    pub is_active: bool,
    /// What is between it and each GPU.
    pub to_gpus: Vec<LinkClass>,
}

/// The cards in a folder of RDMA devices, by name; none if there is no such folder. `gpus` are the places of the GPUs.
pub fn cards(devices: &Path, gpus: &[Option<Place>]) -> Vec<Card> {
    let Ok(entries) = fs::read_dir(devices) else { return vec![] };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    names.into_iter().map(|name| card(&devices.join(&name), name, gpus)).collect()
}

fn card(folder: &Path, name: String, gpus: &[Option<Place>]) -> Card {
    // A device in software has no place.
    let own = place(&folder.join("device"));
    let between = |gpu: &Option<Place>| match (&own, gpu) {
        (Some(own), Some(gpu)) => pcie(own, gpu),
        _ => LinkClass::Unknown,
    };
    let mut ports: Vec<Port> = fs::read_dir(folder.join("ports"))
        .map(|ports| ports.flatten().map(|port| Port::read(&port.path())).collect())
        .unwrap_or_default();
    ports.sort_by_key(|port| port.number);
    let is_active = ports.iter().any(|port| port.is_active);
    let counted = ports.iter().filter(|port| port.is_active == is_active);
    Card {
        name,
        gbit: counted.filter_map(|port| port.gbit).reduce(|a, b| a + b),
        layer: ports.first().map(|port| port.layer.clone()).unwrap_or_default(),
        is_active,
        to_gpus: gpus.iter().map(between).collect(),
    }
}

struct Port {
    number: u32,
    gbit: Option<f64>,
    layer: String,
    is_active: bool,
}

impl Port {
    fn read(folder: &Path) -> Port {
        let text = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default().trim().to_owned();
        let number = folder.file_name().and_then(|name| name.to_str()?.parse().ok());
        // `400 Gb/sec (4X NDR)`, and `4: ACTIVE`.
        let rate = text("rate");
        let gbit = rate.split_once(" Gb/sec").and_then(|(number, _)| number.parse().ok());
        Port {
            number: number.unwrap_or(u32::MAX),
            gbit: gbit.filter(|gbit: &f64| gbit.is_finite() && *gbit > 0.0),
            layer: text("link_layer"),
            is_active: text("state").starts_with("4:"),
        }
    }
}

/// The place of a PCIe device in the system's tree, which `link` leads to.
pub(super) fn place(link: &Path) -> Option<Place> {
    let path = fs::canonicalize(link).ok()?;
    let names = path.iter().map(|name| name.to_string_lossy().into_owned());
    let mut bridges: Vec<String> = names.skip_while(|name| !name.starts_with("pci")).collect();
    bridges.pop()?;
    let node = fs::read_to_string(path.join("numa_node")).ok();
    // -1 where there is only one.
    Some(Place { bridges, node: node.and_then(|text| text.trim().parse().ok()) })
}

#[cfg(test)]
#[path = "cards_tests.rs"]
mod tests;
