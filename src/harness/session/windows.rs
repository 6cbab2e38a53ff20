//! Memory of operands that peers reach.

use std::collections::BTreeMap;
use std::sync::Arc;

use peerwarp_codegen::ir::ParamKind;

use crate::runtime::handles::Buffer;
use crate::runtime::op::BufferSpec;
use crate::runtime::{Member, RuntimeError, Symmetric, World};

/// Symmetric memory for the operands that are windows, whose parts are passed like any other buffer.
#[derive(Debug)]
pub struct Windows {
    members: Vec<Member>,
    /// By name, one for each copy.
    memory: BTreeMap<String, Vec<Arc<Symmetric>>>,
}

impl Windows {
    /// Allocates so many `copies` of each operand that is a window. All processes of the world do so, for the same operands.
    ///
    /// # Errors
    /// Memory runs out, or the sizes of ranks differ.
    pub fn new(
        world: &World,
        operands: &[BufferSpec],
        copies: impl Fn(&BufferSpec) -> u32,
    ) -> Result<Windows, RuntimeError> {
        let windows = operands.iter().filter(|o| o.param.kind == ParamKind::Window);
        let memory = windows.map(|o| {
            let copies = (0..copies(o)).map(|_| world.share(o.param.bytes()));
            Ok((o.name.clone(), copies.collect::<Result<_, RuntimeError>>()?))
        });
        Ok(Windows {
            memory: memory.collect::<Result<_, RuntimeError>>()?,
            members: world.members().to_vec(),
        })
    }

    /// The part of a copy that is the rank's with this index among those of this process; none if the operand is no window.
    ///
    /// # Panics
    /// There are fewer copies or ranks.
    pub fn part(&self, operand: &str, copy: u32, index: usize) -> Option<Buffer> {
        let memory = &self.memory.get(operand)?[copy as usize];
        Some(Buffer::part(memory, &self.members[index], index))
    }
}
