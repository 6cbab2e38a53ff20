//! Collectives on this process's rank.

use std::sync::Mutex;

use peerwarp::harness::choose::Device;
use peerwarp::runtime::op::{LaunchSpec, Operation};
use pyo3::prelude::*;

use super::exchange::{Element, Exchange, Seen};
use super::{aligned, stream_of};
use crate::collectives::Asked;
use crate::error::{Failure, detached};
use crate::simulated::lock;
use crate::world::GpuWorld;

/// The collectives of this process's rank that have been made, each for one length, type and so on.
#[pyclass(frozen)]
pub struct DeviceCollectives {
    world: Py<GpuWorld>,
    ranks: u64,
    exchange: Option<Py<Exchange>>,
    made: Mutex<Vec<Made>>,
}

/// Which collective, and for what.
#[derive(PartialEq)]
struct Of<'a> {
    name: &'a str,
    op: &'a str,
    root: u32,
    element: Element,
    elements: u64,
}

struct Made {
    name: String,
    op: String,
    root: u32,
    element: Element,
    elements: u64,
    launches: Operation,
    /// For each operand whether it is `x`; if not, it is `out`.
    takes_x: Vec<bool>,
}

/// The elements that collectives take.
fn element_of(dtype: &str) -> Result<Element, Failure> {
    match dtype {
        "f32" => Ok(Element::F32),
        "fp16" => Ok(Element::F16),
        "bf16" => Ok(Element::BF16),
        "i32" => Ok(Element::I32),
        "fp8" => Ok(Element::U8),
        other => Err(Failure::invalid("dtype", other, "f32, fp16, bf16, i32 or fp8")),
    }
}

impl Made {
    fn is(&self, of: &Of<'_>) -> bool {
        let Made { name, op, root, element, elements, .. } = self;
        *elements == of.elements
            && *of == Of { name, op, root: *root, element: *element, elements: *elements }
    }

    /// Launches it with aligned addresses of as many elements as it is for.
    ///
    /// # Safety
    /// What is at the addresses is of this GPU and stays until it is on the stream; calls are in the order of one stream.
    unsafe fn launch(&mut self, x: u64, out: u64, stream: u64) -> Result<(), Failure> {
        let rank = &mut self.launches.ranks_mut()[0];
        let mut operands = [0; 2];
        let operands = &mut operands[..self.takes_x.len()];
        operands.iter_mut().zip(&self.takes_x).for_each(|(at, takes_x)| *at = if *takes_x { x } else { out });
        // SAFETY: as the caller says.
        Ok(unsafe { rank.launch_raw(0, operands, stream_of(stream)) }?)
    }
}

/// Whether a result's shape is that of a collective of `x`.
fn shapes_fit(name: &str, ranks: u64, x: &[u64], out: &[u64]) -> bool {
    let [Some((first, rest)), Some((first_out, rest_out))] = [x.split_first(), out.split_first()] else {
        return x == out && !["reduce_scatter", "all_gather", "all_to_all"].contains(&name);
    };
    let lengths = match name {
        "reduce_scatter" => Some(*first) == first_out.checked_mul(ranks),
        "all_gather" => first.checked_mul(ranks) == Some(*first_out),
        "all_to_all" => first == first_out && first.is_multiple_of(ranks),
        _ => first == first_out,
    };
    lengths && rest == rest_out
}

#[pymethods]
impl DeviceCollectives {
    /// `exchange` looks at tensors, if there is such a thing for them.
    #[new]
    fn new(world: Py<GpuWorld>, ranks: u64, exchange: Option<Py<Exchange>>) -> DeviceCollectives {
        DeviceCollectives { world, ranks, exchange, made: Mutex::default() }
    }

    /// Whether a collective was made.
    fn has(&self, name: &str, op_root: (&str, u32), dtype_elements: (&str, u64)) -> Result<bool, Failure> {
        let ((op, root), (dtype, elements)) = (op_root, dtype_elements);
        let of = Of { name, op, root, element: element_of(dtype)?, elements };
        Ok(lock(&self.made).iter().any(|made| made.is(&of)))
    }

