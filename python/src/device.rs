//! Operations on this process's GPU, with addresses that Python passes. The one place of this package that is unsafe: an address is
//! a number, and what is there is the word of the Python part, which asks each tensor for its GPU, type, shape and strides.

use std::sync::{Arc, Mutex};

use peerwarp::families::moe::kernels::{Hook, Layout};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeAllToAll, MoeShape, Routed, Tokens};
use peerwarp::runtime::World;
use peerwarp::runtime::gpu::RawStream;
use peerwarp::runtime::op::{LaunchSpec, Operation};
use pyo3::prelude::*;

use crate::collectives::Asked;
use crate::error::{Failure, detached};
use crate::moe::layout_of;
use crate::simulated::lock;
use crate::world::GpuWorld;

/// A stream of any library.
fn stream_of(handle: u64) -> RawStream<'static> {
    // SAFETY: Python passes the current stream of this GPU, which PyTorch never destroys.
    unsafe { RawStream::from_raw(handle) }
}

/// Whether an address is one that kernels can load from 16 bytes at once.
fn aligned(field: &str, address: u64) -> Result<u64, Failure> {
    match address != 0 && address.is_multiple_of(16) {
        true => Ok(address),
        false => {
            let allowed = "one that 16 divides: a tensor's own memory, not a part that begins in between";
            Err(Failure::invalid(&format!("address of {field}"), format!("{address:#x}"), allowed))
        }
    }
}

/// A collective for one length and type, on this process's rank.
#[pyclass(frozen)]
pub struct DeviceCollective {
    op: Mutex<Operation>,
    name: String,
}

#[pymethods]
impl DeviceCollective {
    /// Allocates and loads; all ranks do so in the same order.
    #[new]
    fn new(
        py: Python<'_>,
        world: &Bound<'_, GpuWorld>,
        name: &str,
        op_root: (&str, u32),
        dtype_elements: (&str, u64),
    ) -> Result<DeviceCollective, Failure> {
        let ((op, root), (dtype, elements)) = (op_root, dtype_elements);
        let world = world.get();
        let op = world.with(py, |world, images| {
            let (ranks, most) = (world.ranks(), world.blocks_per_rank());
            let variant = Asked { name, op, root, dtype, elements, ranks, most }.variant()?;
            Ok(Operation::new(world, &[LaunchSpec::new(name, variant)], images)?)
        })?;
        Ok(DeviceCollective { op: Mutex::new(op), name: name.to_owned() })
    }

    /// Launches it on a stream. `x` and `out` are as long as this was made for.
    fn launch(&self, py: Python<'_>, x: u64, out: u64, stream: u64) -> Result<(), Failure> {
        let given = [("x", aligned("x", x)?), ("out", aligned("out", out)?)];
        detached(py, || {
            let mut op = lock(&self.op);
            let rank = &mut op.ranks_mut()[0];
            let address = |name: &str| given.iter().find(|(known, _)| *known == name).map(|(_, at)| *at);
            let operands: Option<Vec<u64>> = rank.operands().iter().map(|spec| address(&spec.name)).collect();
            let operands =
                operands.ok_or_else(|| Failure::invalid("collective", &self.name, "one of x and out"))?;
            // SAFETY: the Python part has compared the tensors' GPU, type and length with what this was made for, keeps them until
            // they are on the stream, and calls in the order of one stream.
            Ok(unsafe { rank.launch_raw(0, &operands, stream_of(stream)) }?)
        })
    }
}

/// MoE dispatch and combine on this process's rank.
#[pyclass(frozen)]
pub struct DeviceMoe {
    state: Mutex<State>,
    shape: MoeShape,
}

struct State {
    op: MoeAllToAll,
    /// The last dispatch, by its number, until it is combined.
    routed: Option<(u64, Routed)>,
    dispatches: u64,
}

/// First byte and size of a buffer, by its name.
type Place = (String, u64, u64);

/// What dispatch leaves in memory of the operation.
const BUFFERS: [&str; 8] =
    ["rows", "row_scale", "expert_start", "expert_rows", "n_from", "weight_from", "gather", "entry_expert"];

