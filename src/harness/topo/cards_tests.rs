use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;

/// A system's tree: PCIe devices and RDMA devices on them.
struct Tree {
    folder: tempfile::TempDir,
}

impl Tree {
    fn new() -> Tree {
        Tree { folder: tempfile::tempdir().unwrap() }
    }

    fn rdma(&self) -> PathBuf {
        self.folder.path().join("class/infiniband")
    }

    /// A PCIe device below these bridges.
    fn pcie(&self, path: &str, node: i32) -> PathBuf {
        let device = self.folder.path().join("devices").join(path);
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), format!("{node}\n")).unwrap();
        device
    }

    /// An RDMA device, with ports of such rates and states.
    fn card(&self, name: &str, device: Option<&Path>, ports: &[(&str, &str)]) {
        let folder = self.rdma().join(name);
        fs::create_dir_all(&folder).unwrap();
        if let Some(device) = device {
            symlink(device, folder.join("device")).unwrap();
        }
        for (number, (rate, state)) in ports.iter().enumerate() {
            let port = folder.join(format!("ports/{}", number + 1));
            fs::create_dir_all(&port).unwrap();
            for (file, text) in [("rate", *rate), ("state", *state), ("link_layer", "InfiniBand")] {
                fs::write(port.join(file), format!("{text}\n")).unwrap();
            }
        }
    }
}

#[test]
fn cards_are_listed_with_their_distance_to_each_gpu() {
    let tree = Tree::new();
    let switch = "pci0000:16/0000:16:01.0/0000:17:00.0";
    let near = tree.pcie(&format!("{switch}/0000:18:00.0"), 0);
    let other = tree.pcie("pci0000:16/0000:16:02.0/0000:30:00.0", 0);
    let across = tree.pcie("pci0000:96/0000:96:01.0/0000:a0:00.0", 1);
    let gpus = [
        place(&tree.pcie(&format!("{switch}/0000:19:00.0"), 0)),
        place(&tree.pcie("pci0000:96/0000:96:02.0/0000:b0:00.0", 1)),
        None,
    ];
    tree.card("mlx5_10", Some(&across), &[("200 Gb/sec (4X HDR)", "1: DOWN")]);
    tree.card("mlx5_2", Some(&other), &[("100 Gb/sec", "4: ACTIVE"), ("100 Gb/sec", "4: ACTIVE")]);
    tree.card("mlx5_0", Some(&near), &[("400 Gb/sec (4X NDR)", "4: ACTIVE"), ("10 Gb/sec", "1: DOWN")]);
    use LinkClass::{PcieHost, PcieSwitch, Sockets, Unknown};
    let card = |name: &str, gbit, is_active, to_gpus: [LinkClass; 3]| Card {
        name: name.into(),
        gbit: Some(gbit),
        layer: "InfiniBand".into(),
        is_active,
        to_gpus: to_gpus.to_vec(),
    };
    assert_eq!(
        cards(&tree.rdma(), &gpus),
        [
            card("mlx5_0", 400.0, true, [PcieSwitch, Sockets, Unknown]),
            card("mlx5_2", 200.0, true, [PcieHost, Sockets, Unknown]),
            card("mlx5_10", 200.0, false, [Sockets, PcieHost, Unknown]),
        ]
    );
}

#[test]
fn nothing_is_invented_where_the_system_says_nothing() {
    let tree = Tree::new();
    assert_eq!(cards(&tree.rdma(), &[None]), []);
    tree.card("rxe0", None, &[]);
    tree.card("efa_0", None, &[("fast", "")]);
    let silent = |name: &str, layer: &str| Card {
        name: name.into(),
        gbit: None,
        layer: layer.into(),
        is_active: false,
        to_gpus: vec![LinkClass::Unknown],
    };
    assert_eq!(cards(&tree.rdma(), &[None]), [silent("rxe0", ""), silent("efa_0", "InfiniBand")]);
}
