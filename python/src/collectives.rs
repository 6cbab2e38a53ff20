//! Collectives on simulated ranks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use peerwarp::codegen::family::{Choice, Family, Variant};
use peerwarp::codegen::ir::Const;
use peerwarp::codegen::ir::mutate::{Mutation, every, mutate};
use peerwarp::families::collectives::{
    AllGather, AllGatherKey, AllGatherNodes, AllGatherNodesKey, AllReduce, AllReduceKey, AllReduceNodes,
    AllReduceNodesKey, AllToAll, AllToAllKey, AllToAllNodes, AllToAllNodesKey, Broadcast, BroadcastKey,
    BroadcastNodes, BroadcastNodesKey, Length, ReduceScatter, ReduceScatterKey, ReduceScatterNodes,
    ReduceScatterNodesKey, Reduction,
};
use peerwarp::harness::choose::{self, Device};
use peerwarp::harness::session::{HostSteps, SimLaunches, SimRanks};
use peerwarp::harness::workload::RankMemory;
use peerwarp::prelude::{Dtype, Transport};
use peerwarp::runtime::op::LaunchSpec;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::error::{Failure, detached};
use crate::simulated::{lock, one_each};
use crate::world::SimulatedWorld;

/// The collectives of simulated ranks; each problem is traced once.
#[pyclass(frozen)]
pub struct Collectives {
    ranks: Arc<SimRanks>,
    traced: Mutex<HashMap<String, Arc<SimLaunches>>>,
}

/// One of `names` of a type that is a choice.
fn choice<T: Choice>(field: &str, name: &str) -> Result<T, Failure> {
    let allowed = || T::ALL.iter().map(|v| v.name()).collect::<Vec<_>>().join(", ");
    T::from_name(name).ok_or_else(|| Failure::invalid(field, name, allowed()))
}

/// Which collective, and what for.
pub struct Asked<'a> {
    pub name: &'a str,
    pub op: &'a str,
    pub root: u32,
    pub dtype: &'a str,
    pub elements: u64,
    /// What says lengths, and elements of a row of these.
    pub lengths: (Length, u32),
    pub ranks: u32,
    /// Nodes that they are on.
    pub nodes: u32,
    /// The most blocks of a launch, if there is a limit.
    pub most: Option<u32>,
    /// What runs it.
    pub device: Device,
}

impl Asked<'_> {
    /// The variant that is chosen for the length.
    pub fn variant(&self) -> Result<Variant, Failure> {
        let Asked { name, root, ranks, nodes, most, ref device, lengths: (length, row), .. } = *self;
        let elements = u32::try_from(self.elements);
        let elements = elements.map_err(|_| Failure::invalid("elements", self.elements, "fewer"))?;
        let dtype = choice::<Dtype>("dtype", self.dtype)?;
        let (op, in_place) = (choice::<Reduction>("op", self.op)?, false);
        if nodes > 1 {
            return match name {
                "all_reduce" => {
                    let key = AllReduceNodesKey { elements, ranks, nodes, dtype, op };
                    over_nodes::<AllReduceNodes>(&key, most, device, |c| &mut c.blocks)
                }
                "reduce_scatter" => {
                    let key = ReduceScatterNodesKey { elements, ranks, nodes, dtype, op };
                    over_nodes::<ReduceScatterNodes>(&key, most, device, |c| &mut c.blocks)
                }
                "all_gather" => {
                    let key = AllGatherNodesKey { elements, ranks, nodes, dtype };
                    over_nodes::<AllGatherNodes>(&key, most, device, |c| &mut c.blocks)
                }
                "all_to_all" => {
                    let key = AllToAllNodesKey { elements, ranks, nodes, dtype };
                    over_nodes::<AllToAllNodes>(&key, most, device, |c| &mut c.blocks)
                }
                "broadcast" => {
                    let key = BroadcastNodesKey { elements, ranks, nodes, dtype, root, in_place };
                    over_nodes::<BroadcastNodes>(&key, most, device, |c| &mut c.blocks)
                }
                other => Err(Failure::invalid("collective", other, "the name of a collective")),
            };
        }
        match name {
            "all_reduce" => {
                let key = AllReduceKey { op, length, row, ..AllReduceKey::new(elements, ranks, dtype) };
                let mut config: AllReduce = choose::config(&key, device)?;
                fewer(&mut config.blocks, most);
                fewer(&mut config.senders, most);
                checked(config)
            }
            "reduce_scatter" => {
                let key =
                    ReduceScatterKey { op, length, row, ..ReduceScatterKey::new(elements, ranks, dtype) };
                let mut config: ReduceScatter = choose::config(&key, device)?;
                fewer(&mut config.blocks, most);
                checked(config)
            }
            "all_gather" => {
                let key = AllGatherKey { length, row, ..AllGatherKey::new(elements, ranks, dtype) };
                let mut config: AllGather = choose::config(&key, device)?;
                fewer(&mut config.blocks, most);
                checked(config)
            }
            "all_to_all" => {
                let key = AllToAllKey { length, row, ..AllToAllKey::new(elements, ranks, dtype) };
                let mut config: AllToAll = choose::config(&key, device)?;
                fewer(&mut config.blocks, most);
                checked(config)
            }
            "broadcast" => {
                let key = BroadcastKey { root, length, row, ..BroadcastKey::new(elements, ranks, dtype) };
                let mut config: Broadcast = choose::config(&key, device)?;
                fewer(&mut config.blocks, most);
                checked(config)
            }
            other => Err(Failure::invalid("collective", other, "the name of a collective")),
        }
    }
}

