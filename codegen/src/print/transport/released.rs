//! Signals of what earlier launches did: their fence goes on while the launch begins its epoch.
//!
//! A release waits until what its thread knows of is visible to all, which takes about as long as it takes to begin an epoch. A signal
//! without data at the very beginning of a role publishes nothing of its own launch: credits are like that. So the threads that will
//! store such a flag go through a fence before there is an epoch, and then store it without one. They are the last ones of
//! the block, since the first one begins the epoch. It is done for CUDA alone: on AMD's GPUs no run has measured what a
//! fence costs.

use crate::print::analysis::signals::released_by;
use crate::print::emit::Emitter;
use crate::print::text::Prim;

impl Emitter<'_, '_> {
    /// The fences, before the epoch is begun. Roles whose blocks have loaders signal as others do.
    pub fn release_earlier_launches(&mut self, has_loader: impl Fn(usize) -> bool) {
        let (kernel, target) = (self.f.p.kernel, self.f.target);
        let mut first = 0;
        for (i, role) in kernel.roles.iter().enumerate() {
            let end = first + role.blocks;
            if released_by(kernel, target, i).is_some() && !has_loader(i) {
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
