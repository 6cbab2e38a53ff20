//! Looks for tools.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{Found, Origin, Tool, ToolError, Version, bounded, install};
use crate::input::trust;

/// The oldest LLVM that compiles what is emitted.
const OLDEST_CLANG: u32 = 18;
/// The newest LLVM whose programs are looked for under names with a number.
const NEWEST_CLANG: u32 = 23;

/// Names of NVRTC's library, newest first.
const NVRTC: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

/// How long a tool may take for a question. The first start of one on a slow disk takes seconds.
const PROBE: Duration = Duration::from_secs(20);

/// The places that are searched.
#[derive(Clone, Debug)]
pub(super) struct Search {
    env: BTreeMap<String, OsString>,
    /// Before all others.
    first: Vec<PathBuf>,
    /// Where CUDA and ROCm are unless the environment says.
    cuda: PathBuf,
    rocm: PathBuf,
    /// Where the system's libraries are.
    libraries: Vec<PathBuf>,
    /// How long a tool may take for a question.
    patience: Duration,
}

impl Search {
    /// This machine, with the environment of this process.
    pub fn here() -> Search {
        let env = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v))).collect();
        let arch = std::env::consts::ARCH;
        Search {
            env,
            first: vec![],
            cuda: "/usr/local/cuda".into(),
            rocm: "/opt/rocm".into(),
            libraries: vec![format!("/usr/lib/{arch}-linux-gnu").into(), "/usr/lib64".into()],
            patience: PROBE,
        }
    }

    /// The same with folders that are looked into before all others.
    pub fn first_in(self, folders: &[PathBuf]) -> Search {
        Search { first: folders.to_vec(), ..self }
    }

    /// A machine with nothing but this environment.
    #[cfg(test)]
    pub fn with(env: &[(&str, &Path)]) -> Search {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), v.as_os_str().to_owned())).collect();
        let (cuda, rocm) = ("/nowhere".into(), "/nowhere".into());
        Search { env, first: vec![], cuda, rocm, libraries: vec![], patience: PROBE }
    }

    /// See [`super::find`].
    pub fn find(&self, tool: Tool) -> Result<Found, ToolError> {
        if let Some(path) = self.path(tool.variable()) {
            return self.probe(tool, path.clone(), Origin::Variable).map_err(|e| match e {
                Failed::Absent => ToolError::Variable { tool, path, why: "nothing is there".into() },
                Failed::Unusable(why) => ToolError::Variable { tool, path, why },
            });
        }
        let mut refused = None;
        for (path, origin) in self.candidates(tool) {
            match self.probe(tool, path.clone(), origin) {
                Ok(found) => return Ok(found),
                Err(Failed::Absent) => {}
                Err(Failed::Unusable(why)) => {
                    refused.get_or_insert(ToolError::Unusable { tool, path, why });
                }
            }
        }
        Err(refused.unwrap_or(ToolError::NotFound { tool }))
    }

    /// See [`super::cache_dir`].
    pub fn cache(&self) -> Option<PathBuf> {
        let cache = trust::user_cache(|name| self.env.get(name).cloned()).ok()?;
        Some(cache.join("peerwarp/toolchain"))
    }

    /// A variable that is set and not empty.
    fn path(&self, variable: &str) -> Option<PathBuf> {
        self.env.get(variable).filter(|v| !v.is_empty()).map(PathBuf::from)
    }

    /// The absolute paths of a list. The others depend on the current folder, which anybody may have filled.
    fn paths(&self, variable: &str) -> Vec<PathBuf> {
        let list = self.env.get(variable).map(|v| std::env::split_paths(v).filter(|p| p.is_absolute()));
        list.map(Iterator::collect).unwrap_or_default()
    }

    /// A variable that names a folder by an absolute path.
    fn folder(&self, variable: &str) -> Option<PathBuf> {
        self.path(variable).filter(|path| path.is_absolute())
    }

    /// Where a tool may be, the best place first.
    fn candidates(&self, tool: Tool) -> Vec<(PathBuf, Origin)> {
        let installed = self.cache().and_then(|cache| install::place(tool, &cache));
        let installed = installed.into_iter().map(|p| (p, Origin::Installed));
        let names = match tool {
            _ if tool.is_folder() => self.first.clone(),
            _ => self.first.iter().map(|folder| folder.join(tool.name())).collect(),
        };
        let first = names.into_iter().map(|p| (p, Origin::System));
        let system = match tool {
            Tool::Nvrtc => self.nvrtc_folders(),
            Tool::Nccl => self.nccl_folders(),
            _ => self.programs(tool),
        };
        first.chain(installed).chain(system.into_iter().map(|p| (p, Origin::System))).collect()
    }

    fn cuda_homes(&self) -> Vec<PathBuf> {
        let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|v| self.folder(v));
        named.chain([self.cuda.clone()]).collect()
    }

    fn nvrtc_folders(&self) -> Vec<PathBuf> {
        let homes = self.cuda_homes().into_iter().flat_map(|h| [h.join("lib64"), h.join("lib")]);
        homes.chain(self.paths("LD_LIBRARY_PATH")).chain(self.libraries.clone()).collect()
    }

    fn nccl_folders(&self) -> Vec<PathBuf> {
        self.cuda_homes().into_iter().map(|h| h.join("include")).collect()
    }

    fn programs(&self, tool: Tool) -> Vec<PathBuf> {
        let rocm = self.folder("ROCM_PATH").unwrap_or_else(|| self.rocm.clone());
        let (names, folders) = match tool {
            Tool::Nvrtc | Tool::Nccl => (vec![], vec![]),
            Tool::Nvcc | Tool::Ptxas | Tool::Cuobjdump | Tool::Nvdisasm => {
                let bins = self.cuda_homes().into_iter().map(|h| h.join("bin")).collect();
                (vec![tool.name().to_owned()], bins)
            }
            Tool::Hipcc => (vec!["hipcc".to_owned()], vec![rocm.join("bin")]),
            Tool::Zig => (vec!["zig".to_owned()], vec![]),
            Tool::Clang => (numbered("clang++"), vec![rocm.join("llvm/bin")]),
            Tool::Objdump | Tool::Readelf => (numbered(tool.name()), vec![rocm.join("llvm/bin")]),
        };
        let folders: Vec<PathBuf> = folders.into_iter().chain(self.paths("PATH")).collect();
        names.iter().flat_map(|name| folders.iter().map(move |f| f.join(name))).collect()
    }

    /// The real path of an installed tool. What another user has installed, or can change, is not started.
    fn installed(&self, tool: Tool) -> Result<PathBuf, Failed> {
        let cache = self.cache().ok_or(Failed::Absent)?;
        match install::installed(tool, &cache) {
            Ok(path) => path.ok_or(Failed::Absent),
            Err(why) => {
                let why = format!("{why}; remove {}, and install it anew", cache.display());
                trust::warn(format!("the installed {} is not used: {why}", tool.name()));
                Err(Failed::Unusable(why))
            }
        }
    }

    fn probe(&self, tool: Tool, path: PathBuf, origin: Origin) -> Result<Found, Failed> {
        if origin == Origin::Variable && !path.is_absolute() {
            return Err(Failed::Unusable("the path is not absolute".into()));
        }
        let path = if origin == Origin::Installed { self.installed(tool)? } else { path };
        let (version, include) = match tool {
            Tool::Nvrtc => nvrtc(&path)?,
            Tool::Nccl => (nccl(&path)?, None),
            _ => (program(tool, &path, self.patience)?, None),
        };
        let oldest = peerwarp_codegen::family::Target::all().filter_map(|t| tool.oldest_for(t)).min();
        match oldest {
            Some(oldest) if version < oldest => {
                Err(Failed::Unusable(format!("version {version} is too old, {oldest} or newer is needed")))
            }
            _ => Ok(Found { tool, path, version, origin, include }),
        }
    }
}

