//! What the library warns of, on standard error.

use log::{LevelFilter, Log, Metadata, Record};

struct StandardError;

impl Log for StandardError {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.level() <= log::Level::Warn && about.target().starts_with("peerwarp")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("warning: {}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Shows them from here on, unless the program shows them in its own way.
pub(super) fn show() {
    if log::set_logger(&StandardError).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}
