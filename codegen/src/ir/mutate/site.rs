//! Addresses of operations.

use std::fmt;

use super::super::analysis::Tree;
use super::super::*;
use super::MutateError;

/// Operations of a role that access a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Role name.
    pub role: String,
    /// What they do.
    pub access: Access,
    /// Name of the buffer, flag array or shared array.
    pub buffer: String,
    /// Which of them, in program order from 0; all if none is given.
    pub nth: Option<usize>,
}

impl Site {
    /// All operations of a role that access a buffer in this way.
    pub fn new(role: &str, access: Access, buffer: &str) -> Site {
        Site { role: role.into(), access, buffer: buffer.into(), nth: None }
    }

    /// All puts of a role to a buffer.
    pub fn put(role: &str, buffer: &str) -> Site {
        Site::new(role, Access::Put, buffer)
    }

    /// All signals of a role to a flag array.
    pub fn signal(role: &str, flag: &str) -> Site {
        Site::new(role, Access::Signal, flag)
    }

    /// All waits of a role on a flag array.
    pub fn wait(role: &str, flag: &str) -> Site {
        Site::new(role, Access::Wait, flag)
    }

    /// All stores of a role to a buffer.
    pub fn store(role: &str, buffer: &str) -> Site {
        Site::new(role, Access::Store, buffer)
    }

    /// Only the `n`-th of them, in program order from 0.
    pub fn nth(self, n: usize) -> Site {
        Site { nth: Some(n), ..self }
    }

    /// The operations at this address, in program order.
    pub fn find(&self, kernel: &Kernel) -> Result<Vec<OpId>, MutateError> {
        let tree = Tree::of(kernel);
        let mut present: Vec<String> = vec![];
        let mut found = vec![];
        for &id in tree.in_order() {
            let Some(role) = tree.position(id).and_then(|p| p.role) else { continue };
            let Some((access, buffer)) = subject(kernel, &kernel.op(id).kind) else { continue };
            let role = &kernel.roles[role].name;
            if (role, access, buffer) == (&self.role, self.access, self.buffer.as_str()) {
                found.push(id);
            }
            let here = format!("{access} of `{buffer}` in role `{role}`");
            if !present.contains(&here) {
                present.push(here);
            }
        }
        let site = format!("the {} of `{}` in role `{}`", self.access, self.buffer, self.role);
        match (found.is_empty(), self.nth) {
            (true, _) => Err(MutateError::NoMatch { site: self.to_string(), present }),
            (false, None) => Ok(found),
            (false, Some(n)) => match found.get(n) {
                Some(&one) => Ok(vec![one]),
                None => Err(MutateError::NoSuchNth { site, nth: n, found: found.len() }),
            },
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(n) = self.nth {
            write!(f, "number {n} of ")?;
        }
        write!(f, "{} of `{}` in role `{}`", self.access, self.buffer, self.role)
    }
}

/// How an operation accesses which buffer: a copy is addressed by what it puts.
pub(super) fn subject<'k>(kernel: &'k Kernel, kind: &OpKind) -> Option<(Access, &'k str)> {
    let Accessed { access, place, .. } = kind.accesses().pop()?;
    Some(match place {
        Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => (access, &kernel.params[p.index()].name),
        Place::Shared(s) => (access, &kernel.shared[s.index()].name),
    })
}
