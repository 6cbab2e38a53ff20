//! Collectives on GPUs: prepared once for some problems, launched any number of times.

use std::cmp::Reverse;
use std::sync::Arc;

use peerwarp_codegen::family::{Family, FamilyKey, Variant};
use peerwarp_codegen::ir::Dtype;

use super::{
    AllGather, AllGatherKey, AllGatherLaunch, AllGatherNodes, AllGatherNodesKey, AllGatherNodesLaunch,
    AllReduce, AllReduceKey, AllReduceLaunch, AllReduceNodes, AllReduceNodesKey, AllReduceNodesLaunch,
    AllToAll, AllToAllKey, AllToAllLaunch, AllToAllNodes, AllToAllNodesKey, AllToAllNodesLaunch, Broadcast,
    BroadcastKey, BroadcastLaunch, BroadcastNodes, BroadcastNodesKey, BroadcastNodesLaunch, Hook, Length,
    LengthLaunch, Lengths, NormForm, NormLaunch, RaggedAllToAll, RaggedAllToAllLaunch, ReduceScatter,
    ReduceScatterKey, ReduceScatterLaunch, ReduceScatterNodes, ReduceScatterNodesKey,
    ReduceScatterNodesLaunch, Reduction, RegisteredAllReduce, RegisteredAllReduceLaunch,
};
use crate::harness::choose::{self, Device};
use crate::runtime::image::Images;
use crate::runtime::op::{LaunchArgs, Op, Readable, StreamRef, TensorInfo, Writable};
use crate::runtime::registry::Registry;
use crate::runtime::{RuntimeError, World};

/// A family with the variants that there are of it, and those that are prepared.
#[derive(Debug)]
pub struct Prepared<F: Family> {
    registry: Registry<F>,
    ops: Vec<Op<F>>,
}

impl<F: Family> Prepared<F> {
    fn on(device: &Device) -> Self {
        Prepared { registry: Registry::new([], true).with_tuned(choose::lookup(device.clone())), ops: vec![] }
    }
}

/// A family of [`Collectives`].
pub trait Collective: Family {
    /// Its part of them.
    #[doc(hidden)]
    fn prepared(all: &mut Collectives) -> &mut Prepared<Self>;
    /// Whether a launch with such a tensor of so many bytes, and what else it says, is for this configuration.
    #[doc(hidden)]
    fn dtype(&self) -> Dtype;
    /// Elements of a rank's vector.
    #[doc(hidden)]
    fn elements(&self) -> u32;
    /// Lengths that launches may have; none if these are not said by launches.
    #[doc(hidden)]
    fn launch_lengths(&self) -> Option<Lengths>;
    /// Prepares the family that stands for it in a world of several nodes.
    #[doc(hidden)]
    fn over_nodes(
        all: &mut Collectives,
        key: &Self::Key,
        nodes: u32,
        images: &dyn Images,
    ) -> Result<Variant, RuntimeError>;
}

