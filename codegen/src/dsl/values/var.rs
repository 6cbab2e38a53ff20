//! Mutable variables of the device.

use std::fmt;
use std::marker::PhantomData;

use super::element::Element;
use super::tile::Tile;
use super::val::{Extent, FromRaw, IntoVal, Operand, Raw, Val};
use crate::dsl::trace::{
    Nameable, Thing, Trace, TraceError,
    scope::require_role,
    tracer::{attempt, with},
};
use crate::ir::{ControlOp, Loc, VarId};

/// A mutable scalar of the device; made by [`var`]. In a `#[kernel]` function assign it with `=`, `+=` and so on.
///
/// It stands for its current value wherever a [`Val`] can. Unlike [`Val`] it is not `Copy`, so that two names never mean
/// one variable: where it is needed again, use `&x` or [`x.get()`](Var::get).
pub struct Var<T: Element> {
    pub(crate) var: VarId,
    pub(crate) trace: u32,
    _t: PhantomData<(*const (), T)>,
}

/// A mutable tile of the device; made by [`var`].
pub struct TileVar<T: Element> {
    pub(crate) var: VarId,
    pub(crate) trace: u32,
    extent: Extent,
    _t: PhantomData<(*const (), T)>,
}

impl<T: Element> fmt::Debug for Var<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Var<{}>({})", T::DTYPE, self.var.0)
    }
}

impl<T: Element> fmt::Debug for TileVar<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TileVar<{}>({})", T::DTYPE, self.var.0)
    }
}

/// What a variable can start with: a host value or scalar (then it is a [`Var`]), or a tile (then a [`TileVar`]).
#[diagnostic::on_unimplemented(
    message = "a device variable cannot start with a `{Self}`",
    note = "start it with a bool, i32, u32, u64 or f32, a `Val`, or a `Tile`"
)]
pub trait IntoVar {
    /// The variable.
    type Var;
    /// Declares the variable with this as its first value.
    #[doc(hidden)]
    #[track_caller]
    fn into_var(self) -> Self::Var;
}

/// Declares a mutable variable of the device whose first value is `init`.
///
/// The branches and loops of the device are traced once each, so a plain `let mut` cannot change in them; a variable
/// can.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// #[kernel]
/// fn count_owners(ids: &Ptr<i32>, n: Val<u32>) -> Val<u32> {
///     let mut owners = var(0u64);
///     for i in 0..n {
///         let id = ids.get(i);
///         if id >= 0 {
///             owners |= bit(id.to_u32());
///         }
///     }
///     owners.get().popcount()
/// }
/// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
/// # let (ids, x): (Ptr<i32>, Ptr<u32>) = (p.arg("ids", 64), p.arg("x", 1));
/// # role("main", 1, |_| x.set(0, count_owners(&ids, x.get(0))));
/// # }).unwrap();
/// ```
///
/// # Errors
/// Ends the trace when it stands before the roles.
#[track_caller]
pub fn var<I: IntoVar>(init: I) -> I::Var {
    init.into_var()
}

macro_rules! host_into_var {
    ($($t:ty)*) => {
        $(impl IntoVar for $t {
            type Var = Var<$t>;
            #[track_caller]
            fn into_var(self) -> Var<$t> {
                self.val().into_var()
            }
        })*
    };
}
host_into_var!(bool i32 u32 u64 f32);

impl<T: Element> IntoVar for Val<T> {
    type Var = Var<T>;
    #[track_caller]
    fn into_var(self) -> Var<T> {
        let (var, trace) = declare(self.to_raw(), Loc::caller());
        Var { var, trace, _t: PhantomData }
    }
}

impl<T: Element> IntoVar for Tile<T> {
    type Var = TileVar<T>;
    #[track_caller]
    fn into_var(self) -> TileVar<T> {
        let loc = Loc::caller();
        let (var, trace) = declare(self.to_raw(), loc);
        let ty = with(loc, |t| t.builder.kernel.vars[var.index()].ty);
        let extent = Extent::from_type(ty).unwrap_or(self.len().into());
        TileVar { var, trace, extent, _t: PhantomData }
    }
}

