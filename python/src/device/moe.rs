//! MoE dispatch and combine on this process's rank.

use std::sync::Mutex;

use peerwarp::families::moe::kernels::{Hook, Layout};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeAllToAll, MoeKey, MoeRegistry, MoeShape, Routed, RowDtype, Tokens};
use peerwarp::prelude::Family;
use peerwarp::runtime::World;
use pyo3::prelude::*;

use super::exchange::{Element, Exchange};
use super::{aligned, stream_of};
use crate::error::{Failure, detached};
use crate::moe::layout_of;
use crate::simulated::lock;
use crate::world::GpuWorld;

/// MoE dispatch and combine on this process's rank, for several capacities.
#[pyclass(frozen)]
pub struct DeviceMoe {
    state: Mutex<State>,
    exchange: Option<Py<Exchange>>,
    /// Of the largest capacity.
    shape: MoeShape,
    /// The most tokens of a rank, of each capacity.
    capacities: Vec<u32>,
    /// What kernels of each capacity are called, and where they are from.
    kernels: Vec<(String, String)>,
}

struct State {
    op: MoeAllToAll,
    /// Of each capacity the last dispatch, by its number, until it is combined.
    routed: Vec<Option<(u64, Routed)>>,
    dispatches: u64,
}

/// First byte and size of a buffer, by its name.
type Place = (String, u64, u64);

/// What dispatch leaves in memory of the operation.
const BUFFERS: [&str; 8] =
    ["rows", "row_scale", "expert_start", "expert_rows", "n_from", "weight_from", "gather", "entry_expert"];

/// The variants for a shape: tuned, where this program has a table for the GPU. Where several ranks share a GPU, or blocks are
/// limited, they have no more than fit.
fn tuning(
    world: &World,
    registry: &MoeRegistry,
    shape: MoeShape,
    layout: Layout,
    sms: Option<u32>,
) -> Result<(MoeTuning, &'static str), Failure> {
    let default = MoeTuning::defaults_with(&shape, Hook::None, layout)?;
    let mut found = registry.tuning(&MoeKey { layout, ..MoeKey::new(shape) })?;
    let from = if found == default { "default" } else { "tuned" };
    for most in [sms, world.blocks_per_rank()].into_iter().flatten() {
        found = found.within(most);
    }
    Ok((found, from))
}

#[pymethods]
impl DeviceMoe {
    /// Allocates and loads, for each capacity; all ranks do so in the same order. `exchange` looks at tensors, if there is such a thing
    /// for them.
    #[new]
    fn new(
        py: Python<'_>,
        world: &Bound<'_, GpuWorld>,
        hidden_experts_topk: (u32, u32, u32),
        capacities: Vec<u32>,
        dtype_layout: (&str, &str),
        nobody_sms: (i32, Option<u32>),
        exchange: Option<Py<Exchange>>,
    ) -> Result<DeviceMoe, Failure> {
        let (hidden, experts, topk) = hidden_experts_topk;
        let (dtype, layout) = (dtype_layout.0.parse()?, layout_of(dtype_layout.1)?);
        let (nobody, sms) = nobody_sms;
        let tokens =
            *capacities.last().ok_or_else(|| Failure::invalid("capacities", "none", "one or more"))?;
        let (shape, kernels, mut op) = world.get().with(py, |world, images| {
            let shape = MoeShape { hidden, experts, topk, tokens, ranks: world.ranks(), dtype };
            let registry = MoeRegistry::of_world(world);
            let each =
                |tokens: &u32| tuning(world, &registry, MoeShape { tokens: *tokens, ..shape }, layout, sms);
            let found = capacities.iter().map(each).collect::<Result<Vec<_>, _>>()?;
            let names = |(tuning, from): &(MoeTuning, &str)| {
                let names = [tuning.dispatch.variant_name(), tuning.combine.variant_name()];
                (names.join(" "), (*from).to_owned())
            };
            let kernels = found.iter().map(names).collect::<Vec<_>>();
            let tunings = found.into_iter().map(|(tuning, _)| tuning).collect::<Vec<_>>();
            Ok((shape, kernels, MoeAllToAll::with_capacities(world, &tunings, images)?))
        })?;
        for &tokens in &capacities {
            op.ranks_for(tokens)?[0].set_nobody(nobody)?;
        }
        let routed = capacities.iter().map(|_| None).collect();
        let state = Mutex::new(State { op, routed, dispatches: 0 });
        Ok(DeviceMoe { state, exchange, shape, capacities, kernels })
    }

