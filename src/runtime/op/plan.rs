//! Which buffers an operation has, and where in a rank's memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use peerwarp_codegen::dsl::{Binding, ParamSpec, Rows};
use peerwarp_codegen::family::DynKernel;
use peerwarp_codegen::ir::{Dtype, FarPart, ParamKind, signature_and_order};

use crate::runtime::RuntimeError;
use crate::runtime::far::FarPlan;
use crate::runtime::gpu::DevicePtr;

/// Buffers start at multiples of this: a sector of every GPU's memory system.
const ALIGN: u64 = 256;

/// A launch of an operation.
#[derive(Clone, Debug)]
pub struct LaunchSpec {
    /// What it is called in timelines and reports.
    pub label: String,
    /// The kernel.
    pub variant: Arc<dyn DynKernel>,
    /// Buffers of those parameters that are not the buffer of their own name.
    pub buffers: BTreeMap<String, String>,
}

impl LaunchSpec {
    /// A launch whose parameters are the buffers of their names. Launches of an operation share buffers of one name.
    pub fn new(label: impl Into<String>, variant: Arc<dyn DynKernel>) -> LaunchSpec {
        LaunchSpec { label: label.into(), variant, buffers: BTreeMap::new() }
    }

    /// With another buffer for a parameter.
    #[must_use]
    pub fn with_buffer(mut self, param: &str, buffer: &str) -> LaunchSpec {
        self.buffers.insert(param.to_owned(), buffer.to_owned());
        self
    }

    /// The buffer that a parameter is.
    pub fn buffer<'a>(&'a self, param: &'a str) -> &'a str {
        self.buffers.get(param).map_or(param, String::as_str)
    }
}

/// A buffer of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferSpec {
    /// Its name.
    pub name: String,
    /// The parameter that it is, of the first launch that has it.
    pub param: ParamSpec,
    /// Whose memory it is: the operation's own if it is so for any launch, else an output if any launch writes it.
    pub binding: Binding,
}

/// A number that kernels of an operation take by value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScalarSpec {
    pub name: String,
    pub dtype: Dtype,
    /// If it says how many rows there are of operands: the most, which it is unless it is set.
    pub most_rows: Option<u32>,
}

/// The most rows that a number says of any of these parameters; none if it says nothing of the kind.
pub(super) fn most_rows(params: &[ParamSpec], number: &str) -> Option<u32> {
    let rows = params.iter().filter_map(|p| p.rows.as_ref()).filter(|rows| rows.scalar == number);
    rows.map(|rows| u32::try_from(rows.most).unwrap_or(u32::MAX)).min()
}

/// The parameters of each launch.
type Params = Vec<Vec<ParamSpec>>;

fn params(launches: &[LaunchSpec]) -> Params {
    launches.iter().map(|launch| launch.variant.params()).collect()
}

/// The parameter, as the buffer that it is in a launch: what says how many rows it has may have another name there.
pub(crate) fn as_in(launch: &LaunchSpec, param: &ParamSpec) -> ParamSpec {
    let mut param = param.clone();
    if let Some(Rows { scalar, .. }) = &mut param.rows {
        *scalar = launch.buffer(scalar).to_owned();
    }
    param
}

/// The numbers that launches take by value, each once.
fn scalars(launches: &[LaunchSpec], params: &Params) -> Result<Vec<ScalarSpec>, RuntimeError> {
    let mut all: Vec<ScalarSpec> = vec![];
    for (launch, params) in launches.iter().zip(params) {
        for param in params.iter().filter(|p| p.kind == ParamKind::Scalar) {
            let (name, dtype) = (launch.buffer(&param.name).to_owned(), param.dtype);
            let most_rows = most_rows(params, &param.name);
            match all.iter().find(|known| known.name == name) {
                None => all.push(ScalarSpec { name, dtype, most_rows }),
                Some(known) if known.dtype == dtype => {}
                Some(known) => {
                    let field = format!("type of {name} of {}", launch.label);
                    let allowed = format!("{:?}, as an earlier launch has it", known.dtype);
                    return Err(RuntimeError::invalid(field, format!("{dtype:?}"), allowed));
                }
            }
        }
    }
    Ok(all)
}

/// The buffers of an operation with these launches, each once, in the order of their first use. Scalars are none.
///
/// # Errors
/// Launches disagree on a buffer's size.
pub fn buffers(launches: &[LaunchSpec]) -> Result<Vec<BufferSpec>, RuntimeError> {
    merged(launches, &params(launches))
}

