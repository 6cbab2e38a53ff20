//! The families of kernels that come with Peerwarp, a folder each.
//!
//! Any family's variants are chosen at launch by a [`Registry`](crate::runtime::registry::Registry):
//!
//! ```
//! use peerwarp::codegen::family::Family;
//! use peerwarp::families::moe::kernels::RoundTrip;
//! use peerwarp::families::moe::{MoeShape, RowDtype};
//! use peerwarp::runtime::registry::{Registry, Selected};
//!
//! let shape = |tokens| MoeShape { hidden: 7168, experts: 256, topk: 8, tokens, ranks: 8, dtype: RowDtype::Bf16 };
//! let of = |tokens| RoundTrip::defaults(&shape(tokens));
//! let registry = Registry::new([of(16)?, of(64)?], false);
//! let selected = registry.select(&of(50)?.key())?;
//! assert!(matches!(selected, Selected::Covering(variant) if variant.tokens == 64));
//! assert!(registry.select(&of(65)?.key()).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod collectives;
pub mod matmul;
pub mod moe;
mod nodes;
mod quantise;
mod scales;

/// Shared memory that a block's arrays can take on every supported device: 64 KiB of AMD's, less what reductions take.
const MAX_SHARED_BYTES: u64 = 62 << 10;
