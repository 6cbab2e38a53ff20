//! Matrices that say their element type.

use std::marker::PhantomData;
use std::ops::Deref;

use super::any::{AnyMatrix, AnySymMatrix};
use super::window::AnyWindowMatrix;
use crate::dsl::memory::{
    Arg, Bound, TypedArg,
    args::MatrixArg,
    mem::{Ptr, Sym},
};
use crate::dsl::values::Element;
use crate::ir::{Dtype, ParamKind};

macro_rules! typed_matrix {
    ($(#[$doc:meta])* $name:ident of $any:ident, $elements:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name<T: Element> {
            any: $any,
            _t: PhantomData<T>,
        }

        impl<T: Element> Deref for $name<T> {
            type Target = $any;
            fn deref(&self) -> &$any {
                &self.any
            }
        }

        impl<T: Element> Arg for $name<T> {
            const KIND: ParamKind = $any::KIND;
            fn bind(b: Bound) -> Self {
                $name { any: $any::bind(b), _t: PhantomData }
            }
        }
        impl<T: Element> MatrixArg for $name<T> {}
        impl<T: Element> TypedArg for $name<T> {
            const DTYPE: Dtype = T::DTYPE;
        }

        impl<T: Element> $name<T> {
            /// The same memory as a vector: element `row * columns + column`.
            pub fn elements(&self) -> $elements<T> {
                $elements { buf: self.any.elements().buf, _t: PhantomData }
            }
        }
    };
}

typed_matrix!(
    /// An [`AnyMatrix`] of `T`: `#[shape(|c| [rows, columns])]` says its shape.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{TraceMeta, prelude::*, trace_args};
    /// # struct Product { m: u32, n: u32, k: u32 }
    /// #[derive(KernelArgs)]
    /// #[args(config = Product)]
    /// struct ProductArgs {
    ///     #[input] #[shape(|c| [c.m, c.k])] x: Matrix<bf16>,
    ///     #[input] #[shape(|c| [c.n, c.k])] w: Matrix<bf16>,
    ///     #[output] #[shape(|c| [c.m, c.n])] out: Matrix<f32>,
    /// }
    /// # let config = Product { m: 128, n: 128, k: 64 };
    /// # trace_args::<ProductArgs>(TraceMeta::new("product", 1, 32, 8), &config, |_, a| {
    /// role("multiply", 1, |b| {
    ///     a.out.rows(0, 128).store_f32(0, b.dot(a.x.rows(0, 128), a.w.rows(0, 128), 2));
    /// });
    /// # })?;
    /// # Ok::<(), TraceError>(())
    /// ```
    Matrix of AnyMatrix, Ptr
);
typed_matrix!(
    /// An [`AnySymMatrix`] of `T`: `#[shape(|c| [rows, columns])]` says its shape.
    SymMatrix of AnySymMatrix, Sym
);
typed_matrix!(
    /// An [`AnyWindowMatrix`] of `T`: `#[shape(|c| [rows, columns])]` says its shape.
    WindowMatrix of AnyWindowMatrix, Ptr
);
