//! What can be wrong with tools and their installation.

use std::path::{Path, PathBuf};

use peerwarp_codegen::family::Target;

use super::{Found, Tool, Version};
use crate::input::Distrust;

/// Why a tool cannot be used. Each says what to install or to set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// It is nowhere.
    #[error("{} is not found: {}, or {} names one", .tool.name(), .tool.advice(), .tool.variable())]
    NotFound {
        /// Which tool.
        tool: Tool,
    },
    /// Its environment variable names something that is not there, or not such a tool.
    #[error("{} = {}: {why}; it must be the absolute path of {}", .tool.variable(), .path.display(), what(*.tool))]
    Variable {
        /// Which tool.
        tool: Tool,
        /// What the variable says.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It is there, and does not work.
    #[error("{} in {} cannot be used: {why}. Else: {}, or {} names one", .tool.name(), .path.display(),
        .tool.advice(), .tool.variable())]
    Unusable {
        /// Which tool.
        tool: Tool,
        /// Where it is.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It works, but not for this target.
    #[error("{} {version} in {} does not serve for {target}{}; {}", .tool.name(), .path.display(),
        from(*.oldest), .tool.advice())]
    TooOld {
        /// Which tool.
        tool: Tool,
        /// Where it is.
        path: PathBuf,
        /// Its version.
        version: Version,
        /// What it was wanted for.
        target: Target,
        /// The first version that serves; `None` if the tool is not for this kind of target at all.
        oldest: Option<Version>,
    },
}

fn what(tool: Tool) -> &'static str {
    match tool {
        Tool::Nvrtc => {
            "the folder that holds libnvrtc.so, with CUDA's headers in the include folder beside it"
        }
        Tool::Nccl => "the folder that holds nccl.h and nccl_device.h",
        _ => "the program",
    }
}

fn from(oldest: Option<Version>) -> String {
    oldest.map_or_else(String::new, |v| format!(", which needs {v} or newer"))
}

impl ToolError {
    /// Which tool it is about.
    pub fn tool(&self) -> Tool {
        match self {
            ToolError::NotFound { tool }
            | ToolError::Variable { tool, .. }
            | ToolError::Unusable { tool, .. }
            | ToolError::TooOld { tool, .. } => *tool,
        }
    }

    pub(super) fn too_old(found: &Found, target: Target, oldest: Option<Version>) -> ToolError {
        let Found { tool, path, version, .. } = found.clone();
        ToolError::TooOld { tool, path, version, target, oldest }
    }
}

/// Why a set of tools could not be installed. What was there before is left as it was.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// There is no user's cache directory.
    #[error("there is no cache directory to install to: set XDG_CACHE_HOME or HOME to an absolute path")]
    NoCache,
    /// Another user owns what is in the cache directory, or can write it.
    #[error(
        "{0}: remove it, or let XDG_CACHE_HOME name a folder that only this user can write, and install again"
    )]
    Distrust(#[from] Distrust),
    /// Python is missing.
    #[error("python3 is needed to install {set}, and {}: install it (Debian: python3 python3-venv), or put it into PATH", .why)]
    Python {
        /// What was to be installed.
        set: String,
        /// What went wrong.
        why: String,
    },
    /// Neither pip nor the module that brings it is there.
    #[error(
        "python3 has neither pip nor venv, and one of them is needed to install {set} (Debian: python3-venv)\n{said}"
    )]
    Pip {
        /// What was to be installed.
        set: String,
        /// What Python says.
        said: String,
    },
    /// Pip failed.
    #[error("pip could not install {set}:\n{said}")]
    Failed {
        /// What was to be installed.
        set: String,
        /// The end of what pip says.
        said: String,
    },
    /// Pip succeeded, and something is missing all the same.
    #[error("{set} was installed without {}: the wheels are not those that were pinned", .missing.display())]
    Incomplete {
        /// What was to be installed.
        set: String,
        /// What is missing.
        missing: PathBuf,
    },
    /// The operating system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl InstallError {
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> InstallError {
        let path = path.to_owned();
        move |source| InstallError::Io { path, source }
    }
}