/// Elements of a key with so many rows of each rank, where each has a length of its own.
pub fn uneven(name: &str, ranks: u32, (row, most): (u32, u32)) -> u64 {
    let parts = if name == "all_gather" { 1 } else { ranks };
    u64::from(row) * u64::from(most) * u64::from(parts)
}

/// Fewer blocks of a role, if those of two roles, and one that says when it has begun, are more than a launch may have.
fn fewer(blocks: &mut u32, most: Option<u32>) {
    while *blocks > 1 && most.is_some_and(|most| 2 * *blocks + 2 > most) {
        *blocks = 1 << (*blocks - 1).ilog2();
    }
}

/// The variant of a family over nodes that is chosen for a key.
fn over_nodes<F: Family>(
    key: &F::Key,
    most: Option<u32>,
    device: &Device,
    blocks: fn(&mut F) -> &mut u32,
) -> Result<Variant, Failure> {
    let mut config: F = choose::config(key, device)?;
    fewer(blocks(&mut config), most);
    checked(config)
}

fn checked<F: Family>(config: F) -> Result<Variant, Failure> {
    config.check()?;
    Ok(config.into_variant())
}

/// Lengths of all ranks' parts: elements of a row, the most rows of a rank, and its rows.
type Sizes = (u32, u32, Vec<u32>);

/// Passes a vector of each rank, and takes a vector of each rank.
struct Vectors {
    x: Vec<PyBackedBytes>,
    /// Where each rank has a length of its own: rows of its part, and whether the parts of all are what comes out.
    sizes: Option<(Vec<u32>, bool)>,
    out: Vec<Mutex<Vec<u8>>>,
}

impl HostSteps for Vectors {
    fn step(&self, launches: usize, memory: &mut dyn RankMemory) -> Result<(), String> {
        let rank = memory.rank() as usize;
        if launches == 0 {
            if let Some((sizes, _)) = &self.sizes {
                let words: Vec<u8> = sizes.iter().flat_map(|n| n.to_le_bytes()).collect();
                memory.write("n", 0, &words)?;
            }
            return memory.write("x", 0, &self.x[rank]);
        }
        let bytes = match &self.sizes {
            None => memory.size("out")? as usize,
            Some((sizes, gathers)) => self.uneven_bytes(sizes, *gathers, rank),
        };
        *lock(&self.out[rank]) = memory.read("out", 0, bytes)?;
        Ok(())
    }

    fn numbers(&self, rank: u32) -> Vec<(String, Const)> {
        let Some((sizes, _)) = &self.sizes else { return vec![] };
        let (rows, all_rows) = (sizes[rank as usize], sizes.iter().sum());
        vec![("rows".to_owned(), Const::U32(rows)), ("all_rows".to_owned(), Const::U32(all_rows))]
    }
}

