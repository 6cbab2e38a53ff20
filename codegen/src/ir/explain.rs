//! A kernel in words: what each role does, which bytes and flags it moves, what memory it needs.
//!
//! `peerwarp show --explain` prints it; emitted source takes a line a role from [`RoleInfo::one_line`].

mod expr;
mod far;
mod flight;
mod fold;
mod steps;
mod words;

use serde::Serialize;

use super::analysis::{DefUse, Facts, Tree};
use super::*;

pub use far::FarUse;
pub(crate) use flight::flights;
pub use flight::{Ending, Flight, Held, Way};
pub use steps::{Action, Deed, Step};

/// A kernel in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explain {
    /// Name of the author's function.
    pub kernel: String,
    /// First paragraph of its docs.
    pub doc: String,
    /// Variant name.
    pub variant: String,
    /// Comptime facts, in order.
    pub config: Vec<(String, String)>,
    /// World size.
    pub ranks: u32,
    /// Blocks of all roles.
    pub blocks: u64,
    /// Warps a block.
    pub block_warps: u32,
    /// Lanes a warp.
    pub warp_size: u32,
    /// Threads a block.
    pub block_threads: u64,
    /// Bytes of shared memory a block declares, or takes on a target.
    pub shared_bytes: u64,
    /// Bytes of shared memory that a block can have on a target that has too little for this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_limit: Option<u64>,
    /// Warps of a block that bring operands for the others.
    #[serde(skip_serializing_if = "is_zero")]
    pub loader_warps: u32,
    /// Bytes of symmetric buffers and flags a rank.
    pub symmetric_bytes: u64,
    /// Flags a rank.
    pub flags: u64,
    /// What it moves through network cards, if it has far channels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far: Option<FarUse>,
    /// Words that hold epochs, and whether this launch advances them.
    pub epochs: Vec<EpochInfo>,
    /// Parameters, in order.
    pub buffers: Vec<BufferInfo>,
    /// Shared-memory arrays.
    pub shared: Vec<SharedInfo>,
    /// Roles, in order of block index.
    pub roles: Vec<RoleInfo>,
}

/// An epoch word.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EpochInfo {
    /// Parameter name.
    pub name: String,
    /// Whether the launch leaves the next epoch in it.
    pub advances: bool,
    /// Whether it begins while the launch before may still run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub early: bool,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BufferInfo {
    /// Parameter name.
    pub name: String,
    /// `local`, `symmetric`, `flags`, `epoch` or `scalar`.
    pub kind: &'static str,
    /// Element type.
    pub dtype: Dtype,
    /// Number of elements.
    pub len: u64,
    /// Bytes a rank.
    pub bytes: u64,
    /// First line of its docs.
    pub doc: String,
}

/// A shared-memory array.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedInfo {
    /// The author's name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Number of elements.
    pub len: u32,
    /// How many a block.
    pub copies: u32,
    /// Bytes of one.
    pub bytes: u64,
}

/// What one role does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoleInfo {
    /// Name.
    pub name: String,
    /// Index of its first block, on the first rank that has it.
    pub first_block: u64,
    /// Where its blocks are, if that is not the same on every rank: ranks, and the index of its first block there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<(Vec<u32>, u32)>,
    /// Number of blocks.
    pub blocks: u32,
    /// The role in whose blocks it runs, and its warps in each of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<(String, u32)>,
    /// The role that they go on as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goes_on_as: Option<String>,
    /// Roles whose blocks go on as it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub joining: Vec<String>,
    /// The line that keeps it from having a loader on its target, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_loader: Option<(String, String)>,
    /// The instructions that it multiplies matrices by on its target, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplies: Option<String>,
    /// The bytes that it keeps in flight on its target.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flights: Vec<Flight>,
    /// Bytes and flags it moves, by buffer, in order of first use.
    pub traffic: Vec<Traffic>,
    /// What it does, in order.
    pub steps: Vec<Step>,
}

/// How a role uses one buffer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Traffic {
    /// What it does with it.
    pub deed: Deed,
    /// The buffer.
    pub buffer: String,
    /// Whether that is a shared-memory array.
    pub shared: bool,
    /// In how many places of the traced role.
    pub places: u32,
    /// Bytes that one pass through all those places moves.
    pub bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Describes a kernel that passes [`verify_structure`], for no target. [`print::explain`](crate::print::explain()) adds the launch and
