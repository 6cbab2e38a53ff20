//! What a command found, and how it gets to the user.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use peerwarp_codegen::threads;
use serde_json::{Value, json};

use crate::build::emit::EmitError;
use crate::build::pack::BuildError;
use crate::build::replace::Replacement;
use crate::build::toolchain::{InstallError, ToolError};
use crate::harness::workload::WorkloadError;
use crate::input::InputError;
use crate::runtime::RuntimeError;

use super::args::When;

/// The outcome of a command that could do its work.
pub(crate) struct Done {
    /// For people.
    pub text: String,
    /// For programs.
    pub json: Value,
    /// Whether nothing is wrong; decides the exit status.
    pub ok: bool,
}

impl Done {
    /// All is well, and somebody else tells.
    pub fn nothing() -> Done {
        Done { text: String::new(), json: Value::Null, ok: true }
    }

    /// With notes by their names in JSON.
    #[must_use]
    pub fn noted(mut self, notes: Vec<(&'static str, String)>) -> Done {
        for (name, note) in notes {
            self.text += &format!("\nnote: {note}\n");
            self.json[name] = note.into();
        }
        self
    }

    /// What goes to standard output.
    pub fn said(self, json: bool) -> String {
        match (json, &self.json) {
            (true, Value::Null) => String::new(),
            (true, found) => pretty(found),
            (false, _) => self.text,
        }
    }
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The input cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The kernel's author has something to fix; says where.
    #[error("{0}")]
    Kernel(String),
    /// A compiler is missing, or could not be installed; says what to do.
    #[error("{0}")]
    Toolchain(String),
    /// There are no GPUs to run on, or what ran on them failed.
    #[error(transparent)]
    Gpu(#[from] Box<RuntimeError>),
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        match error {
            RuntimeError::Emit(e) => e.into(),
            other => Failure::Gpu(Box::new(other)),
        }
    }
}

impl From<EmitError> for Failure {
    fn from(error: EmitError) -> Failure {
        match error {
            EmitError::Input(e) => Failure::Input(e),
            EmitError::Threads(e) => RuntimeError::from(e).into(),
            EmitError::Kernel { variant, message } => Failure::Kernel(format!("{variant}: {message}")),
        }
    }
}

impl From<WorkloadError> for Failure {
    fn from(error: WorkloadError) -> Failure {
        match error {
            WorkloadError::Input(e) => Failure::Input(e),
            WorkloadError::Kernel(message) => Failure::Kernel(message),
            WorkloadError::Runtime(e) => e.into(),
        }
    }
}

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Failure {
        match error {
            BuildError::Emit(e) => e.into(),
            BuildError::Input(e) => Failure::Input(e),
            BuildError::Compiler(e) => Failure::Toolchain(e.to_string()),
            BuildError::Compile(_) | BuildError::Refused(_) => Failure::Kernel(error.to_string()),
        }
    }
}

impl From<ToolError> for Failure {
    fn from(error: ToolError) -> Failure {
        Failure::Toolchain(error.to_string())
    }
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Failure {
        Failure::Toolchain(error.to_string())
    }
}

impl Failure {
    /// 2 for input or a machine that cannot be used, 1 for kernels that are wrong.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Input(_) | Failure::Toolchain(_) => 2,
            Failure::Kernel(_) => 1,
            Failure::Gpu(e) => match **e {
                RuntimeError::Aborted(_) | RuntimeError::Compile { .. } => 1,
                _ => 2,
            },
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let message = self.to_string();
        match self {
            Failure::Input(e) => {
                let mut error = json!(e);
                error["message"] = message.into();
                json!({ "ok": false, "error": error })
            }
            Failure::Kernel(_) | Failure::Toolchain(_) | Failure::Gpu(_) => {
                json!({ "ok": false, "error": { "message": message } })
            }
        }
    }
}

/// Colours, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    on: bool,
}

impl Style {
    /// For standard output.
    pub fn stdout(when: When) -> Style {
        Style::new(when, std::io::stdout().is_terminal())
    }

    /// For standard error.
    pub fn stderr(when: When) -> Style {
        Style::new(when, std::io::stderr().is_terminal())
    }

