//! Names of buffers.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::SimError;

/// Names of buffers, each with its place among them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    places: HashMap<Arc<str>, usize>,
}

impl Names {
    pub fn get(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The place of a name. The error lists all names.
    pub fn find(&self, name: &str) -> Result<usize, SimError> {
        self.get(name).ok_or_else(|| {
            let mut known: Vec<(usize, &str)> = self.places.iter().map(|(name, &at)| (at, &**name)).collect();
            known.sort_unstable();
            let known: Vec<&str> = known.into_iter().map(|(_, name)| name).collect();
            SimError::UnknownBuffer { name: name.into(), known: known.join(", ") }
        })
    }

    /// Adds a name, behind the others.
    pub fn add(&mut self, name: Arc<str>) {
        self.places.insert(name, self.places.len());
    }
}