impl Vectors {
    /// Bytes that a rank ends up with, where each has a length of its own.
    fn uneven_bytes(&self, sizes: &[u32], gathers: bool, rank: usize) -> usize {
        let all: usize = self.x.iter().map(|x| x.len()).sum();
        let rows: usize = sizes.iter().map(|n| *n as usize).sum();
        match (gathers, rows) {
            (_, 0) => 0,
            (true, _) => all,
            (false, _) => self.x[rank].len() / rows * sizes[rank] as usize,
        }
    }
}

/// The vectors that ranks end up with.
fn run(
    ranks: &SimRanks,
    launches: &SimLaunches,
    x: Vec<PyBackedBytes>,
    sizes: Option<(Vec<u32>, bool)>,
) -> Result<Vec<Vec<u8>>, Failure> {
    one_each("ranks of x", x.len(), ranks.ranks())?;
    let out = x.iter().map(|_| Mutex::default()).collect();
    let host = ranks.run(launches, 1, Vectors { x, sizes, out })?;
    Ok(host.out.iter().map(|out| std::mem::take(&mut *lock(out))).collect())
}

#[pymethods]
impl Collectives {
    #[new]
    fn new(world: &Bound<'_, SimulatedWorld>) -> Collectives {
        Collectives { ranks: Arc::clone(&world.get().ranks), traced: Mutex::default() }
    }

    /// Forgets what was traced.
    fn free(&self) {
        lock(&self.traced).clear();
    }

    /// Runs a collective on one vector of each rank, of `elements` elements each; with `sizes`, of parts that have lengths of their own.
    #[pyo3(signature = (name, op_root, dtype_elements, x, sizes=None))]
    fn run<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        op_root: (&str, u32),
        dtype_elements: (&str, u64),
        x: Vec<PyBackedBytes>,
        sizes: Option<Sizes>,
    ) -> Result<Vec<Bound<'py, PyBytes>>, Failure> {
        let ((op, root), (dtype, elements)) = (op_root, dtype_elements);
        let out = detached(py, || {
            let (ranks, device) = (self.ranks.ranks(), Device::default());
            let (lengths, elements, sizes) = match sizes {
                None => ((Length::Whole, 1), elements, None),
                Some((row, most, sizes)) => {
                    one_each("sizes", sizes.len(), ranks)?;
                    (
                        (Length::Each, row),
                        uneven(name, ranks, (row, most)),
                        Some((sizes, name == "all_gather")),
                    )
                }
            };
            let asked =
                Asked { name, op, root, dtype, elements, lengths, ranks, nodes: 1, most: None, device };
            let variant = asked.variant()?;
            run(&self.ranks, &*self.traced(name, variant)?, x, sizes)
        })?;
        Ok(out.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// For tests: an all-gather whose signals order nothing, which the checker finds.
    fn run_with_a_bug(&self, py: Python<'_>, x: Vec<PyBackedBytes>) -> Result<(), Failure> {
        detached(py, || {
            let elements = x.first().map_or(0, |x| x.len() / 4) as u32;
            let key = AllGatherKey::new(elements, self.ranks.ranks(), Dtype::F32);
            let config = AllGather { protocol: Transport::Flags, ..AllGather::with_defaults(&key)? };
            let spec = [LaunchSpec::new("all_gather", checked(config)?)];
            let launches = SimLaunches::planted(&spec, &mut |kernel| {
                let relax = every(kernel).into_iter().find(|m| matches!(m.mutation, Mutation::Relax(_)));
                if let Some(Ok(planted)) = relax.map(|m| mutate(kernel, &m.mutation)) {
                    *kernel = planted;
                }
            })?;
            run(&self.ranks, &launches, x, None).map(drop)
        })
    }
}

impl Collectives {
    fn traced(&self, name: &str, variant: Variant) -> Result<Arc<SimLaunches>, Failure> {
        let key = variant.variant_name();
        if let Some(known) = lock(&self.traced).get(&key) {
            return Ok(Arc::clone(known));
        }
        let traced = Arc::new(SimLaunches::new(&[LaunchSpec::new(name, variant)])?);
        lock(&self.traced).insert(key, Arc::clone(&traced));
        Ok(traced)
    }
}
