//! libfabric, loaded when it is first asked for.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library;

use crate::error::FabricError;
use crate::sys;

/// The variable that names the library's file, where it is not on the loader's path.
pub const LIBRARY_VARIABLE: &str = "PEERWARP_LIBFABRIC";

/// The interface that is asked for, and the oldest library that has it.
pub(crate) const API: u32 = sys::version(1, 17);

/// The functions that libfabric exports.
pub(crate) struct Fabric {
    pub getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const sys::fi_info,
        *mut *mut sys::fi_info,
    ) -> c_int,
    pub freeinfo: unsafe extern "C" fn(*mut sys::fi_info),
    pub dupinfo: unsafe extern "C" fn(*const sys::fi_info) -> *mut sys::fi_info,
    pub fabric:
        unsafe extern "C" fn(*mut sys::fi_fabric_attr, *mut *mut sys::fid_fabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    version: u32,
}

impl Fabric {
    /// The library of this process. It is loaded once and never unloaded, because providers start threads of their own.
    ///
    /// # Errors
    /// The library is absent, lacks a call, or is of a version that is not supported.
    pub fn get() -> Result<&'static Fabric, FabricError> {
        static LOADED: OnceLock<Result<Fabric, FabricError>> = OnceLock::new();
        LOADED.get_or_init(Fabric::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Fabric, FabricError> {
        let named = std::env::var(LIBRARY_VARIABLE).ok().filter(|name| !name.is_empty());
        let names = named.map_or_else(|| vec!["libfabric.so.1".into(), "libfabric.so".into()], |n| vec![n]);
        Fabric::load_from(&names)
    }

    fn load_from(names: &[String]) -> Result<Fabric, FabricError> {
        let mut reasons = vec![];
        for name in names {
            // SAFETY: libfabric's initialisers only set up its own state.
            match unsafe { Library::new(name) } {
                Ok(library) => return Fabric::of(Box::leak(Box::new(library))),
                Err(e) => reasons.push(e.to_string()),
            }
        }
        Err(FabricError::NotInstalled { names: names.join(", "), reason: reasons.join("; ") })
    }

    fn of(library: &'static Library) -> Result<Fabric, FabricError> {
        /// # Safety
        /// `F` is the type of a pointer to the function.
        unsafe fn call<F: Copy>(library: &Library, name: &'static str) -> Result<F, FabricError> {
            // SAFETY: as the caller says.
            unsafe { library.get::<F>(name) }.map(|f| *f).map_err(|_| FabricError::MissingCall { call: name })
        }
        // SAFETY: these are the functions' types in the headers. `version` takes no arguments.
        unsafe {
            let version: unsafe extern "C" fn() -> u32 = call(library, "fi_version")?;
            let version = check_version(version())?;
            Ok(Fabric {
                getinfo: call(library, "fi_getinfo")?,
                freeinfo: call(library, "fi_freeinfo")?,
                dupinfo: call(library, "fi_dupinfo")?,
                fabric: call(library, "fi_fabric")?,
                strerror: call(library, "fi_strerror")?,
                version,
            })
        }
    }

    /// Major and minor version.
    pub fn version(&self) -> (u32, u32) {
        (self.version >> 16, self.version & 0xffff)
    }

    /// The library's words for an error number, which is positive.
    pub fn words(&self, errno: c_int) -> String {
        // SAFETY: `fi_strerror` takes any number, and returns a string that is NUL-terminated and stays.
        let words = unsafe { (self.strerror)(errno) };
        if words.is_null() {
            return format!("error {errno}");
        }
        // SAFETY: as above.
        let words = unsafe { CStr::from_ptr(words) };
        format!("{} ({errno})", words.to_string_lossy())
    }

    /// The outcome of a call that returns zero or a negative error number.
    pub fn check(&self, call: &'static str, returned: c_int) -> Result<(), FabricError> {
        match returned {
            0 => Ok(()),
            errno => Err(FabricError::Call { call, reason: self.words(errno.saturating_neg()) }),
        }
    }
}

/// Refuses versions that the bindings do not fit.
fn check_version(version: u32) -> Result<u32, FabricError> {
    let (major, minor) = (version >> 16, version & 0xffff);
    match version >= API && major <= 2 {
        true => Ok(version),
        false => Err(FabricError::Version { major, minor }),
    }
}

/// The version of libfabric that this process loads: major and minor.
///
/// # Errors
/// As [`Endpoint::open`](crate::Endpoint::open) says for the library.
pub fn library_version() -> Result<(u32, u32), FabricError> {
    Ok(Fabric::get()?.version())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_the_package() {
        let error = Fabric::load_from(&["libfabric-that-is-absent.so.1".into()]).err().unwrap();
        let FabricError::NotInstalled { names, .. } = &error else { panic!("{error}") };
        assert_eq!(names, "libfabric-that-is-absent.so.1");
        let words = error.to_string();
        assert!(words.contains("`libfabric1` on Debian and Ubuntu, `libfabric` on RHEL"), "{words}");
    }

    #[test]
    fn another_library_lacks_the_calls() {
        let error = Fabric::load_from(&["libc.so.6".into()]).err().unwrap();
        assert_eq!(error, FabricError::MissingCall { call: "fi_version" });
    }

    #[test]
    fn versions_are_refused_by_name() {
        for (version, works) in
            [((1, 17), true), ((1, 22), true), ((2, 6), true), ((1, 16), false), ((3, 0), false)]
        {
            let checked = check_version(sys::version(version.0, version.1));
            assert_eq!(checked.is_ok(), works, "{version:?}");
        }
        let words = check_version(sys::version(1, 11)).unwrap_err().to_string();
        assert_eq!(
            words,
            "libfabric is of version 1.11, and 1.17 up to 2.x are supported: install another version"
        );
    }
}
