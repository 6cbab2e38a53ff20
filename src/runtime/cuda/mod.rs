//! NVIDIA GPUs, through the driver and NVRTC, both loaded when they are first asked for.

pub(super) mod api;
mod gpu;
mod memory;
mod nvrtc;

pub use gpu::CudaGpu;
pub use nvrtc::Nvrtc;

use std::ffi::c_char;
use std::sync::Arc;

use peerwarp_codegen::family::{CudaArch, Target};

use super::RuntimeError;
use super::gpu::Gpu;
use api::Api;

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;

/// The oldest driver that has all calls, as `cuDriverGetVersion` counts.
const DRIVER: i32 = 12040;

/// What to install where there is no driver.
const INSTALL: &str = "install the NVIDIA driver, version 550 or newer (in a container: run it with the NVIDIA container \
                       toolkit, `--gpus all`)";

/// All GPUs that the driver shows.
pub fn gpus() -> Result<Vec<Arc<dyn Gpu>>, RuntimeError> {
    gpus_of(Api::load()?)
}

/// All GPUs that this driver shows.
pub(super) fn gpus_of(api: &'static Api) -> Result<Vec<Arc<dyn Gpu>>, RuntimeError> {
    init(api)?;
    let mut count = 0;
    // SAFETY: the driver is initialised, and writes the one number.
    api.check("cuDeviceGetCount", None, unsafe { (api.cuDeviceGetCount)(&mut count) })?;
    (0..count as u32).map(|ordinal| Ok(CudaGpu::open(api, ordinal)? as Arc<dyn Gpu>)).collect()
}

/// Checks the driver's version and starts it.
fn init(api: &Api) -> Result<(), RuntimeError> {
    let mut version = 0;
    // SAFETY: the driver writes the one number.
    api.check("cuDriverGetVersion", None, unsafe { (api.cuDriverGetVersion)(&mut version) })?;
    if version < DRIVER {
        return Err(too_old(version));
    }
    // SAFETY: 0 is the one value that it takes.
    match unsafe { (api.cuInit)(0) } {
        NO_DEVICE => Err(RuntimeError::TooFewGpus { backend: "cuda", found: 0, needed: 1 }),
        result => api.check("cuInit", None, result),
    }
}

fn too_old(version: i32) -> RuntimeError {
    RuntimeError::DriverTooOld {
        found: cuda_version(version),
        needed: cuda_version(DRIVER),
        install: "the NVIDIA driver, version 550 or newer".into(),
    }
}

fn cuda_version(version: i32) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

/// What to compile for on a device of a compute capability: its own architecture with all its features or, where
/// sources are not emitted for that, the newest one of the same generation that it runs.
fn target(major: u32, minor: u32) -> Option<Target> {
    let capability = major * 10 + minor;
    let runs = |arch: &&CudaArch| {
        let own = arch.capability() == capability;
        // What has features of one architecture only runs on that architecture.
        let older = arch.capability() / 10 == major && arch.capability() < capability;
        own || older && !arch.name().ends_with('a')
    };
    let best = CudaArch::ALL.iter().filter(runs).max_by_key(|a| (a.capability(), a.name().len()));
    best.map(|&arch| Target::Cuda(arch))
}

/// Text that the driver wrote to a buffer.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().take_while(|&&c| c != 0).map(|&c| c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_compiles_for_its_own_architecture_or_an_older_one_that_it_runs() {
        let name = |major, minor| target(major, minor).map(|t| t.arch().to_owned());
        assert_eq!(name(9, 0).as_deref(), Some("sm_90a"));
        assert_eq!(name(8, 0).as_deref(), Some("sm_80"));
        assert_eq!(name(8, 7).as_deref(), Some("sm_87"));
        assert_eq!(name(8, 8).as_deref(), Some("sm_87"));
        assert_eq!(name(10, 0).as_deref(), Some("sm_100a"));
        assert_eq!(name(10, 1).as_deref(), Some("sm_100"));
        assert_eq!(name(10, 3).as_deref(), Some("sm_103a"));
        assert_eq!(name(11, 0).as_deref(), Some("sm_110a"));
        assert_eq!(name(12, 1).as_deref(), Some("sm_121a"));
        assert_eq!(name(7, 5), None);
    }

    #[test]
    fn without_a_driver_the_error_says_what_to_install() {
        let error = match gpus() {
            Err(error @ RuntimeError::NotInstalled { .. }) => error.to_string(),
            _ => return eprintln!("skipped: there is a driver on this machine"),
        };
        assert!(error.contains("libcuda.so.1") && error.contains("install the NVIDIA driver"), "{error}");
    }

    #[test]
    fn versions_read_as_people_say_them() {
        assert_eq!(cuda_version(13000), "CUDA 13.0");
        assert_eq!(cuda_version(12080), "CUDA 12.8");
    }
}
