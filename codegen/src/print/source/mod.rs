//! An emitted source as a whole: banner, primitives, roles and entry, and warnings about it.

pub(super) mod apart;
pub(super) mod assemble;
pub(super) mod banner;
pub(super) mod entry;
pub(super) mod idle;
pub(super) mod roles;
pub(super) mod sections;
pub(super) mod texts;