    /// Makes a collective for one length and type: allocates and loads. All ranks do so in the same order.
    fn make(
        &self,
        py: Python<'_>,
        name: &str,
        op_root: (&str, u32),
        dtype_elements: (&str, u64),
    ) -> Result<(), Failure> {
        let ((op, root), (dtype, elements)) = (op_root, dtype_elements);
        let element = element_of(dtype)?;
        let launches = self.world.get().with(py, |world, images| {
            let (ranks, most) = (world.ranks(), world.blocks_per_launch());
            let device = Device::of_gpu(world.members()[0].gpu.info());
            let nodes = world.teams().nodes();
            let variant = Asked { name, op, root, dtype, elements, ranks, nodes, most, device }.variant()?;
            Ok(Operation::new(world, &[LaunchSpec::new(name, variant)], images)?)
        })?;
        let takes_x = launches.ranks()[0].operands().iter().map(|spec| match &*spec.name {
            "x" => Ok(true),
            "out" => Ok(false),
            other => Err(Failure::invalid("operand", other, "x and out")),
        });
        let takes_x = takes_x.collect::<Result<_, _>>()?;
        let (name, op) = (name.to_owned(), op.to_owned());
        lock(&self.made).push(Made { name, op, root, element, elements, launches, takes_x });
        Ok(())
    }

    /// Launches one that was made, on a stream. `x` and `out` are as long as it was made for.
    fn launch(
        &self,
        py: Python<'_>,
        name: &str,
        op_root: (&str, u32),
        dtype_elements: (&str, u64),
        x_out_stream: (u64, u64, u64),
    ) -> Result<(), Failure> {
        let ((op, root), (dtype, elements), (x, out, stream)) = (op_root, dtype_elements, x_out_stream);
        let (x, out) = (aligned("x", x)?, aligned("out", out)?);
        // SAFETY: the Python part has compared the tensors' GPU, type and length with what this was made for, keeps them until they
        // are on the stream, and calls in the order of one stream.
        match unsafe {
            self.started(py, &Of { name, op, root, element: element_of(dtype)?, elements }, x, out, stream)
        }? {
            true => Ok(()),
            false => Err(Failure::invalid("collective", name, "one that was made")),
        }
    }

    /// Does all of a call on tensors that are as they have to be, of a collective that was made: else it does nothing, and says so.
    fn run(
        &self,
        py: Python<'_>,
        name: &str,
        x: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        op: &str,
        root: u32,
    ) -> Result<bool, Failure> {
        let Some(exchange) = self.exchange.as_ref().map(Py::get) else { return Ok(false) };
        let (Some(x), Some(out)) = (exchange.seen(x), exchange.seen(out)) else { return Ok(false) };
        if !self.fit(name, &x, &out) {
            return Ok(false);
        }
        let Some(stream) = exchange.stream(py, &x) else { return Ok(false) };
        let of = Of { name, op, root, element: x.element, elements: x.elements() };
        // SAFETY: they are tensors of this GPU, of the type and length that it was made for, which the caller keeps; calls are in the
        // order of one stream, as the documentation asks.
        unsafe { self.started(py, &of, x.address, out.address, stream) }
    }
}

impl DeviceCollectives {
    /// Launches one, if it was made.
    ///
    /// # Safety
    /// As of [`Made::launch`].
    unsafe fn started(
        &self,
        py: Python<'_>,
        of: &Of<'_>,
        x: u64,
        out: u64,
        stream: u64,
    ) -> Result<bool, Failure> {
        detached(py, || match lock(&self.made).iter_mut().find(|made| made.is(of)) {
            // SAFETY: as the caller says.
            Some(made) => unsafe { made.launch(x, out, stream) }.map(|()| true),
            None => Ok(false),
        })
    }

    /// Whether tensors are what a collective takes, and lie apart.
    fn fit(&self, name: &str, x: &Seen, out: &Seen) -> bool {
        let aligned = x.address != 0 && x.is_aligned() && out.is_aligned();
        let alike = x.element == out.element && shapes_fit(name, self.ranks, x.shape(), out.shape());
        aligned && alike && !x.overlaps(out)
    }
}
