//! The test's CUDA driver, `driver.c`: compiled once, loaded by children whose memory is of a GPU.

use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::without_provenance_mut;
use std::sync::OnceLock;

use libloading::Library;

/// What the driver adds to a host address to make an address of its GPU.
pub const MARK: usize = 1 << 60;

/// The folder with the driver, as children's `LD_LIBRARY_PATH`.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gin-card-driver-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes/driver.c");
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o"]);
        let compiled =
            compiler.arg(folder.join("libcuda.so")).arg(source).output().expect("a C compiler is there");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        folder
    })
}

/// The driver in a child.
pub struct Driver(Library);

impl Driver {
    /// Loads it, and makes a context current on this thread.
    pub fn load() -> Driver {
        // SAFETY: the library has no initialisers.
        let library = unsafe { Library::new("libcuda.so") }.unwrap();
        type Set = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: the function's type in `driver.c`, which takes any number.
        let set = unsafe { library.get::<Set>("cuCtxSetCurrent").unwrap()(without_provenance_mut(1)) };
        assert_eq!(set, 0);
        Driver(library)
    }

    /// Pinned memory and streams that were not given back.
    pub fn left(&self) -> c_int {
        // SAFETY: the function's type in `driver.c`.
        unsafe { self.0.get::<unsafe extern "C" fn() -> c_int>("test_driver_left").unwrap()() }
    }
}
