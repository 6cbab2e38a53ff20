//! Shared libraries that are loaded at run time. Their calls are found once, and a missing one is an error.

use std::error::Error;
use std::ffi::{CStr, OsStr, c_char};

use libloading::Library;

/// A library lacks this call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingCall(pub &'static str);

/// Why none of a library's names can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unloadable {
    /// The loader finds no such file.
    Absent,
    /// The loader's words.
    Refused(String),
}

/// Loads the first of these names or paths that can be loaded. It is never unloaded.
///
/// # Safety
/// The library's initialisers must do no harm.
pub(crate) unsafe fn open<N: AsRef<OsStr>>(names: &[N]) -> Result<&'static Library, Unloadable> {
    let mut why = Unloadable::Absent;
    for name in names {
        // SAFETY: as the caller says.
        match unsafe { Library::new(name.as_ref()) } {
            Ok(library) => return Ok(Box::leak(Box::new(library))),
            Err(e) => {
                let said = e.source().map_or_else(|| e.to_string(), ToString::to_string);
                // The same words about another name are about a library that this one needs.
                let absent = format!("{}: cannot open shared object file", name.as_ref().display());
                if why == Unloadable::Absent && !said.contains(&absent) {
                    why = Unloadable::Refused(said);
                }
            }
        }
    }
    Err(why)
}

/// A call of a library.
///
/// # Safety
/// `F` is the type of a pointer to it.
pub(crate) unsafe fn call<F: Copy>(library: &Library, name: &'static str) -> Result<F, MissingCall> {
    // SAFETY: as the caller says.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|found| *found).map_err(|_| MissingCall(name))
}

/// Words that a library keeps; none at null.
///
/// # Safety
/// `words` is null or ends with NUL, and stays.
pub(crate) unsafe fn words(words: *const c_char) -> Option<String> {
    // SAFETY: as the caller says.
    (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}

/// A struct of a library's calls, by the library's names. A call returns a number unless a type is named.
macro_rules! calls {
    ($(#[$about:meta])* $vis:vis struct $Api:ident {
        $($name:ident($($argument:ident: $ty:ty),* $(,)?) $(-> $returned:ty)?;)*
    }) => {
        $(#[$about])*
        #[allow(non_snake_case)]
        #[derive(Clone, Copy)]
        $vis struct $Api {
            $(pub $name: unsafe extern "C" fn($($ty),*) -> $crate::build::library::returned!($($returned)?),)*
        }

        impl $Api {
            /// The names of the calls.
            #[cfg(test)]
            pub const CALLS: &[&str] = &[$(stringify!($name)),*];

            /// Finds them in a library, which must stay loaded.
            ///
            /// # Safety
            /// The library's calls have these signatures.
            pub unsafe fn of(
                library: &libloading::Library,
            ) -> Result<$Api, $crate::build::library::MissingCall> {
                // SAFETY: as the caller says.
                unsafe { Ok($Api { $($name: $crate::build::library::call(library, stringify!($name))?,)* }) }
            }
        }

        impl std::fmt::Debug for $Api {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($Api))
            }
        }
    };
}

/// What a call returns.
macro_rules! returned {
    () => {
        i32
    };
    ($returned:ty) => {
        $returned
    };
}

pub(crate) use {calls, returned};

#[cfg(test)]
#[path = "stub_tests.rs"]
pub(crate) mod stub;
