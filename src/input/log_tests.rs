//! What the library logs while tests run. A process has one logger, so all tests share it.

use std::sync::Mutex;

struct Kept(Mutex<Vec<String>>);
static KEPT: Kept = Kept(Mutex::new(vec![]));

impl log::Log for Kept {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(format!("{}: {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// Keeps what is logged from here on.
pub(crate) fn keep() {
    // Another test may have done so before.
    let _ = log::set_logger(&KEPT);
    log::set_max_level(log::LevelFilter::Warn);
}

/// What was logged, a line each, with its level.
pub(crate) fn kept() -> Vec<String> {
    KEPT.0.lock().unwrap().clone()
}
