//! Channels without what they may not need, for explorations that find out.

use std::cell::RefCell;

use serde::Serialize;

use super::ChannelShape;

/// Something that a channel has so that no message is overwritten before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spare {
    /// Its [credits](ChannelShape::credits).
    Credits,
    /// The second of its [banks](ChannelShape::banks).
    SecondBank,
}

thread_local! {
    /// What the channel of a name is declared without on this thread.
    static WITHOUT: RefCell<Option<(String, Spare)>> = const { RefCell::new(None) };
}

/// Sets it back to what it was.
struct Before(Option<(String, Spare)>);

impl Drop for Before {
    fn drop(&mut self) {
        WITHOUT.set(self.0.take());
    }
}

/// What `trace` yields where the channels of this name are declared without something, on this thread: kernels that may not be
/// right, to be run on the simulator.
#[doc(hidden)]
pub fn without<T>(channel: &str, spare: Spare, trace: impl FnOnce() -> T) -> T {
    let _before = Before(WITHOUT.replace(Some((channel.to_owned(), spare))));
    trace()
}

/// A shape as it is to be declared.
pub(super) fn explored(channel: &str, shape: ChannelShape) -> ChannelShape {
    WITHOUT.with_borrow(|without| match without {
        Some((name, Spare::Credits)) if name == channel => shape.credits(false),
        Some((name, Spare::SecondBank)) if name == channel => shape.banks(1),
        _ => shape,
    })
}
