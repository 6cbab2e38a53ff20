//! The description as text.

use std::fmt;

use super::text::count;
use super::*;

/// An index longer than this is left out of the text; the structure keeps it.
const LONGEST_INDEX: usize = 40;

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}\n", self.variant)?;
        if !self.doc.is_empty() {
            writeln!(f, "{}\n", self.doc)?;
        }
        for (name, value) in &self.config {
            writeln!(f, "- {name} = {value}")?;
        }
        if !self.config.is_empty() {
            writeln!(f)?;
        }
        self.launch(f)?;
        self.memory(f)?;
        for role in &self.roles {
            writeln!(f, "\n## Role `{}`: {}\n", role.name, role.where_it_runs())?;
            writeln!(f, "{}.\n", capital(&role.one_line()))?;
            if let Some((line, why)) = &role.no_loader {
                writeln!(f, "All its warps bring operands: no loader does, because at {line} {why}.\n")?;
            }
            if let Some(multiplies) = &role.multiplies {
                writeln!(f, "{multiplies}.\n")?;
            }
            for flight in &role.flights {
                writeln!(f, "{flight}\n")?;
            }
            tell(f, &role.steps, &mut vec![], 0)?;
        }
        Ok(())
    }
}

impl Explain {
    fn launch(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = match self.shared_bytes {
            0 => "no shared memory".into(),
            n => format!("{} of shared memory a block", bytes(n)),
        };
        let loader = match self.loader_warps {
            0 => String::new(),
            n => format!(", {n} for a loader"),
        };
        writeln!(
            f,
            "Runs on {} with {} of {} threads ({} of {} lanes{loader}) and {shared}.",
            count(self.ranks.into(), "rank"),
            count(self.blocks, "block"),
            self.block_threads,
            count(self.block_warps.into(), "warp"),
            self.warp_size,
        )?;
        if let Some(limit) = self.shared_limit {
            let found = self.shared_bytes;
            writeln!(
                f,
                "It is not emitted for this target: a block has {limit} bytes of shared memory there, not {found}."
            )?;
        }
        writeln!(
            f,
            "Needs {} of symmetric memory a rank, {} included.",
            bytes(self.symmetric_bytes),
            count(self.flags, "flag"),
        )?;
        if let Some(far) = &self.far {
            writeln!(f, "{far}")?;
        }
        for e in &self.epochs {
            let then = if e.advances {
                "and advances it once its blocks have begun"
            } else {
                "and leaves it for a later launch"
            };
            let early = if e.early { ", while the launch before may still run" } else { "" };
            writeln!(f, "Works in the epoch after the one in `{}` {then}{early}.", e.name)?;
        }
        Ok(())
    }

    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<[String; 5]> = self
            .buffers
            .iter()
            .map(|b| {
                let ty = format!("{}[{}]", b.dtype, b.len);
                [b.name.clone(), b.kind.into(), ty, bytes(b.bytes), b.doc.clone()]
            })
            .chain(self.shared.iter().map(|s| {
                let kind = if s.copies == 1 { "shared".into() } else { format!("shared x {}", s.copies) };
                [s.name.clone(), kind, format!("{}[{}]", s.dtype, s.len), bytes(s.bytes), String::new()]
            }))
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let head = ["buffer", "kind", "elements", "size", "what"].map(String::from);
        let documented = rows.iter().any(|r| !r[4].is_empty());
        let columns = if documented { 5 } else { 4 };
        let wide = |c: usize| rows.iter().chain([&head]).map(|r| r[c].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(wide).collect();
        let line = |f: &mut fmt::Formatter<'_>, row: &[String; 5]| {
            // The docs come last and are not padded: they are long.
            let pad = |(i, (w, cell)): (usize, (&usize, &String))| {
                if i == 4 { cell.clone() } else { format!("{cell:w$}") }
            };
            let cells: Vec<String> = widths.iter().zip(row).enumerate().map(pad).collect();
            writeln!(f, "| {} |", cells.join(" | "))
        };
        writeln!(f)?;
        line(f, &head)?;
        let rule: Vec<String> =
            widths.iter().enumerate().map(|(i, &w)| "-".repeat(if i == 4 { 4 } else { w })).collect();
        writeln!(f, "|-{}-|", rule.join("-|-"))?;
        rows.iter().try_for_each(|r| line(f, r))
    }
}

