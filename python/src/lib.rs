//! The native part of the Python package `peerwarp`: bytes, addresses and numbers in, bytes and numbers out. Arrays, their shapes
//! and types are the business of the Python part.

mod bench;
mod collectives;
mod command;
#[expect(unsafe_code, reason = "addresses and tensors that Python passes")]
mod device;
mod doctor;
mod error;
mod kernel;
mod moe;
mod operation;
mod simulated;
mod world;

use pyo3::prelude::*;

/// What Python sees of it, as `peerwarp._core`.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::bench::baseline_scripts;
    #[pymodule_export]
    use crate::collectives::Collectives;
    #[pymodule_export]
    use crate::command::command;
    #[pymodule_export]
    use crate::device::{DeviceCollectives, DeviceMoe, DeviceOperation, Exchange};
    #[pymodule_export]
    use crate::doctor::findings;
    #[pymodule_export]
    use crate::kernel::{Kernel, PackFile, shipped_kernel};
    #[pymodule_export]
    use crate::moe::{MoeAllToAll, Round};
    #[pymodule_export]
    use crate::operation::SimulatedOperation;
    #[pymodule_export]
    use crate::world::{FaultWord, GpuWorld, SimulatedWorld, SymmetricMemory, draw_secret, why_no_gpu};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        peerwarp::cli::show_warnings();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
