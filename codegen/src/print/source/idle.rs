//! Groups with too many lanes for their tiles.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use crate::family::Target;
use crate::ir::{CommOp, Kernel, Loc, MemoryOp, OpId, OpKind, Put, Type, ValueId, Verified};
use crate::print::analysis::Program;
use crate::print::facts::{EmitOptions, Facts};
use crate::print::layout::{
    Layout, Layouts, WIDEST,
    spread::{is_wide, splats_apart},
};
use crate::print::loader::{Obstacle, plan};
use crate::print::text::PrintError;

/// Something in a kernel that works, and that its author should know of.
///
/// Displays as `file:line:col: message`, then `help:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The author's line.
    pub loc: Loc,
    /// What is the matter.
    pub message: String,
    /// What would be better.
    pub help: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loc { line, col, .. } = self.loc;
        write!(f, "{}:{line}:{col}: {}\n  help: {}", self.loc.short_file(), self.message, self.help)
    }
}

/// What to warn a kernel's author of, in the order of the kernel: tiles that leave half of their group's lanes idle, or more; then lines
/// that keep a role's operands from being brought by a loader.
///
/// Each loop is judged by the tile that keeps most lanes busy of all that it moves to or from memory of this rank and of
/// others (shared memory aside), and so is the body of a group. Left alone are
/// - groups of one warp, which cannot be smaller,
/// - tiles of integers of no more elements than a warp has lanes: those are control, not data,
/// - tiles of which half of the lanes hold 16 bytes each: narrower accesses of all of them are no faster.
///
/// # Errors
/// [`PrintError`] as for [`emit`](crate::print::emit()), where a tile cannot be spread over lanes.
pub fn warnings(kernel: &Verified, target: Target) -> Result<Vec<Warning>, PrintError> {
    super::assemble::check(kernel, target)?;
    let kernel = &splats_apart(kernel);
    let p = Program::new(kernel);
    let layouts = Layouts::new(&p, target)?;
    // By where the loop or body stands: the lanes that its best tile keeps busy, and where that is moved.
    let mut best: BTreeMap<Body, Moved> = BTreeMap::new();
    for (at, &id) in p.ops().iter().enumerate() {
        let Some(tile) = moved(&p, id) else { continue };
        let moved = Moved { at, id, tile: kernel.ty(tile), layout: layouts.of(tile) };
        for body in bodies(&p, id) {
            let entry = best.entry(body).or_insert(moved);
            if moved.busy() > entry.busy() {
                *entry = moved;
            }
        }
    }
    let mut idle: Vec<Moved> = best.into_values().filter(|m| m.is_idle(kernel.warp_size)).collect();
    idle.sort_by_key(|m| m.at);
    let mut told = HashSet::new();
    idle.retain(|m| told.insert(kernel.op(m.id).loc));
    let mut all: Vec<Warning> = idle.into_iter().map(|m| m.warning(&p)).collect();
    all.extend(without_loader(kernel, target)?);
    Ok(all)
}

/// The lines that keep roles from having a loader.
fn without_loader(kernel: &Kernel, target: Target) -> Result<Vec<Warning>, PrintError> {
    let facts = Facts::new(kernel, target, &EmitOptions::default())?;
    let warning = |Obstacle { role, loc, why }| Warning {
        loc,
        message: format!("role `{}` has no loader: {why}", kernel.roles[role].name),
        help: "with a loader, one warp brings operands while the others multiply".into(),
    };
    Ok(plan::obstacles(&facts).into_iter().map(warning).collect())
}

/// A loop, or the body of a role's groups: role, lanes of the group, loop.
type Body = (Option<usize>, u32, Option<OpId>);

/// The loops around an operation, as far as its group is the same, and the body of the group.
fn bodies(p: &Program, id: OpId) -> Vec<Body> {
    let (role, lanes) = (p.position(id).role, p.lanes(id));
    let around = std::iter::successors(p.owner(id), |&o| p.owner(o));
    let loops = around.filter(|&o| p.kernel.op(o).kind.is_loop() && p.lanes(o) == lanes).map(Some);
    loops.chain([None]).map(|of| (role, lanes, of)).collect()
}

/// The tile that an operation moves between a group's registers and memory that is not shared.
fn moved(p: &Program, id: OpId) -> Option<ValueId> {
    let kind = &p.kernel.op(id).kind;
    let tile = match kind {
        OpKind::Memory(op) => match *op {
            MemoryOp::Load { out, place, .. }
            | MemoryOp::LoadMasked { out, place, .. }
            | MemoryOp::Gather { out, place, .. } => Some(out).filter(|_| place.param().is_some()),
            MemoryOp::Store { value, place, .. } | MemoryOp::Scatter { value, place, .. } => {
                Some(value).filter(|_| place.param().is_some())
            }
            MemoryOp::Atomic { .. } | MemoryOp::Tally { .. } | MemoryOp::Ticket { .. } => None,
        },
        OpKind::Comm(op) => match op {
            CommOp::Put(Put { value, .. }) => Some(*value),
            CommOp::SendMessages(op) => Some(op.value).filter(|_| is_wide(op.transport)),
            CommOp::ReceiveMessages(op) => op.tiles.first().map(|t| t.out).filter(|_| is_wide(op.transport)),
            any!(signals, waits, far) | CommOp::PutMatrix(_) | CommOp::BulkCopy(_) => None,
        },
        // All lanes have their share of a matrix.
        OpKind::Matrix(_) | OpKind::Value(_) | OpKind::Control(_) => None,
    };
    tile.filter(|&v| p.kernel.ty(v).is_tile())
}

/// A tile that is moved.
#[derive(Clone, Copy)]
struct Moved {
    /// Place in the order of the kernel.
    at: usize,
    id: OpId,
    tile: Type,
    layout: Layout,
}

impl Moved {
    /// Lanes that hold any of it.
    fn busy(&self) -> u32 {
        (self.layout.len / self.layout.per_lane).min(self.layout.lanes)
    }

    fn is_idle(&self, warp: u32) -> bool {
        let control = !self.tile.dtype.is_float() && self.layout.len <= warp;
        let widest = self.layout.per_lane * self.tile.dtype.bytes() >= WIDEST;
        let enough =
            if widest { 2 * self.busy() >= self.layout.lanes } else { 2 * self.busy() > self.layout.lanes };
        self.layout.lanes > warp && !control && !enough
    }

    fn warning(&self, p: &Program) -> Warning {
        let Layout { len, lanes, per_lane, .. } = self.layout;
        let (warp, block) = (p.kernel.warp_size, p.kernel.block_warps);
        let group = if p.split(self.id).is_some() { "its group" } else { "its block" };
        let message = format!(
            "a tile of {len} {} keeps {} of the {lanes} lanes of {group} busy",
            self.tile.dtype,
            self.busy()
        );
        // The largest groups of which it keeps more than half busy, as each lane holds.
        let fits = |w: &u32| block.is_multiple_of(*w) && 2 * self.busy() > w * warp;
        let warps = (1..=block).rev().find(fits).unwrap_or(1);
        let smaller = format!("groups of {} lanes, `b.split({warps}, ..)`", warps * warp);
        let help = format!("move it with {smaller}, or tiles of up to {} elements", lanes * per_lane);
        Warning { loc: p.kernel.op(self.id).loc, message, help }
    }
}
