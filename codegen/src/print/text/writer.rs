//! Indented source text, wrapped to the page.

/// Longest line that the printer writes.
pub(crate) const COLUMNS: usize = 110;

/// Collects lines of source text.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    text: String,
    indent: usize,
    /// Whether the last statement opened a block, or belongs to what follows.
    begun: bool,
}

impl Writer {
    /// A writer that starts `indent` levels deep.
    pub fn new(indent: usize) -> Writer {
        Writer { text: String::new(), indent, begun: false }
    }

    /// A statement on a line of its own, wrapped when it is too long.
    pub fn line(&mut self, text: &str) {
        self.begun = text.ends_with('{');
        let margin = self.indent * 4;
        let mut rest = text;
        let mut extra = 0;
        while margin + extra + rest.len() > COLUMNS {
            let Some(at) = break_point(rest, COLUMNS - margin - extra) else { break };
            self.raw(margin + extra, rest[..at].trim_end());
            rest = rest[at..].trim_start();
            extra = 4;
        }
        self.raw(margin + extra, rest);
    }

    /// A statement with a comment behind it, or above it when the line would be too long.
    pub fn line_with(&mut self, text: &str, comment: &str) {
        if self.indent * 4 + text.len() + comment.len() + 5 <= COLUMNS {
            self.begun = text.ends_with('{');
            self.raw(self.indent * 4, &format!("{text}  // {comment}"));
        } else {
            self.comment(comment);
            self.line(text);
        }
    }

    /// A comment, wrapped between words.
    pub fn comment(&mut self, text: &str) {
        let width = COLUMNS - self.indent * 4 - 3;
        for line in wrap_words(text, width) {
            self.raw(self.indent * 4, &format!("// {line}"));
        }
    }

    /// An empty line, unless one is there or a block has just begun.
    pub fn gap(&mut self) {
        if !self.begun && !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    /// What follows belongs to the last line: no empty line between them.
    pub fn close_up(&mut self) {
        self.begun = true;
    }

    /// What follows is one level deeper.
    pub fn deeper(&mut self) {
        self.indent += 1;
    }

    /// What follows is one level less deep.
    pub fn shallower(&mut self) {
        self.indent -= 1;
    }

    /// An empty writer at this one's level, for text whose surroundings depend on it.
    pub fn nested(&self) -> Writer {
        Writer::new(self.indent)
    }

    /// Adds what a nested writer wrote.
    pub fn append(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds what a nested writer wrote, one level deeper than it was written.
    pub fn append_deeper(&mut self, text: &str) {
        for line in text.lines() {
            self.raw(if line.is_empty() { 0 } else { 4 }, line);
        }
    }

    /// A preprocessor line, which starts in the first column.
    pub fn directive(&mut self, text: &str) {
        self.raw(0, text);
    }

    /// The text.
    pub fn finish(self) -> String {
        self.text
    }

    fn raw(&mut self, margin: usize, text: &str) {
        if !text.is_empty() {
            self.text.extend(std::iter::repeat_n(' ', margin));
        }
        self.text.push_str(text);
        self.text.push('\n');
    }
}

/// Where to break a statement so that the first part has at most `width` columns: after a comma or `=`, before another operator,
/// at the shallowest nesting, as late as possible there.
fn break_point(text: &str, width: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0i32;
    let mut best: Option<(i32, usize)> = None;
    for (i, &c) in bytes.iter().enumerate() {
        if i > width {
            break;
        }
        match c {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        let operator = [" + ", " - ", " * ", " | ", " & ", " && ", " || ", " ? ", " : "];
        let here = match c {
            b',' if bytes.get(i + 1) == Some(&b' ') && !ends_template(&text[i + 2..]) => Some(i + 1),
            b'=' if text[..i].ends_with(' ') && bytes.get(i + 1) == Some(&b' ') => Some(i + 1),
            b' ' if i > 0 && operator.iter().any(|o| text[i..].starts_with(o)) => Some(i),
            _ => None,
        };
        // A product stays together if there is any other place.
        let tightness = 2 * depth + i32::from(text[i..].starts_with(" * "));
        if let Some(at) = here.filter(|&at| at <= width && at > 8)
            && best.is_none_or(|(t, _)| tightness <= t)
        {
            best = Some((tightness, at));
        }
    }
    best.map(|(_, at)| at)
}

/// Whether what follows is the last argument of a template, such as the `4>` of `Vec<f32, 4>`.
fn ends_template(text: &str) -> bool {
    text.trim_start_matches(|c: char| c.is_ascii_alphanumeric()).starts_with('>')
}

/// Text in lines of at most `width` columns, broken between words.
pub(crate) fn wrap_words(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("starts with one line");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.into());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_statements_break_at_the_shallowest_place() {
        let mut w = Writer::new(1);
        w.line(&format!("call({}, second(inner, {}), third);", "a".repeat(60), "b".repeat(40)));
        let text = w.finish();
        assert_eq!(
            text,
            format!("    call({},\n        second(inner, {}), third);\n", "a".repeat(60), "b".repeat(40))
        );
        assert!(text.lines().all(|l| l.len() <= COLUMNS));
    }

    #[test]
    fn comments_go_above_when_they_do_not_fit_behind() {
        let mut w = Writer::new(0);
        w.line_with("x = 1;", "short");
        w.line_with(&format!("{} = 1;", "x".repeat(90)), "this one is a bit longer");
        assert_eq!(
            w.finish(),
            format!("x = 1;  // short\n// this one is a bit longer\n{} = 1;\n", "x".repeat(90))
        );
    }
}
