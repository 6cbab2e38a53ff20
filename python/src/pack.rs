//! What is in a pack.

use std::path::PathBuf;

use peerwarp::build::pack::Pack;
use pyo3::prelude::*;

use crate::error::{Failure, detached};

/// A buffer: its name, kind, type, elements and bytes.
type Buffer = (String, String, String, u64, u64);
/// A kernel: its variant, family, target, ranks, entry, blocks, threads of a block, and buffers.
type Kernel = (String, String, String, u32, String, u32, u32, Vec<Buffer>);

/// The kernels of the pack in a folder, all of whose files are read and compared with their hashes.
#[pyfunction]
pub fn open_pack(py: Python<'_>, dir: PathBuf) -> Result<Vec<Kernel>, Failure> {
    detached(py, || {
        let pack = Pack::open(&dir)?;
        pack.manifest().kernels.iter().map(kernel).collect()
    })
}

fn kernel(entry: &peerwarp::build::pack::Entry) -> Result<Kernel, Failure> {
    let field = format!("pack.json: params of {}", entry.variant);
    let bad = |words: &str| Failure::invalid(&field, words, "name: Kind of N Type");
    let mut buffers = vec![];
    for b in entry.buffers().map_err(bad)? {
        let bytes = b.bytes().ok_or_else(|| bad(&b.name))?;
        buffers.push((b.name, format!("{:?}", b.kind).to_lowercase(), b.dtype.to_string(), b.len, bytes));
    }
    let (grid, threads) = (entry.launch.grid, entry.launch.block_threads);
    let (family, target) = (entry.family.clone(), entry.target.to_string());
    Ok((entry.variant.clone(), family, target, entry.ranks, entry.entry.clone(), grid, threads, buffers))
}
