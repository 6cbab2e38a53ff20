//! Text in C++: lines, expressions, names, the templates of machine primitives, and why a kernel cannot be printed.

pub(super) mod defined;
pub(super) mod error;
pub(super) mod expr;
pub(super) mod names;
pub(super) mod prim;
pub(super) mod template;
pub(super) mod writer;

pub(super) use error::PrintError;
pub(super) use expr::{Expr, Prec};
pub(super) use names::{ArgNames, Names, OwnNames};
pub(super) use prim::{Prim, Used, type_name};
pub(super) use template::ConstantText;
pub(super) use writer::{Writer, wrap_words};
