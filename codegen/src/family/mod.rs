//! Families of kernels: configurations, their legality, their tuning space and their names; and the targets that
//! kernels are emitted for.

mod candidates;
#[cfg(feature = "clap")]
pub mod clap_args;
mod entry;
mod error;
mod field;
mod legal;
mod name;
#[doc(hidden)]
pub mod serial;
mod suggest;
mod target;
mod traits;
mod value;

pub use peerwarp_macros::{Choice, Family};

pub use candidates::Candidates;
pub use entry::{DynConfig, DynFamily, FamilyEntry, Registry, Variant, VariantIter};
pub use error::{FamilyError, NameError};
pub use field::{Allowed, FieldDefault, FieldInfo, FieldRole};
pub use legal::{Illegal, Legal};
pub use target::{CudaArch, HipArch, Target, TargetError};
pub use traits::{Family, Fields};
pub use value::{Choice, FieldType, Value};