fn moe(
    world: &Arc<World>,
    images: &dyn peerwarp::runtime::image::Images,
    shape: &MoeShape,
    layout: Layout,
) -> Result<State, Failure> {
    let mut tuning = MoeTuning::defaults_with(shape, Hook::None, layout)?;
    if let Some(blocks) = world.blocks_per_rank() {
        tuning = tuning.within(blocks);
    }
    Ok(State { op: MoeAllToAll::new(world, &tuning, images)?, routed: None, dispatches: 0 })
}

#[pymethods]
impl DeviceMoe {
    /// Allocates and loads; all ranks do so in the same order.
    #[new]
    fn new(
        py: Python<'_>,
        world: &Bound<'_, GpuWorld>,
        hidden_experts_topk_tokens: (u32, u32, u32, u32),
        dtype: &str,
        layout: &str,
    ) -> Result<DeviceMoe, Failure> {
        let (hidden, experts, topk, tokens) = hidden_experts_topk_tokens;
        let (dtype, layout) = (dtype.parse()?, layout_of(layout)?);
        let (shape, state) = world.get().with(py, |world, images| {
            let shape = MoeShape { hidden, experts, topk, tokens, ranks: world.ranks(), dtype };
            Ok((shape, moe(world, images, &shape, layout)?))
        })?;
        Ok(DeviceMoe { state: Mutex::new(state), shape })
    }

    /// Elements of a row that share a scale give that many scales a row; 0 but for fp8.
    fn scales(&self) -> u32 {
        self.shape.scales()
    }

    /// First expert of each rank, and after the last one all experts.
    fn first_experts(&self) -> Vec<u32> {
        self.shape.first_experts()
    }

    /// Where what dispatch leaves is, as long as this object lives.
    fn buffers(&self) -> Vec<Place> {
        let state = lock(&self.state);
        let rank = &state.op.ranks()[0];
        let place = |name: &&str| rank.buffer(name).ok().map(|(ptr, bytes)| ((*name).to_owned(), ptr, bytes));
        BUFFERS.iter().filter_map(place).collect()
    }

    /// Sends `n` rows on a stream, and receives: the number of this dispatch.
    #[expect(clippy::too_many_arguments, reason = "a tuple would be made anew with each call")]
    fn dispatch(
        &self,
        py: Python<'_>,
        x: u64,
        scales: u64,
        n: u32,
        ids: u64,
        weights: u64,
        stream: u64,
    ) -> Result<u64, Failure> {
        if n > self.shape.tokens {
            return Err(Failure::invalid("rows of x", n, format!("at most {}", self.shape.tokens)));
        }
        // Kernels touch no more rows than there are: where there are none, tensors may have no memory.
        let given = |field, address| if n == 0 { Ok(0) } else { aligned(field, address) };
        let x_scale = if self.shape.scales() > 0 { given("scales", scales)? } else { 0 };
        let (x, ids, weights) = (given("x", x)?, given("ids", ids)?, given("weights", weights)?);
        detached(py, || {
            let State { op, routed, dispatches } = &mut *lock(&self.state);
            let tokens = Tokens { x, x_scale, rows_there: n, n: 0, ids, weights };
            // SAFETY: the Python part has looked at the tensors, keeps them until combine is on the stream, and calls in the order
            // of one stream.
            let sent = unsafe { op.ranks_mut()[0].dispatch_raw(&tokens, stream_of(stream)) }?;
            *dispatches += 1;
            *routed = Some((*dispatches, sent));
            Ok(*dispatches)
        })
    }

    /// Brings `y` back to `out`, of the last dispatch, whose number is `number`.
    fn combine(&self, py: Python<'_>, number: u64, y: u64, out: u64, stream: u64) -> Result<(), Failure> {
        let (y, out) = (aligned("y", y)?, aligned("out", out)?);
        detached(py, || {
            let State { op, routed, dispatches, .. } = &mut *lock(&self.state);
            let Some((_, sent)) = routed.take_if(|(last, _)| *last == number) else {
                let allowed = format!("the last one of this operation, {dispatches}, not combined yet");
                return Err(Failure::invalid("d", format!("dispatch {number}"), allowed));
            };
            // SAFETY: as of dispatch.
            Ok(unsafe { op.ranks_mut()[0].combine_raw(sent, y, out, stream_of(stream)) }?)
        })
    }
}
