//! MoE dispatch and combine on this process's rank.

use std::sync::Mutex;

use peerwarp::families::moe::kernels::{CombineDtype, Quantise};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{
    MoeAllToAll, MoeKey, MoeRank, MoeShape, Returning, Routed, RowDtype, Sending, Tables, Tokens, choose,
};
use peerwarp::harness::choose::Device;
use peerwarp::harness::tune::Choice;
use peerwarp::prelude::Family;
use peerwarp::runtime::{RuntimeError, World};
use pyo3::prelude::*;

use super::exchange::{Element, Exchange, Seen};
use super::{aligned, stream_of};
use crate::error::{Failure, detached};
use crate::moe::{
    Launches, Placing, Rows, ScaleShape, Standing, combine_dtype_of, places_of, row_sizes, scale_shape,
    scales_of, types_of, with_launches,
};
use crate::simulated::lock;
use crate::world::{GpuWorld, seconds};

/// MoE dispatch and combine on this process's rank, for several capacities.
#[pyclass(frozen)]
pub struct DeviceMoe {
    state: Mutex<State>,
    exchange: Option<Py<Exchange>>,
    /// Of the largest capacity.
    shape: MoeShape,
    placing: Placing,
    combined: CombineDtype,
    quantise: Quantise,
    /// The most tokens of a rank, of each capacity.
    capacities: Vec<u32>,
    /// What kernels of each capacity are called, and where they are from.
    kernels: Vec<(String, String)>,
    /// What scales dispatch leaves, by capacity.
    scales: Vec<ScaleShape>,
}

struct State {
    op: MoeAllToAll,
    /// Of each capacity the last dispatch, by its number, until it is combined, and how far it is.
    last: Vec<Option<(u64, Stage)>>,
    dispatches: u64,
}

/// How far a dispatch is.
enum Stage {
    Sending(Sending),
    Routed(Routed),
    Returning(Returning),
}

impl Stage {
    /// What has been done, as Python calls it.
    fn done(&self) -> &'static str {
        match self {
            Stage::Sending(_) => "sent",
            Stage::Routed(_) => "received",
            Stage::Returning(_) => "sent back",
        }
    }
}

impl State {
    /// Takes the dispatch of this number if it is a capacity's last one, and as far as `wanted` says, and goes on with it.
    fn go_on<T>(
        &mut self,
        (step, most, number): (usize, u32, u64),
        wanted: &str,
        go_on: impl FnOnce(&mut MoeRank, Stage) -> Result<T, RuntimeError>,
    ) -> Result<T, Failure> {
        let State { op, last, dispatches } = self;
        let found = last[step].take_if(|(last, stage)| *last == number && stage.done() == wanted);
        let Some((_, stage)) = found else {
            let allowed = format!(
                "the latest one of its capacity, {wanted} and not used since; the latest of all is {dispatches}"
            );
            return Err(Failure::invalid("d", format!("dispatch {number}"), allowed));
        };
        Ok(go_on(&mut op.ranks_for(most)?[0], stage)?)
    }
}

/// First byte and size of a buffer, by its name.
type Place = (String, u64, u64);

/// What dispatch and combine leave in memory of the operation.
const BUFFERS: [&str; 11] = [
    "rows",
    "row_scale",
    "expert_start",
    "expert_rows",
    "overflow",
    "needed",
    "n_from",
    "weight_from",
    "gather",
    "entry_expert",
    "missing",
];

