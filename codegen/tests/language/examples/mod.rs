//! The pages and their examples.

mod channels;
mod control;
mod counting;
mod far;
mod flags;
mod matrices;
mod memory;
mod messages;
mod shared;
mod values;
mod windows;

use crate::page::Page;

/// Every page that has entries of ops.
pub fn pages() -> Vec<Page> {
    vec![
        values::page(),
        control::page(),
        memory::page(),
        shared::page(),
        flags::page(),
        channels::page(),
        far::page(),
        messages::page(),
        windows::page(),
        counting::page(),
        matrices::page(),
        crate::attributes::page(),
    ]
}
