//! Pages, made of the sources' docs and of examples.

use crate::example::Example;
use crate::functions;
use crate::surface::{Op, Surface};

/// What a `#[kernel]` function has besides the prelude.
pub const CONSTRUCTS: [(&str, &str); 11] = [
    (
        "if",
        "`if`, `else if`, `else`: a condition of the host decides while tracing, a `Val<bool>` on the device. As an expression it merges \
     the values of its arms. Each arm is traced once.\n\n# Errors\nEnds the trace where a `let mut` of the host changes in an arm (use `var`), \
     and where `return` or `?` leaves an arm: put the rest into an `else`.",
    ),
    (
        "while",
        "Runs while a condition of the device holds. What the condition reads stands in variables.\n\n# Errors\nEnds the trace where \
     nothing in the loop can change: a `let mut` of the host does not.",
    ),
    (
        "for",
        "`for i in 0..n` with an end of the device, and ranges of groups and tiles. A range of the host is unrolled.\n\n# Errors\nEnds the \
     trace for a step of zero.",
    ),
    (
        "break",
        "Leaves a loop, also an outer one by its label.\n\n# Errors\nEnds the trace in a loop of `Group::dynamic`, whose counter the last \
     group resets.",
    ),
    ("continue", "Goes on with the next turn, also of an outer loop by its label."),
    ("==", "`== != < <= > >=` of two values of one type; those of tiles compare element by element."),
    ("&&", "`&& ||` of conditions of the device. The right side runs only where it decides."),
    (
        "=",
        "Assigns a variable, also by `+= -= *= /= %= &= |= ^= <<= >>=`. The variable is one of `var`.\n\n# Errors\nEnds the trace for a \
     `let mut` of the host inside an arm or loop of the device.",
    ),
    (
        "+",
        "`+ - * / %` of scalars, tiles and host values of one type; a scalar and a tile make a tile. Integers wrap.\n\n# Errors\nThe simulator \
     reports an integer division by zero.",
    ),
    (
        "&",
        "`& | ^ << >>` of integers, `& | ^` of `bool`.\n\n# Errors\nThe simulator reports a shift by the operand's width or more.",
    ),
    ("!", "`!` of integers and `bool`, unary `-` of `i32` and `f32`."),
];

/// A page of the reference.
pub struct Page {
    pub file: &'static str,
    pub title: &'static str,
    /// What the ops of the page have in common.
    pub intro: String,
    /// The types it documents, in order.
    pub kinds: &'static [&'static str],
    pub examples: Vec<Example>,
    /// The file of its examples.
    pub source: &'static str,
}

