//! Versions of tools, and what tools say about theirs.

use std::fmt;

use serde::{Serialize, Serializer};

use super::Tool;

/// A version, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number, 0 where a tool has none.
    pub patch: u32,
}

impl Version {
    /// `major.minor.0`.
    pub const fn new(major: u32, minor: u32) -> Version {
        Version { major, minor, patch: 0 }
    }

    /// A version of NCCL, from its number in headers and libraries: 23203 is 2.32.3.
    pub const fn of_nccl(code: u32) -> Version {
        Version { major: code / 10_000, minor: code / 100 % 100, patch: code % 100 }
    }

    /// Reads a version from the start of a text, whatever follows it.
    fn leading(text: &str) -> Option<Version> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers = text[..end].split('.').map(|n| n.parse::<u32>().ok());
        let major = numbers.next()??;
        let mut next = || numbers.next().flatten().unwrap_or(0);
        Some(Version { major, minor: next(), patch: next() })
    }

    /// Finds a tool's version in what it says when it is asked for it.
    pub(super) fn said_by(tool: Tool, said: &str) -> Option<Version> {
        let before = match tool {
            Tool::Nvrtc | Tool::Zig => "",
            Tool::Nvcc | Tool::Ptxas | Tool::Cuobjdump | Tool::Nvdisasm => ", V",
            Tool::Hipcc => "HIP version: ",
            Tool::Clang => "clang version ",
            Tool::Objdump | Tool::Readelf => "LLVM version ",
            Tool::Nccl => "NCCL_VERSION_CODE ",
        };
        let said = said.split_once(before)?.1;
        match (tool, Version::leading(said)?) {
            (Tool::Nccl, Version { major: code, .. }) => Some(Version::of_nccl(code)),
            (_, version) => Some(version),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.patch != 0 {
            write!(f, ".{}", self.patch)?;
        }
        Ok(())
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_found_in_what_tools_say() {
        let said = |tool, text| Version::said_by(tool, text).map(|v| v.to_string());
        let nvcc =
            "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\nBuild";
        assert_eq!(said(Tool::Nvcc, nvcc).as_deref(), Some("13.0.88"));
        assert_eq!(said(Tool::Clang, "Debian clang version 19.1.7 (3)\nTarget").as_deref(), Some("19.1.7"));
        assert_eq!(said(Tool::Clang, "AMD clang version 20.0.0git (x)").as_deref(), Some("20.0"));
        assert_eq!(
            said(Tool::Hipcc, "HIP version: 6.2.41133-dd7f95766\nAMD clang").as_deref(),
            Some("6.2.41133")
        );
        assert_eq!(said(Tool::Zig, "0.17.0-dev.5+abc\n").as_deref(), Some("0.17"));
        assert_eq!(said(Tool::Readelf, "LLVM (x):\n  LLVM version 18.1.8\n").as_deref(), Some("18.1.8"));
        assert_eq!(said(Tool::Nccl, "#define NCCL_VERSION_CODE 23203\n").as_deref(), Some("2.32.3"));
        assert_eq!(said(Tool::Clang, "gcc 12.2"), None);
        assert_eq!(said(Tool::Nvcc, ", Vx"), None);
        assert_eq!(said(Tool::Zig, "99999999999.1"), None);
    }

    #[test]
    fn compare_number_by_number() {
        assert!(Version::new(12, 10) > Version::new(12, 9));
        assert!(Version::new(20, 0) > Version { major: 19, minor: 1, patch: 7 });
    }
}