    /// Elements of a row that share a scale give that many scales a row; 0 but for fp8.
    fn scales(&self) -> u32 {
        self.shape.scales()
    }

    /// First expert of each rank, and after the last one all experts.
    fn first_experts(&self) -> Vec<u32> {
        self.shape.first_experts()
    }

    /// Bytes on the GPU of each capacity.
    fn memory_bytes(&self) -> Vec<u64> {
        lock(&self.state).op.memory_bytes()
    }

    /// Names of the kernels of each capacity, and whether they are `tuned` or the `default`.
    fn kernels(&self) -> Vec<(String, String)> {
        self.kernels.clone()
    }

    /// Where what dispatch leaves is, for one capacity, as long as this object lives.
    fn buffers(&self, step: usize) -> Result<Vec<Place>, Failure> {
        let tokens = self.capacity(step)?;
        let state = &mut *lock(&self.state);
        let rank = &state.op.ranks_for(tokens)?[0];
        let place = |name: &&str| rank.buffer(name).ok().map(|(ptr, bytes)| ((*name).to_owned(), ptr, bytes));
        Ok(BUFFERS.iter().filter_map(place).collect())
    }

    /// Sends `n` rows on a stream, and receives: the number of this dispatch.
    fn dispatch(
        &self,
        py: Python<'_>,
        step: usize,
        x_scales_ids_weights: (u64, u64, u64, u64),
        n: u32,
        stream: u64,
    ) -> Result<u64, Failure> {
        let most = self.capacity(step)?;
        if n > most {
            return Err(Failure::invalid("rows of x", n, format!("at most {most}")));
        }
        // Kernels touch no more rows than there are: where there are none, tensors may have no memory.
        let given = |field, address| if n == 0 { Ok(0) } else { aligned(field, address) };
        let (x, scales, ids, weights) = x_scales_ids_weights;
        let x_scale = if self.shape.scales() > 0 { given("scales", scales)? } else { 0 };
        let (x, ids, weights) = (given("x", x)?, given("ids", ids)?, given("weights", weights)?);
        let tokens = Tokens { x, x_scale, rows_there: n, n: 0, ids, weights };
        // SAFETY: the Python part has looked at the tensors, keeps them until combine is on the stream, and calls in the order of one
        // stream.
        unsafe { self.send(py, step, tokens, stream) }
    }

    /// Brings `y` back to `out`, of the last dispatch of a capacity, whose number is `number`.
    fn combine(
        &self,
        py: Python<'_>,
        step: usize,
        number: u64,
        y: u64,
        out: u64,
        stream: u64,
    ) -> Result<(), Failure> {
        self.capacity(step)?;
        // SAFETY: as of dispatch.
        unsafe { self.bring_back(py, step, number, aligned("y", y)?, aligned("out", out)?, stream) }
    }

    /// Does all of a dispatch of tensors that are as they have to be: how many rows there are, and the number of the dispatch. Else it
    /// does nothing, and returns none.
    fn send_tensors(
        &self,
        py: Python<'_>,
        step: usize,
        x: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        weights: &Bound<'_, PyAny>,
        scales: Option<&Bound<'_, PyAny>>,
    ) -> Result<Option<(u32, u64)>, Failure> {
        let Some((tokens, stream)) = self.seen(py, step, [x, ids, weights], scales) else { return Ok(None) };
        // SAFETY: they are tensors of this GPU of these shapes and types, which the Python part keeps until combine is on the stream;
        // calls are in the order of one stream, as the documentation asks.
        let number = unsafe { self.send(py, step, tokens, stream) }?;
        Ok(Some((tokens.rows_there, number)))
    }

    /// Does all of a combine of tensors that are as they have to be, of a dispatch of `n` rows: else it does nothing, and says so.
    fn bring_back_tensors(
        &self,
        py: Python<'_>,
        step: usize,
        n_number: (u32, u64),
        y: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        places: u64,
    ) -> Result<bool, Failure> {
        let (n, number) = n_number;
        let Some(exchange) = self.exchange.as_ref().map(Py::get) else { return Ok(false) };
        let (Some(y), Some(out)) = (exchange.seen(y), exchange.seen(out)) else { return Ok(false) };
        let (element, hidden) = (self.combined(), u64::from(self.shape.hidden));
        let fit = y.is(element, [places, hidden]) && out.is(element, [n.into(), hidden]);
        if step >= self.capacities.len() || !fit || out.address == 0 || y.overlaps(&out) {
            return Ok(false);
        }
        let Some(stream) = exchange.stream(py, &y) else { return Ok(false) };
        // SAFETY: as of a dispatch of tensors.
        unsafe { self.bring_back(py, step, number, y.address, out.address, stream) }?;
        Ok(true)
    }
}

