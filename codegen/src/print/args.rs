//! The argument struct: names, layout, and what its members say in emitted source.

use std::collections::HashSet;

use serde::Serialize;

use crate::ir::{Dtype, Kernel, OpKind, Param, ParamId, ParamKind, Place};

use super::names::Names;

/// Member names of the parameters, clear of C++ words and of the members that every kernel has.
#[derive(Debug)]
pub(super) struct ArgNames {
    names: Vec<String>,
}

impl ArgNames {
    /// Names the parameters of a kernel.
    pub fn new(kernel: &Kernel) -> ArgNames {
        let taken = ["rank", "status", "wait_budget_ns"];
        let mut names = Names::new(taken.iter().map(|s| s.to_string()));
        ArgNames { names: kernel.params.iter().map(|p| names.fresh(&p.name)).collect() }
    }

    /// The member of a parameter.
    pub fn of(&self, param: ParamId) -> &str {
        &self.names[param.index()]
    }
}

/// One member of the argument struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArgField {
    /// Its name.
    pub name: String,
    /// Byte offset in the struct.
    pub offset: u32,
    /// Bytes, of all ranks' pointers for a symmetric buffer.
    pub bytes: u32,
}

/// Where a launcher finds the members of the argument struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArgsLayout {
    /// The parameters in order, then `status`, `wait_budget_ns` and `rank`.
    pub fields: Vec<ArgField>,
    /// Size of the struct.
    pub bytes: u32,
}

impl ArgsLayout {
    /// Lays out the arguments of a kernel as C does.
    pub(super) fn new(kernel: &Kernel, names: &ArgNames) -> ArgsLayout {
        let mut fields = vec![];
        let mut end = 0u32;
        let mut add = |name: &str, unit: u32, count: u32| {
            let offset = end.next_multiple_of(unit);
            fields.push(ArgField { name: name.into(), offset, bytes: unit * count });
            end = offset + unit * count;
        };
        for (i, p) in kernel.params.iter().enumerate() {
            let name = names.of(ParamId(i as u32));
            match p.kind {
                ParamKind::Local | ParamKind::EpochWord => add(name, 8, 1),
                ParamKind::Symmetric | ParamKind::Flags | ParamKind::Packets => add(name, 8, kernel.ranks),
                ParamKind::Scalar => add(name, p.dtype.bytes(), 1),
            }
        }
        add("status", 8, kernel.ranks);
        add("wait_budget_ns", 8, 1);
        add("rank", 4, 1);
        ArgsLayout { fields, bytes: end.next_multiple_of(8) }
    }
}

/// A member as templates print it.
#[derive(Debug, Serialize)]
pub(super) struct FieldText {
    pub declaration: String,
    pub comment: Option<String>,
}

/// The language that members are declared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// The emitted source.
    Device,
    /// The C header.
    Host,
}

/// The members of the argument struct as declarations.
pub(super) fn fields(kernel: &Kernel, names: &ArgNames, language: Language) -> Vec<FieldText> {
    let written = written(kernel);
    let r = kernel.ranks;
    let device = language == Language::Device;
    let mut rows: Vec<(String, String)> = vec![];
    for (i, p) in kernel.params.iter().enumerate() {
        let id = ParamId(i as u32);
        let name = names.of(id);
        let ty = scalar_type(p.dtype, language);
        let declaration = match p.kind {
            ParamKind::Local if !written.contains(&id) => format!("const {ty}* {name};"),
            ParamKind::Local => format!("{ty}* {name};"),
            ParamKind::Symmetric | ParamKind::Flags | ParamKind::Packets => format!("{ty}* {name}[{r}];"),
            ParamKind::EpochWord if device => format!("EpochWord* {name};"),
            ParamKind::EpochWord => format!("PeerwarpEpochWord* {name};"),
            ParamKind::Scalar => format!("{ty} {name};"),
        };
        rows.push((declaration, comment(p)));
    }
    let (status, u64, u32) =
        if device { ("Status", "u64", "u32") } else { ("PeerwarpStatus", "uint64_t", "uint32_t") };
    rows.push((format!("{status}* status[{r}];"), "each rank's status".into()));
    rows.push((
        format!("{u64} wait_budget_ns;"),
        "how long a wait may last before the world is aborted".into(),
    ));
    rows.push((format!("{u32} rank;"), "this rank".into()));
    let width = rows.iter().map(|r| r.0.len()).filter(|&n| n < 40).max().unwrap_or(0);
    rows.into_iter()
        .map(|(declaration, comment)| match comment.is_empty() {
            true => FieldText { declaration, comment: None },
            false => FieldText { declaration: format!("{declaration:width$}"), comment: Some(comment) },
        })
        .collect()
}

/// What a parameter is, in a few words.
fn comment(p: &Param) -> String {
    let what = match p.kind {
        ParamKind::Local => format!("{}[{}]", p.dtype, p.len),
        ParamKind::Symmetric => format!("symmetric {}[{}]", p.dtype, p.len),
        ParamKind::Flags => format!("{} flags on each rank", p.len),
        ParamKind::Packets => format!("packets, all ones at first, {}[{}]", p.dtype, p.len),
        ParamKind::EpochWord => "advances with each launch".into(),
        ParamKind::Scalar => String::new(),
    };
    // A doc comment is the author's text: no line of it may end a C comment.
    let doc = p.doc.replace("*/", "* /");
    let text = match (what.is_empty(), doc.is_empty()) {
        (_, true) => what,
        (true, false) => doc,
        (false, false) => format!("{what}: {doc}"),
    };
    shorten(&text)
}

/// Cuts a comment that would make a line too long.
fn shorten(text: &str) -> String {
    const MOST: usize = 62;
    if text.chars().count() <= MOST {
        return text.into();
    }
    let cut: String = text.chars().take(MOST - 2).collect();
    format!("{}..", cut.rsplit_once(' ').map_or(cut.as_str(), |c| c.0))
}

fn scalar_type(dtype: Dtype, language: Language) -> &'static str {
    match (language, dtype) {
        (Language::Device, d) => d.name(),
        (Language::Host, Dtype::Bool | Dtype::Fp8) => "uint8_t",
        (Language::Host, Dtype::Fp16 | Dtype::Bf16) => "uint16_t",
        (Language::Host, Dtype::I32) => "int32_t",
        (Language::Host, Dtype::U32) => "uint32_t",
        (Language::Host, Dtype::U64) => "uint64_t",
        (Language::Host, Dtype::F32) => "float",
    }
}

/// The local buffers that the kernel writes.
fn written(kernel: &Kernel) -> HashSet<ParamId> {
    let mut found = HashSet::new();
    for role in &kernel.roles {
        kernel.walk(&role.body, &mut |_, op| {
            if let OpKind::Store { place: Place::Param(p), .. }
            | OpKind::Scatter { place: Place::Param(p), .. }
            | OpKind::Atomic { place: Place::Param(p), .. } = op.kind
            {
                found.insert(p);
            }
        });
    }
    found
}
