//! `libpeerwarp_c`: packs, worlds and launches for C and C++. `include/peerwarp.h` is made of this source.

mod error;
mod handles;
mod operation;
mod world;

pub use error::{PeerwarpResult, peerwarp_last_error};
pub use operation::{
    PeerwarpArgument, PeerwarpOperation, PeerwarpPack, peerwarp_launch, peerwarp_operation_free,
    peerwarp_operation_new, peerwarp_pack_free, peerwarp_pack_open, peerwarp_simulate,
};
pub use world::{
    PeerwarpMemory, PeerwarpWorld, PeerwarpWorldOptions, peerwarp_empty, peerwarp_memory_free,
    peerwarp_world_check, peerwarp_world_deactivate, peerwarp_world_finish, peerwarp_world_free,
    peerwarp_world_go_on, peerwarp_world_in_place_of, peerwarp_world_launched, peerwarp_world_place,
    peerwarp_world_replace, peerwarp_world_reset, peerwarp_world_simulated,
};
