//! Which parts of the primitives come before the roles, and which after: a reader comes to the roles first.
//!
//! Roles need types whole, and functions declared. So types come first, and with them declarations of those functions that
//! roles call; what these do comes at the end. Both keep the order of the primitives, each of which comes after what it needs.

use std::collections::HashSet;

/// The two parts.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    /// Types, and declarations of functions, with what they do in a comment.
    pub before: Vec<String>,
    /// Functions.
    pub after: Vec<String>,
}

/// One type, constant or function of a primitive's text, with the comment above it.
#[derive(Debug, PartialEq)]
struct Item<'t> {
    comment: Vec<&'t str>,
    lines: Vec<&'t str>,
}

impl Sections {
    /// Divides texts of primitives, given all text that comes between the two parts.
    pub fn of(primitives: &[&str], between: &[&str]) -> Sections {
        let texts: Vec<Vec<Item>> = primitives.iter().map(|text| items(text)).collect();
        let mut called: HashSet<&str> = between.iter().flat_map(|text| words(text)).collect();
        for item in texts.iter().flatten().filter(|item| item.function().is_none()) {
            called.extend(item.lines.iter().flat_map(|line| words(line)));
        }
        let mut sections = Sections::default();
        for items in &texts {
            let (mut before, mut after) = (vec![], vec![]);
            for item in items {
                match item.function() {
                    None => before.push(item.whole()),
                    Some(name) if called.contains(name) => {
                        before.push(item.declaration());
                        after.push(item.definition());
                    }
                    Some(_) => after.push(item.whole()),
                }
            }
            sections.before.extend((!before.is_empty()).then(|| before.join("\n")));
            sections.after.extend((!after.is_empty()).then(|| after.join("\n")));
        }
        sections
    }
}

/// The items of a text, whose layout is that of the templates: what has a body ends with a brace in the first column.
fn items(text: &str) -> Vec<Item<'_>> {
    let mut found = vec![];
    let (mut comment, mut lines) = (vec![], vec![]);
    let mut inside = false;
    for line in text.lines() {
        if lines.is_empty() && (line.is_empty() || line.starts_with("//")) {
            comment.extend((!line.is_empty()).then_some(line));
            continue;
        }
        lines.push(line);
        let ends = if inside { line.starts_with('}') } else { line.ends_with(['}', ';']) };
        inside = !ends && (inside || line.ends_with('{'));
        if ends {
            found.push(Item { comment: std::mem::take(&mut comment), lines: std::mem::take(&mut lines) });
        }
    }
    found
}

impl Item<'_> {
    /// The name of a function that can be declared apart from what it does. A specialisation has to come before what uses it, and
    /// so has what says what a function returns.
    fn function(&self) -> Option<&str> {
        let rest = match self.lines.first()? {
            line if line.starts_with("template <>") => return None,
            line if line.starts_with("template <") => self.lines.get(1)?,
            line => line,
        };
        let signature = rest.strip_prefix("__device__ ").filter(|rest| !rest.contains(" auto "))?;
        signature.split_once('(')?.0.rsplit([' ', '*', '&']).next()
    }

    fn whole(&self) -> String {
        [self.comment.as_slice(), self.lines.as_slice()].concat().join("\n")
    }

    /// Up to the body.
    fn declaration(&self) -> String {
        let text = self.lines.join("\n");
        let signature = text.split_once(" {").map_or(&*text, |(signature, _)| signature);
        [self.comment.join("\n"), format!("{signature};")].join("\n").trim_start().into()
    }

    /// Without the comment and the default arguments of a template, which stand at the declaration.
    fn definition(&self) -> String {
        let (first, rest) = self.lines.split_first().expect("an item has lines");
        if !first.starts_with("template <") {
            return self.lines.join("\n");
        }
        let parameters: Vec<&str> =
            first.split(", ").map(|p| p.split_once(" = ").map_or(p, |(name, _)| name)).collect();
        let mut first = parameters.join(", ");
        if !first.ends_with('>') {
            first.push('>');
        }
        [&[first.as_str()], rest].concat().join("\n")
    }
}

/// The names in a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
// A pair.
struct Pair {
    u32 a;
};

// Inside.
__device__ __forceinline__ u32 helper() { return 1; }
// Adds.
// Twice.
template <u32 N, u32 W = 16>
__device__ __forceinline__ void add(
    const Pair& p) {
    helper();
}
template <>
__device__ u32 one<u32>() { return 1; }";

    #[test]
    fn types_and_declarations_come_before_what_functions_do() {
        let sections = Sections::of(&[TEXT], &["add<1>(pair);"]);
        let before = "// A pair.\nstruct Pair {\n    u32 a;\n};\n// Adds.\n// Twice.\ntemplate <u32 N, u32 W = 16>\n\
                      __device__ __forceinline__ void add(\n    const Pair& p);\n\
                      template <>\n__device__ u32 one<u32>() { return 1; }";
        assert_eq!(sections.before, [before]);
        let after = "// Inside.\n__device__ __forceinline__ u32 helper() { return 1; }\n\
                     template <u32 N, u32 W>\n__device__ __forceinline__ void add(\n    const Pair& p) {\n    helper();\n}";
        assert_eq!(sections.after, [after]);
    }

    #[test]
    fn what_no_section_calls_stands_once() {
        let sections = Sections::of(&[TEXT], &["adds();"]);
        assert!(!sections.before[0].contains("add("), "{:?}", sections.before);
        assert!(
            sections.after[0].contains("// Twice.\ntemplate <u32 N, u32 W = 16>"),
            "{:?}",
            sections.after
        );
    }
}
