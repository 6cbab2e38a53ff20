//! A kernel of any family on this process's rank.

use std::sync::Mutex;

use peerwarp::codegen::ir::{Dtype, ParamKind};
use peerwarp::runtime::op::{LaunchSpec, Operation};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString};

use super::exchange::{Element, Exchange};
use super::stream_of;
use crate::error::{Failure, detached};
use crate::kernel::Kernel;
use crate::operation::Number;
use crate::simulated::lock;
use crate::world::GpuWorld;

/// A kernel with its own memory. It is made by all ranks in the same order.
#[pyclass(frozen)]
pub struct DeviceOperation {
    exchange: Option<Py<Exchange>>,
    operands: Vec<Operand>,
    numbers: Vec<(Py<PyString>, String, Dtype)>,
    made: Mutex<Operation>,
}

/// What a tensor has to be.
struct Operand {
    name: Py<PyString>,
    elements: &'static [Element],
    len: u64,
    /// Elements of a row, of a matrix or of rows that a number counts.
    each: Option<u64>,
    /// Whether a number says how many rows there are.
    counted: bool,
}

/// The tensors that may be an operand of a type.
fn elements_of(dtype: Dtype) -> &'static [Element] {
    match dtype {
        Dtype::F32 => &[Element::F32],
        Dtype::Fp16 => &[Element::F16],
        Dtype::Bf16 => &[Element::BF16],
        Dtype::Fp8 => &[Element::FP8, Element::U8],
        Dtype::I32 => &[Element::I32],
        Dtype::U32 => &[Element::U32, Element::I32],
        Dtype::U64 => &[Element::U64, Element::I64],
        Dtype::Bool => &[],
    }
}

impl Operand {
    fn fits(&self, element: Element, shape: &[u64]) -> bool {
        let elements: u64 = shape.iter().product();
        let len = if self.counted {
            self.each.is_some_and(|each| elements.is_multiple_of(each))
        } else {
            elements == self.len
        };
        let rows = shape.len() < 2 || self.each.is_none_or(|each| shape.last() == Some(&each));
        self.elements.contains(&element) && len && rows
    }
}

#[pymethods]
impl DeviceOperation {
    /// Allocates and loads.
    #[new]
    fn new(
        py: Python<'_>,
        world: &Bound<'_, GpuWorld>,
        kernel: &Bound<'_, Kernel>,
        exchange: Option<Py<Exchange>>,
    ) -> Result<DeviceOperation, Failure> {
        let kernel = kernel.get();
        let spec = [LaunchSpec::new(kernel.variant.family_name(), kernel.variant.clone())];
        let made = match &kernel.pack {
            Some(pack) => world.get().with_world(py, |world| Ok(Operation::new(world, &spec, &**pack)?)),
            None => world.get().with(py, |world, images| Ok(Operation::new(world, &spec, images)?)),
        }?;
        let params = kernel.variant.params();
        let operands = made.ranks()[0].operands().iter().map(|spec| {
            let param = &spec.param;
            let of_rows = param.rows.as_ref().map(|rows| param.len / rows.most.max(1));
            Operand {
                name: PyString::intern(py, &spec.name).unbind(),
                elements: elements_of(param.dtype),
                len: param.len,
                each: param.columns.or(of_rows),
                counted: param.rows.is_some(),
            }
        });
        let operands = operands.collect();
        let scalars = params.iter().filter(|p| p.kind == ParamKind::Scalar);
        let scalars = scalars.map(|p| (PyString::intern(py, &p.name).unbind(), p.name.clone(), p.dtype));
        Ok(DeviceOperation { exchange, operands, numbers: scalars.collect(), made: Mutex::new(made) })
    }

    /// Does all of a call on tensors that are as they have to be: else it does nothing, and says so.
    fn run(&self, py: Python<'_>, passed: &Bound<'_, PyDict>) -> Result<bool, Failure> {
        let Some(exchange) = self.exchange.as_ref().map(Py::get) else { return Ok(false) };
        if passed.len() != self.operands.len() + self.numbers.len() {
            return Ok(false);
        }
        let mut tensors = Vec::with_capacity(self.operands.len());
        let mut stream = None;
        for operand in &self.operands {
            let Ok(Some(value)) = passed.get_item(operand.name.bind(py)) else { return Ok(false) };
            let Some(seen) = exchange.seen(&value) else { return Ok(false) };
            if !operand.fits(seen.element, seen.shape()) {
                return Ok(false);
            }
            if stream.is_none() {
                stream = exchange.stream(py, &seen);
            }
            tensors.push((seen.address, seen.bytes()));
        }
        let mut numbers = Vec::with_capacity(self.numbers.len());
        for (name, ..) in &self.numbers {
            let Ok(Some(value)) = passed.get_item(name.bind(py)) else { return Ok(false) };
            // Python says that a truth value is no number.
            let number = value.extract::<Number>().ok().filter(|_| !value.is_instance_of::<PyBool>());
            let Some(number) = number else { return Ok(false) };
            numbers.push(number);
        }
        let Some(stream) = stream else { return Ok(false) };
        // SAFETY: they are tensors of this GPU, which the caller keeps; calls are in the order of one stream, as the documentation asks.
        unsafe { self.launched(py, &tensors, &numbers, stream) }.map(|()| true)
    }

    /// Launches it with addresses and sizes of tensors that Python has looked at.
    fn launch(
        &self,
        py: Python<'_>,
        tensors: Vec<(u64, u64)>,
        numbers: Vec<Number>,
        stream: u64,
    ) -> Result<(), Failure> {
        // SAFETY: the Python part has compared the tensors' GPU and type with what the kernel takes, keeps them until they are on the
        // stream, and calls in the order of one stream.
        unsafe { self.launched(py, &tensors, &numbers, stream) }
    }

    /// Bytes of memory on its GPU.
    fn memory_bytes(&self) -> u64 {
        lock(&self.made).ranks()[0].memory_bytes()
    }
}

impl DeviceOperation {
    /// # Safety
    /// What is at the addresses is of this GPU and stays until it is on the stream; calls are in the order of one stream.
    unsafe fn launched(
        &self,
        py: Python<'_>,
        tensors: &[(u64, u64)],
        numbers: &[Number],
        stream: u64,
    ) -> Result<(), Failure> {
        detached(py, || {
            let mut made = lock(&self.made);
            let rank = &mut made.ranks_mut()[0];
            for ((_, name, dtype), number) in self.numbers.iter().zip(numbers) {
                rank.set_number(name, number.of(name, *dtype)?)?;
            }
            // SAFETY: as the caller says.
            Ok(unsafe { rank.launch_sized(0, tensors, stream_of(stream)) }?)
        })
    }
}
