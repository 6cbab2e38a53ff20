//! A kernel of any family on simulated ranks.

use std::sync::Arc;

use peerwarp::codegen::ir::{Const, Dtype, ParamKind};
use peerwarp::harness::session::SimOperation;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::error::{Failure, detached};
use crate::kernel::Kernel;
use crate::world::SimulatedWorld;

/// A kernel with its own memory on each rank.
#[pyclass(frozen)]
pub struct SimulatedOperation {
    operation: SimOperation,
}

/// A number that is passed by value.
#[derive(FromPyObject)]
pub enum Number {
    Whole(i64),
    /// Above what an `i64` holds.
    Large(u64),
    Real(f64),
}

impl Number {
    /// As a kernel takes it.
    pub fn of(&self, name: &str, dtype: Dtype) -> Result<Const, Failure> {
        let whole = match *self {
            Number::Whole(n) => Some(i128::from(n)),
            Number::Large(n) => Some(i128::from(n)),
            Number::Real(_) => None,
        };
        let found = match dtype {
            Dtype::I32 => whole.and_then(|n| i32::try_from(n).ok()).map(Const::I32),
            Dtype::U32 => whole.and_then(|n| u32::try_from(n).ok()).map(Const::U32),
            Dtype::U64 => whole.and_then(|n| u64::try_from(n).ok()).map(Const::U64),
            Dtype::F32 => Some(self.real()).map(|x| Const::F32((x as f32).to_bits())),
            Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => None,
        };
        let value = match *self {
            Number::Whole(n) => n.to_string(),
            Number::Large(n) => n.to_string(),
            Number::Real(x) => x.to_string(),
        };
        found.ok_or_else(|| Failure::invalid(name, value, format!("a number that fits {dtype}")))
    }

    fn real(&self) -> f64 {
        match *self {
            Number::Whole(n) => n as f64,
            Number::Large(n) => n as f64,
            Number::Real(x) => x,
        }
    }
}

#[pymethods]
impl SimulatedOperation {
    #[new]
    fn new(
        py: Python<'_>,
        world: &Bound<'_, SimulatedWorld>,
        kernel: &Bound<'_, Kernel>,
    ) -> Result<SimulatedOperation, Failure> {
        let (world, kernel) = (world.get(), kernel.get());
        detached(py, || {
            let operation = SimOperation::new(Arc::clone(&world.ranks), Arc::clone(&kernel.variant))?;
            Ok(SimulatedOperation { operation })
        })
    }

    /// Runs it. `operands` has for each operand the bytes of each rank, `numbers` for each number the value of each rank. Returns for
    /// each output the bytes of each rank.
    fn run<'py>(
        &self,
        py: Python<'py>,
        operands: Vec<(String, Vec<PyBackedBytes>)>,
        numbers: Vec<(String, Vec<Number>)>,
    ) -> Result<Vec<Vec<Bound<'py, PyBytes>>>, Failure> {
        let mut of_ranks = vec![vec![]; self.operation.ranks() as usize];
        for (name, each) in &numbers {
            let param =
                self.operation.params().iter().find(|p| p.name == *name && p.kind == ParamKind::Scalar);
            let dtype = param.ok_or_else(|| Failure::invalid("number", name, "one of the kernel's"))?.dtype;
            for (of_rank, number) in of_ranks.iter_mut().zip(each) {
                of_rank.push((name.clone(), number.of(name, dtype)?));
            }
        }
        let out = detached(py, || {
            let copied = |each: &Vec<PyBackedBytes>| each.iter().map(|bytes| bytes.to_vec()).collect();
            let operands = operands.iter().map(|(name, each)| (name.clone(), copied(each))).collect();
            Ok(self.operation.run(operands, of_ranks)?)
        })?;
        let bytes = |bytes: &Vec<u8>| PyBytes::new(py, bytes);
        Ok(out.iter().map(|(_, each)| each.iter().map(bytes).collect()).collect())
    }
}