/// The variants that are chosen for a shape. Where several ranks share a GPU, or blocks are limited, they have no more than fit.
fn tuning(
    world: &World,
    shape: MoeShape,
    rows: Rows<'_>,
    standing: Standing<'_>,
    (sms, launches): (Option<u32>, Launches),
) -> Result<(MoeTuning, &'static str), Failure> {
    shape.check()?;
    let (layout, max_rows) = places_of(standing, &shape.with_slots(launches.2.0))?;
    let (_, combined, quantise) = types_of(rows)?;
    let (weighted, combine_dtype) = (rows.3, combine_dtype_of(rows)?);
    let (scale_layout, scale_rounding) = scales_of(rows)?;
    let key = MoeKey { layout, max_rows, combined, weighted, quantise, combine_dtype, ..MoeKey::new(shape) };
    let key = MoeKey { scale_layout, scale_rounding, ..key };
    let (found, by) = choose(&key, &Device::of_gpu(world.members()[0].gpu.info()))?;
    found.check(&shape)?;
    let from = match by {
        Choice::Tuned | Choice::Alike { .. } => "tuned",
        Choice::Earlier { .. } => "earlier",
        Choice::Default | Choice::Legal => "default",
    };
    let mut found = with_launches(found, launches)?;
    for most in [sms, world.blocks_per_launch()].into_iter().flatten() {
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
        rows_standing: (Rows<'_>, Standing<'_>),
        id_sms_launches: (i32, Option<u32>, Launches),
        exchange: Option<Py<Exchange>>,
    ) -> Result<DeviceMoe, Failure> {
        let (hidden, experts, topk) = hidden_experts_topk;
        let (rows, standing) = rows_standing;
        let (dtype, combined, quantise) = types_of(rows)?;
        let (empty_id, sms, launches) = id_sms_launches;
        let tokens =
            *capacities.last().ok_or_else(|| Failure::invalid("capacities", "none", "one or more"))?;
        let (shape, (kernels, scales), mut op) = world.get().with(py, |world, images| {
            let shape = MoeShape { hidden, experts, topk, tokens, ranks: world.ranks(), dtype };
            let limits = (sms, launches);
            let each =
                |tokens: &u32| tuning(world, MoeShape { tokens: *tokens, ..shape }, rows, standing, limits);
            let found = capacities.iter().map(each).collect::<Result<Vec<_>, _>>()?;
            let scales = found.iter().map(|(tuning, _)| scale_shape(tuning)).collect::<Vec<_>>();
            let names = |(tuning, from): &(MoeTuning, &str)| {
                let names = [tuning.dispatch().variant_name(), tuning.combine().variant_name()];
                (names.join(" "), (*from).to_owned())
            };
            let kernels = found.iter().map(names).collect::<Vec<_>>();
            let tunings = found.into_iter().map(|(tuning, _)| tuning).collect::<Vec<_>>();
            Ok((shape, (kernels, scales), MoeAllToAll::with_capacities(world, &tunings, images)?))
        })?;
        for &tokens in &capacities {
            op.ranks_for(tokens)?[0].set_empty_id(empty_id)?;
        }
        let last = capacities.iter().map(|_| None).collect();
        let state = Mutex::new(State { op, last, dispatches: 0 });
        let placing = launches.2;
        Ok(DeviceMoe { state, exchange, shape, placing, combined, quantise, capacities, kernels, scales })
    }

    /// The bytes of a row, of its scales, and whether these are float32; else they are bytes.
    fn row_sizes(&self) -> (u32, u32, bool) {
        row_sizes(&self.shape)
    }

    /// As [`scale_shape`], of each capacity.
    fn scale_shapes(&self) -> Vec<ScaleShape> {
        self.scales.clone()
    }

    /// Lets dispatches from here on read tables at these addresses: `place`, `replicas` and `expert_load`, 0 for what there is not.
    fn set_tables(&self, tables: (u64, u64, u64)) -> Result<(), Failure> {
        let (place, replicas, expert_load) = tables;
        let state = &mut *lock(&self.state);
        for &tokens in &self.capacities {
            // SAFETY: the Python part has looked at the tensors, and keeps them as long as this object.
            unsafe { state.op.ranks_for(tokens)?[0].set_tables(Tables { place, replicas, expert_load }) };
        }
        Ok(())
    }

    /// Lets waits of launches from here on last so many seconds.
    fn set_wait_budget(&self, py: Python<'_>, budget: f64) -> Result<(), Failure> {
        let budget = seconds("wait_budget", budget)?;
        detached(py, || {
            let state = &mut *lock(&self.state);
            for &tokens in &self.capacities {
                state.op.ranks_for(tokens)?[0].set_wait_budget(budget)?;
            }
            Ok(())
        })
    }

    /// First expert, or slot, of each rank, and after the last one all of them.
    fn first_experts(&self) -> Vec<u32> {
        self.shape.with_slots(self.placing.0).first_experts()
    }

    /// Bytes on the GPU of each capacity.
    fn memory_bytes(&self) -> Vec<u64> {
        lock(&self.state).op.memory_bytes()
    }

    /// Names of the kernels of each capacity, and whether they are `tuned` or the `default`.
    fn kernels(&self) -> Vec<(String, String)> {
        self.kernels.clone()
    }

    /// Where what dispatch and combine leave is, for one capacity, as long as this object lives.
    fn buffers(&self, step: usize) -> Result<Vec<Place>, Failure> {
        let tokens = self.capacity(step)?;
        let state = &mut *lock(&self.state);
        let rank = &state.op.ranks_for(tokens)?[0];
        let place = |name: &&str| rank.buffer(name).ok().map(|(ptr, bytes)| ((*name).to_owned(), ptr, bytes));
        Ok(BUFFERS.iter().filter_map(place).collect())
    }

    /// Sends `n` rows on a stream, and receives, unless `half` of it is to be done: the number of this dispatch.
    fn dispatch(
        &self,
        py: Python<'_>,
        step: usize,
        x_scales_ids_weights: (u64, u64, u64, u64),
        n: u32,
        stream: u64,
        half: bool,
    ) -> Result<u64, Failure> {
        let most = self.capacity(step)?;
        if n > most {
            return Err(Failure::invalid("rows of x", n, format!("at most {most}")));
        }
        // Kernels touch no more rows than there are: where there are none, tensors may have no memory.
        let given = |field, address| if n == 0 { Ok(0) } else { aligned(field, address) };
        let (x, scales, ids, weights) = x_scales_ids_weights;
        let x_scale = if self.given_scales() > 0 { given("scales", scales)? } else { 0 };
        let (x, ids, weights) = (given("x", x)?, given("ids", ids)?, given("weights", weights)?);
        let tokens = Tokens { x, x_scale, rows_there: n, n: 0, ids, weights };
        // SAFETY: the Python part has looked at the tensors, keeps them until combine is on the stream, and calls in the order of one
        // stream.
        unsafe { self.send(py, step, tokens, stream, half) }
    }

    /// The second half of a dispatch of which one was done.
    fn dispatch_receive(&self, py: Python<'_>, step: usize, number: u64, stream: u64) -> Result<(), Failure> {
        let most = self.capacity(step)?;
        detached(py, || {
            let state = &mut *lock(&self.state);
            let routed = state.go_on((step, most, number), "sent", |rank, stage| match stage {
                // SAFETY: as of dispatch.
                Stage::Sending(sending) => unsafe { rank.dispatch_receive_raw(sending, stream_of(stream)) },
                Stage::Routed(_) | Stage::Returning(_) => unreachable!("it is as far as was asked for"),
            })?;
            state.last[step] = Some((number, Stage::Routed(routed)));
            Ok(())
        })
    }

    /// The first half of a combine.
    fn combine_send(
        &self,
        py: Python<'_>,
        step: usize,
        number: u64,
        y: u64,
        stream: u64,
    ) -> Result<(), Failure> {
        let (most, y) = (self.capacity(step)?, aligned("y", y)?);
        detached(py, || {
            let state = &mut *lock(&self.state);
            let returning = state.go_on((step, most, number), "received", |rank, stage| match stage {
                // SAFETY: as of dispatch.
                Stage::Routed(routed) => unsafe { rank.combine_send_raw(routed, y, stream_of(stream)) },
                Stage::Sending(_) | Stage::Returning(_) => unreachable!("it is as far as was asked for"),
            })?;
            state.last[step] = Some((number, Stage::Returning(returning)));
            Ok(())
        })
    }

    /// The second half of a combine.
    fn combine_receive(
        &self,
        py: Python<'_>,
        step: usize,
        number: u64,
        out: u64,
        stream: u64,
    ) -> Result<(), Failure> {
        let (most, out) = (self.capacity(step)?, aligned("out", out)?);
        detached(py, || {
            lock(&self.state).go_on((step, most, number), "sent back", |rank, stage| match stage {
                // SAFETY: as of dispatch.
                Stage::Returning(returning) => unsafe {
                    rank.combine_receive_raw(returning, out, stream_of(stream))
                },
                Stage::Sending(_) | Stage::Routed(_) => unreachable!("it is as far as was asked for"),
            })
        })
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
        half: bool,
    ) -> Result<Option<(u32, u64)>, Failure> {
        let Some((tokens, stream)) = self.seen(py, step, [x, ids, weights], scales) else { return Ok(None) };
        // SAFETY: they are tensors of this GPU of these shapes and types, which the Python part keeps until combine is on the stream;
        // calls are in the order of one stream, as the documentation asks.
        let number = unsafe { self.send(py, step, tokens, stream, half) }?;
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

    /// Whether a tensor can be `n` rows that dispatch sends: of 16 bits, their type; of fp8, one whose NaN is all ones; else bytes of any.
    fn are_rows(&self, x: &Seen, n: u64) -> bool {
        let shape = [n, u64::from(self.shape.hidden)];
        match self.shape.dtype {
            _ if self.quantise != Quantise::None => x.is(self.combined(), [n, self.shape.hidden.into()]),
            RowDtype::Bf16 => x.is(Element::BF16, shape),
            RowDtype::Fp16 => x.is(Element::F16, shape),
            RowDtype::Fp8 | RowDtype::Fp8Token | RowDtype::Fp8Tensor => x.is_packed_floats(shape),
            _ => x.is_bytes([n, self.shape.row_bytes().into()]),
        }
    }

    /// Whether callers give one scale for all rows.
    fn has_tensor_scale(&self) -> bool {
        self.quantise != Quantise::None && self.shape.dtype == RowDtype::Nvfp4
    }

    /// Words of scales that callers give with a row, or for all of them.
    fn given_scales(&self) -> u32 {
        match self.quantise {
            Quantise::None => self.shape.scales(),
            _ => self.has_tensor_scale().into(),
        }
    }

    /// Whether a tensor can be the scales of `n` rows.
    fn are_scales(&self, scales: &Seen, n: u64) -> bool {
        match row_sizes(&self.shape) {
            _ if self.has_tensor_scale() => scales.is(Element::F32, [1, 1]),
            (_, bytes, true) => scales.is(Element::F32, [n, u64::from(bytes / 4)]),
            (_, bytes, false) => scales.is_bytes([n, bytes.into()]),
        }
    }

    /// The type of expert ids.
    fn ids(&self) -> Element {
        if self.placing.3 { Element::I64 } else { Element::I32 }
    }

    /// The type of rows that are combined.
    fn combined(&self) -> Element {
        match self.combined {
            CombineDtype::Fp16 => Element::F16,
            CombineDtype::Bf16 => Element::BF16,
        }
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
        let topk = u64::from(shape.topk);
        let fit =
            self.are_rows(&x, n) && ids.is(self.ids(), [n, topk]) && weights.is(Element::F32, [n, topk]);
        let x_scale = match (scales, self.given_scales()) {
            (None, 0) => 0,
            (Some(scales), each) if each > 0 => {
                let scales = exchange.seen(scales)?;
                self.are_scales(&scales, n).then_some(scales.address)?
            }
            _ => return None,
        };
        let tokens =
            Tokens { x: x.address, x_scale, rows_there, n: 0, ids: ids.address, weights: weights.address };
        fit.then_some((tokens, exchange.stream(py, &x)?))
    }

    /// Launches a dispatch, or its first half; the number that it has.
    ///
    /// # Safety
    /// The tokens are on this GPU and stay until combine is on the stream; calls are in the order of one stream.
    unsafe fn send(
        &self,
        py: Python<'_>,
        step: usize,
        tokens: Tokens,
        stream: u64,
        half: bool,
    ) -> Result<u64, Failure> {
        let most = self.capacity(step)?;
        detached(py, || {
            let State { op, last, dispatches } = &mut *lock(&self.state);
            let rank = &mut op.ranks_for(most)?[0];
            let stage = match half {
                // SAFETY: as the caller says.
                true => Stage::Sending(unsafe { rank.dispatch_send_raw(&tokens, stream_of(stream)) }?),
                // SAFETY: as the caller says.
                false => Stage::Routed(unsafe { rank.dispatch_raw(&tokens, stream_of(stream)) }?),
            };
            *dispatches += 1;
            last[step] = Some((*dispatches, stage));
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
            lock(&self.state).go_on((step, most, number), "received", |rank, stage| match stage {
                // SAFETY: as the caller says.
                Stage::Routed(routed) => unsafe { rank.combine_raw(routed, y, out, stream_of(stream)) },
                Stage::Sending(_) | Stage::Returning(_) => unreachable!("it is as far as was asked for"),
            })
        })
    }
}
