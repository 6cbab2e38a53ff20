//! NVRTC in this process: from CUDA C++ to a cubin.

use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::{Found, Tool, ToolError, Version, find};

/// NVRTC, loaded. Loading happens once in a process: whoever loads it again gets the same.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    include: PathBuf,
    version: Version,
}

/// What NVRTC made of a source.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// An ELF file for one architecture.
    pub bytes: Vec<u8>,
    /// Warnings, and what `ptxas` says if it was asked.
    pub log: String,
}

/// NVRTC refuses a source or an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NVRTC: {why}\n{log}")]
pub struct NvrtcError {
    /// The code of the error.
    pub why: String,
    /// What it says of the source.
    pub log: String,
}

impl Nvrtc {
    /// Loads the NVRTC that [`find`] finds.
    ///
    /// # Errors
    /// There is none, or it cannot be loaded.
    pub fn load() -> Result<Nvrtc, ToolError> {
        Nvrtc::load_from(&find(Tool::Nvrtc)?)
    }

    /// Loads an NVRTC that was found.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub fn load_from(found: &Found) -> Result<Nvrtc, ToolError> {
        let unusable = |why: String| ToolError::Unusable { tool: Tool::Nvrtc, path: found.path.clone(), why };
        let include = found.include.clone().ok_or_else(|| unusable("its headers are not known".into()))?;
        if include.to_str().is_none() {
            let why = "the path of its headers is not UTF-8, as that of an option to NVRTC must be";
            return Err(unusable(why.into()));
        }
        preload(found).map_err(|e| unusable(e.to_string()))?;
        // SAFETY: loads a library by the names that NVRTC has, the one that is loaded already among them.
        if !unsafe { sys::is_culib_present() } {
            return Err(unusable("the loader does not find it again by its name".into()));
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(|e| unusable(e.to_string()))?;
        Ok(Nvrtc { include, version: Version::new(major.unsigned_abs(), minor.unsigned_abs()) })
    }

    /// Its version: of the library that is loaded.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The folder of CUDA's headers.
    pub fn include(&self) -> &Path {
        &self.include
    }

    /// Compiles `source`, which messages call `name`. `options` are NVRTC's, with a real architecture among them
    /// (`--gpu-architecture=sm_90a`); the folder of CUDA's headers is added.
    ///
    /// # Errors
    /// The source or an option is wrong; the log says why.
    pub fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<Cubin, NvrtcError> {
        let text = |what: &str, text: &str| {
            let why = format!("{what} has a zero byte");
            CString::new(text).map_err(|_| NvrtcError { why, log: String::new() })
        };
        let (name, source) = (text("the name", name)?, text("the source", source)?);
        // The headers of the C++ core libraries, which CUDA's include, have a folder of their own in toolkits.
        let folders = [self.include.clone(), self.include.join("cccl")];
        let mut all: Vec<String> =
            folders.iter().map(|f| format!("--include-path={}", f.display())).collect();
        all.extend(options.iter().cloned());
        for option in &all {
            text("an option", option)?;
        }
        let wrong = |e: result::NvrtcError| NvrtcError { why: e.to_string(), log: String::new() };
        let program = Program(result::create_program(&source, Some(&name)).map_err(wrong)?);
        // SAFETY: the program is alive until the end of the scope, and so is the source that it refers to.
        let compiled = unsafe { result::compile_program(program.0, &all) };
        let log = program.log();
        compiled.map_err(|e| NvrtcError { why: e.to_string(), log: log.clone() })?;
        Ok(Cubin { bytes: program.cubin().map_err(wrong)?, log })
    }
}

/// Loads the library that was found, so that cudarc, which loads by bare names, gets that one.
fn preload(found: &Found) -> Result<(), libloading::Error> {
    let Version { major, minor, .. } = found.version;
    let builtins = found.path.join(format!("libnvrtc-builtins.so.{major}.{minor}"));
    let library = super::search::nvrtc_library(&found.path);
    for path in [Some(builtins).filter(|p| p.exists()), library].into_iter().flatten() {
        // SAFETY: these are NVRTC and its own part by their names; loading them runs their initialisers only.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL)? };
        // Stays for the life of the process.
        std::mem::forget(library);
    }
    Ok(())
}

/// A program that goes away with the value.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program is alive.
        let log: Vec<c_char> = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|c| c.to_ne_bytes()[0]).collect();
        CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut size = 0;
        // SAFETY: the program is alive, and the buffer has the size that NVRTC asks for.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut size).result()?;
            let mut bytes = vec![0u8; size];
            sys::nvrtcGetCUBIN(self.0, bytes.as_mut_ptr().cast()).result()?;
            Ok(bytes)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is alive and not used again. That it cannot be destroyed would help nobody to know.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVRTC, or a note that the test is skipped.
    fn nvrtc() -> Option<Nvrtc> {
        match Nvrtc::load() {
            Ok(nvrtc) => Some(nvrtc),
            Err(e) if std::env::var_os("CI").is_some() => panic!("{e}"),
            Err(e) => {
                println!("skipped: {e}");
                None
            }
        }
    }

    fn options() -> Vec<String> {
        ["--gpu-architecture=sm_80", "--ptxas-options=-v"].map(str::to_owned).to_vec()
    }

    #[test]
    fn compiles_to_a_cubin_and_says_what_it_uses() {
        let Some(nvrtc) = nvrtc() else { return };
        let source =
            "#include <cuda_bf16.h>\nextern \"C\" __global__ void k(__nv_bfloat16* x) { *x = 1.0f; }";
        let cubin = nvrtc.compile("k.cu", source, &options()).unwrap();
        assert_eq!(&cubin.bytes[..4], b"\x7fELF");
        assert!(cubin.log.contains("Compiling entry function 'k' for 'sm_80'"), "{}", cubin.log);
        let again = nvrtc.compile("k.cu", source, &options()).unwrap();
        assert!(again.bytes == cubin.bytes, "the same source gives the same object");
    }

    #[test]
    fn errors_quote_the_log() {
        let Some(nvrtc) = nvrtc() else { return };
        let error = nvrtc.compile("wrong.cu", "int x = y;", &options()).unwrap_err();
        assert!(error.log.contains("wrong.cu(1)") && error.log.contains("\"y\" is undefined"), "{error}");
        let option = nvrtc.compile("k.cu", "", &["--no-such-option".into()]).unwrap_err();
        assert!(option.to_string().contains("no-such-option"), "{option}");
        assert_eq!(nvrtc.compile("k.cu", "\0", &[]).unwrap_err().why, "the source has a zero byte");
    }
}
