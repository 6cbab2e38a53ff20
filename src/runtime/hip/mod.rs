//! AMD GPUs, through HIP, which is loaded when it is first asked for.
//!
//! This has not run on hardware: it is compiled, and tested against functions that stand in for HIP's.

pub(super) mod api;
mod gpu;

pub use gpu::HipGpu;

use std::sync::Arc;

use super::RuntimeError;
use super::gpu::Gpu;
use api::Api;

/// What commands say when they use AMD GPUs.
pub const UNTESTED: &str = "HIP has not run on hardware yet: AMD GPUs are tested against a mock only";

/// `hipErrorNoDevice`.
const NO_DEVICE: i32 = 100;

/// All GPUs that HIP shows.
pub fn gpus() -> Result<Vec<Arc<dyn Gpu>>, RuntimeError> {
    gpus_of(Api::load()?)
}

/// All GPUs that this runtime shows.
pub(super) fn gpus_of(api: Api) -> Result<Vec<Arc<dyn Gpu>>, RuntimeError> {
    let none = RuntimeError::TooFewGpus { backend: "hip", found: 0, needed: 1 };
    // SAFETY: the function is the library's, and 0 is the one value that it takes.
    match unsafe { (api.hipInit)(0) } {
        NO_DEVICE => return Err(none),
        result => api.check("hipInit", None, result)?,
    }
    let mut count = 0;
    // SAFETY: the library is initialised, and writes the one number.
    match unsafe { (api.hipGetDeviceCount)(&mut count) } {
        NO_DEVICE => return Err(none),
        result => api.check("hipGetDeviceCount", None, result)?,
    }
    (0..count as u32).map(|ordinal| Ok(Arc::new(HipGpu::open(api, ordinal)?) as Arc<dyn Gpu>)).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
