//! Collectives on this process's rank.

use std::sync::Mutex;

use peerwarp::families::collectives::{Ladder, Length, Rung};
use peerwarp::harness::choose::Device;
use peerwarp::runtime::op::{LaunchSpec, Operation};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use super::exchange::{Element, Exchange, Seen};
use super::{aligned, stream_of};
use crate::collectives::{Asked, uneven};
use crate::error::{Failure, detached};
use crate::simulated::lock;
use crate::world::GpuWorld;

/// The collectives of this process's rank that have been made, each for one capacity, type and so on.
#[pyclass(frozen)]
pub struct DeviceCollectives {
    world: Py<GpuWorld>,
    ranks: u64,
    /// Nodes of the world: on several each length has an operation of its own.
    nodes: u32,
    exchange: Option<Py<Exchange>>,
    ladder: Ladder,
    made: Mutex<Vec<Made>>,
}

/// Which collective, and for what.
#[derive(PartialEq)]
struct Of<'a> {
    name: &'a str,
    op: &'a str,
    root: u32,
    element: Element,
    /// Of the key.
    elements: u64,
    lengths: (Length, u32),
}

/// What a call passes by value: rows, and rows of all ranks' parts.
#[derive(Clone, Copy)]
struct Rows {
    rows: Option<u32>,
    all_rows: Option<u32>,
}

struct Made {
    name: String,
    op: String,
    root: u32,
    element: Element,
    elements: u64,
    lengths: (Length, u32),
    launches: Operation,
    takes: Vec<Operand>,
}

/// What stands for an operand.
#[derive(Clone, Copy)]
enum Operand {
    X,
    Out,
    N,
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
        let &Made { ref name, ref op, root, element, elements, lengths, .. } = self;
        elements == of.elements && *of == Of { name, op, root, element, elements, lengths }
    }

    /// Launches it with aligned addresses of as many rows as `rows` says, at most its capacity.
    ///
    /// # Safety
    /// What is at the addresses is of this GPU and stays until it is on the stream; calls are in the order of one stream.
    unsafe fn launch(
        &mut self,
        rows: Rows,
        (x, out, n): (u64, u64, u64),
        stream: u64,
    ) -> Result<(), Failure> {
        let rank = &mut self.launches.ranks_mut()[0];
        for (name, value) in [("rows", rows.rows), ("all_rows", rows.all_rows)] {
            if let Some(value) = value {
                rank.set_scalar(name, value)?;
            }
        }
        let mut operands = [0; 3];
        let operands = &mut operands[..self.takes.len()];
        operands.iter_mut().zip(&self.takes).for_each(|(at, takes)| {
            *at = match takes {
                Operand::X => x,
                Operand::Out => out,
                Operand::N => n,
            }
        });
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
    /// `exchange` looks at tensors, if there is such a thing for them. `capacities` ascend; none stands for powers of two.
    #[new]
    fn new(
        py: Python<'_>,
        world: Py<GpuWorld>,
        ranks: u64,
        exchange: Option<Py<Exchange>>,
        capacities: Vec<u64>,
    ) -> Result<DeviceCollectives, Failure> {
        let nodes = world.get().with_world(py, |world| Ok(world.teams().nodes()))?;
        let ladder = Ladder::new(capacities);
        Ok(DeviceCollectives { world, ranks, nodes, exchange, ladder, made: Mutex::default() })
    }

    /// Frees what was made: memory of the GPU. Launches end first.
    fn free(&self, py: Python<'_>) -> Result<(), Failure> {
        detached(py, || {
            lock(&self.made).clear();
            Ok(())
        })
    }

    /// Bytes of the GPU's memory that operations have.
    fn memory_bytes(&self) -> u64 {
        lock(&self.made).iter().map(|made| made.launches.ranks()[0].memory_bytes()).sum()
    }

    /// Whether there is a collective for a length.
    fn has(&self, name: &str, op_root: (&str, u32), dtype_elements: (&str, u64)) -> Result<bool, Failure> {
        let (of, _) = self.of(name, op_root, element_of(dtype_elements.0)?, dtype_elements.1)?;
        Ok(lock(&self.made).iter().any(|made| made.is(&of)))
    }

    /// Makes a collective for the capacity of a length, and a type: allocates and loads. All ranks do so in the same order.
    fn make(
        &self,
        py: Python<'_>,
        name: &str,
        op_root: (&str, u32),
        dtype_elements: (&str, u64),
    ) -> Result<(), Failure> {
        let (of, _) = self.of(name, op_root, element_of(dtype_elements.0)?, dtype_elements.1)?;
        self.add(py, dtype_elements.0, &of)
    }

    /// Launches one that was made, on a stream. `x` and `out` are of that length.
    fn launch(
        &self,
        py: Python<'_>,
        name: &str,
        op_root: (&str, u32),
        dtype_elements: (&str, u64),
        x_out_stream: (u64, u64, u64),
    ) -> Result<(), Failure> {
        let ((dtype, elements), (x, out, stream)) = (dtype_elements, x_out_stream);
        let (x, out) = (aligned("x", x)?, aligned("out", out)?);
        let (of, rows) = self.of(name, op_root, element_of(dtype)?, elements)?;
        // SAFETY: the Python part has compared the tensors' GPU, type and length with what this was made for, keeps them until they
        // are on the stream, and calls in the order of one stream.
        match unsafe { self.started(py, &of, rows, (x, out, 0), stream) }? {
            true => Ok(()),
            false => Err(Failure::invalid("collective", name, "one that was made")),
        }
    }

    /// Launches a collective whose ranks have lengths of their own, `n[rank]` rows of `row` elements, at most `most`. One that was not
    /// made is made if it `may` be; else nothing is done, and it says so.
    fn uneven(
        &self,
        py: Python<'_>,
        name_op_dtype: (PyBackedStr, PyBackedStr, PyBackedStr),
        row_most: (u32, u32),
        rows_all_rows: (u32, u32),
        x_out_n_stream: (u64, u64, u64, u64),
        may: bool,
    ) -> Result<bool, Failure> {
        let ((row, most), (rows, all_rows), (x, out, n, stream)) = (row_most, rows_all_rows, x_out_n_stream);
        let (name, op, dtype) = (&*name_op_dtype.0, &*name_op_dtype.1, &*name_op_dtype.2);
        let n = aligned("sizes", n)?;
        let elements = uneven(name, self.ranks as u32, (row, most));
        let of =
            Of { name, op, root: 0, element: element_of(dtype)?, elements, lengths: (Length::Each, row) };
        // A tensor without a row has no memory.
        let place = |field, rows, address| if rows == 0 { Ok(n) } else { aligned(field, address) };
        let (own, all) = if name == "all_gather" { (rows, all_rows) } else { (all_rows, rows) };
        let places = (place("x", own, x)?, place("out", all, out)?, n);
        if !lock(&self.made).iter().any(|made| made.is(&of)) {
            if !may {
                return Ok(false);
            }
            self.add(py, dtype, &of)?;
        }
        let rows = Rows { rows: Some(rows), all_rows: Some(all_rows) };
        // SAFETY: as of `launch`; tensors have as many rows as the numbers say, and `n` a word for each rank.
        unsafe { self.started(py, &of, rows, places, stream) }
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
        let Ok((of, rows)) = self.of(name, (op, root), x.element, x.elements()) else { return Ok(false) };
        // SAFETY: they are tensors of this GPU, of the type and length that it was made for, which the caller keeps; calls are in the
        // order of one stream, as the documentation asks.
        unsafe { self.started(py, &of, rows, (x.address, out.address, 0), stream) }
    }
}