    fn new(when: When, terminal: bool) -> Style {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        let on = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => terminal && wanted,
        };
        Style { on }
    }

    /// Whether there are colours.
    pub fn on(self) -> bool {
        self.on
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// For what went well.
    pub fn good(self, text: &str) -> String {
        self.paint("1;32", text)
    }

    /// For what did not.
    pub fn bad(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    /// For headings.
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }
}

/// A table without frame, numbers to the right.
pub(crate) fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(head);
    let mut numeric = vec![true; head.len()];
    for row in rows {
        for (all, cell) in numeric.iter_mut().zip(&row) {
            *all &= cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        }
        table.add_row(row);
    }
    for (column, numeric) in table.column_iter_mut().zip(numeric) {
        column.set_padding((0, 2));
        if numeric {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// A file to be written when long work is done. That it can be is known before; a file that is there already stays until
/// then, and for good if the work fails.
pub(crate) struct Pending {
    field: &'static str,
    path: PathBuf,
    file: Replacement,
}

impl Pending {
    /// For the path that an option names.
    pub fn new(field: &'static str, path: &Path) -> Result<Pending, InputError> {
        if path.is_dir() {
            return Err(InputError::not_allowed(field, path.display(), "a file"));
        }
        let allowed = "a file in a folder that is there and can be written";
        let file =
            Replacement::of(path).map_err(|e| InputError::io(field, path.display(), &e).allowed(allowed))?;
        Ok(Pending { field, path: path.to_owned(), file })
    }

    /// Puts the text in place.
    pub fn write(self, text: &[u8]) -> Result<(), InputError> {
        let Pending { field, path, file } = self;
        file.write(|file| file.write_all(text)).map_err(|e| InputError::io(field, path.display(), &e))
    }
}

/// Progress of long work on standard error, if that is a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Ends the thread that turns a spinner, when it is dropped.
    _turning: Option<Sender<()>>,
}

/// How often a spinner turns.
const TURN: Duration = Duration::from_millis(100);

impl Progress {
    /// Of `total` steps.
    pub fn new(what: &'static str, total: u64) -> Progress {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} ({eta})");
        Progress::with(what, ProgressBar::new(total), style)
    }

    /// Of work whose length is not known.
    pub fn spinner(what: &'static str) -> Progress {
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        let progress = Progress::with(what, ProgressBar::new_spinner(), style);
        if progress.bar.is_hidden() {
            return progress;
        }
        let (turning, over) = channel();
        let bar = progress.bar.clone();
        // Without a thread the spinner stands still.
        let turn = threads::spawn(move || {
            while over.recv_timeout(TURN) == Err(RecvTimeoutError::Timeout) {
                bar.tick();
            }
        });
        Progress { _turning: turn.ok().map(|_| turning), ..progress }
    }

    fn with(
        what: &'static str,
        bar: ProgressBar,
        style: Result<ProgressStyle, indicatif::style::TemplateError>,
    ) -> Progress {
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_message(what);
        Progress { bar, _turning: None }
    }

    /// One step more is done.
    pub fn tick(&self) {
        self.bar.inc(1);
    }

    /// So many steps are done; says what is being done.
    pub fn at(&self, step: u64, what: String) {
        self.bar.set_position(step);
        self.bar.set_message(what);
    }

    /// Takes it off the screen.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// A number of bytes as people read it.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (n.max(1).ilog2() / 10).min(4);
    match power {
        0 => format!("{n} B"),
        p => format!("{:.1} {}", n as f64 / f64::from(p * 10).exp2(), UNITS[p as usize]),
    }
}

/// Writes to standard output. A reader that went away early (`| head`) is no error.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A path in JSON, which has nothing but text: what is not UTF-8 of it reads as U+FFFD.
pub(crate) fn shown(path: &Path) -> Value {
    path.to_string_lossy().into_owned().into()
}

/// JSON as it is printed: indented, with a newline at the end.
pub(crate) fn pretty(json: &Value) -> String {
    format!("{json:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_numbers_to_the_right() {
        let rows = [["a", "9", "x 1"], ["bcd", "128", ""]].map(|r| r.map(String::from).into());
        assert_eq!(table(&["name", "n", "note"], rows), "name    n  note\na       9  x 1\nbcd   128\n");
    }

    #[test]
    fn bytes_have_units() {
        let shown = [0, 1, 1023, 1024, 1 << 20, 3 << 29, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "1 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB", "16777216.0 TiB"]);
    }
}