macro_rules! collectives {
    // Of each family its elements and lengths, and the family and the key that stand for it in a world of several nodes.
    ($($family:ident $field:ident $elements:expr, $lengths:expr, $nodes:ident $key:expr;)+) => {
        /// The collectives of a world.
        ///
        /// What is to be launched is [prepared](Collectives::prepare) once for its length, type and so on: that allocates, on all ranks.
        /// The algorithm, its protocol and sizes are those of the registry: what is compiled or tuned, else the defaults for the
        /// length. A launch picks by its tensors' size and type from what is prepared; it allocates nothing and waits for no rank. Where
        /// nothing is prepared for that size, it picks the smallest capacity with [`Length::Host`] that has room.
        #[derive(Debug)]
        pub struct Collectives {
            world: Arc<World>,
            $($field: Prepared<$family>,)+
        }

        impl Collectives {
            /// Of a world; nothing is prepared yet. Variants are compiled when they are: those that are chosen for its GPUs.
            pub fn new(world: &Arc<World>) -> Collectives {
                let device = Device::of_gpu(world.members()[0].gpu.info());
                Collectives { world: Arc::clone(world), $($field: Prepared::on(&device),)+ }
            }
        }

        $(impl Collective for $family {
            fn prepared(all: &mut Collectives) -> &mut Prepared<$family> {
                &mut all.$field
            }
            fn dtype(&self) -> Dtype {
                self.dtype
            }
            fn elements(&self) -> u32 {
                let elements: fn(&$family) -> u32 = $elements;
                elements(self)
            }
            fn launch_lengths(&self) -> Option<Lengths> {
                let lengths: fn(&$family) -> Option<Lengths> = $lengths;
                lengths(self)
            }
            fn over_nodes(
                all: &mut Collectives,
                key: &Self::Key,
                nodes: u32,
                images: &dyn Images,
            ) -> Result<Variant, RuntimeError> {
                let key_over_nodes: fn(&Self::Key, u32) -> Option<<$nodes as Family>::Key> = $key;
                match key_over_nodes(key, nodes) {
                    Some(key) => all.make::<$nodes>(&key, images),
                    None => {
                        let field = format!("nodes of the world, for {} of {}", Self::NAME, words(key));
                        Err(RuntimeError::invalid(field, nodes, "1: several nodes have no such variant"))
                    }
                }
            }
        })+
    };
}
collectives! {
    AllReduce all_reduce |c| c.elements, |c| Some(c.lengths()), AllReduceNodes |key, nodes| {
        let &AllReduceKey { elements, ranks, dtype, op, in_place, hook, length, .. } = key;
        let same = !in_place && hook == Hook::None && length == Length::Whole;
        same.then_some(AllReduceNodesKey { elements, ranks, nodes, dtype, op })
    };
    RegisteredAllReduce registered_all_reduce |c| c.elements, |_| None, RegisteredAllReduce |_, _| None;
    ReduceScatter reduce_scatter |c| c.elements, |c| Some(c.lengths()), ReduceScatterNodes |key, nodes| {
        let &ReduceScatterKey { elements, ranks, dtype, op, in_place, length, .. } = key;
        (!in_place && length == Length::Whole).then_some(ReduceScatterNodesKey { elements, ranks, nodes, dtype, op })
    };
    AllGather all_gather |c| c.elements, |c| Some(c.lengths()), AllGatherNodes |key, nodes| {
        let &AllGatherKey { elements, ranks, dtype, in_place, length, .. } = key;
        (!in_place && length == Length::Whole).then_some(AllGatherNodesKey { elements, ranks, nodes, dtype })
    };
    AllToAll all_to_all |c| c.elements, |c| Some(c.lengths()), AllToAllNodes |key, nodes| {
        let &AllToAllKey { elements, ranks, dtype, in_place, length, .. } = key;
        (!in_place && length == Length::Whole).then_some(AllToAllNodesKey { elements, ranks, nodes, dtype })
    };
    RaggedAllToAll ragged_all_to_all |c| c.capacity * c.ranks, |_| None, RaggedAllToAll |_, _| None;
    Broadcast broadcast |c| c.elements, |c| Some(c.lengths()), BroadcastNodes |key, nodes| {
        let &BroadcastKey { elements, ranks, dtype, root, in_place, length, .. } = key;
        (length == Length::Whole).then_some(BroadcastNodesKey { elements, ranks, nodes, dtype, root, in_place })
    };
    AllReduceNodes all_reduce_nodes |c| c.elements, |_| None, AllReduceNodes |key, _| Some(*key);
    ReduceScatterNodes reduce_scatter_nodes |c| c.elements, |_| None, ReduceScatterNodes |key, _| Some(*key);
    AllGatherNodes all_gather_nodes |c| c.elements, |_| None, AllGatherNodes |key, _| Some(*key);
    AllToAllNodes all_to_all_nodes |c| c.elements, |_| None, AllToAllNodes |key, _| Some(*key);
    BroadcastNodes broadcast_nodes |c| c.elements, |_| None, BroadcastNodes |key, _| Some(*key);
}

/// What the hook behind an all-reduce takes and yields besides: see [`Hook::RmsNorm`].
pub struct Norm<'a> {
    /// How rows are normalised, as it was prepared.
    pub form: NormForm,
    /// Added to the reduction.
    pub residual: &'a dyn Readable,
    /// Of a row's elements.
    pub weight: &'a dyn Readable,
    /// Added to the mean of squares: one `f32`.
    pub eps: &'a dyn Readable,
    /// Out: the reduction and the residual.
    pub residual_out: &'a mut dyn Writable,
    /// The scale of all rows, where they are quantised with one: one `f32`.
    pub scale: Option<&'a dyn Readable>,
    /// Out: the rows before they are quantised, where they are kept.
    pub normalised: Option<&'a mut dyn Writable>,
    /// Out: scales of quantised rows, where they have some.
    pub scales: Option<&'a mut dyn Writable>,
}

