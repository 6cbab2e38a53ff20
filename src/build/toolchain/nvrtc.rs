//! NVRTC in this process: from CUDA C++ to a cubin.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

use libloading::Library;

use super::{Found, Tool, ToolError, Version, find};
use crate::build::library::{self, MissingCall, Unloadable, calls};

calls! {
    /// NVRTC's functions, by their names. Each but the last returns an `nvrtcResult`.
    struct Api {
        nvrtcVersion(major: *mut i32, minor: *mut i32);
        nvrtcCreateProgram(
            program: *mut *mut c_void, source: *const c_char, name: *const c_char, headers: i32,
            texts: *const *const c_char, names: *const *const c_char
        );
        nvrtcCompileProgram(program: *mut c_void, count: i32, options: *const *const c_char);
        nvrtcGetProgramLogSize(program: *mut c_void, bytes: *mut usize);
        nvrtcGetProgramLog(program: *mut c_void, log: *mut c_char);
        nvrtcGetCUBINSize(program: *mut c_void, bytes: *mut usize);
        nvrtcGetCUBIN(program: *mut c_void, cubin: *mut c_char);
        nvrtcDestroyProgram(program: *mut *mut c_void);
        nvrtcGetErrorString(error: i32) -> *const c_char;
    }
}

/// `NVRTC_ERROR_COMPILATION`: the log says what is wrong.
const COMPILATION: i32 = 6;

impl Api {
    /// Loads a library, which stays loaded, and asks for its version.
    fn load(library: &Path) -> Result<(Api, Version), String> {
        let library = open(library)?;
        // SAFETY: NVRTC's functions have had these signatures since CUDA 11.
        let api = unsafe { Api::of(library) };
        let api = api.map_err(|MissingCall(call)| format!("it lacks the call `{call}`"))?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        api.check("nvrtcVersion", unsafe { (api.nvrtcVersion)(&mut major, &mut minor) })?;
        Ok((api, Version::new(major.unsigned_abs(), minor.unsigned_abs())))
    }

    /// The result of a call, with NVRTC's words and what to do.
    fn check(&self, call: &str, result: i32) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC's words are constants, also for a number that it does not know.
        let text = unsafe { library::words((self.nvrtcGetErrorString)(result)) };
        let text = text.unwrap_or_else(|| "NVRTC has no words for it".into());
        Err(format!("{call} failed: {text} (error {result}): {}", remedy(result)))
    }
}

fn open(path: &Path) -> Result<&'static Library, String> {
    // SAFETY: it is NVRTC or its own part by its name; loading it runs its initialisers only.
    unsafe { library::open(&[path]) }.map_err(|why| match why {
        Unloadable::Absent => format!("{} is not there", path.display()),
        Unloadable::Refused(reason) => reason,
    })
}

/// What to do about an `nvrtcResult`.
fn remedy(error: i32) -> &'static str {
    match error {
        1 => {
            "end other programs or raise the limit of address space (`ulimit -v`): the host's memory is full"
        }
        2 | 7 | 11 => {
            "install NVRTC anew, with libnvrtc-builtins of the same version beside it (`peerwarp toolchain install`)"
        }
        3..=5 | 8..=10 | 13 => {
            "a fault of Peerwarp or of NVRTC: use another NVRTC, and report this message if it stays"
        }
        COMPILATION => "read the compiler's words below, and mend the kernel",
        12 | 14 | 15 | 17 => "free room on the disk and in memory for the compiler's files",
        16 | 18 => "try again: another compilation of this process was under way or cancelled this one",
        _ => "this number is newer than this Peerwarp: use an NVRTC of CUDA 13, or update Peerwarp",
    }
}

/// The version of an NVRTC.
pub(super) fn version(library: &Path) -> Result<Version, String> {
    Ok(Api::load(library)?.1)
}

/// NVRTC, loaded. It stays loaded.
#[derive(Clone, Debug)]
pub struct Nvrtc {
    api: Api,
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
    /// The call, its error, and what to do.
    pub why: String,
    /// What it says of the source.
    pub log: String,
}

