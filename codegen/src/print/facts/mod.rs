//! What is decided about a kernel before anything is written: forms of values, barriers, places of records.

pub(super) mod effects;
pub(super) mod forms;
pub(super) mod kernel;
pub(super) mod options;
pub(super) mod sync;
pub(super) mod timeline;

pub(super) use forms::{Form, Forms};
pub(super) use kernel::{Facts, Side};
pub(super) use options::{EmitOptions, FarEngine};
pub(super) use sync::Barriers;
pub(super) use timeline::{Sites, Timeline, TimelineSite};