impl Page {
    /// An example's kernel as it stands in its file.
    pub fn body(&self, example: &Example) -> String {
        let heads = [" ", "\n"].map(|end| format!("\n    {}{end}", example.name));
        let (_, from) = heads
            .iter()
            .find_map(|head| self.source.split_once(head))
            .expect("the example stands in its page's file");
        let (_, from) = from.split_once("\n    {\n").expect("an example has a body");
        let (body, _) = from.split_once("\n    }\n").expect("a body ends");
        let lines = body.lines().map(|line| line.strip_prefix("        ").unwrap_or(line));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Its parameters and its kernel.
    pub fn kernel(&self, example: &Example) -> String {
        let params = example.params.iter().map(|(name, ty, of)| match ty.contains("Channel") {
            true => format!("// {name}: {ty}[{of}]\n"),
            false => format!("// {name}: {ty}[{}]\n", of.replace("Dtype::", "")),
        });
        let mut lines: Vec<String> = vec![];
        for param in params {
            // Short ones share a line.
            match lines.last_mut().filter(|line| line.len() + param.len() < 100) {
                Some(line) => *line = format!("{}, {}", line.trim_end(), param.trim_start_matches("// ")),
                None => lines.push(param),
            }
        }
        lines.concat() + &self.body(example)
    }

    pub fn text(&self, surface: &Surface) -> String {
        let mut text = format!("# {}\n\n{}\n", self.title, self.intro);
        let is_of = |example: &Example, kind: &str| owner(example.ops[0]).is_some_and(|o| bare(o) == kind);
        for example in self.examples.iter().filter(|e| !self.kinds.iter().any(|kind| is_of(e, kind))) {
            text += &self.entry(surface, example);
        }
        for kind in self.kinds {
            let Some(found) = surface.kinds.get(*kind) else { continue };
            text += &format!("\n## {kind}\n\n`{}`\n\n{}\n", found.declaration, with_code(&found.docs));
            for example in self.examples.iter().filter(|e| is_of(e, kind)) {
                text += &self.entry(surface, example);
            }
        }
        text
    }

    fn entry(&self, surface: &Surface, example: &Example) -> String {
        let title: Vec<String> = example.ops.iter().map(|op| format!("`{op}`")).collect();
        let mut text = format!("\n### {}\n\n", title.join(", "));
        let ops: Vec<&Op> = example
            .ops
            .iter()
            .flat_map(|key| surface.ops.iter().filter(move |op| op.key() == *key))
            .collect();
        if !ops.is_empty() {
            text += "```rust\n";
            let mut of = "";
            for op in &ops {
                if op.of != of {
                    of = &op.of;
                    text += &format!("{of}\n");
                }
                text += &format!(
                    "{}{}\n",
                    if op.of.is_empty() { "" } else { "    " },
                    indented(&op.signature, "    ")
                );
            }
            text += "```\n\n";
        }
        let constructs =
            CONSTRUCTS.iter().filter(|c| example.ops.contains(&c.0)).map(|c| (c.0, c.1.to_owned()));
        let mut told: Vec<(String, String)> =
            constructs.map(|(name, docs)| (name.into(), prose(&docs))).collect();
        told.extend(ops.iter().map(|op| (op.key(), prose(&op.docs))));
        told.dedup();
        for (name, docs) in told {
            text += &match example.ops.len() {
                1 => format!("{docs}\n\n"),
                _ => format!("- `{name}`: {}\n", indented(&docs, "  ")),
            };
        }
        let text = text.trim_end();
        format!("{text}\n\n```rust\n{}\n```\n\n{}", self.kernel(example), prints(example) + &calls(example))
    }
}

/// What the two targets of the pages print.
fn prints(example: &Example) -> String {
    let cpp = |lines: Vec<String>| format!("```cpp\n{}\n```\n", lines.join("\n"));
    let said = |target: &str, printed: Result<Vec<String>, String>| match printed {
        Ok(lines) => format!("`{target}` prints:\n\n{}", cpp(lines)),
        Err(why) => format!("`{target}` refuses it:\n\n```text\n{why}\n```\n"),
    };
    match (example.printed("cuda:sm_90a"), example.printed("hip:gfx942")) {
        (Ok(cuda), Ok(hip)) if cuda == hip => format!("`sm_90a` and `gfx942` print:\n\n{}", cpp(cuda)),
        (Err(why), Err(_)) => {
            let lines = example.printed("cuda:sm_100a");
            let lines = lines.unwrap_or_else(|_| panic!("no target takes `{}`: {why}", example.name));
            format!(
                "`sm_90a` and `gfx942` refuse it. `sm_100a` (never run on hardware) prints:\n\n{}",
                cpp(lines)
            )
        }
        (cuda, hip) => format!("{}\n{}", said("sm_90a", cuda), said("gfx942", hip)),
    }
}

/// Links to the functions that the lines call.
fn calls(example: &Example) -> String {
    let links =
        functions::called_by(example).into_iter().map(|name| format!("[`{name}`](functions.md#{name})"));
    let links: Vec<String> = links.collect();
    if links.is_empty() { String::new() } else { format!("\nCalled functions: {}.\n", links.join(", ")) }
}

/// `Ptr` of `Ptr::load`.
fn owner(key: &str) -> Option<&str> {
    key.rsplit_once("::").map(|(owner, _)| owner)
}

/// `Incoming` of `Incoming<Any>`.
fn bare(owner: &str) -> &str {
    owner.split('<').next().unwrap_or(owner)
}

/// Whether an example's text uses an op.
pub fn uses(body: &str, op: &str) -> bool {
    let name = op.rsplit("::").next().unwrap_or(op);
    match name.chars().all(|c| c.is_alphanumeric() || c == '_') {
        false => body.contains(&format!(" {name}")) || body.contains(&format!("({name}")),
        true if CONSTRUCTS.iter().any(|c| c.0 == name) => body.contains(name),
        true => [format!("{name}("), format!("{name}::<")].iter().any(|call| body.contains(call)),
    }
}

fn indented(text: &str, by: &str) -> String {
    let lines = text.lines().enumerate().map(|(at, line)| match at {
        0 => line.to_owned(),
        _ if line.is_empty() => String::new(),
        _ => format!("{by}{line}"),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A doc comment without its code.
fn prose(docs: &str) -> String {
    let parts = docs.split("```").step_by(2).map(str::trim).filter(|part| !part.is_empty());
    let ended = parts.map(|part| part.strip_suffix(':').map_or(part.to_owned(), |part| format!("{part}.")));
    plain(&ended.collect::<Vec<_>>().join("\n\n"))
}

/// A doc comment with its code, without the lines that rustdoc hides.
pub fn with_code(docs: &str) -> String {
    let (mut text, mut open) = (String::new(), false);
    for line in docs.lines() {
        if line.starts_with("```") {
            text += match (open, line.contains("compile_fail")) {
                (true, _) => "```\n",
                (false, true) => "```rust\n// It does not compile.\n",
                (false, false) => "```rust\n",
            };
            open = !open;
        } else if !open || line != "#" && !line.starts_with("# ") {
            text += &format!("{line}\n");
        }
    }
    plain(text.trim_end())
}

/// Links of rustdoc as plain text, and sections as bold words.
fn plain(docs: &str) -> String {
    let mut lines = vec![];
    let mut section: Option<String> = None;
    for line in docs.lines() {
        if let Some(title) = line.strip_prefix("# ").filter(|t| !t.contains(|c: char| "!([{".contains(c))) {
            section = Some(title.to_owned());
            continue;
        }
        if line.starts_with('[') && line.contains("]: ") {
            continue;
        }
        match section.take() {
            Some(title) if !line.is_empty() => lines.push(format!("**{title}.** {line}")),
            title => {
                section = title;
                lines.push(line.to_owned());
            }
        }
    }
    let mut text = lines.join("\n");
    for end in ["](", "]"] {
        let mut rest = std::mem::take(&mut text);
        while let Some(at) = rest.find(end) {
            let from = if rest[..at].ends_with('`') { rest[..at].rfind("[`") } else { rest[..at].rfind('[') };
            let (before, after) = (rest[..at].to_owned(), rest[at + end.len()..].to_owned());
            let target = after.split(')').next().unwrap_or_default().to_owned();
            match from {
                Some(from) if end == "](" && !target.contains("http") => {
                    text += &format!("{}{}", &before[..from], &before[from + 1..]);
                    rest = after[target.len() + 1..].to_owned();
                }
                Some(from) if end == "]" && before[from..].starts_with("[`") && before.ends_with('`') => {
                    text += &format!("{}{}", &before[..from], &before[from + 1..]);
                    rest = after;
                }
                _ => {
                    text += &format!("{before}{end}");
                    rest = after;
                }
            }
        }
        text += &rest;
    }
    text.trim().to_owned()
}

/// What entries have in common.
const HOW_TO_READ: &str = "\
A kernel is a Rust function that runs once for each configuration and records what it does with device values. \
`use peerwarp::prelude::*` brings every op and type of these pages.

An entry has the signature, what the op does, what it **orders**, its **errors**, and an example. Comments of an example declare its \
parameters. Their brackets hold a length; an element type and a length; an element type, rows and columns; or a channel's shape and \
the length of a message. Below the kernel stand the lines that are emitted for `sm_90a` (CUDA) and `gfx942` (HIP), with 64 threads a \
block and 2 ranks. [Functions](functions.md) has the functions that these lines call. Every example runs on the simulator, and its results are compared.

An op outside a role ends the trace with an error at the author's line, unless it only asks the host. So does a value outside the arm, \
loop or split that made it, and a value or parameter of another kernel. What the checker reports \
has a name such as `data-race`: [the protocol checker](../../explanation/checker.md#findings) explains each.

[Attributes](attributes.md) has the attributes of families and parameters, [Limits](limits.md) what cannot be expressed, and [Errors and \
advice](errors.md) what an error's message means.";

/// A text up to the first mark that ends a clause: one before a space. `Window::of` and `2.5` have none.
fn first_clause(text: &str) -> &str {
    let ends = [". ", ": ", "; "].iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    text[..ends].trim().trim_end_matches(['.', ':', ';'])
}

/// The page that lists every op.
pub fn index(surface: &Surface, pages: &[Page]) -> String {
    let mut rows: Vec<(String, &Page)> = vec![];
    for page in pages {
        rows.extend(page.examples.iter().flat_map(|e| e.ops).map(|op| ((*op).to_owned(), page)));
    }
    rows.sort_by_key(|(op, _)| op.to_lowercase());
    let mut text =
        format!("# The language: every op\n\n{HOW_TO_READ}\n\n| op | what it does | page |\n|---|---|---|\n");
    for (key, page) in rows {
        let docs = surface.ops.iter().find(|op| op.key() == key).map(|op| op.docs.clone());
        let docs = docs
            .or_else(|| CONSTRUCTS.iter().find(|c| c.0 == key).map(|c| c.1.to_owned()))
            .unwrap_or_default();
        let whole = prose(&docs).replace('\n', " ");
        let first = first_clause(&whole).replace('|', "\\|");
        text +=
            &format!("| `{}` | {first} | [{}]({}.md) |\n", key.replace('|', "\\|"), page.title, page.file);
    }
    text
}

#[test]
fn a_first_clause_keeps_paths_whole() {
    assert_eq!(first_clause("As `Window::of`. Reads nothing."), "As `Window::of`");
    assert_eq!(first_clause("Waits; then reads 2.5 words: all."), "Waits");
    assert_eq!(first_clause("Element type."), "Element type");
}