impl std::fmt::Debug for Norm<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Norm")
    }
}

impl Collectives {
    /// With the variants of a family that a pack has, or that tuning chose. What is prepared of it stays.
    #[must_use]
    pub fn with<F: Collective>(mut self, registry: Registry<F>) -> Collectives {
        F::prepared(&mut self).registry = registry;
        self
    }

    /// Prepares a problem: chooses its variant, which is returned, allocates and loads. A problem that is prepared stays as it is. In
    /// a world of several processes all have to do so in the same order. In a world of several nodes the variant is of the family that
    /// runs on these, such as [`AllReduceNodes`] for [`AllReduce`]; launches are the same.
    ///
    /// # Errors
    /// There is no variant for it, it is for another world size or for one node alone, the kernel cannot be had or its blocks cannot be
    /// resident at once, or memory runs out.
    pub fn prepare<F: Collective>(
        &mut self,
        key: &F::Key,
        images: &dyn Images,
    ) -> Result<Variant, RuntimeError> {
        match self.world.teams().nodes() {
            1 => self.make::<F>(key, images),
            nodes => F::over_nodes(self, key, nodes, images),
        }
    }

    fn make<F: Collective>(&mut self, key: &F::Key, images: &dyn Images) -> Result<Variant, RuntimeError> {
        let world = Arc::clone(&self.world);
        let Prepared { registry, ops } = F::prepared(self);
        let at = match ops.iter().position(|op| op.config().key() == *key) {
            Some(at) => at,
            None => {
                let config = registry.config(key)?;
                ops.push(Op::new(&world, &config, images)?);
                ops.len() - 1
            }
        };
        Ok(ops[at].config().clone().into_variant())
    }

    fn on_several_nodes(&self) -> bool {
        self.world.teams().nodes() > 1
    }

    /// The operation for a problem that is prepared, of several nodes by the key of the family for these: for launches into a graph, by [`OpRank::capture`](crate::runtime::op::OpRank::capture).
    ///
    /// # Errors
    /// It is not prepared.
    pub fn op<F: Collective>(&mut self, key: &F::Key) -> Result<&mut Op<F>, RuntimeError> {
        let ops = &mut F::prepared(self).ops;
        let allowed = allowed(ops);
        let found = ops.iter_mut().find(|op| op.config().key() == *key);
        found.ok_or_else(|| RuntimeError::invalid("key", words(key), allowed))
    }

    /// Frees what is prepared of a family, for all lengths: its memory, on all ranks. In a world of several processes all have to do so.
    /// Launches on streams end first; graphs that captured some must not be launched any more.
    pub fn free<F: Collective>(&mut self) {
        F::prepared(self).ops.clear();
    }

    /// Launches the prepared variant that a rank's vector is for: for its size, or else the smallest capacity that has room.
    fn launch<'s, F: Collective, L: LaunchArgs<Args = F::Args>>(
        &mut self,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        vector: TensorInfo,
        is: impl Fn(&F) -> bool,
        args: impl FnOnce(LengthLaunch<'s>) -> L,
    ) -> Result<(), RuntimeError> {
        let ops = &mut F::prepared(self).ops;
        // How well it fits, and rows if launches say how many: its own length first, then the smallest capacity, with the longest rows.
        let fits = |op: &Op<F>| {
            let config = op.config();
            let bytes = u64::from(config.elements()) * u64::from(config.dtype().bytes());
            let dtype = vector.dtypes.is_empty() || vector.dtypes.contains(&config.dtype());
            let (row, rows) = match config.launch_lengths() {
                Some(Lengths { length: Length::Device | Length::Each, .. }) => return None,
                Some(Lengths { length: Length::Host, most, .. }) => {
                    let row = bytes / u64::from(most);
                    let fits = vector.bytes <= bytes && vector.bytes.is_multiple_of(row);
                    (row, Some(u32::try_from(vector.bytes / row).ok().filter(|_| fits)?))
                }
                Some(Lengths { length: Length::Whole, .. }) | None => (0, None),
            };
            let fits = (rows.is_some() || bytes == vector.bytes) && dtype && is(config);
            fits.then_some(((rows.is_some(), bytes, Reverse(row)), rows))
        };
        let fitting =
            || (0..ops.len()).filter_map(|at| fits(&ops[at]).map(|(order, rows)| (order, at, rows)));
        let best = fitting().min_by_key(|(order, ..)| *order);
        let alike = fitting().filter(|(order, ..)| best.is_some_and(|(best, ..)| best == *order)).count();
        match best {
            Some((_, at, rows)) if alike == 1 => {
                ops[at].rank(rank).launch(stream, args(LengthLaunch { rows, all_rows: None, n: None }))
            }
            Some(_) => {
                let allowed = "a tensor that says its element type: several types are prepared";
                Err(RuntimeError::invalid("x", format!("{} bytes", vector.bytes), allowed))
            }
            None => {
                let found = format!("{} bytes of {:?}", vector.bytes, vector.dtypes);
                Err(RuntimeError::invalid("x", found, allowed(ops)))
            }
        }
    }