impl DeviceCollectives {
    /// The operation for `x` of so many elements, and the rows of it: one for the smallest capacity with room; on several nodes, one for
    /// that length.
    fn of<'a>(
        &self,
        name: &'a str,
        (op, root): (&'a str, u32),
        element: Element,
        elements: u64,
    ) -> Result<(Of<'a>, Rows), Failure> {
        let parts = if ["reduce_scatter", "all_to_all"].contains(&name) { self.ranks } else { 1 };
        let (packet, offsets) = (16 / element.bytes() as u32, !["all_reduce", "broadcast"].contains(&name));
        let rung = match self.nodes {
            1 => self.ladder.rung(elements, parts, packet, offsets).map_err(|most| {
                let found = format!("{} elements of a rank", elements / parts);
                Failure::invalid("x.shape", found, format!("at most {most}, the largest of capacities"))
            })?,
            _ => Rung::alone(elements),
        };
        let Rung { elements, length, row, rows } = rung;
        Ok((Of { name, op, root, element, elements, lengths: (length, row) }, Rows { rows, all_rows: None }))
    }

    /// Makes an operation.
    fn add(&self, py: Python<'_>, dtype: &str, of: &Of<'_>) -> Result<(), Failure> {
        let &Of { name, op, root, element, elements, lengths } = of;
        let launches = self.world.get().with(py, |world, images| {
            let (ranks, most) = (world.ranks(), world.blocks_per_launch());
            let device = Device::of_gpu(world.members()[0].gpu.info());
            let nodes = world.teams().nodes();
            let asked = Asked { name, op, root, dtype, elements, lengths, ranks, nodes, most, device };
            Ok(Operation::new(world, &[LaunchSpec::new(name, asked.variant()?)], images)?)
        })?;
        let takes = launches.ranks()[0].operands().iter().map(|spec| match &*spec.name {
            "x" => Ok(Operand::X),
            "out" => Ok(Operand::Out),
            "n" => Ok(Operand::N),
            other => Err(Failure::invalid("operand", other, "x, out and n")),
        });
        let takes = takes.collect::<Result<_, _>>()?;
        let (name, op) = (name.to_owned(), op.to_owned());
        lock(&self.made).push(Made { name, op, root, element, elements, lengths, launches, takes });
        Ok(())
    }

    /// Launches one, if it was made.
    ///
    /// # Safety
    /// As of [`Made::launch`].
    unsafe fn started(
        &self,
        py: Python<'_>,
        of: &Of<'_>,
        rows: Rows,
        places: (u64, u64, u64),
        stream: u64,
    ) -> Result<bool, Failure> {
        detached(py, || match lock(&self.made).iter_mut().find(|made| made.is(of)) {
            // SAFETY: as the caller says.
            Some(made) => unsafe { made.launch(rows, places, stream) }.map(|()| true),
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
