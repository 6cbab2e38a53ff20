//! Collectives on simulated ranks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use peerwarp::cli::builtin;
use peerwarp::codegen::family::{Choice, Family, Registry, Variant};
use peerwarp::codegen::ir::Const;
use peerwarp::codegen::ir::mutate::{Mutation, every, mutate};
use peerwarp::families::collectives::{AllGather, AllGatherKey, Length};
use peerwarp::harness::choose::{self, Device};
use peerwarp::harness::request::Request;
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
        let family = if self.nodes > 1 { format!("{}_nodes", self.name) } else { self.name.to_owned() };
        let all = builtin();
        let entry = all.iter().find(|entry| entry.family().name() == family);
        let entry =
            entry.ok_or_else(|| Failure::invalid("collective", self.name, "the name of a collective"))?;
        let (length, row) = self.lengths;
        let key = [
            ("elements", self.elements.to_string()),
            ("ranks", self.ranks.to_string()),
            ("nodes", self.nodes.to_string()),
            ("dtype", self.dtype.to_owned()),
            ("op", self.op.to_owned()),
            ("root", self.root.to_string()),
            ("length", length.name().to_owned()),
            ("row", row.to_string()),
        ];
        let has = |name: &str| entry.family().fields().iter().any(|field| field.name == name);
        let key = key.into_iter().filter(|(name, _)| has(name));
        let key = key.map(|(name, value)| (name.to_owned(), value)).collect();
        let request = Request { key, ..Request::family(self.name, family) };
        let registry = Registry::new(all.iter().map(|entry| entry.family()));
        let chosen = choose::for_requests(Some(entry.suite()), &[request], &registry, &self.device)?;
        let chosen = &chosen.variants[0];
        self.most.map_or_else(|| Ok(chosen.clone()), |most| Ok(choose::with_fewer_blocks(chosen, most)?))
    }
}

/// Elements of a key with so many rows of each rank, where each has a length of its own.
pub fn uneven(name: &str, ranks: u32, (row, most): (u32, u32)) -> u64 {
    let parts = if name == "all_gather" { 1 } else { ranks };
    u64::from(row) * u64::from(most) * u64::from(parts)
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
            config.check()?;
            let spec = [LaunchSpec::new("all_gather", config.into_variant())];
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
