//! What there is on this machine, for `python -m peerwarp doctor`.

use peerwarp::build::toolchain::{Tool, find};
use peerwarp::runtime::{cuda, hip};
use pyo3::prelude::*;

use crate::error::{Failure, detached};

/// Something that was looked for: what, whether it is there, and what was found or how to get it.
type Looked = (String, bool, String);

/// GPUs of both vendors, and NVRTC.
#[pyfunction]
pub fn findings(py: Python<'_>) -> Result<Vec<Looked>, Failure> {
    detached(py, || {
        let nvidia = cuda::gpus().map(|gpus| gpus.iter().map(|gpu| gpu.info().name.clone()).collect());
        let amd = hip::gpus().map(|gpus| gpus.iter().map(|gpu| gpu.info().name.clone()).collect());
        let nvrtc = match find(Tool::Nvrtc) {
            Ok(found) => (true, format!("{} in {}", found.version, found.path.display())),
            Err(missing) => (false, missing.to_string()),
        };
        Ok(vec![
            gpus("NVIDIA GPUs", nvidia.map_err(|e| e.to_string())),
            gpus("AMD GPUs", amd.map_err(|e| e.to_string())),
            ("NVRTC".into(), nvrtc.0, nvrtc.1),
        ])
    })
}

fn gpus(what: &str, found: Result<Vec<String>, String>) -> Looked {
    match found {
        Ok(names) if names.is_empty() => (what.into(), false, "a driver, and no GPU".into()),
        Ok(names) => (what.into(), true, format!("{}: {}", names.len(), names.join(", "))),
        Err(why) => (what.into(), false, why),
    }
}
