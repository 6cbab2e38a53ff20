//! The verifier. A kernel that passes [`verify_structure`] cannot make a printer or the simulator panic; one that
//! passes [`verify()`] also keeps the rules of the communication protocol that can be seen without running it.

mod access;
mod declarations;
mod devices;
mod early;
mod error;
mod far;
mod ids;
mod parcels;
mod protocol;
mod scopes;
mod types;
mod witness;

use super::analysis::{Facts, Tree};
use super::*;

pub use error::{Problem, VerifyError};
pub use witness::{Planted, Verified, VerifyErrors, verify};

/// Largest number of elements of a tile.
pub const MAX_TILE: u32 = 1 << 16;
/// Deepest nesting of regions.
pub const MAX_DEPTH: usize = 64;
/// Largest number of ranks: one bit each in a mask.
pub const MAX_RANKS: u32 = 64;
/// Most threads a block, on every target.
pub const MAX_BLOCK_THREADS: u32 = 1024;

/// Checks the structure and the protocol rules.
fn check(kernel: &Kernel) -> Result<(), Vec<VerifyError>> {
    verify_structure(kernel)?;
    let tree = Tree::of(kernel);
    let facts = Facts::of(kernel, &tree);
    let mut report = Report::new(kernel);
    access::check(&mut report, &tree, &facts);
    protocol::check(&mut report, &tree);
    parcels::check(&mut report, &tree);
    far::check(&mut report);
    devices::check(&mut report);
    early::check(&mut report, &tree, &facts);
    report.finish()
}

/// Checks only what printers and the simulator rely on: ids, scopes, types, declarations. A kernel into which a protocol
/// bug was planted still passes.
pub fn verify_structure(kernel: &Kernel) -> Result<(), Vec<VerifyError>> {
    let mut report = Report::new(kernel);
    ids::check(&mut report);
    if !report.errors.is_empty() {
        return report.finish();
    }
    declarations::check(&mut report);
    scopes::check(&mut report);
    types::check(&mut report);
    report.finish()
}

/// Collects errors.
struct Report<'k> {
    kernel: &'k Kernel,
    names: Names,
    errors: Vec<VerifyError>,
}

impl<'k> Report<'k> {
    fn new(kernel: &'k Kernel) -> Report<'k> {
        Report { kernel, names: Names::of(kernel), errors: vec![] }
    }

    /// Adds an error, once: an unrolled loop would report the same mistake in each round.
    fn add(&mut self, loc: Loc, problem: Problem) {
        let error = VerifyError { loc, problem };
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    /// Name of a value for a message, with its type.
    fn typed(&self, v: ValueId) -> String {
        format!("{}: {}", self.names.value(v), self.kernel.ty(v))
    }

    fn param(&self, id: ParamId) -> &'k Param {
        &self.kernel.params[id.index()]
    }

    fn place_name(&self, place: Place) -> String {
        match place {
            Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => self.param(p).name.clone(),
            Place::Shared(s) => self.kernel.shared[s.index()].name.clone(),
        }
    }

    /// Every reachable operation, in program order.
    fn each_op(&self, visit: &mut dyn FnMut(OpId, &'k Op)) {
        self.kernel.walk(&self.kernel.prologue, visit);
        for role in &self.kernel.roles {
            self.kernel.walk(&role.body, visit);
        }
    }

    fn finish(self) -> Result<(), Vec<VerifyError>> {
        if self.errors.is_empty() { Ok(()) } else { Err(self.errors) }
    }
}
