//! Kernels of any family: out of a pack, or of the families that come with Peerwarp.

use std::path::PathBuf;
use std::sync::Arc;

use peerwarp::build::pack::{Entry, Pack};
use peerwarp::cli::builtin;
use peerwarp::codegen::dsl::{Binding, ParamSpec};
use peerwarp::codegen::family::{DynKernel, Registry, Target};
use peerwarp::codegen::ir::ParamKind;
use peerwarp::harness::choose::{self, Device};
use peerwarp::harness::request::Request;
use peerwarp::runtime::SelectError;
use pyo3::prelude::*;

use crate::error::{Failure, detached};
use crate::world::GpuWorld;

/// A parameter: its name, kind, type, elements and bytes.
type Buffer = (String, String, String, u64, u64);
/// A kernel: its variant, family, target, ranks, entry, blocks, threads of a block, and buffers.
type Listed = (String, String, String, u32, String, u32, u32, Vec<Buffer>);
/// An operand or a number that is passed: its name, type, elements of a row or 0, elements, the number that says how many rows there are,
/// and whether the kernel writes it. Numbers have no elements.
type Passed = (String, String, u64, u64, Option<String>, bool);

/// A pack, all of whose files were read and compared with their hashes.
#[pyclass(frozen)]
pub struct PackFile {
    pack: Arc<Pack>,
}

/// A kernel, and where its machine code is from.
#[pyclass(frozen)]
pub struct Kernel {
    pub variant: Arc<dyn DynKernel>,
    /// None: it is compiled when it is needed.
    pub pack: Option<Arc<Pack>>,
}

#[pymethods]
impl PackFile {
    #[new]
    fn new(py: Python<'_>, dir: PathBuf) -> Result<PackFile, Failure> {
        detached(py, || Ok(PackFile { pack: Arc::new(Pack::open(&dir)?) }))
    }

    /// All kernels.
    fn kernels(&self) -> Result<Vec<Listed>, Failure> {
        self.pack.manifest().kernels.iter().map(listed).collect()
    }

    /// Names and documentation of the families, and names of their key fields.
    fn families(&self) -> Vec<(String, String, Vec<String>)> {
        let families = self.pack.manifest().families.iter();
        let fields = |family: &peerwarp::build::pack::PackFamily| {
            family.key.iter().map(|field| field.name.clone()).collect()
        };
        families.map(|family| (family.name.clone(), family.doc.clone(), fields(family))).collect()
    }

    /// The variant of a family for a key, in a world of so many ranks; for the GPU of a world, or for any.
    fn select(
        &self,
        py: Python<'_>,
        family: &str,
        key: Vec<(String, String)>,
        ranks: u32,
        on: Option<&Bound<'_, GpuWorld>>,
    ) -> Result<Kernel, Failure> {
        let on = on.map(|world| world.get());
        detached(py, || {
            let target: Option<Target> = on.map(GpuWorld::target).transpose()?;
            let variant = self.pack.select(family, key, ranks, target)?;
            Ok(Kernel { variant, pack: Some(Arc::clone(&self.pack)) })
        })
    }
}

/// The variant of a family that comes with Peerwarp, as it is chosen for a key and the GPU of a world.
#[pyfunction]
pub fn shipped_kernel(
    py: Python<'_>,
    family: &str,
    mut key: Vec<(String, String)>,
    ranks: u32,
    on: Option<&Bound<'_, GpuWorld>>,
) -> Result<Kernel, Failure> {
    let on = on.map(|world| world.get());
    detached(py, || {
        let device = on.map_or_else(|| Ok(Device::default()), GpuWorld::device)?;
        let all = builtin();
        let registry = Registry::new(all.iter().map(|entry| entry.family()));
        let known = || all.iter().map(|entry| entry.family().name());
        let entry = all.iter().find(|entry| entry.family().name() == family);
        let entry = entry
            .ok_or_else(|| Failure::invalid("family", family, known().collect::<Vec<_>>().join(", ")))?;
        let field = entry.family().fields().iter().find(|field| field.ranks);
        if let Some(field) = field.filter(|field| key.iter().all(|(name, _)| name != field.name)) {
            key.push((field.name.to_owned(), ranks.to_string()));
        }
        let request = Request { key, ..Request::family(family, family) };
        let chosen = choose::for_requests(Some(entry.suite()), &[request], &registry, &device)?;
        Ok(Kernel { variant: chosen.variants[0].clone(), pack: None })
    })
}

#[pymethods]
impl Kernel {
    /// Its name.
    fn name(&self) -> String {
        self.variant.variant_name()
    }

    /// The name of its family.
    fn family(&self) -> String {
        self.variant.family_name().to_owned()
    }

    /// World size.
    fn ranks(&self) -> u32 {
        self.variant.ranks()
    }

    /// What callers pass, in the order of the kernel's parameters: operands and numbers.
    fn passed(&self) -> Vec<Passed> {
        self.variant.params().iter().filter_map(passed).collect()
    }
}

fn passed(param: &ParamSpec) -> Option<Passed> {
    let writes = param.binding.writes();
    let (name, dtype) = (param.name.clone(), param.dtype.to_string());
    match (param.kind, param.binding) {
        (ParamKind::Scalar, _) => Some((name, dtype, 0, 0, None, false)),
        (_, Binding::State) => None,
        (_, Binding::Input | Binding::Output | Binding::InOut) => {
            let each = param.rows.as_ref().map(|rows| param.len / rows.most.max(1));
            let each = param.columns.or(each).unwrap_or(0);
            let rows = param.rows.as_ref().map(|rows| rows.scalar.clone());
            Some((name, dtype, each, param.len, rows, writes))
        }
    }
}

fn listed(entry: &Entry) -> Result<Listed, Failure> {
    let field = format!("pack.json: params of {}", entry.variant);
    let bad = |words: &str| Failure::invalid(&field, words, "name: Kind of N Type");
    let mut buffers = vec![];
    for b in entry.buffers().map_err(bad)? {
        let bytes = b.bytes().ok_or_else(|| bad(&b.name))?;
        buffers.push((b.name, format!("{:?}", b.kind).to_lowercase(), b.dtype.to_string(), b.len, bytes));
    }
    let (grid, threads) = (entry.launch.grid, entry.launch.block_threads);
    let (family, target) = (entry.family.clone(), entry.target.to_string());
    Ok((entry.variant.clone(), family, target, entry.ranks, entry.entry.clone(), grid, threads, buffers))
}

impl From<SelectError> for Failure {
    fn from(error: SelectError) -> Failure {
        match error {
            SelectError::Input(error) => error.into(),
            SelectError::Pack(error) => error.into(),
        }
    }
}
