//! What the verifier hands out: a kernel that it has accepted.

use std::fmt;
use std::ops::Deref;

use super::{Kernel, VerifyError, check, verify_structure};

/// A kernel that keeps every rule of [`verify`]. Only [`verify`] makes one, and it cannot be changed: what prints or
/// simulates a kernel relies on it. To change it, take it out with [`Verified::into_kernel`] and verify again.
///
/// ```compile_fail,E0423
/// use peerwarp_codegen::ir::{Builder, Loc, Verified};
///
/// let kernel = Builder::new("empty", 2, 32, 1, Loc::caller()).finish();
/// let unchecked = Verified(kernel);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Verified(Kernel);

/// A kernel whose structure is sound ([`verify_structure`]), though it may break the rules of the protocol. Only the simulator
/// takes one ([`Compiled::planted`](crate::sim::Compiled::planted)), so that tests can show which planted bugs it finds;
/// nothing emits its source.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq)]
pub struct Planted(Kernel);

/// What is wrong with a kernel, in program order within each kind of check; never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyErrors(pub Vec<VerifyError>);

/// Checks the structure and the protocol rules, and returns the kernel as one that keeps them. Errors come in program order
/// within each kind of check; checks that need a well-formed kernel are left out while it is not.
pub fn verify(kernel: Kernel) -> Result<Verified, VerifyErrors> {
    match check(&kernel) {
        Ok(()) => Ok(Verified(kernel)),
        Err(errors) => Err(VerifyErrors(errors)),
    }
}

impl Verified {
    /// The kernel, to be changed. What comes of it has to be verified again.
    pub fn into_kernel(self) -> Kernel {
        self.0
    }
}

impl Planted {
    /// A kernel that a test changed or built, once its structure is known to be sound.
    pub fn new(kernel: Kernel) -> Result<Planted, VerifyErrors> {
        match verify_structure(&kernel) {
            Ok(()) => Ok(Planted(kernel)),
            Err(errors) => Err(VerifyErrors(errors)),
        }
    }

    /// The kernel, to be changed again.
    pub fn into_kernel(self) -> Kernel {
        self.0
    }
}

impl From<Verified> for Planted {
    fn from(kernel: Verified) -> Planted {
        Planted(kernel.0)
    }
}

impl Deref for Verified {
    type Target = Kernel;
    fn deref(&self) -> &Kernel {
        &self.0
    }
}

impl Deref for Planted {
    type Target = Kernel;
    fn deref(&self) -> &Kernel {
        &self.0
    }
}

impl Deref for VerifyErrors {
    type Target = [VerifyError];
    fn deref(&self) -> &[VerifyError] {
        &self.0
    }
}

/// One error a line.
impl fmt::Display for VerifyErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("\n"))
    }
}

impl std::error::Error for VerifyErrors {}