impl DeviceMoe {
    fn capacity(&self, step: usize) -> Result<u32, Failure> {
        let there = self.capacities.len();
        let found = self.capacities.get(step).copied();
        found.ok_or_else(|| Failure::invalid("capacity", step, format!("less than {there}")))
    }

    /// The type of rows that dispatch sends.
    fn sent(&self) -> Element {
        match self.shape.dtype {
            RowDtype::Bf16 => Element::BF16,
            RowDtype::Fp16 => Element::F16,
            RowDtype::Fp8 => Element::FP8,
        }
    }

    /// The type of rows that are combined.
    fn combined(&self) -> Element {
        if self.shape.dtype == RowDtype::Fp16 { Element::F16 } else { Element::BF16 }
    }

    /// The tokens that tensors are, and the current stream; none unless they are as they have to be.
    fn seen(
        &self,
        py: Python<'_>,
        step: usize,
        x_ids_weights: [&Bound<'_, PyAny>; 3],
        scales: Option<&Bound<'_, PyAny>>,
    ) -> Option<(Tokens, u64)> {
        let (exchange, most) = (self.exchange.as_ref()?.get(), *self.capacities.get(step)?);
        let [x, ids, weights] = x_ids_weights;
        let (x, ids, weights) = (exchange.seen(x)?, exchange.seen(ids)?, exchange.seen(weights)?);
        let n = *x.shape().first()?;
        let rows_there = u32::try_from(n).ok().filter(|n| *n <= most)?;
        let shape = &self.shape;
        let (hidden, topk) = (u64::from(shape.hidden), u64::from(shape.topk));
        let fit = x.is(self.sent(), [n, hidden])
            && ids.is(Element::I32, [n, topk])
            && weights.is(Element::F32, [n, topk]);
        let x_scale = match (scales, shape.scales()) {
            (None, 0) => 0,
            (Some(scales), each) if each > 0 => {
                let scales = exchange.seen(scales)?;
                scales.is(Element::F32, [n, each.into()]).then_some(scales.address)?
            }
            _ => return None,
        };
        let tokens =
            Tokens { x: x.address, x_scale, rows_there, n: 0, ids: ids.address, weights: weights.address };
        fit.then_some((tokens, exchange.stream(py, &x)?))
    }

    /// Launches a dispatch; the number that it has.
    ///
    /// # Safety
    /// The tokens are on this GPU and stay until combine is on the stream; calls are in the order of one stream.
    unsafe fn send(&self, py: Python<'_>, step: usize, tokens: Tokens, stream: u64) -> Result<u64, Failure> {
        let most = self.capacity(step)?;
        detached(py, || {
            let State { op, routed, dispatches } = &mut *lock(&self.state);
            // SAFETY: as the caller says.
            let sent = unsafe { op.ranks_for(most)?[0].dispatch_raw(&tokens, stream_of(stream)) }?;
            *dispatches += 1;
            routed[step] = Some((*dispatches, sent));
            Ok(*dispatches)
        })
    }

    /// Launches the combine of a dispatch.
    ///
    /// # Safety
    /// As of [`DeviceMoe::send`], of `y` and `out`.
    unsafe fn bring_back(
        &self,
        py: Python<'_>,
        step: usize,
        number: u64,
        y: u64,
        out: u64,
        stream: u64,
    ) -> Result<(), Failure> {
        let most = self.capacity(step)?;
        detached(py, || {
            let State { op, routed, dispatches } = &mut *lock(&self.state);
            let Some((_, sent)) = routed[step].take_if(|(last, _)| *last == number) else {
                let allowed = format!("the last one of its capacity, {dispatches} at most, not combined yet");
                return Err(Failure::invalid("d", format!("dispatch {number}"), allowed));
            };
            // SAFETY: as the caller says.
            Ok(unsafe { op.ranks_for(most)?[0].combine_raw(sent, y, out, stream_of(stream)) }?)
        })
    }
}
