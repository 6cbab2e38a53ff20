//! NVIDIA's run-time compiler.

use std::ffi::{CString, c_char};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cudarc::nvrtc::result as nvrtc;
use cudarc::nvrtc::sys;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::runtime::RuntimeError;
use crate::toolchain::{self, Tool};

/// NVRTC, loaded, with the headers that emitted sources include.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    version: (i32, i32),
    include: Vec<PathBuf>,
}

/// What is found depends on what is loaded already: one thread at a time.
static LOADING: Mutex<()> = Mutex::new(());

impl Nvrtc {
    /// Loads the one that [`toolchain::find`] finds.
    pub fn find() -> Result<Nvrtc, RuntimeError> {
        let _guard = LOADING.lock().unwrap_or_else(|e| e.into_inner());
        let found = toolchain::find(Tool::Nvrtc)?;
        load_from(&found.path).map_err(|e| RuntimeError::NotInstalled {
            what: format!("NVRTC in {} cannot be loaded ({e}); another", found.path.display()),
            install: Tool::Nvrtc.advice().into(),
        })?;
        // cudarc panics where the library is not there. Loaded by its path it is found by its name.
        if !unsafe { sys::is_culib_present() } {
            return Err(RuntimeError::NotInstalled {
                what: format!("libnvrtc.so.13 beside {}", found.path.display()),
                install: Tool::Nvrtc.advice().into(),
            });
        }
        let (mut major, mut minor) = (0, 0);
        check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
        // The headers of the C++ core libraries, which CUDA's include, have a folder of their own there.
        let include = found.include.into_iter().flat_map(|f| [f.join("cccl"), f]).filter(|f| f.is_dir());
        Ok(Nvrtc { version: (major, minor), include: include.collect() })
    }

    /// Its version, and the headers' place: what a compiled module depends on beside source and options.
    pub fn identity(&self) -> String {
        let include: Vec<_> = self.include.iter().map(|p| p.display().to_string()).collect();
        format!("nvrtc {}.{} {}", self.version.0, self.version.1, include.join(" "))
    }

    /// The options for an architecture, `sm_90a`.
    pub fn options(&self, arch: &str) -> Vec<String> {
        let include = self.include.iter().map(|p| format!("--include-path={}", p.display()));
        [format!("--gpu-architecture={arch}"), "--std=c++17".into()].into_iter().chain(include).collect()
    }

    /// Compiles CUDA C++ to a cubin.
    pub fn compile(&self, name: &str, source: &str, arch: &str) -> Result<Vec<u8>, RuntimeError> {
        let text = |what: &str, text: &str| {
            let bad = |_| RuntimeError::invalid(what, name, "text without NUL");
            CString::new(text).map_err(bad)
        };
        let (source, file) = (text("source", source)?, text("name", &format!("{name}.cu"))?);
        let program =
            nvrtc::create_program(&source, Some(&file)).map_err(|e| failed("nvrtcCreateProgram", e))?;
        let program = Program(program);
        // SAFETY: just made, and destroyed when dropped.
        unsafe {
            if nvrtc::compile_program(program.0, &self.options(arch)).is_err() {
                let log = nvrtc::get_program_log(program.0).map_err(|e| failed("nvrtcGetProgramLog", e))?;
                let log = String::from_utf8_lossy(&bytes(log)).trim_end_matches('\0').to_owned();
                return Err(RuntimeError::Compile { variant: name.into(), arch: arch.into(), log });
            }
            let mut size = 0;
            check("nvrtcGetCUBINSize", sys::nvrtcGetCUBINSize(program.0, &mut size))?;
            let mut cubin: Vec<c_char> = vec![0; size];
            check("nvrtcGetCUBIN", sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr()))?;
            Ok(bytes(cubin))
        }
    }
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `create_program`, and not yet destroyed.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}

fn bytes(text: Vec<c_char>) -> Vec<u8> {
    text.into_iter().map(|c| c as u8).collect()
}

fn failed(call: &'static str, error: nvrtc::NvrtcError) -> RuntimeError {
    RuntimeError::Driver { call, gpu: None, reason: error.to_string() }
}

fn check(call: &'static str, result: sys::nvrtcResult) -> Result<(), RuntimeError> {
    result.result().map_err(|e| failed(call, e))
}

/// Loads NVRTC from a folder, after the library that it loads by its bare name.
fn load_from(folder: &Path) -> Result<(), libloading::Error> {
    let names = |start: &str| {
        let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|f| f.path());
        let starts = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(start));
        files.filter(starts).filter(|p| !p.to_string_lossy().contains(".alt.")).collect::<Vec<_>>()
    };
    for path in names("libnvrtc-builtins.so").into_iter().chain(names("libnvrtc.so")) {
        // SAFETY: NVIDIA's library does nothing when it is loaded that could harm. It is never unloaded.
        std::mem::forget(unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL)? });
    }
    Ok(())
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
