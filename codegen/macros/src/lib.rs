//! Macros of Peerwarp.