impl RoleInfo {
    /// What the role does in one line, for a banner: `reads x; puts to inbox; signals row_flag`. Shared memory is left
    /// out.
    pub fn one_line(&self) -> String {
        let mut parts: Vec<(Deed, Vec<&str>)> = vec![];
        for t in self.traffic.iter().filter(|t| !t.shared) {
            match parts.iter_mut().find(|(deed, _)| *deed == t.deed) {
                Some((_, buffers)) => buffers.push(&t.buffer),
                None => parts.push((t.deed, vec![&t.buffer])),
            }
        }
        let parts: Vec<String> =
            parts.iter().map(|(deed, b)| format!("{} {}", deed.verb(), b.join(", "))).collect();
        if parts.is_empty() { "does nothing".into() } else { parts.join("; ") }
    }

    fn where_it_runs(&self) -> String {
        let numbers = |first: u64| match self.blocks {
            1 => first.to_string(),
            n => format!("{first} to {}", first + u64::from(n) - 1),
        };
        let mut text = match self.blocks {
            1 => "block ".into(),
            n => format!("{n} blocks, "),
        };
        let place = |(ranks, first): &(Vec<u32>, u32)| {
            format!("{} on {}", numbers((*first).into()), crate::ir::rank_list(ranks))
        };
        match self.places.as_slice() {
            [] => text += &numbers(self.first_block),
            places => text += &places.iter().map(place).collect::<Vec<_>>().join("; "),
        }
        if let Some((host, warps)) = &self.beside {
            text = format!("{} beside `{host}` in each of {text}", count(u64::from(*warps), "warp"));
        }
        if let Some(next) = &self.goes_on_as {
            text += &format!(", which go on as `{next}`");
        }
        for earlier in &self.joining {
            text += &format!(", and those of `{earlier}` when they are done");
        }
        text
    }
}

impl Deed {
    /// The verb, for a role.
    pub const fn verb(self) -> &'static str {
        match self {
            Deed::Reads => "reads",
            Deed::Writes => "writes",
            Deed::Updates => "updates",
            Deed::Puts => "puts to",
            Deed::Signals => "signals",
            Deed::Waits => "waits for",
            Deed::Sends => "sends",
            Deed::Takes => "takes",
            Deed::Settles => "settles",
        }
    }
}

/// Tells steps as a nested list. `loops` holds what the open loops count, outermost first.
fn tell(f: &mut fmt::Formatter<'_>, steps: &[Step], loops: &mut Vec<String>, indent: usize) -> fmt::Result {
    let pad = indent * 2;
    for step in steps {
        write!(f, "{:pad$}- ", "")?;
        match step {
            Step::Do(a) => writeln!(f, "{}", action(a))?,
            Step::ForEach { counter, steps, .. } => {
                writeln!(f, "{}:", for_each(step))?;
                loops.push(counter.clone());
                tell(f, steps, loops, indent + 1)?;
                loops.pop();
            }
            Step::While { cond, steps } => {
                writeln!(f, "while `{cond}`:")?;
                loops.push(String::new());
                tell(f, steps, loops, indent + 1)?;
                loops.pop();
            }
            Step::Times { times, steps } if let [Step::Do(only)] = steps.as_slice() => {
                writeln!(f, "{times} times: {}", action(only))?;
            }
            Step::Times { times, steps } => {
                writeln!(f, "{times} times:")?;
                tell(f, steps, loops, indent + 1)?;
            }
            Step::If { cond, then, otherwise } => branch(f, (cond, then, otherwise), loops, indent)?,
            Step::Split { warps, groups, steps } => {
                let each = if *groups == 1 { "as one group of" } else { "each of" };
                let of = if *groups == 1 {
                    String::new()
                } else {
                    format!("{} of ", count((*groups).into(), "group"))
                };
                writeln!(f, "{each} {of}{}:", count((*warps).into(), "warp"))?;
                tell(f, steps, loops, indent + 1)?;
            }
            Step::Leave { .. } => writeln!(f, "{}", leave(step, loops))?,
        }
    }
    Ok(())
}