/// A program of LLVM under its plain name, and under those with a number, newest first.
fn numbered(name: &str) -> Vec<String> {
    let with_number = (OLDEST_CLANG..=NEWEST_CLANG).rev().map(|n| format!("{name}-{n}"));
    std::iter::once(name.to_owned()).chain(with_number).collect()
}

/// Why what is at a path won't do.
enum Failed {
    Absent,
    Unusable(String),
}

/// The version of NVRTC in a folder, and the headers that go with it.
fn nvrtc(folder: &Path) -> Result<(Version, Option<PathBuf>), Failed> {
    let library = nvrtc_library(folder).ok_or(Failed::Absent)?;
    let version = super::nvrtc::version(&library).map_err(Failed::Unusable)?;
    // In a CUDA tree, and where distributions put them.
    let beside =
        ["../include", "../../include", "../../../include", "../../../../include"].map(|up| folder.join(up));
    let headers = beside.into_iter().find(|dir| dir.join("cuda_bf16.h").exists());
    let headers = headers.and_then(|dir| dir.canonicalize().ok());
    match headers {
        Some(dir) => Ok((version, Some(dir))),
        None => Err(Failed::Unusable(
            "CUDA's headers (cuda_bf16.h) are not in the include folder beside it".into(),
        )),
    }
}