fn merged(launches: &[LaunchSpec], params: &Params) -> Result<Vec<BufferSpec>, RuntimeError> {
    let mut all: Vec<BufferSpec> = vec![];
    for (launch, params) in launches.iter().zip(params) {
        for param in params.iter().filter(|p| p.kind != ParamKind::Scalar) {
            let name = launch.buffer(&param.name);
            let Some(known) = all.iter_mut().find(|b| b.name == name) else {
                let (name, binding) = (name.to_owned(), param.binding);
                all.push(BufferSpec { name, param: as_in(launch, param), binding });
                continue;
            };
            if known.param.bytes() != param.bytes() {
                let allowed = format!("{} bytes, as {} has it", known.param.bytes(), known.param.name);
                let field = format!("buffer {name} of {}", launch.label);
                return Err(RuntimeError::invalid(field, format!("{} bytes", param.bytes()), allowed));
            }
            if param.kind == ParamKind::Window {
                // Others reach it, whatever it is to the launches before.
                known.param.kind = param.kind;
            }
            known.binding = match (known.binding, param.binding) {
                (Binding::State, _) | (_, Binding::State) => Binding::State,
                (Binding::Output, _) => Binding::Output,
                (Binding::Input, Binding::Input) => Binding::Input,
                (Binding::Input | Binding::InOut, _) => Binding::InOut,
            };
        }
    }
    Ok(all)
}

/// In which order the elements of each buffer lie, and the first launch that has it.
#[derive(Debug, Default)]
pub(super) struct Orders(BTreeMap<String, (String, Option<String>)>);

impl Orders {
    /// Adds a buffer of a launch, with the words of the compiled kernel's parameter.
    ///
    /// # Errors
    /// An earlier launch keeps its elements in another order.
    pub fn add(&mut self, label: &str, buffer: &str, words: &str) -> Result<(), RuntimeError> {
        let order = signature_and_order(words).1.map(str::to_owned);
        let Some((first, known)) = self.0.get(buffer) else {
            self.0.insert(buffer.to_owned(), (label.to_owned(), order));
            return Ok(());
        };
        if *known == order {
            return Ok(());
        }
        let named = |order: Option<&str>| {
            order.map_or("in rows".to_owned(), |order| format!("in the order of {order}"))
        };
        let field = format!("elements of {buffer} of {label}");
        let allowed = format!(
            "{}, as {first} has them: both launches must store and load whole tiles of one shape, or one of them parts of tiles",
            named(known.as_deref())
        );
        Err(RuntimeError::invalid(field, named(order.as_deref()), allowed))
    }
}

/// Where in a rank's memory an operation's buffers are: one plan for all ranks.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// First byte and size of each symmetric buffer, by name.
    pub symmetric: BTreeMap<String, (u64, u64)>,
    pub symmetric_bytes: u64,
    /// First byte and size of each buffer of this rank alone, by name.
    pub local: BTreeMap<String, (u64, u64)>,
    pub local_bytes: u64,
    /// What has to hold one byte everywhere before the first launch: its name, and the byte.
    pub cleared: Vec<(String, u8)>,
    /// What far channels have.
    pub far: FarPlan,
    /// What the caller passes.
    pub operands: Vec<BufferSpec>,
    /// The numbers among it.
    pub scalars: Vec<ScalarSpec>,
    /// The parameters that all of this is made of, asked for once: what authors compute lengths with may change its mind.
    pub params: Params,
}

/// Far channels have counters of their own in each launch, or are all those of one before that counts the same epochs: of halves, one
/// puts and one waits.
fn far_channels(launches: &[LaunchSpec], params: &Params) -> Result<FarPlan, RuntimeError> {
    let mut plan = FarPlan::default();
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    let mut all: Vec<Vec<(&str, u64)>> = vec![];
    for (launch, params) in launches.iter().zip(params) {
        let counted = |p: &&ParamSpec| p.kind.far().is_some() || p.kind == ParamKind::EpochWord;
        let is_far = params.iter().any(|p| p.kind.far().is_some());
        let own = params.iter().filter(counted).map(|p| (launch.buffer(&p.name), p.len));
        let own: Vec<(&str, u64)> = own.collect();
        let like = all.iter().position(|before| is_far && *before == own);
        all.push(own);
        if let Some(before) = like {
            plan.launch_like(before);
            continue;
        }
        plan.launch(params, launch.variant.ranks());
        for param in params.iter().filter(|p| p.kind.far().is_some()) {
            if let Some(first) = known.insert(launch.buffer(&param.name), &launch.label) {
                let field = format!("far channel with {} of {}", param.name, launch.label);
                let allowed =
                    format!("a channel of each launch, and {first} has it: give its buffers other names");
                return Err(RuntimeError::invalid(field, "shared", allowed));
            }
        }
    }
    Ok(plan)
}