/// the loaders of a target.
pub fn explain(kernel: &Kernel) -> Explain {
    let tree = Tree::of(kernel);
    let facts = Facts::of(kernel, &tree);
    let defs = DefUse::of(kernel, &tree);
    let teller = steps::Teller::new(kernel, &facts, &defs);
    let roles = kernel.roles.iter().enumerate().map(|(i, r)| {
        let steps = teller.steps(r, kernel.role_blocks(i));
        let places = kernel.places(i);
        RoleInfo {
            name: r.name.clone(),
            first_block: places.first().map_or(0, |place| place.1).into(),
            places: if kernel.differs_by_rank(i) { places } else { vec![] },
            blocks: r.blocks,
            beside: r.beside.as_ref().map(|b| (b.role.clone(), b.warps)),
            goes_on_as: r.goes_on_as.clone(),
            joining: kernel.joining(i).map(|j| kernel.roles[j].name.clone()).collect(),
            no_loader: None,
            multiplies: None,
            flights: vec![],
            traffic: traffic(&steps),
            steps,
        }
    });
    let roles: Vec<RoleInfo> = roles.collect();
    let symmetric = kernel.params.iter().filter(|p| p.kind.is_symmetric());
    Explain {
        kernel: kernel.name.clone(),
        doc: kernel.doc.clone(),
        variant: kernel.variant.clone(),
        config: kernel.config.clone(),
        ranks: kernel.all_ranks(),
        blocks: kernel.grid_blocks().into(),
        block_warps: kernel.block_warps + kernel.beside_warps(),
        warp_size: kernel.warp_size,
        block_threads: (kernel.block_threads() + kernel.beside_warps() * kernel.warp_size).into(),
        shared_bytes: kernel.shared_bytes(),
        shared_limit: None,
        loader_warps: 0,
        symmetric_bytes: symmetric.map(|p| p.len * u64::from(p.element_bytes())).sum(),
        flags: kernel
            .params
            .iter()
            .filter(|p| matches!(p.kind, ParamKind::Flags | ParamKind::Counts))
            .map(|p| p.len)
            .sum(),
        far: far::far_use(kernel, &facts, (&tree, &defs), &teller),
        epochs: epochs(kernel),
        buffers: kernel.params.iter().map(buffer).collect(),
        shared: kernel.shared.iter().map(shared).collect(),
        roles,
    }
}

fn epochs(kernel: &Kernel) -> Vec<EpochInfo> {
    let mut found = vec![];
    kernel.walk(&kernel.prologue, &mut |_, op| {
        if let OpKind::Value(ValueOp::Epoch { word, advance, .. }) = op.kind {
            let name = kernel.params[word.index()].name.clone();
            found.push(EpochInfo { name, advances: advance, early: kernel.begins_early });
        }
    });
    found
}

fn buffer(p: &Param) -> BufferInfo {
    BufferInfo {
        name: p.name.clone(),
        kind: p.kind.name(),
        dtype: p.dtype,
        len: p.len,
        bytes: p.len * u64::from(p.dtype.bytes()),
        doc: p.doc.clone(),
    }
}

fn shared(s: &Shared) -> SharedInfo {
    let bytes = u64::from(s.len) * u64::from(s.dtype.bytes());
    SharedInfo { name: s.name.clone(), dtype: s.dtype, len: s.len, copies: s.copies, bytes }
}

/// Adds up the actions of a role by deed and buffer.
fn traffic(steps: &[Step]) -> Vec<Traffic> {
    fn visit(steps: &[Step], times: u32, all: &mut Vec<Traffic>) {
        for step in steps {
            match step {
                Step::Do(a) => {
                    let (places, bytes) = (a.pieces * times, a.bytes * u64::from(times));
                    let same =
                        |t: &&mut Traffic| (t.deed, &t.buffer, t.shared) == (a.deed, &a.buffer, a.shared);
                    match all.iter_mut().find(same) {
                        Some(t) => {
                            t.places += places;
                            t.bytes += bytes;
                        }
                        None => {
                            let (deed, buffer, shared) = (a.deed, a.buffer.clone(), a.shared);
                            all.push(Traffic { deed, buffer, shared, places, bytes });
                        }
                    }
                }
                Step::ForEach { steps, .. } | Step::While { steps, .. } | Step::Split { steps, .. } => {
                    visit(steps, times, all);
                }
                Step::Times { times: n, steps } => visit(steps, times * n, all),
                Step::If { then, otherwise, .. } => {
                    visit(then, times, all);
                    visit(otherwise, times, all);
                }
                Step::Leave { .. } => {}
            }
        }
    }
    let mut all = vec![];
    visit(steps, 1, &mut all);
    all
}
