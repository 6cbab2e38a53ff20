//! Families as a crate that derives them sees them: names, candidates, settings, errors.

mod alone;
mod names;
pub mod odd;
mod properties;
mod tuning;
mod views;