fn declare(init: Raw, loc: Loc) -> (VarId, u32) {
    require_role(loc, "a variable");
    attempt(loc, |t| {
        let init = t.use_value(init.trace, init.id, loc)?;
        let ty = t.ty(init);
        let var = t.builder.var(ty, loc);
        let made = t.made(loc);
        t.vars.push(made);
        t.push(ControlOp::VarDecl { var, init }, loc);
        t.yielded.push(Nameable::Var(var));
        Ok((var, t.id))
    })
}

fn check(t: &Trace, var: VarId, trace: u32, loc: Loc) -> Result<(), TraceError> {
    t.same_trace(trace, Thing::Variable, loc)?;
    t.reachable(t.vars[var.index()], Thing::Variable, loc)
}

fn read(var: VarId, trace: u32, loc: Loc) -> Raw {
    attempt(loc, |t| {
        check(t, var, trace, loc)?;
        let ty = t.builder.kernel.vars[var.index()].ty;
        if ty.is_tile() {
            t.same_group(t.vars[var.index()], Thing::Variable, loc)?;
        }
        let out = t.emit(ty, loc, |out| ControlOp::VarGet { out, var });
        Ok(t.raw(out))
    })
}

fn write(var: VarId, trace: u32, value: Raw, loc: Loc) {
    attempt(loc, |t| {
        check(t, var, trace, loc)?;
        let made = t.vars[var.index()];
        if let Some((_, split)) = t.split_since(made.scope) {
            return Err(TraceError::new(
                loc,
                "a variable of the block assigned inside a split",
                "every group of a split has its own values: declare the variable inside the split, or use `shared` memory",
            )
            .note(made.loc, "the variable is declared here")
            .note(split, "the split begins here"));
        }
        let value = t.use_value(value.trace, value.id, loc)?;
        t.push(ControlOp::VarSet { var, value }, loc);
        Ok(())
    })
}

impl<T: Element> Var<T> {
    /// The current value.
    #[track_caller]
    pub fn get(&self) -> Val<T> {
        Val::from_raw(read(self.var, self.trace, Loc::caller()))
    }

    /// Assigns a new value.
    #[track_caller]
    pub fn set(&mut self, value: impl IntoVal<T>) {
        write(self.var, self.trace, value.val().to_raw(), Loc::caller());
    }

    /// A second handle of the same variable, for rewritten assignments.
    #[doc(hidden)]
    pub fn handle(&self) -> Var<T> {
        Var { var: self.var, trace: self.trace, _t: PhantomData }
    }
}

impl<T: Element> TileVar<T> {
    /// The current value.
    #[track_caller]
    pub fn get(&self) -> Tile<T> {
        Tile::from_raw(read(self.var, self.trace, Loc::caller()))
    }

    /// Assigns a new value: a tile of the same length, or a scalar for all elements.
    #[track_caller]
    pub fn set(&mut self, value: impl Operand<T>) {
        let loc = Loc::caller();
        let raw = super::tile::spread(value.raw(), self.extent, loc);
        write(self.var, self.trace, raw, loc);
    }

    /// Number of elements.
    #[allow(clippy::len_without_is_empty)] // no tile is empty
    pub fn len(&self) -> u32 {
        self.extent.len()
    }

    /// A second handle of the same variable, for rewritten assignments.
    #[doc(hidden)]
    pub fn handle(&self) -> TileVar<T> {
        TileVar { var: self.var, trace: self.trace, extent: self.extent, _t: PhantomData }
    }
}

macro_rules! variable_operand {
    ($($t:ty)*) => {
        $(#[diagnostic::do_not_recommend]
        impl<T: Element> IntoVal<T> for $t {
            #[track_caller]
            fn val(self) -> Val<T> {
                self.get()
            }
        }
        #[diagnostic::do_not_recommend]
        impl<T: Element> Operand<T> for $t {
            type Out = Val<T>;
            type Truth = Val<bool>;
            #[track_caller]
            fn raw(self) -> Raw {
                self.get().to_raw()
            }
        })*
    };
}
variable_operand!(Var<T> &Var<T>);
