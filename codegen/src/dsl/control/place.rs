//! Assignment, and the guard against host effects where the device decides.

use std::any::type_name;
use std::marker::PhantomData;

use crate::dsl::trace::{
    TraceError,
    error::raise,
    rt::{Mark, RegionKind},
};
use crate::dsl::values::{Element, FromRaw, IntoVal, Operand, Val};
use crate::dsl::{Tile, TileVar, Var};
use crate::ir::Loc;

/// The left side of an assignment.
#[derive(Debug)]
pub struct Place<'a, X: ?Sized>(&'a X);

/// The left side of an assignment.
pub fn place<X: ?Sized>(x: &X) -> Place<'_, X> {
    Place(x)
}

/// A variable of the device that is assigned.
#[derive(Debug)]
pub struct VarNow<T: Element>(Var<T>);

/// A tile variable of the device that is assigned.
#[derive(Debug)]
pub struct TileVarNow<T: Element>(TileVar<T>);

/// A plain Rust variable that holds a traced value, a `V`.
#[derive(Debug)]
pub struct ValNow<V>(PhantomData<V>);

/// A plain Rust variable.
#[derive(Debug)]
pub struct Plain<X>(PhantomData<X>);

/// A variable that holds something of the device.
pub trait DevicePlace {
    /// How it is assigned.
    type Now;
    /// It.
    #[doc(hidden)]
    fn now(&self) -> Self::Now;
    /// Names the value that it holds.
    #[doc(hidden)]
    fn name_value(&self, name: &str) {
        let _ = name;
    }
}

impl<T: Element> DevicePlace for Var<T> {
    type Now = VarNow<T>;
    fn now(&self) -> VarNow<T> {
        VarNow(self.handle())
    }
}

impl<T: Element> DevicePlace for TileVar<T> {
    type Now = TileVarNow<T>;
    fn now(&self) -> TileVarNow<T> {
        TileVarNow(self.handle())
    }
}

macro_rules! traced_values {
    ($($t:ty)*) => {
        $(impl<T: Element> DevicePlace for $t {
            type Now = ValNow<$t>;
            fn now(&self) -> ValNow<$t> {
                ValNow(PhantomData)
            }
            fn name_value(&self, name: &str) {
                super::names::name_value(*self, name);
            }
        })*
    };
}
traced_values!(Val<T> Tile<T>);

impl<X: DevicePlace> Place<'_, X> {
    /// How it is assigned; the borrow ends here, so that the new value may be computed from the old.
    pub fn current(self) -> X::Now {
        self.0.now()
    }

    /// Names the value of a parameter.
    pub fn name(self, name: &str) {
        self.0.name_value(name);
    }
}

/// Places that are not of the device.
pub trait AnyPlace {
    /// Type of the variable.
    type Value: ?Sized;
    /// What is assigned.
    fn current(&self) -> Plain<Self::Value>
    where
        Self::Value: Sized;
    /// No device value, nothing to name.
    fn name(&self, name: &str) {
        let _ = name;
    }
}

impl<X: ?Sized> AnyPlace for Place<'_, X> {
    type Value = X;
    fn current(&self) -> Plain<X>
    where
        X: Sized,
    {
        Plain(PhantomData)
    }
}

impl<T: Element> VarNow<T> {
    /// Assigns; the variable stays the same one.
    #[track_caller]
    pub fn set(mut self, value: impl IntoVal<T>, _: Mark, _: &str) -> Var<T> {
        self.0.set(value);
        self.0
    }

    /// `+=` and so on: the operator itself traces it.
    pub fn check(self, _: Mark, _: &str, _: &str) {}
}

impl<T: Element> TileVarNow<T> {
    /// Assigns; the variable stays the same one.
    #[track_caller]
    pub fn set(mut self, value: impl Operand<T>, _: Mark, _: &str) -> TileVar<T> {
        self.0.set(value);
        self.0
    }

    /// `+=` and so on: the operator itself traces it.
    pub fn check(self, _: Mark, _: &str, _: &str) {}
}

