//! NVIDIA's run-time compiler, as the runtime asks for kernels.

use crate::build::toolchain;
use crate::runtime::RuntimeError;

/// NVRTC, loaded, with the headers that emitted sources include.
#[derive(Clone, Debug)]
pub struct Nvrtc(toolchain::Nvrtc);

impl Nvrtc {
    /// Loads the one that [`toolchain::find`] finds.
    pub fn find() -> Result<Nvrtc, RuntimeError> {
        Ok(Nvrtc(toolchain::Nvrtc::load()?))
    }

    /// Loads one that was found.
    pub fn load_from(found: &toolchain::Found) -> Result<Nvrtc, RuntimeError> {
        Ok(Nvrtc(toolchain::Nvrtc::load_from(found)?))
    }

    /// Its name and version: `nvrtc 13.0`.
    pub fn version(&self) -> String {
        format!("nvrtc {}", self.0.version())
    }

    /// Its version, and the headers' place: what a compiled module depends on beside source and options.
    pub fn identity(&self) -> String {
        format!("{} {}", self.version(), self.0.include().display())
    }

    /// The options for an architecture, `sm_90a`.
    pub fn options(&self, arch: &str) -> Vec<String> {
        vec![format!("--gpu-architecture={arch}"), "--std=c++17".into()]
    }

    /// Compiles CUDA C++ to a cubin.
    pub fn compile(&self, name: &str, source: &str, arch: &str) -> Result<Vec<u8>, RuntimeError> {
        let compiled = self.0.compile(&format!("{name}.cu"), source, &self.options(arch));
        let refused = |e: toolchain::NvrtcError| {
            let log = format!("{}\n{}", e.why, e.log).trim_end().to_owned();
            RuntimeError::Compile { variant: name.into(), arch: arch.into(), log }
        };
        Ok(compiled.map_err(refused)?.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiles_what_is_right_and_tells_what_is_not() {
        let nvrtc = match Nvrtc::find() {
            Ok(nvrtc) => nvrtc,
            Err(why) if std::env::var_os("CI").is_none() => return eprintln!("skipped: {why}"),
            Err(why) => panic!("{why}"),
        };
        let cubin =
            nvrtc.compile("one", "extern \"C\" __global__ void one(int* x) { *x = 1; }", "sm_90a").unwrap();
        assert_eq!(&cubin[..4], b"\x7fELF");
        match nvrtc.compile("two", "extern \"C\" __global__ void two() { nothing }", "sm_90a").unwrap_err() {
            RuntimeError::Compile { variant, arch, log } => {
                assert_eq!((variant.as_str(), arch.as_str()), ("two", "sm_90a"));
                assert!(log.contains("two.cu(1)") && log.contains("nothing"), "{log}");
            }
            other => panic!("{other}"),
        }
    }
}