/// The version of NCCL whose headers are in a folder.
fn nccl(folder: &Path) -> Result<Version, Failed> {
    let header = folder.join("nccl.h");
    let said = std::fs::read_to_string(&header).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Failed::Absent,
        _ => Failed::Unusable(format!("nccl.h cannot be read: {e}")),
    })?;
    if !folder.join("nccl_device.h").exists() {
        return Err(Failed::Unusable("it has no nccl_device.h: its NCCL is older than 2.28".into()));
    }
    Version::said_by(Tool::Nccl, &said)
        .ok_or_else(|| Failed::Unusable("its nccl.h does not say which version it is of".into()))
}

/// NVRTC's library in a folder.
pub(super) fn nvrtc_library(folder: &Path) -> Option<PathBuf> {
    NVRTC.iter().map(|name| folder.join(name)).find(|p| p.exists())
}

fn program(tool: Tool, path: &Path, patience: Duration) -> Result<Version, Failed> {
    let executable = path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    if !executable {
        return Err(if path.exists() {
            Failed::Unusable("it is not a program".into())
        } else {
            Failed::Absent
        });
    }
    let asked = if tool == Tool::Zig { "version" } else { "--version" };
    let said = ask(path, asked, patience)?;
    let version = Version::said_by(tool, &said)
        .ok_or_else(|| Failed::Unusable(format!("asked for its version, it says {:?}", first_line(&said))))?;
    if tool == Tool::Clang {
        for_amd_gpus(path, patience)?;
    }
    Ok(version)
}

/// A clang serves if it has the back end, and the linker that goes with it.
fn for_amd_gpus(clang: &Path, patience: Duration) -> Result<(), Failed> {
    if !ask(clang, "--print-targets", patience)?.contains("amdgcn") {
        return Err(Failed::Unusable("it has no AMDGPU back end".into()));
    }
    let lld = ask(clang, "-print-prog-name=lld", patience)?;
    match Path::new(lld.trim_end()).is_absolute() {
        true => Ok(()),
        false => Err(Failed::Unusable("its linker lld is not installed".into())),
    }
}

fn ask(program: &Path, question: &str, patience: Duration) -> Result<String, Failed> {
    let out = bounded::output(Command::new(program).arg(question), patience);
    let out = out.map_err(|e| match e.kind() {
        ErrorKind::TimedOut => Failed::Unusable(format!("asked for {question}, {e}")),
        _ => Failed::Unusable(format!("it cannot be started: {e}")),
    })?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        return Err(Failed::Unusable(format!("{question} fails ({}): {}", out.status, first_line(&said))));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
