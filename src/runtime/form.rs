//! What can go wrong while ranks come together, or when one of them goes.

/// Why there is no world, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum FormError {
    /// A rank could not use the memory of another one, although the driver mapped it.
    #[error(
        "what rank {from} wrote to the memory of rank {to} did not arrive: wrote {wrote:#x}, found {found:#x}"
    )]
    Unreachable {
        /// The rank that wrote.
        from: u32,
        /// The rank whose memory it is.
        to: u32,
        /// What was written.
        wrote: u64,
        /// What was there instead.
        found: u64,
    },
}
