//! The stable text form of a kernel, for people: `peerwarp show --ir` and snapshots. It is not parsed back.
//!
//! `{}` leaves locations out, so that moving a line of the author's source does not change a snapshot; `{:#}` ends
//! each line that starts a new place of the author's source with `// file:line`.

mod ops;

use std::fmt::{self, Write as _};

use super::*;

/// Where the trailing location comments start.
const LOCATION_COLUMN: usize = 72;

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Text::new(self, f.alternate());
        text.header();
        text.parameters();
        text.section("prologue", None, &self.prologue);
        for (i, role) in self.roles.iter().enumerate() {
            let mut title = match role.blocks {
                1 => format!("role {}: block ", role.name),
                n => format!("role {}: {n} blocks, ", role.name),
            };
            for (nth, (ranks, first)) in self.places(i).iter().enumerate() {
                title += if nth == 0 { "" } else { "; " };
                let end = u64::from(*first) + u64::from(role.blocks);
                let _ = match role.blocks {
                    1 => write!(title, "{first}"),
                    _ => write!(title, "{first}..{end}"),
                };
                if self.differs_by_rank(i) {
                    let _ = write!(title, " of {}", words::rank_list(ranks));
                }
            }
            if let Some(Beside { role: host, warps }) = &role.beside {
                let _ = write!(title, ", {} beside {host}", count(u64::from(*warps), "warp"));
            }
            if let Some(next) = &role.goes_on_as {
                let _ = write!(title, ", then {next}");
            }
            text.section(&title, Some(role.loc), &role.body);
        }
        f.write_str(&text.out)
    }
}

struct Text<'k> {
    kernel: &'k Kernel,
    names: Names,
    out: String,
    indent: usize,
    locations: bool,
    last: Option<(&'static str, u32)>,
    /// Operations printed already: one that stands in two places (which the verifier rejects) is not followed again.
    seen: Vec<bool>,
}