impl<V: FromRaw> ValNow<V> {
    /// Another value gets the name; not where the device decides whether.
    #[track_caller]
    pub fn set(self, value: V, mark: Mark, name: &str) -> V {
        change(mark, name, "=");
        super::names::name_value(value, name);
        value
    }

    /// `+=` and so on: as [`set`](ValNow::set), the operator itself traces the new value.
    #[track_caller]
    pub fn check(self, mark: Mark, name: &str, how: &str) {
        change(mark, name, how);
    }
}

impl<X> Plain<X> {
    /// Assigns; not where the device decides whether.
    #[track_caller]
    pub fn set(self, value: X, mark: Mark, name: &str) -> X {
        change(mark, name, "=");
        value
    }

    /// `+=` and so on.
    #[track_caller]
    pub fn check(self, mark: Mark, name: &str, how: &str) {
        change(mark, name, how);
    }
}

/// Fails when the variable `name` with this mark would be assigned, with the operator `how`, where the device decides
/// whether that happens.
#[track_caller]
pub fn change(mark: Mark, name: &str, how: &str) {
    if let Some(region) = mark.conditional_since() {
        let help = match name {
            "self" => "Keep what the device changes in a `var(..)`".into(),
            _ => format!("To change it on the device, declare `let mut {name} = var(..)` before"),
        };
        host_effect(&format!("`{how}` changes `{name}`"), &help, region);
    }
}

/// As [`change`], for what changes a variable in another way than by assignment. Device variables and parcels, and what
/// holds them, may change anywhere: that is traced.
#[track_caller]
pub fn touch<X: ?Sized>(_: &X, mark: Mark, name: &str, how: &str) {
    touch_type::<X>(mark, || format!("`{how}` changes `{name}`"));
}

/// `&mut x`: what is lent may be changed.
#[track_caller]
pub fn lend<'a, X: ?Sized>(x: &'a mut X, mark: Mark, name: &str) -> &'a mut X {
    touch_type::<X>(mark, || format!("`&mut` lends `{name}`"));
    x
}

#[track_caller]
fn touch_type<X: ?Sized>(mark: Mark, what: impl FnOnce() -> String) {
    if let Some(region) = mark.conditional_since()
        && !holds_device_state(type_name::<X>())
    {
        let help = "Keep what the device changes in a `var(..)`, in `shared` memory or in a buffer";
        host_effect(&what(), help, region);
    }
}

/// Whether a type is, or visibly holds, one whose changes are traced. By name: a trait would have to know the type while
/// rustc still infers it.
fn holds_device_state(type_name: &str) -> bool {
    ["dsl::values::var::Var<", "dsl::values::var::TileVar<", "dsl::comm::protocol::Parcel"]
        .iter()
        .any(|t| type_name.contains(t))
}

#[track_caller]
fn host_effect(what: &str, help: &str, (kind, opened): (RegionKind, Loc)) -> ! {
    let (place, short, why) = match kind {
        RegionKind::For | RegionKind::Dynamic | RegionKind::While | RegionKind::Condition => {
            ("a device loop", "loop", "the body is traced once, however often the device runs it")
        }
        // The others are never in the way of the host.
        RegionKind::Then
        | RegionKind::Else
        | RegionKind::Prologue
        | RegionKind::Role(_)
        | RegionKind::Split(_) => {
            ("a branch of a device `if`", "`if`", "both branches are traced, whichever the device takes")
        }
    };
    raise(
        TraceError::new(
            Loc::caller(),
            format!("{what}, a plain Rust variable, inside {place}"),
            format!(
                "{why}. {help}; if it is to happen once, while tracing, put `#[host]` before the statement"
            ),
        )
        .note(opened, format!("the {short} is here")),
    )
}

/// `return` out of a function or closure whose mark this is.
#[track_caller]
pub fn leave(mark: Mark) {
    if let Some((kind, opened)) = mark.conditional_since() {
        let what = kind.what();
        raise(
            TraceError::new(
                Loc::caller(),
                format!("`return` leaves {what}"),
                "device code cannot leave a region early: put the rest into an `else`, or use `break` in a loop",
            )
            .note(opened, format!("{what} begins here")),
        );
    }
}
