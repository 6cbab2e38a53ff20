//! The places of a kernel's waits. Machine code knows a wait by its number; the table of places stands beside the kernel.

use serde::{Deserialize, Serialize};

use crate::ir::{CommOp, FarPublish, FarPut, Kernel, Loc, OpKind, ParamId};

/// Where a wait stands in the kernel author's source.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WaitSite {
    /// The author's file.
    pub file: String,
    /// The line in it; 0 if the source was emitted without lines.
    pub line: u32,
}

/// What an operation names when it polls in vain: flags and messages that it waits for, and counters of far channels whose commands wait
/// for room.
pub(crate) fn polled(kind: &OpKind) -> Vec<ParamId> {
    if let OpKind::Comm(
        CommOp::FarPut(FarPut { counts, .. }) | CommOp::FarPublish(FarPublish { counts, .. }),
    ) = kind
    {
        return vec![*counts];
    }
    let waits = kind.accesses().into_iter().filter(|a| a.access.waits());
    waits.filter_map(|a| a.place.param()).collect()
}

/// The places of a kernel's waits, each once, in program order.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    places: Vec<Loc>,
}

impl Waits {
    /// Finds the waits of all roles.
    pub fn of(kernel: &Kernel) -> Waits {
        let mut places = vec![];
        for role in &kernel.roles {
            kernel.walk(&role.body, &mut |_, op| {
                if !polled(&op.kind).is_empty() && !places.contains(&op.loc) {
                    places.push(op.loc);
                }
            });
        }
        Waits { places }
    }

    /// The number of the wait at this place.
    pub fn number(&self, place: Loc) -> usize {
        self.places.iter().position(|&other| other == place).expect("a wait is an operation of a role")
    }

    /// What the table says of each number.
    pub fn sites(&self) -> Vec<WaitSite> {
        let site = |place: &Loc| WaitSite { file: place.short_file().to_owned(), line: place.line };
        self.places.iter().map(site).collect()
    }
}