impl<'k> Text<'k> {
    fn new(kernel: &'k Kernel, locations: bool) -> Text<'k> {
        Text {
            kernel,
            names: Names::of(kernel),
            out: String::new(),
            indent: 0,
            locations,
            last: None,
            seen: vec![false; kernel.ops.len()],
        }
    }

    fn line(&mut self, text: &str, loc: Option<Loc>) {
        let start = self.out.len();
        let _ = write!(self.out, "{:1$}{text}", "", self.indent * 2);
        if let Some(loc) = loc
            && self.locations
            && self.last != Some((loc.file, loc.line))
        {
            self.last = Some((loc.file, loc.line));
            let pad = LOCATION_COLUMN.saturating_sub(self.out[start..].chars().count()).max(2);
            let _ = write!(self.out, "{:pad$}// {loc}", "");
        }
        self.out.push('\n');
    }

    fn header(&mut self) {
        let k = self.kernel;
        self.line(&format!("kernel {}", k.name), Some(k.loc));
        self.indent += 1;
        for doc in k.doc.lines() {
            self.line(format!("/// {doc}").trim_end(), None);
        }
        if k.variant != k.name {
            self.line(&format!("variant {}", k.variant), None);
        }
        for (name, value) in &k.config {
            self.line(&format!("config {name} = {value}"), None);
        }
        if k.begins_early {
            self.line("begins early", None);
        }
        let own = k.roles.iter().filter(|r| r.beside.is_none());
        let blocks: u64 = own.map(|r| u64::from(r.blocks)).sum();
        let threads = u64::from(k.block_warps) * u64::from(k.warp_size);
        self.line(
            &format!(
                "launch {} x {} x {} of {} lanes ({threads} threads a block)",
                count(k.all_ranks().into(), "rank"),
                count(blocks, "block"),
                count(k.block_warps.into(), "warp"),
                k.warp_size
            ),
            None,
        );
        self.indent -= 1;
    }

    fn parameters(&mut self) {
        let rows: Vec<[String; 3]> = self.kernel.params.iter().map(param_row).collect();
        let wide = |c: usize| rows.iter().map(|r| r[c].len()).max().unwrap_or(0);
        let (a, b) = (wide(0), wide(1));
        if !self.kernel.params.is_empty() {
            self.line("", None);
        }
        for [name, ty, size] in &rows {
            self.line(format!("param @{name:a$}  {ty:b$}  {size}").trim_end(), None);
        }
        for (i, s) in self.kernel.shared.iter().enumerate() {
            let bytes = u64::from(s.len) * u64::from(s.dtype.bytes());
            let copies = match s.copies {
                1 => "one a block".into(),
                n => format!("{n} a block"),
            };
            self.line(
                &format!(
                    "shared {}: {}[{}], {bytes} B, {copies}",
                    shared_name(self.kernel, SharedId(i as u32)),
                    s.dtype,
                    s.len
                ),
                Some(s.loc),
            );
        }
    }

    fn section(&mut self, title: &str, loc: Option<Loc>, body: &Region) {
        if body.ops.is_empty() && loc.is_none() {
            return;
        }
        self.out.push('\n');
        self.line(&format!("{title} {{"), loc);
        self.region(body);
        self.line("}", None);
    }

    fn region(&mut self, region: &Region) {
        self.indent += 1;
        for &id in &region.ops {
            self.op(id);
        }
        self.indent -= 1;
    }

    fn op(&mut self, id: OpId) {
        match (self.kernel.ops.get(id.index()), self.seen.get_mut(id.index())) {
            (Some(op), Some(seen)) if !*seen => {
                *seen = true;
                self.fresh_op(op);
            }
            (Some(_), _) => self.line(&format!("operation {} again", id.0), None),
            (None, _) => self.line(&format!("operation {} does not exist", id.0), None),
        }
    }

    fn fresh_op(&mut self, op: &'k Op) {
        if matches!(op.kind, OpKind::Value(ValueOp::Const { .. })) {
            return; // written at its uses
        }
        let head = ops::line(self.kernel, &self.names, &op.kind);
        let regions = op.kind.regions();
        if regions.is_empty() {
            return self.line(&head, Some(op.loc));
        }
        self.line(&format!("{head} {{"), Some(op.loc));
        if let OpKind::Control(control) = &op.kind {
            self.regions(control);
        } else {
            regions.into_iter().for_each(|r| self.region(r));
        }
        self.line("}", None);
    }

    fn regions(&mut self, op: &'k ControlOp) {
        match op {
            ControlOp::If { then, otherwise, results, .. } => {
                self.region(then);
                self.yields(results.iter().map(|r| r.1));
                if !otherwise.ops.is_empty() || !results.is_empty() {
                    self.line("} else {", None);
                    self.region(otherwise);
                    self.yields(results.iter().map(|r| r.2));
                }
            }
            ControlOp::While { header, cond, body } => {
                self.region(header);
                self.line(&format!("}} holds {} {{", self.names.value(*cond)), None);
                self.region(body);
            }
            ControlOp::For { body, .. } | ControlOp::Split { body, .. } => self.region(body),
            any!(exits, variables) => {}
        }
    }

    fn yields(&mut self, values: impl Iterator<Item = ValueId>) {
        let values: Vec<String> = values.map(|v| self.names.value(v)).collect();
        if !values.is_empty() {
            self.indent += 1;
            self.line(&format!("yield {}", values.join(", ")), None);
            self.indent -= 1;
        }
    }
}

fn param_row(p: &Param) -> [String; 3] {
    let kind = p.kind.name();
    let bytes = u128::from(p.len) * u128::from(p.element_bytes());
    match p.kind {
        any!(symmetric, counted) | ParamKind::Local | ParamKind::Far(_) => {
            let size = match p.shape() {
                Some((rows, columns)) => format!("{rows} x {columns}"),
                None => p.len.to_string(),
            };
            [p.name.clone(), format!("{kind} {}[{size}]", p.dtype), format!("{bytes} B")]
        }
        ParamKind::EpochWord | ParamKind::Scalar => {
            [p.name.clone(), format!("{kind} {}", p.dtype), String::new()]
        }
    }
}

/// `1 block`, `2 blocks`.
pub(crate) fn count(n: u64, thing: &str) -> String {
    match n {
        1 => format!("1 {thing}"),
        n => format!("{n} {thing}s"),
    }
}

/// The mask of all ranks.
pub(in crate::ir) fn all_ranks(ranks: u32) -> u64 {
    1u64.checked_shl(ranks).unwrap_or(0).wrapping_sub(1)
}

/// A shared array's name, with a number if another one before it has the same.
fn shared_name(kernel: &Kernel, id: SharedId) -> String {
    let Some(s) = kernel.shared.get(id.index()) else { return format!("shared?{}", id.0) };
    match kernel.shared[..id.index()].iter().filter(|o| o.name == s.name).count() {
        0 => s.name.clone(),
        n => format!("{}.{n}", s.name),
    }
}
