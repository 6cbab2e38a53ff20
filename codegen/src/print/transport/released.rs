//! Signals of what earlier launches did: their fence goes on while the launch begins its epoch.
//!
//! A release waits until what its thread knows of is visible to all, which takes about as long as it takes to begin an epoch. A signal
//! without data at the very beginning of a role publishes nothing of its own launch: credits are like that. So the threads that will
//! store such a flag go through a fence before there is an epoch, and then store it without one. They are the last ones of
//! the block, since the first one begins the epoch. It is done for CUDA alone: on AMD's GPUs nobody has measured what a
//! fence costs.

use crate::family::Target;
use crate::ir::{self, CommOp, Kernel, OpId, OpKind, Signal, SignalOrder};
use crate::print::{emit::emitter::Emitter, text::prim::Prim};

/// The signal of a role for which that holds, if there is one.
fn of_role(kernel: &Kernel, target: Target, role: usize) -> Option<OpId> {
    // Blocks that come from another role have done something there, warps beside a role are the last of a block; and before the launch before is over nothing is done.
    let apart = matches!(target, Target::Cuda(_)) && !kernel.begins_early && kernel.beside_warps() == 0;
    if !apart || kernel.joining(role).next().is_some() {
        return None;
    }
    let ops = &kernel.roles[role].body.ops;
    let id = *ops.iter().find(|id| !matches!(kernel.op(**id).kind, OpKind::Value(_)))?;
    let OpKind::Comm(CommOp::Signal(Signal { parcel, flag, order: SignalOrder::Release, .. })) =
        kernel.op(id).kind
    else {
        return None;
    };
    let parcel = &kernel.parcels[parcel.index()];
    (parcel.bare && !kernel.counts(flag) && matches!(parcel.target, ir::Target::Mask(_))).then_some(id)
}

/// The same of all roles.
pub(crate) fn of_kernel(kernel: &Kernel, target: Target) -> Vec<OpId> {
    (0..kernel.roles.len()).filter_map(|role| of_role(kernel, target, role)).collect()
}

impl Emitter<'_, '_> {
    /// The fences, before the epoch is begun. Roles whose blocks have loaders signal as others do.
    pub fn release_earlier_launches(&mut self, has_loader: impl Fn(usize) -> bool) {
        let (kernel, target) = (self.f.p.kernel, self.f.target);
        let mut first = 0;
        for (i, role) in kernel.roles.iter().enumerate() {
            let end = first + role.blocks;
            if of_role(kernel, target, i).is_some() && !has_loader(i) {
                self.used.add(Prim::SignalReleased);
                let blocks = match (first, end == kernel.grid_blocks()) {
                    (0, true) => String::new(),
                    (0, false) => format!("if (block_in_grid() < {end}) "),
                    (_, true) => format!("if (block_in_grid() >= {first}) "),
                    _ => format!("if (block_in_grid() >= {first} && block_in_grid() < {end}) "),
                };
                self.w.line(&format!("{blocks}release_earlier_launches();"));
            }
            first = end;
        }
    }
}
