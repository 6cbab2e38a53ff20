//! The command `peerwarp`, for `python -m peerwarp`.

use std::ffi::OsString;

use peerwarp::cli::{App, builtin};
use pyo3::prelude::*;

use crate::error::{Failure, detached};

/// Runs a command on these arguments: its exit status, and what it says on standard output and on standard error.
#[pyfunction]
pub fn command(py: Python<'_>, args: Vec<OsString>) -> Result<(u8, String, String), Failure> {
    detached(py, || {
        let name = "peerwarp";
        let said = App::new(&builtin()).name(name).run([OsString::from(name)].into_iter().chain(args));
        Ok((said.code, said.out, said.err))
    })
}