fn branch(
    f: &mut fmt::Formatter<'_>,
    (cond, then, otherwise): (&str, &[Step], &[Step]),
    loops: &mut Vec<String>,
    indent: usize,
) -> fmt::Result {
    match (then, otherwise) {
        ([only @ Step::Leave { .. }], []) => writeln!(f, "if `{cond}`: {}", leave(only, loops)),
        ([], other) => {
            writeln!(f, "unless `{cond}`:")?;
            tell(f, other, loops, indent + 1)
        }
        (then, otherwise) => {
            writeln!(f, "if `{cond}`:")?;
            tell(f, then, loops, indent + 1)?;
            if !otherwise.is_empty() {
                writeln!(f, "{:1$}- else:", "", indent * 2)?;
                tell(f, otherwise, loops, indent + 1)?;
            }
            Ok(())
        }
    }
}

fn for_each(step: &Step) -> String {
    let Step::ForEach { counter, start, end, by, spread, .. } = step else { return String::new() };
    let by = if by == "1" { String::new() } else { format!(" by `{by}`") };
    let spread = spread.map(|n| format!(", dealt out to the role's {n} groups")).unwrap_or_default();
    format!("for each `{counter}` in `{}`{by}{spread}", range(start, end))
}

/// `a..b`, with parentheses where an end is more than a name or number.
fn range(start: &str, end: &str) -> String {
    let side =
        |t: &str| if t.contains(' ') && !t.ends_with([')', ']']) { format!("({t})") } else { t.into() };
    format!("{}..{}", side(start), side(end))
}

fn leave(step: &Step, loops: &[String]) -> String {
    let Step::Leave { round_only, depth } = step else { return String::new() };
    let at = loops.len().checked_sub(*depth as usize + 1);
    let name = match at.and_then(|i| loops.get(i)).filter(|n| !n.is_empty()) {
        Some(counter) => format!("`{counter}`"),
        None => "round".into(),
    };
    match round_only {
        true => format!("on to the next {name}"),
        false => format!("no further {name}"),
    }
}

fn action(a: &Action) -> String {
    let index = match a.index.chars().count() {
        0 => String::new(),
        1..=LONGEST_INDEX => format!("[{}{}]", a.index, if a.pieces > 1 { " .." } else { "" }),
        _ => "[..]".into(),
    };
    let buffer = match a.shared {
        true => format!("shared `{}{index}`", a.buffer),
        false => format!("`{}{index}`", a.buffer),
    };
    let up_to = if a.mask.is_some() { "up to " } else { "" };
    let size = match a.pieces {
        1 => format!("{up_to}{} B", a.bytes),
        n => format!("{up_to}{} B in {n} pieces", a.bytes),
    };
    let ranks = a.ranks.as_deref().unwrap_or("");
    let text = match a.deed {
        Deed::Reads if !ranks.is_empty() => format!("reads {size} of {buffer} of {ranks}"),
        Deed::Reads => format!("reads {size} of {buffer}"),
        Deed::Writes => format!("writes {size} to {buffer}"),
        Deed::Updates => format!("updates {buffer} atomically"),
        Deed::Puts => format!("puts {size} to {buffer} on {ranks}"),
        Deed::Signals => format!("signals {buffer} on {ranks}"),
        Deed::Sends => format!("sends {size} as packets {buffer} to {ranks}"),
        Deed::Takes => format!("takes {size} as packets {buffer} from {ranks}"),
        Deed::Settles => format!("waits until puts have read {buffer}"),
        Deed::Waits => match &a.count {
            None => format!("waits for {buffer} from {ranks}"),
            Some(n) if n.parse::<u32>().is_ok() => format!("waits for {n} flags from {buffer} on"),
            Some(n) => format!("waits for `{n}` flags from {buffer} on"),
        },
    };
    match &a.mask {
        Some(mask) => format!("{text} where `{mask}`"),
        None => text,
    }
}

/// The first letter in upper case.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Bytes with a unit: `128 B`, `14 KiB`, `14.7 MiB`.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}
