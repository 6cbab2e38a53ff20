//! `peerwarp toolchain`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use peerwarp_codegen::family::Target;
use serde_json::{Value, json};

use crate::build::toolchain::{self, Found, Installed, Origin, Set, Tool, ToolError};
use crate::input::InputError;

use super::args::{ToolchainArgs, ToolchainCommand};
use super::output::{Done, Failure, Progress, shown, table};

pub(super) fn toolchain(args: &ToolchainArgs) -> Result<Done, Failure> {
    match &args.command {
        Some(ToolchainCommand::Install { sets }) => install(sets),
        None if args.env => Ok(environment()),
        None => Ok(overview()),
    }
}

fn search() -> Vec<(Tool, Result<Found, ToolError>)> {
    Tool::ALL.into_iter().map(|tool| (tool, toolchain::find(tool))).collect()
}

fn overview() -> Done {
    let tools = search();
    let rows = tools.iter().filter_map(|(tool, found)| {
        let found = found.as_ref().ok()?;
        let origin = match found.origin {
            Origin::Variable => tool.variable(),
            Origin::Installed => "installed",
            Origin::System => "system",
        };
        Some(vec![
            tool.name().to_owned(),
            found.version.to_string(),
            origin.to_owned(),
            targets(found),
            found.path.display().to_string(),
        ])
    });
    let mut text = table(&["tool", "version", "from", "serves for", "path"], rows);
    for (_, found) in &tools {
        if let Err(e) = found {
            writeln!(text, "{e}").expect("string");
        }
    }
    Done { text, json: json!({ "tools": tools.iter().map(entry).collect::<Vec<_>>() }), ok: true }
}

fn entry((tool, found): &(Tool, Result<Found, ToolError>)) -> Value {
    let found = match found {
        Ok(found) => {
            let mut value = json!(found);
            value["serves"] =
                found.targets().collect::<Vec<Target>>().into_iter().map(|t| json!(t)).collect();
            Ok(value)
        }
        Err(e) => Err(e.to_string()),
    };
    let (found, missing) = (found.as_ref().ok(), found.as_ref().err());
    json!({ "tool": tool, "variable": tool.variable(), "found": found, "missing": missing })
}

/// The architectures that a tool serves for, those of a run by its ends.
fn targets(found: &Found) -> String {
    let archs: Vec<&str> = found.targets().map(Target::arch).collect();
    match archs.as_slice() {
        [] => String::new(),
        [first, _, .., last] if archs.len() > 3 => format!("{first} .. {last}"),
        few => few.join(" "),
    }
}

/// What was found, as a shell exports it.
fn environment() -> Done {
    let found: Vec<Found> = search().into_iter().filter_map(|(_, found)| found.ok()).collect();
    let line = |f: &Found| format!("export {}={}\n", f.tool.variable(), quoted(f.path.as_os_str()));
    let pairs = found.iter().map(|f| (f.tool.variable().to_owned(), shown(&f.path)));
    Done { text: found.iter().map(line).collect(), json: Value::Object(pairs.collect()), ok: true }
}

/// A word that the shell takes as it is. One that is not UTF-8 is written as bash, zsh and newer shells read it: this output is
/// text.
fn quoted(word: &OsStr) -> String {
    if let Some(text) = word.to_str() {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"'\\".contains(&byte);
    let one = |&byte: &u8| if plain(byte) { char::from(byte).to_string() } else { format!("\\{byte:03o}") };
    format!("$'{}'", word.as_bytes().iter().map(one).collect::<String>())
}

fn install(names: &[String]) -> Result<Done, Failure> {
    let known = || toolchain::sets().iter().map(|s| s.name.as_str());
    let find = |name: &String| {
        let set = toolchain::sets().iter().find(|s| s.name == *name);
        set.ok_or_else(|| InputError::unknown("set", name, known()))
    };
    let wanted: Vec<&Set> = match names {
        [] => toolchain::sets().iter().collect(),
        names => names.iter().map(find).collect::<Result<_, _>>()?,
    };
    let mut text = String::new();
    let mut done = vec![];
    for set in wanted {
        let progress = Progress::spinner("fetching with pip");
        let installed = toolchain::install(set);
        progress.finish();
        let now = installed? == Installed::Now;
        let what = if now { "installed" } else { "is there already" };
        writeln!(text, "{} {} ({}) {what}", set.name, set.version, set.about).expect("string");
        let folder = toolchain::cache_dir().map(|c| c.join(set.folder()));
        done.push(json!({ "set": set.name, "version": set.version, "installed": now, "folder": folder.as_deref().map(shown) }));
    }
    Ok(Done { text, json: json!({ "ok": true, "sets": done }), ok: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        let quoted = |word: &[u8]| quoted(OsStr::from_bytes(word));
        assert_eq!(quoted(b"/a b/$c"), "'/a b/$c'");
        assert_eq!(quoted(b"it's"), r"'it'\''s'");
        assert_eq!(quoted(b"/\xff'\\ $b"), r"$'/\377\047\134\040$b'");
    }
}
