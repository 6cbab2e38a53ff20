//! Text in C++: lines, expressions, names, the templates of machine primitives, and why a kernel cannot be printed.

pub(super) mod defined;
pub(super) mod error;
pub(super) mod expr;
pub(super) mod names;
pub(super) mod prim;
pub(super) mod template;
pub(super) mod writer;
