//! Families as a crate that derives them sees them: names, candidates, settings, errors.

#[cfg(feature = "clap")]
mod command_line;
mod names;
pub mod odd;
mod properties;
mod tuning;
mod views;
