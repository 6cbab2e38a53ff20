//! Errors as Python gets them: each is a class of `peerwarp.errors`. Panics don't get through.

use std::panic::{AssertUnwindSafe, catch_unwind};

use peerwarp::build::pack::PackError;
use peerwarp::codegen::family::FamilyError;
use peerwarp::codegen::sim::{Finding, Findings, Party};
use peerwarp::families::moe::MoeError;
use peerwarp::harness::session::SimError;
use peerwarp::harness::workload::WorkloadError;
use peerwarp::input::InputError;
use peerwarp::runtime::RuntimeError;
use peerwarp::runtime::status::Aborted;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Why something did not work.
#[derive(Debug)]
pub enum Failure {
    /// `InvalidArgument`.
    Invalid { field: String, value: String, allowed: String },
    /// `RaceFound`.
    Found(Box<Findings>),
    /// `Aborted`.
    Aborted(Box<Aborted>),
    /// `NoDriver`.
    NoDriver(String),
    /// `PeerwarpError`.
    Other(String),
}

impl Failure {
    pub fn invalid(field: &str, value: impl ToString, allowed: impl Into<String>) -> Failure {
        Failure::Invalid { field: field.into(), value: value.to_string(), allowed: allowed.into() }
    }
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Failure {
        Failure::Invalid {
            field: error.field.clone(),
            value: if error.value.is_empty() { "nothing".into() } else { error.value.clone() },
            allowed: error.allowed.clone(),
        }
    }
}

impl From<WorkloadError> for Failure {
    fn from(error: WorkloadError) -> Failure {
        match error {
            WorkloadError::Input(error) => error.into(),
            WorkloadError::Runtime(error) => error.into(),
            WorkloadError::Kernel(_) => Failure::Other(error.to_string()),
        }
    }
}

impl From<FamilyError> for Failure {
    fn from(error: FamilyError) -> Failure {
        WorkloadError::from(error).into()
    }
}

impl From<MoeError> for Failure {
    fn from(error: MoeError) -> Failure {
        match error {
            MoeError::Invalid { field, value, allowed } => Failure::invalid(field, value, allowed),
            MoeError::Family(error) => error.into(),
            other => Failure::Other(other.to_string()),
        }
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        match error {
            RuntimeError::Invalid { field, value, allowed } => Failure::Invalid { field, value, allowed },
            RuntimeError::Aborted(aborted) => Failure::Aborted(aborted),
            error if error.is_no_gpu() => Failure::NoDriver(error.to_string()),
            other => Failure::Other(other.to_string()),
        }
    }
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Failure {
        match error {
            SimError::Workload(error) => error.into(),
            SimError::Found(found) => Failure::Found(found),
        }
    }
}

impl From<PackError> for Failure {
    fn from(error: PackError) -> Failure {
        Failure::Other(error.to_string())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        Python::attach(|py| failure.raise(py).unwrap_or_else(|error| error))
    }
}

impl Failure {
    fn raise(self, py: Python<'_>) -> PyResult<PyErr> {
        let class = |name: &str| py.import("peerwarp.errors")?.getattr(name);
        let error = match self {
            Failure::Invalid { field, value, allowed } => {
                class("InvalidArgument")?.call1((field, value, allowed))
            }
            Failure::Found(found) => {
                let each = found.list.iter().enumerate();
                let list: PyResult<Vec<_>> =
                    each.map(|(i, f)| finding(&class("Finding")?, f, i < found.causes)).collect();
                class("RaceFound")?.call1((found.to_string(), PyTuple::new(py, list?)?, found.seed))
            }
            Failure::Aborted(aborted) => aborted_error(&class("Aborted")?, &aborted),
            Failure::NoDriver(why) => class("NoDriver")?.call1((why,)),
            Failure::Other(why) => class("PeerwarpError")?.call1((why,)),
        };
        Ok(PyErr::from_value(error?))
    }
}

/// The author's file and line, if it is no host.
fn line(party: &Party) -> Option<String> {
    party.loc.map(|loc| loc.to_string())
}

fn finding<'py>(class: &Bound<'py, PyAny>, found: &Finding, is_cause: bool) -> PyResult<Bound<'py, PyAny>> {
    let Finding { kind, message, at, other, buffer, elements, chain, times } = found;
    let text = found.to_string();
    let chain = PyTuple::new(class.py(), chain)?;
    let other = other.as_ref().map(ToString::to_string);
    class.call1((
        kind.name(),
        message.as_str(),
        line(at),
        at.rank,
        at.to_string(),
        other,
        buffer.as_deref(),
        *elements,
        chain,
        *times,
        is_cause,
        text,
    ))
}

fn aborted_error<'py>(class: &Bound<'py, PyAny>, aborted: &Aborted) -> PyResult<Bound<'py, PyAny>> {
    let wait = aborted.wait.as_ref();
    class.call1((
        aborted.to_string(),
        aborted.rank,
        wait.map(|w| w.peer),
        wait.map(|w| w.flag.as_str()),
        wait.map(|w| w.expected),
        wait.map(|w| w.kernel.as_str()),
        wait.map(|w| w.line),
    ))
}

/// Does something without the interpreter's lock. A panic becomes an error that asks for a report.
pub fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    py.detach(|| {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            Err(Failure::Other(format!("a bug in peerwarp, which is worth a report: {said}")))
        })
    })
}
