//! What `python -m peerwarp bench` takes from the program: scripts that time libraries, and shapes of models.

use peerwarp::families::moe::baselines::BASELINES;
use pyo3::prelude::*;

/// Names and texts of the scripts that time MoE dispatch and combine of other libraries.
#[pyfunction]
pub fn baseline_scripts() -> Vec<(String, String)> {
    BASELINES.scripts.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}
