//! What a process and its parent tell each other: a line at a time. Tests of other packages do it too.

use std::io::{BufRead, Write};

/// A line for the parent. A broken pipe is a parent that is gone.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "@{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(3);
    }
}

/// The parent's next line.
pub fn hear() -> String {
    let mut line = String::new();
    if std::io::stdin().lock().read_line(&mut line).is_err() || line.is_empty() {
        std::process::exit(3);
    }
    line.trim_end().to_owned()
}

/// A card in a line.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The card that a line has.
pub fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).unwrap()).collect()
}
