//! NCCL's library. Kernels that put by its GIN run with the version alone whose headers they were compiled with.

use crate::build::library::{self, MissingCall, Unloadable, calls};
use crate::build::toolchain::Version;

use super::RuntimeError;

/// Names of the library: that of a process that has loaded it already is the same one.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

calls! {
    /// The library's functions, by its names. Each returns an `ncclResult_t`.
    struct Api {
        ncclGetVersion(version: *mut i32);
    }
}

/// The version of the library, or why there is none.
fn version() -> Result<Version, String> {
    // SAFETY: what it does when it is loaded is to read its environment.
    let library = unsafe { library::open(&NAMES) }.map_err(|why| match why {
        Unloadable::Absent => format!("{} is not found", NAMES[0]),
        Unloadable::Refused(said) => said,
    })?;
    // SAFETY: NCCL has had this signature since its first version, and `library` is never unloaded.
    let api =
        unsafe { Api::of(library) }.map_err(|MissingCall(name)| format!("{} has no {name}", NAMES[0]))?;
    let mut code = 0;
    // SAFETY: the call writes one number.
    match unsafe { (api.ncclGetVersion)(&mut code) } {
        0 => Ok(Version::of_nccl(code.unsigned_abs())),
        error => Err(format!("ncclGetVersion of {} returns {error}", NAMES[0])),
    }
}

/// Checks that the library is of the version that a kernel was compiled for.
///
/// # Errors
/// It is of another version, or cannot be loaded.
pub(super) fn serves(variant: &str, compiled: &str) -> Result<(), RuntimeError> {
    agrees(variant, compiled, version())
}

fn agrees(variant: &str, compiled: &str, found: Result<Version, String>) -> Result<(), RuntimeError> {
    let (variant, compiled) = (variant.to_owned(), compiled.to_owned());
    match found.map(|version| version.to_string()) {
        Ok(found) if found == compiled => Ok(()),
        Ok(found) => Err(RuntimeError::NcclVersion { variant, compiled, found }),
        Err(why) => Err(RuntimeError::NoNccl { variant, compiled, why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_runs_with_the_version_that_it_was_compiled_for() {
        let found = |code| agrees("far_swap", "2.32.3", Ok(Version::of_nccl(code)));
        found(23203).unwrap();
        let other = found(23007).unwrap_err();
        let RuntimeError::NcclVersion { compiled, found, .. } = &other else { panic!("{other}") };
        assert_eq!((compiled.as_str(), found.as_str()), ("2.32.3", "2.30.7"));
        let none =
            agrees("far_swap", "2.32.3", Err("libnccl.so.2 is not found".into())).unwrap_err().to_string();
        assert!(none.contains("NCCL 2.32.3") && none.contains("libnccl.so.2 is not found"), "{none}");
    }

    #[test]
    fn another_library_lacks_the_call() {
        // SAFETY: this program has loaded it.
        let libc = unsafe { library::open(&["libc.so.6"]) }.unwrap();
        // SAFETY: it has none of the calls.
        let MissingCall(name) = unsafe { Api::of(libc) }.unwrap_err();
        assert_eq!(Api::CALLS, [name]);
    }

    #[test]
    fn the_library_says_its_version_or_why_it_is_not_there() {
        match version() {
            Ok(version) => assert!(version >= Version::new(2, 0), "{version}"),
            Err(why) => assert!(why.contains("libnccl"), "{why}"),
        }
    }
}
