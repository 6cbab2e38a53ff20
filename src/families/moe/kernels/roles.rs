//! How a launch begins, and how its blocks are divided among roles.

use peerwarp_codegen::dsl::prelude::*;

use super::plan::{Begin, Then};
use super::protocol::Phase;

/// The epoch of a launch. Of the two launches of a split operation, the second one ends it.
#[track_caller]
pub(super) fn take(epoch: &EpochWord, phase: Phase, begin: Begin) -> Epoch {
    match (phase, begin) {
        (Phase::Send, _) => epoch.peek(),
        (Phase::Both | Phase::Recv, Begin::Early) => epoch.begin_early(),
        (Phase::Both | Phase::Recv, Begin::InTurn) => epoch.begin(),
    }
}

/// Declares a role, if the launch has blocks for it.
#[track_caller]
pub(super) fn role_of(name: &str, blocks: u32, body: impl FnOnce(Group)) {
    if blocks > 0 {
        role(name, blocks, body);
    }
}

/// What a block does when its role is done.
#[track_caller]
pub(super) fn go_on(block: &Group, then: Then) {
    match then {
        Then::Leave => {}
        Then::Send => block.goes_on_as("send"),
        Then::Receive => block.goes_on_as("recv"),
    }
}
