//! Where parcels go.

use super::buffer::Buf;
use super::mem::{AnySym, Sym};
use super::window::{AnyWindow, Window};
use crate::dsl::values::Element;

/// Memory of `T` that every rank has and that peers put into: a [`Sym`], or a [`Window`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing that peers put `{T}` into",
    note = "put into a Sym<T> or a Window<T>"
)]
pub trait Inbox<T: Element> {
    /// Its memory.
    #[doc(hidden)]
    fn inbox(&self) -> Buf;
}

/// As [`Inbox`], where the config chooses the element type: an [`AnySym`], or an [`AnyWindow`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is nothing that peers put elements of a chosen type into",
    note = "put into an AnySym or an AnyWindow"
)]
pub trait AnyInbox {
    /// Its memory.
    #[doc(hidden)]
    fn inbox(&self) -> Buf;
}

macro_rules! inboxes {
    ($($typed:ident, $any:ident;)+) => { $(
        impl<T: Element> Inbox<T> for $typed<T> {
            fn inbox(&self) -> Buf {
                self.buf
            }
        }
        impl AnyInbox for $any {
            fn inbox(&self) -> Buf {
                self.buf
            }
        }
    )+ };
}
inboxes! {
    Sym, AnySym;
    Window, AnyWindow;
}

impl<T: Element, I: Inbox<T> + ?Sized> Inbox<T> for &I {
    fn inbox(&self) -> Buf {
        (**self).inbox()
    }
}

impl<I: AnyInbox + ?Sized> AnyInbox for &I {
    fn inbox(&self) -> Buf {
        (**self).inbox()
    }
}
