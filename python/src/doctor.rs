//! What there is on this machine, for `python -m peerwarp doctor`.

use std::collections::BTreeMap;
use std::sync::Arc;

use peerwarp::build::toolchain::{Tool, find_in};
use peerwarp::runtime::gpu::{Gpu, PeerLink};
use peerwarp::runtime::{cuda, hip};
use pyo3::prelude::*;

use crate::error::{Failure, detached};

/// Something that was looked for: what, whether it is there, and what was found or how to get it.
type Looked = (String, bool, String);

/// GPUs of both vendors, what joins them, and NVRTC, which is looked for in these folders first.
#[pyfunction]
pub fn findings(py: Python<'_>, compilers: Vec<std::path::PathBuf>) -> Result<Vec<Looked>, Failure> {
    detached(py, || {
        let nvidia = cuda::gpus().map_err(|e| e.to_string());
        let amd = hip::gpus().map_err(|e| e.to_string());
        let nvrtc = match find_in(Tool::Nvrtc, &compilers) {
            Ok(found) => (true, format!("{} in {}", found.version, found.path.display())),
            Err(missing) => (false, missing.to_string()),
        };
        let every = [&nvidia, &amd].into_iter().filter_map(|found| found.as_ref().ok());
        let links = links(every.max_by_key(|gpus| gpus.len()).map_or(&[], Vec::as_slice));
        Ok(vec![
            gpus("NVIDIA GPUs", nvidia),
            gpus("AMD GPUs", amd),
            ("links".into(), links.0, links.1),
            ("NVRTC".into(), nvrtc.0, nvrtc.1),
        ])
    })
}

fn gpus(what: &str, found: Result<Vec<Arc<dyn Gpu>>, String>) -> Looked {
    let found = match found {
        Ok(gpus) => gpus,
        Err(why) => return (what.into(), false, why),
    };
    let Some(first) = found.first() else { return (what.into(), false, "a driver, and no GPU".into()) };
    let names: Vec<&str> = found.iter().map(|gpu| &*gpu.info().name).collect();
    let driver = &first.info().driver;
    (what.into(), true, format!("{}: {}; driver {driver}", names.len(), names.join(", ")))
}

/// Whether all GPUs reach each other's memory, and by what.
fn links(gpus: &[Arc<dyn Gpu>]) -> (bool, String) {
    let mut pairs: BTreeMap<String, u32> = BTreeMap::new();
    let mut cut = vec![];
    for (i, gpu) in gpus.iter().enumerate() {
        for peer in gpus[i + 1..].iter().map(|peer| peer.info().ordinal) {
            match (gpu.can_access(peer), gpu.peer_link(peer)) {
                (Ok(true), Ok(link)) => *pairs.entry(words(link).to_owned()).or_default() += 1,
                (Ok(true), Err(_)) => *pairs.entry(words(PeerLink::Unknown).to_owned()).or_default() += 1,
                (Ok(false), _) => cut.push(format!("{} and {peer}", gpu.info().ordinal)),
                (Err(why), _) => cut.push(format!("{} and {peer} ({why})", gpu.info().ordinal)),
            }
        }
    }
    if !cut.is_empty() {
        let advice =
            "without peer access no world has both: a machine's settings of IOMMU and ACS may be in the way";
        return (false, format!("GPUs {} do not reach each other\n{advice}", cut.join("; ")));
    }
    match pairs.is_empty() {
        true => (false, "fewer than two GPUs: ranks can only share one, to try (share_gpus=True)".into()),
        false => {
            let pairs: Vec<String> = pairs.iter().map(|(link, count)| format!("{count} by {link}")).collect();
            (true, format!("pairs of GPUs that reach each other: {}", pairs.join(", ")))
        }
    }
}

fn words(link: PeerLink) -> &'static str {
    match link {
        PeerLink::NvLink => "NVLink",
        PeerLink::Xgmi => "xGMI",
        PeerLink::Pcie => "PCIe",
        PeerLink::Unknown => "a link that the driver does not name",
    }
}
