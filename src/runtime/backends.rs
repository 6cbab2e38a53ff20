//! Whose GPUs this machine has.

use std::sync::Arc;

use super::gpu::Gpu;
use super::{RuntimeError, cuda, hip};

type Gpus = Result<Vec<Arc<dyn Gpu>>, RuntimeError>;

/// All GPUs of this machine that can be used: NVIDIA's or, where there are none, AMD's.
///
/// # Errors
/// There are none of either; says of both what is missing.
pub fn gpus() -> Gpus {
    either(cuda::gpus(), hip::gpus)
}

/// The GPUs of the first backend that has some.
fn either(cuda: Gpus, hip: impl FnOnce() -> Gpus) -> Gpus {
    let none = |backend| RuntimeError::TooFewGpus { backend, found: 0, needed: 1 };
    let some = |found: Gpus, backend| {
        found.and_then(|all| if all.is_empty() { Err(none(backend)) } else { Ok(all) })
    };
    let cuda = match some(cuda, "cuda") {
        Ok(gpus) => return Ok(gpus),
        Err(why) => Box::new(why),
    };
    some(hip(), "hip").map_err(|why| RuntimeError::NoGpus { cuda, hip: Box::new(why) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::mock::{Machine, MockGpu};

    fn missing(what: &str) -> Gpus {
        Err(RuntimeError::NotInstalled { what: what.into(), install: format!("install {what}") })
    }

    #[test]
    fn nvidia_gpus_come_before_amd_gpus() {
        let machine = Machine::default();
        let cuda = either(Ok(MockGpu::all(&machine, 1)), || panic!("no test asks for AMD GPUs")).unwrap();
        assert_eq!(cuda[0].info().target.backend(), "cuda");
        for none in [missing("the driver"), Ok(vec![])] {
            let hip = either(none, || Ok(MockGpu::all_hip(&machine, 2))).unwrap();
            assert_eq!((hip.len(), hip[0].info().target.backend()), (2, "hip"));
        }
    }

    #[test]
    fn without_gpus_both_reasons_are_told() {
        let error = either(missing("libcuda"), || missing("libamdhip64")).unwrap_err().to_string();
        assert!(error.contains("install libcuda") && error.contains("install libamdhip64"), "{error}");
        let error = either(Ok(vec![]), || Ok(vec![])).unwrap_err().to_string();
        assert!(
            error.contains("1 cuda GPUs are needed") && error.contains("1 hip GPUs are needed"),
            "{error}"
        );
    }
}
