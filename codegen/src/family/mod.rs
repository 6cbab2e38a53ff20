//! Families of kernels: configurations, their legality, their tuning space and their names; and the targets that
//! kernels are emitted for.

mod candidates;
mod entry;
mod error;
mod field;
mod legal;
mod name;
mod suggest;
mod target;
mod traits;
mod value;

pub use candidates::Candidates;
pub use entry::{DynConfig, DynFamily, FamilyEntry, Registry, Variant, VariantIter};
pub use error::{FamilyError, NameError};
pub use field::{Allowed, FieldInfo, FieldRole};
pub use legal::{Illegal, Legal};
pub use target::{CudaArch, HipArch, Target, TargetError};
pub use traits::{Family, Fields};
pub use value::{Choice, FieldType, Value};
