//! Statements of each operation, control flow among them, and records of the timeline around them.

pub(super) mod flow;
pub(super) mod statements;
pub(super) mod steps;
pub(super) mod timeline;
