//! The two things in an emitted source that no macro can put on the CPU: inline assembly and `__shared__` variables.
//! Every other character stays as it was emitted, and so does every line's number.

use super::ptx::{self, Asm};

/// The source with inline assembly and `__shared__` declarations replaced by calls of the runtime.
pub fn rewrite(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len() + 1024);
    let mut rest = text;
    let mut shared = 0;
    while let Some(at) = next(rest) {
        let line = 1 + text[..text.len() - rest.len() + at].matches('\n').count();
        out += &rest[..at];
        rest = &rest[at..];
        if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            out += &rest[..end];
            rest = &rest[end..];
            continue;
        }
        let end = statement_end(rest).ok_or_else(|| format!("line {line}: a statement without an end"))?;
        let (statement, after) = rest.split_at(end);
        let new = if statement.starts_with("asm") {
            parse_asm(statement).and_then(|asm| ptx::translate(&asm))
        } else {
            shared += 1;
            shared_variable(statement, shared)
        };
        let new = new.map_err(|e| format!("line {line}: {e}"))?;
        out += &new;
        out += &"\n".repeat(statement.matches('\n').count() - new.matches('\n').count());
        rest = after;
    }
    Ok(out + rest)
}

/// Where the next comment, assembly statement or shared declaration begins.
fn next(text: &str) -> Option<usize> {
    let begins = ["//", "asm volatile", "asm(", "__shared__", "extern __shared__"].map(str::as_bytes);
    let bytes = text.as_bytes();
    (0..bytes.len()).find(|&at| begins.iter().any(|word| bytes[at..].starts_with(word)))
}

/// The length of a statement, its semicolon included.
fn statement_end(text: &str) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ';' if !quoted => return Some(i + 1),
            _ => {}
        }
    }
    None
}

/// `__shared__ T name;`, `__shared__ T name[n];`, or `extern __shared__ .. T name[];`.
fn shared_variable(statement: &str, number: u32) -> Result<String, String> {
    let refused = || format!("`{statement}` is no shared variable that tests/host/rewrite.rs knows");
    let words = statement.trim_end_matches(';');
    let Some((head, length)) = words.strip_suffix(']').and_then(|s| s.rsplit_once('[')) else {
        let (ty, name) = words.rsplit_once(char::is_whitespace).ok_or_else(refused)?;
        let ty = ty.strip_prefix("__shared__ ").filter(|ty| !ty.contains([',', '='])).ok_or_else(refused)?;
        return Ok(format!(
            "struct Shared{number} {{}}; {ty}& {name} = ::host::shared<Shared{number}, {ty}>();"
        ));
    };
    let (ty, name) = head.rsplit_once(char::is_whitespace).ok_or_else(refused)?;
    if let Some(ty) = ty.strip_prefix("extern __shared__ ") {
        // What stands before the type is its alignment, which the runtime's memory has.
        let ty = ty.rsplit_once(')').map_or(ty, |t| t.1).trim();
        let empty = length.is_empty();
        return empty
            .then(|| format!("{ty}* const {name} = static_cast<{ty}*>(::host::dynamic_shared());"))
            .ok_or_else(refused);
    }
    let ty = ty.strip_prefix("__shared__ ").ok_or_else(refused)?.trim();
    Ok(format!(
        "struct Shared{number} {{}}; {ty} (&{name})[{length}] = ::host::shared<Shared{number}, {ty}[{length}]>();"
    ))
}

/// The parts of `asm volatile("..." : outputs : inputs : clobbers);`.
fn parse_asm(statement: &str) -> Result<Asm, String> {
    let refused = || format!("`{statement}` is no assembly that tests/host/rewrite.rs can read");
    let open = statement.find('(').ok_or_else(refused)?;
    let close = statement.rfind(')').ok_or_else(refused)?;
    let mut sections = vec![];
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    let mut section = String::new();
    for c in statement[open + 1..close].chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '(' | '[' if !quoted => depth += 1,
            ')' | ']' if !quoted => depth -= 1,
            ':' if !quoted && depth == 0 => {
                sections.push(std::mem::take(&mut section));
                continue;
            }
            _ => {}
        }
        section.push(c);
    }
    sections.push(section);
    let template = literals(&sections[0]).ok_or_else(refused)?;
    let mut operands = vec![];
    for section in sections.iter().skip(1).take(2) {
        for one in split_operands(section) {
            let (constraint, expression) = one.split_once('(').ok_or_else(refused)?;
            literals(constraint).ok_or_else(refused)?;
            operands.push(expression.trim_end().strip_suffix(')').ok_or_else(refused)?.to_owned());
        }
    }
    Ok(Asm { template, operands })
}

/// Operands of a section, separated by commas outside parentheses.
fn split_operands(section: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (vec![], 0, 0);
    for (i, c) in section.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&section[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&section[start..]);
    parts.into_iter().map(str::trim).filter(|p| !p.is_empty()).collect()
}

/// String literals one after another, joined; none when there is anything else.
fn literals(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        rest = rest.strip_prefix('"')?;
        let mut chars = rest.char_indices();
        loop {
            match chars.next()? {
                (i, '"') => {
                    rest = rest[i + 1..].trim_start();
                    break;
                }
                (_, '\\') => match chars.next()?.1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    _ => return None,
                },
                (_, c) => out.push(c),
            }
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_assembly_and_shared_variables_change_and_lines_keep_their_numbers() {
        let text = "// asm volatile(\"x\"); __shared__\nu32 x;\nasm volatile(\n    \"ld.relaxed.sys.global.u32 %0, [%1];\"\n    \
                    : \"=r\"(x) : \"l\"(f(p, 1)) : \"memory\");\n__shared__ T of[16]; g(x);\n__shared__ u32 one;\n\
                    extern __shared__ __align__(16) unsigned char all[];\n";
        let want = "// asm volatile(\"x\"); __shared__\nu32 x;\n\
                    { (x) = ::host::atomic_load((f(p, 1)), ::host::Order::Relaxed, ::host::Scope::System); }\n\n\n\
                    struct Shared1 {}; T (&of)[16] = ::host::shared<Shared1, T[16]>(); g(x);\n\
                    struct Shared2 {}; u32& one = ::host::shared<Shared2, u32>();\n\
                    unsigned char* const all = static_cast<unsigned char*>(::host::dynamic_shared());\n";
        assert_eq!(rewrite(text).unwrap(), want);
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_line() {
        assert!(rewrite("\nasm volatile(\"trap;\");").unwrap_err().starts_with("line 2: `trap`"));
        assert!(rewrite("__shared__ u32 x = 1;").unwrap_err().starts_with("line 1: `__shared__ u32 x = 1;`"));
        assert!(rewrite("asm volatile(MACRO);").is_err());
    }
}