impl From<String> for NvrtcError {
    fn from(why: String) -> NvrtcError {
        NvrtcError { why, log: String::new() }
    }
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
        let library = super::search::nvrtc_library(&found.path);
        let library = library.ok_or_else(|| unusable("libnvrtc.so is not there any more".into()))?;
        let Version { major, minor, .. } = found.version;
        let builtins = found.path.join(format!("libnvrtc-builtins.so.{major}.{minor}"));
        if builtins.exists() {
            // NVRTC loads this part by its bare name, and gets the one that is loaded.
            open(&builtins).map_err(unusable)?;
        }
        let (api, version) = Api::load(&library).map_err(unusable)?;
        Ok(Nvrtc { api, include, version })
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
        let options: Vec<CString> =
            all.iter().map(|option| text("an option", option)).collect::<Result<_, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let program = Program::new(&self.api, &source, &name)?;
        // SAFETY: the program is alive until the end of the scope, and so are the texts that it refers to.
        let compiled =
            unsafe { (self.api.nvrtcCompileProgram)(program.raw, options.len() as i32, options.as_ptr()) };
        let log = program.log();
        self.api
            .check("nvrtcCompileProgram", compiled)
            .map_err(|why| NvrtcError { why, log: log.clone() })?;
        Ok(Cubin { bytes: program.cubin()?, log })
    }
}

/// A program that goes away with the value.
struct Program<'a> {
    api: &'a Api,
    raw: *mut c_void,
}

impl<'a> Program<'a> {
    fn new(api: &'a Api, source: &'a CStr, name: &CStr) -> Result<Program<'a>, NvrtcError> {
        let mut raw = null_mut();
        // SAFETY: the texts end with NUL, and there are no headers.
        let made =
            unsafe { (api.nvrtcCreateProgram)(&mut raw, source.as_ptr(), name.as_ptr(), 0, null(), null()) };
        api.check("nvrtcCreateProgram", made)?;
        Ok(Program { api, raw })
    }

    /// What the compiler says; empty where it cannot be asked.
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program is alive, and the buffer has the size that NVRTC asks for.
        let log = unsafe {
            if (self.api.nvrtcGetProgramLogSize)(self.raw, &mut size) != 0 {
                return String::new();
            }
            let mut log = vec![0u8; size];
            if (self.api.nvrtcGetProgramLog)(self.raw, log.as_mut_ptr().cast()) != 0 {
                return String::new();
            }
            log
        };
        CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut size = 0;
        // SAFETY: the program is alive, and the buffer has the size that NVRTC asks for.
        unsafe {
            let asked = (self.api.nvrtcGetCUBINSize)(self.raw, &mut size);
            self.api.check("nvrtcGetCUBINSize", asked)?;
            let mut bytes = vec![0u8; size];
            let got = (self.api.nvrtcGetCUBIN)(self.raw, bytes.as_mut_ptr().cast());
            self.api.check("nvrtcGetCUBIN", got)?;
            Ok(bytes)
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program is alive and not used again. That it cannot be destroyed helps no caller.
        let _ = unsafe { (self.api.nvrtcDestroyProgram)(&mut self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::Origin;
    use super::*;
    use crate::build::library::stub::{Stub, in_time};

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

    /// Loads an NVRTC and compiles with it.
    fn compile(folder: &Path) -> Result<Cubin, String> {
        let (tool, path, version, origin) =
            (Tool::Nvrtc, folder.to_owned(), Version::new(13, 0), Origin::System);
        let found = Found { tool, path, version, origin, include: Some(folder.to_owned()) };
        let nvrtc = Nvrtc::load_from(&found).map_err(|e| e.to_string())?;
        nvrtc.compile("k.cu", "", &options()).map_err(|e| e.to_string())
    }

    #[test]
    fn each_error_of_each_call_is_reported_with_a_remedy() {
        in_time(|| {
            let stub = Stub::new("nvrtc");
            let folder = stub.path.parent().unwrap();
            assert_eq!(compile(folder).unwrap().bytes, b"\x7fELF");
            for &call in Api::CALLS {
                for &error in &stub.errors {
                    let fails = if call == "nvrtcGetErrorString" { "nvrtcVersion" } else { call };
                    stub.fail(&format!("{call},{fails}"), error);
                    let result = compile(folder);
                    assert!(stub.answered() > 0, "no test calls {call}");
                    // What only adds words may fail, and so may the end.
                    if call.starts_with("nvrtcGetProgramLog") || call == "nvrtcDestroyProgram" {
                        assert!(result.is_ok(), "{call}, {error}: {result:?}");
                        continue;
                    }
                    let said = result.unwrap_err();
                    let told = format!("(error {error}): {}", remedy(error));
                    assert!(said.contains(&format!("{fails} failed: ")) && said.contains(&told), "{said}");
                    assert!(remedy(error) != remedy(-1), "{error} has no remedy");
                }
            }
        });
    }

    #[test]
    fn a_call_that_it_lacks_is_reported() {
        let stub = Stub::new("nvrtc");
        for &call in Api::CALLS {
            let said = version(&stub.without(call)).unwrap_err();
            assert_eq!(said, format!("it lacks the call `{call}`"));
        }
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
