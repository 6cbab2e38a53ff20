//! Families of kernels: configurations, their legality, their tuning space and their names; and the targets that
//! kernels are emitted for.
//!
//! A family is a kernel function and a struct, its configuration. `#[derive(Family)]` on the struct makes the rest from
//! what each field says about itself:
//!
//! ```
//! use peerwarp_codegen::dsl::prelude::*;
//! use peerwarp_codegen::family::{Choice, Family, Illegal, Legal, Registry};
//! use peerwarp_macros::kernel;
//!
//! #[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
//! pub enum Order {
//!     Forward,
//!     RoundRobin,
//! }
//!
//! #[derive(Family, Clone, Debug, PartialEq)]
//! #[family(name = "add_one", kernel = add_one, args = AddArgs, warps = warps)]
//! pub struct AddOne {
//!     /// Elements of a row.
//!     #[key(short = "h", range = 8..=65536, multiple_of = 8)]
//!     pub hidden: u32,
//!     #[key(short = "r", range = 1..=64, ranks, help = "World size.")]
//!     pub ranks: u32,
//!     #[tune(short = "w", values = [4, 8, 16], default = 8)]
//!     pub warps: u32,
//!     #[tune(short = "b", values = [8, 16, 32], default = |key| if key.hidden > 4096 { 32 } else { 8 })]
//!     pub blocks: u32,
//!     #[tune]
//!     pub order: Order,
//! }
//!
//! impl Legal for AddOne {
//!     fn legal(&self) -> Result<(), Illegal> {
//!         let allowed = || format!("at most the elements of a row, {}", self.hidden);
//!         Illegal::unless(self.blocks <= self.hidden, "blocks", self.blocks, allowed)
//!     }
//! }
//!
//! #[derive(KernelArgs)]
//! #[args(config = AddOne)]
//! pub struct AddArgs {
//!     /// The row.
//!     #[len(|c| c.hidden.into())]
//!     pub x: Ptr<u32>,
//! }
//!
//! /// Adds one to every element.
//! #[kernel]
//! pub fn add_one(c: &AddOne, a: &AddArgs) {
//!     role("add", 1, |_| a.x.store(0, a.x.load(0, c.hidden) + 1));
//! }
//!
//! // Every legal configuration has a name, which can be read back.
//! let config = AddOne::with_defaults(&AddOneKey { hidden: 7168, ranks: 8 })?;
//! assert_eq!(config.variant_name(), "add_one_h7168_r8__w8_b32_forward");
//! assert_eq!(AddOne::parse_variant("add_one_h7168_r8__w8_b32_forward")?, config);
//!
//! // The tuning space, without the points that are not legal.
//! assert_eq!(AddOne::candidates(&config.key()).count(), 3 * 3 * 2);
//!
//! // The kernel for it, and what it takes.
//! assert_eq!(config.trace(32)?.doc, "Adds one to every element.");
//! assert_eq!(config.params()[0].len, 7168);
//!
//! // Families of any number of crates, without their types.
//! let registry = Registry::new([AddOne::entry()]);
//! let settings = [("hidden".into(), "7169".into()), ("ranks".into(), "8".into())];
//! let error = registry.family("add_one")?.build(&settings).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "add_one: `hidden` = 7169 is not allowed: it must be a multiple of 8 from 8 to 65536 (nearest: 7168)"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Attributes
//! On the struct, `#[family(..)]`:
//!
//! | setting | meaning |
//! |---|---|
//! | `name = "text"` | start of the variant names; without it the kernel function's name |
//! | `kernel = path` | the kernel, a function with `#[kernel]` |
//! | `args = Type` | its parameters, a struct with `#[derive(KernelArgs)]` |
//! | `warps = field` | the field with the warps a block has, or a number |
//! | `key = Name` | name of the key type to make; without it the struct's name and `Key` |
//! | `plan = Name` | name of a type to make of the tuning fields, for a family of an [`Operation`] of several launches |
//! | `revision = 2` | number of the kernel's version, 1 without it: a change that alters its time counts it up, and earlier tuned records count as earlier |
//! | `serde` | implement serde's traits for the configuration, by the names of variants and with all checks |
//!
//! On each field, `#[key(..)]` when the problem gives its value or `#[tune(..)]` when tuning chooses it. Its type is an
//! integer, a `bool`, or an enum with `#[derive(Choice)]`:
//!
//! | setting | meaning |
//! |---|---|
//! | `short = "h"` | what stands before the value in variant names; without it a number's field name, and nothing before an enum's |
//! | `range = 8..=64`, `multiple_of = 8` | the numbers it may be; a number that is a key always has a range |
//! | `values = [4, 8]` | the values it may have: numbers of tuning fields, and a selection of an enum's |
//! | `default = 8` | of a tuning field, or a closure over the key; without it the first of its values. Of a key, which must be given without it |
//! | `shrinks` | of a tuning field that is a number: with a smaller one a block takes less shared memory, or there are fewer blocks |
//! | `rule = path` | of a tuning field of type `Option<T>`: the function of the configuration that chooses it where it is `auto`, its default |
//! | `shared` | of a tuning field: the operation's plan holds it once, as launches of other families have it too |
//! | `help = "text"` | what it means; without it the first paragraph of the field's docs |
//! | `ranks` | on one key field, a `u32`: it is the world size, 1 without such a field |
//! | `nodes` | on one key field, a `u32`: computers that the ranks are on, as many on each; 1 without such a field |
//! | `omitted` | with a default that is a value, and a short name: variant names leave it out where it has its default |
//! | `covers` | on key fields without a sign: a variant with more of it does as well where there is none for just the problem |

mod candidates;
mod entry;
mod error;
mod field;
mod legal;
mod name;
mod operation;
mod search;
#[doc(hidden)]
pub mod serial;
mod suggest;
mod target;
mod traits;
mod value;

pub use peerwarp_macros::{Choice, Family};

pub use candidates::Candidates;
pub use entry::{DynConfig, DynFamily, DynKernel, FamilyEntry, Registry, Variant, VariantIter};
pub use error::{FamilyError, NameError};
pub use field::{Allowed, FieldDefault, FieldInfo, FieldRole};
pub use legal::{Illegal, Legal};
pub use operation::Operation;
pub use target::{CudaArch, HipArch, MatrixUnit, Target, TargetError};
pub use traits::{Family, FamilyKey, Fields};
pub use value::{Choice, FieldType, Value};
