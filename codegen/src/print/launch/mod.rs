//! What a host program is given: the argument struct, the header and the launcher.

pub(super) mod args;
pub(super) mod host;
pub(super) mod texts;

pub(super) use args::{ArgsLayout, TensorMap};
pub(super) use host::{EmitInfo, LaunchShape};