    /// The reduction of all ranks' `x`.
    ///
    /// # Errors
    /// Nothing is prepared for so many elements of such a type; and as of [`OpRank::launch`](crate::runtime::op::OpRank::launch).
    pub fn all_reduce<'s>(
        &mut self,
        op: Reduction,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        x: &dyn Readable,
        out: &mut dyn Writable,
    ) -> Result<(), RuntimeError> {
        if self.on_several_nodes() {
            let is = |c: &AllReduceNodes| c.op == op;
            return self.launch(rank, stream, x.info(), is, |_| AllReduceNodesLaunch { x, out });
        }
        let is = |c: &AllReduce| c.op == op && !c.in_place && c.hook == Hook::None;
        let norm = no_norm();
        self.launch(rank, stream, x.info(), is, |length| AllReduceLaunch { x: Some(x), out, norm, length })
    }

    /// The same where the result takes the vector's place.
    ///
    /// # Errors
    /// As of [`Collectives::all_reduce`].
    pub fn all_reduce_in_place<'s>(
        &mut self,
        op: Reduction,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        data: &mut dyn Writable,
    ) -> Result<(), RuntimeError> {
        let is = |c: &AllReduce| c.op == op && c.in_place && c.hook == Hook::None;
        let norm = no_norm();
        self.launch(rank, stream, data.info(), is, |length| AllReduceLaunch {
            x: None,
            out: data,
            norm,
            length,
        })
    }

    /// The reduction of all ranks' vectors in registered buffers, where they are: peers read them there, and each gets the result in its
    /// own. `data` is a rank's part of memory of [`World::symmetric`](crate::runtime::World::symmetric), or a tensor in it, at
    /// the same place on all ranks. When the launch has ended, no rank reads it.
    ///
    /// # Errors
    /// As of [`Collectives::all_reduce`]; and `data` is no memory that this world's ranks can reach, or too short.
    pub fn registered_all_reduce<'s>(
        &mut self,
        op: Reduction,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        data: &mut dyn Writable,
    ) -> Result<(), RuntimeError> {
        let is = |c: &RegisteredAllReduce| c.op == op;
        self.launch(rank, stream, data.info(), is, |_| RegisteredAllReduceLaunch { data })
    }

    /// The sum of all ranks' `x`, with a residual added, and rows normalised and quantised as `norm.form` says.
    ///
    /// # Errors
    /// As of [`Collectives::all_reduce`].
    pub fn all_reduce_norm<'s>(
        &mut self,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        x: &dyn Readable,
        norm: Norm<'_>,
        out: &mut dyn Writable,
    ) -> Result<(), RuntimeError> {
        let Norm { form, residual, weight, eps, residual_out, scale, normalised, scales } = norm;
        let is = |c: &AllReduce| {
            let row = u64::from(c.hidden) * u64::from(c.weight_dtype().bytes());
            let hook = c.hook == Hook::RmsNorm && row == weight.info().bytes && c.form() == form;
            hook && c.op == Reduction::Sum && !c.in_place
        };
        let norm = NormLaunch {
            residual: Some(residual),
            weight: Some(weight),
            eps: Some(eps),
            residual_out: Some(&mut *residual_out),
            scale,
            normalised: normalised.map(again),
            scales: scales.map(again),
        };
        self.launch(rank, stream, x.info(), is, |length| AllReduceLaunch { x: Some(x), out, norm, length })
    }

    /// This rank's part of the reduction of all ranks' `x`.
    ///
    /// # Errors
    /// As of [`Collectives::all_reduce`].
    pub fn reduce_scatter<'s>(
        &mut self,
        op: Reduction,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        x: &dyn Readable,
        out: &mut dyn Writable,
    ) -> Result<(), RuntimeError> {
        if self.on_several_nodes() {
            let is = |c: &ReduceScatterNodes| c.op == op;
            return self.launch(rank, stream, x.info(), is, |_| ReduceScatterNodesLaunch { x, out });
        }
        let is = |c: &ReduceScatter| c.op == op && !c.in_place;
        self.launch(rank, stream, x.info(), is, |length| ReduceScatterLaunch { x: Some(x), out, length })
    }

    /// The `x` of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// As of [`Collectives::all_reduce`].
    pub fn all_gather<'s>(
        &mut self,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        x: &dyn Readable,
        out: &mut dyn Writable,
    ) -> Result<(), RuntimeError> {
        if self.on_several_nodes() {
            let is = |_: &AllGatherNodes| true;
            return self.launch(rank, stream, x.info(), is, |_| AllGatherNodesLaunch { x, out });
        }
        let is = |c: &AllGather| !c.in_place;
        self.launch(rank, stream, x.info(), is, |length| AllGatherLaunch { x: Some(x), out, length })
    }

    /// Each rank's part for this rank, in the order of ranks.
    ///
    /// # Errors
    /// As of [`Collectives::all_reduce`].
    pub fn all_to_all<'s>(
        &mut self,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        x: &dyn Readable,
        out: &mut dyn Writable,
    ) -> Result<(), RuntimeError> {
        if self.on_several_nodes() {
            let is = |_: &AllToAllNodes| true;
            return self.launch(rank, stream, x.info(), is, |_| AllToAllNodesLaunch { x, out });
        }
        let is = |c: &AllToAll| !c.in_place;
        self.launch(rank, stream, x.info(), is, |length| AllToAllLaunch { x: Some(x), out, length })
    }

    /// Of each rank's rows the one for this rank: of rank `r`'s, the first `recv_counts[r]` elements, as many as it says in its
    /// `send_counts`, up to the rows' capacity. The counts are `u32`, one for each rank.
    ///
    /// # Errors
    /// As of [`Collectives::all_reduce`].
    pub fn ragged_all_to_all<'s>(
        &mut self,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        (x, send_counts): (&dyn Readable, &dyn Readable),
        (out, recv_counts): (&mut dyn Writable, &mut dyn Writable),
    ) -> Result<(), RuntimeError> {
        let args = RaggedAllToAllLaunch { x: Some(x), send_counts, out, recv_counts };
        self.launch(rank, stream, x.info(), |c: &RaggedAllToAll| !c.in_place, |_| args)
    }

    /// The vector of rank `root`, in place.
    ///
    /// # Errors
    /// As of [`Collectives::all_reduce`].
    pub fn broadcast<'s>(
        &mut self,
        root: u32,
        rank: u32,
        stream: impl Into<StreamRef<'s>>,
        data: &mut dyn Writable,
    ) -> Result<(), RuntimeError> {
        if self.on_several_nodes() {
            let is = |c: &BroadcastNodes| c.in_place && c.root == root;
            return self
                .launch(rank, stream, data.info(), is, |_| BroadcastNodesLaunch { x: None, out: data });
        }
        let is = |c: &Broadcast| c.in_place && c.root == root;
        self.launch(rank, stream, data.info(), is, |length| BroadcastLaunch { x: None, out: data, length })
    }
}

/// The same tensor, for the time of a launch.
fn again<'a>(tensor: &'a mut (dyn Writable + '_)) -> &'a mut dyn Writable {
    tensor
}

fn no_norm<'a>() -> NormLaunch<'a> {
    NormLaunch {
        residual: None,
        weight: None,
        eps: None,
        residual_out: None,
        scale: None,
        normalised: None,
        scales: None,
    }
}

/// What is prepared, for errors.
fn allowed<F: Collective>(ops: &[Op<F>]) -> String {
    let all: Vec<String> = ops.iter().map(|op| words(&op.config().key())).collect();
    if all.is_empty() {
        return format!("what is prepared of {}, and nothing is", F::NAME);
    }
    format!("what is prepared of {}: {}", F::NAME, all.join("; "))
}

fn words<K: FamilyKey>(key: &K) -> String {
    let fields = K::fields().iter().zip(key.values());
    fields.map(|(field, value)| format!("{}={value}", field.name)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "op_tests.rs"]
mod tests;
