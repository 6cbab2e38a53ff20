//! What an operation takes of a rank's memory, known before any of it is allocated.

use peerwarp_codegen::dsl::Binding;
use serde::Serialize;

use super::plan::{LaunchSpec, Plan};
use crate::runtime::RuntimeError;

/// Whose memory a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// The operation's, and all ranks of a node reach it.
    Symmetric,
    /// The operation's, and no other rank reaches it.
    Local,
    /// The operation's, on the host: puts to other nodes go from and to it.
    Far,
    /// The caller's.
    Caller,
}

impl Whose {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Whose::Symmetric => "symmetric",
            Whose::Local => "local",
            Whose::Far => "far",
            Whose::Caller => "caller",
        }
    }
}

/// A buffer of each rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// Its name.
    pub name: String,
    /// Whose memory it is.
    pub whose: Whose,
    /// Its size; of what has as many rows as a launch says, for the most rows.
    pub bytes: u64,
}

/// What an operation takes of a rank's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Its buffers: the operation's first, the largest of each first.
    pub buffers: Vec<Taken>,
    /// Bytes on the rank's GPU that the operation allocates, as [`RankOp::memory_bytes`](super::RankOp::memory_bytes) says of one.
    /// Drivers give whole pages: of symmetric memory on NVIDIA's GPUs a multiple of 2 MiB.
    pub operation_bytes: u64,
    /// Bytes that the caller has beside.
    pub caller_bytes: u64,
}

impl Memory {
    /// Of an operation with these launches.
    ///
    /// # Errors
    /// Launches disagree on a buffer, or its memory is more than puts to other nodes can name.
    pub fn of(launches: &[LaunchSpec]) -> Result<Memory, RuntimeError> {
        let plan = Plan::new(launches)?;
        let of = |whose, places: &std::collections::BTreeMap<String, (u64, u64)>| -> Vec<Taken> {
            places.iter().map(|(name, &(_, bytes))| Taken { name: name.clone(), whose, bytes }).collect()
        };
        let caller = plan.operands.iter().filter(|operand| operand.binding != Binding::State);
        let caller =
            caller.map(|o| Taken { name: o.name.clone(), whose: Whose::Caller, bytes: o.param.bytes() });
        let mut buffers = [
            of(Whose::Symmetric, &plan.symmetric),
            of(Whose::Local, &plan.local),
            of(Whose::Far, &plan.far.buffers),
        ]
        .concat();
        buffers.extend(caller);
        buffers.sort_by_key(|taken| (taken.whose, std::cmp::Reverse(taken.bytes)));
        let caller = buffers.iter().filter(|taken| taken.whose == Whose::Caller);
        let caller_bytes = caller.map(|taken| taken.bytes).sum();
        Ok(Memory { operation_bytes: plan.bytes(), caller_bytes, buffers })
    }
}
