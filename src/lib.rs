//! Peerwarp.