impl Plan {
    pub fn new(launches: &[LaunchSpec]) -> Result<Plan, RuntimeError> {
        let params = params(launches);
        let far = far_channels(launches, &params)?;
        let (scalars, buffers) = (scalars(launches, &params)?, merged(launches, &params)?);
        let mut plan = Plan { scalars, params, far, ..Plan::default() };
        buffers.into_iter().for_each(|buffer| plan.add(buffer));
        let far = launches
            .iter()
            .zip(&plan.params)
            .filter(|(_, params)| params.iter().any(|p| p.kind.far().is_some()));
        plan.far.check(&far.map(|(launch, _)| launch.label.as_str()).collect::<Vec<_>>())?;
        Ok(plan)
    }

    fn add(&mut self, buffer: BufferSpec) {
        let kind = buffer.param.kind;
        let (all, end) = match kind {
            _ if buffer.binding != Binding::State => return self.operands.push(buffer),
            ParamKind::Far(FarPart::Outbox | FarPart::Inbox) => {
                return self.far.add(&buffer.name, buffer.param.bytes());
            }
            kind if kind.is_symmetric() => (&mut self.symmetric, &mut self.symmetric_bytes),
            _ => (&mut self.local, &mut self.local_bytes),
        };
        let bytes = buffer.param.bytes();
        all.insert(buffer.name.clone(), (*end, bytes));
        *end = (*end + bytes).next_multiple_of(ALIGN);
        match kind {
            ParamKind::Flags
            | ParamKind::Counts
            | ParamKind::BlockFlags
            | ParamKind::EpochWord
            | ParamKind::Counters
            | ParamKind::Far(FarPart::Counts) => {
                self.cleared.push((buffer.name, 0));
            }
            // No message has arrived.
            ParamKind::Messages(transport) => self.cleared.push((buffer.name, transport.traits().empty)),
            ParamKind::Local
            | ParamKind::Symmetric
            | ParamKind::Window
            | ParamKind::Far(FarPart::Outbox | FarPart::Inbox)
            | ParamKind::Scalar => {}
        }
    }

    /// Bytes on the GPU of a rank.
    pub fn bytes(&self) -> u64 {
        self.symmetric_bytes + self.local_bytes
    }

    /// Numbers of the operands that have rows, and of the scalar that says how many, if launches take it.
    pub fn by_rows(&self) -> Vec<(usize, Option<usize>)> {
        let operands = self.operands.iter().enumerate();
        let with_rows = operands.filter_map(|(at, o)| o.param.rows.as_ref().map(|rows| (at, rows)));
        with_rows.map(|(at, rows)| (at, self.scalars.iter().position(|s| s.name == rows.scalar))).collect()
    }

    /// First byte and size of every own buffer by name, of a rank whose memory starts here.
    pub fn placed(
        &self,
        symmetric: DevicePtr,
        local: DevicePtr,
        far: DevicePtr,
    ) -> BTreeMap<String, (DevicePtr, u64)> {
        let placed = [(symmetric, &self.symmetric), (local, &self.local), (far, &self.far.buffers)];
        let at = |base: DevicePtr| {
            move |(name, &(at, bytes)): (&String, &(u64, u64))| (name.clone(), (base + at, bytes))
        };
        placed.into_iter().flat_map(|(base, all)| all.iter().map(at(base))).collect()
    }

    /// Whether a buffer holds something from one launch to the next that the kernels rely on.
    pub fn lasts(&self, name: &str) -> bool {
        self.cleared.iter().any(|(cleared, _)| cleared == name) || self.far.buffers.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_that_share_a_matrix_agree_in_its_order() {
        let rows = "parts: Window of 12288 Bf16";
        let lanes = format!("{rows}, in the order of 128 lanes with 4 each");
        let mut orders = Orders::default();
        orders.add("multiply", "parts", &lanes).unwrap();
        orders.add("again", "parts", &lanes).unwrap();
        orders.add("other", "own_parts", rows).unwrap();
        let error = orders.add("read", "parts", rows).unwrap_err().to_string();
        for part in ["parts of read", "in rows", "128 lanes with 4 each, as multiply has them"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
