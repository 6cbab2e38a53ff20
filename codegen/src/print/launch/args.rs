//! The argument struct: names, layout, and what its members say in emitted source.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::ir::{Dtype, FarPart, Kernel, Param, ParamId, ParamKind, Part, dot_columns};
use crate::print::facts::{FarEngine, Timeline, timeline::EVENT_BYTES};
use crate::print::text::{ArgNames, wrap_words};

/// One member of the argument struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgField {
    /// Its name.
    pub name: String,
    /// Byte offset in the struct.
    pub offset: u32,
    /// Bytes, of all ranks' pointers for a symmetric buffer.
    pub bytes: u32,
}

/// A member that says how a matrix in memory is cut in boxes: a `CUtensorMap`, which each launch makes of the pointer that it
/// passes. Boxes are of [`TensorMap::box_columns`] columns, whose 16 bytes change places by 128; what is not there is zero.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorMap {
    /// Its name.
    pub name: String,
    /// Byte offset in the struct.
    pub offset: u32,
    /// The member with the pointer.
    pub of: String,
    /// Whether that has a pointer for each rank: the matrix is this rank's own.
    pub symmetric: bool,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Rows of the matrix.
    pub rows: u64,
    /// Columns of the matrix, which follow each other without a gap.
    pub columns: u64,
    /// Rows of a box.
    pub box_rows: u32,
}

/// Size of a [`TensorMap`] in the argument struct, and what its offset is a multiple of.
pub const TENSOR_MAP_BYTES: u32 = 128;

/// Bytes of what carries far channels in the argument struct.
const fn far_bytes(engine: FarEngine) -> u32 {
    match engine {
        FarEngine::Ring => 48,
        FarEngine::Gin => 40,
    }
}

impl TensorMap {
    /// Columns of a box.
    pub const fn box_columns(&self) -> u32 {
        dot_columns(self.dtype)
    }
}

/// Where a launcher finds the members of the argument struct.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgsLayout {
    /// The parameters in order, then `status`, `wait_budget_ns` and `rank`, then `far` where the kernel has far channels, and `timeline` if
    /// there is one.
    pub fields: Vec<ArgField>,
    /// What comes after these, which launches make by themselves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<TensorMap>,
    /// Size of the struct.
    pub bytes: u32,
}

impl ArgsLayout {
    /// Lays out the arguments of a kernel as C does.
    pub(crate) fn new(
        kernel: &Kernel,
        names: &ArgNames,
        timeline: Option<&Timeline>,
        mut maps: Vec<TensorMap>,
        engine: FarEngine,
    ) -> ArgsLayout {
        let mut fields = vec![];
        let mut end = 0u32;
        let mut add = |name: &str, unit: u32, count: u32| {
            let offset = end.next_multiple_of(unit);
            fields.push(ArgField { name: name.into(), offset, bytes: unit * count });
            end = offset + unit * count;
        };
        let multicast = kernel.multicast();
        for (i, p) in kernel.params.iter().enumerate() {
            let name = names.of(ParamId(i as u32));
            // After the pointers of all ranks the one to all of them at once.
            let pointers = kernel.ranks + u32::from(multicast.contains(&ParamId(i as u32)));
            match p.kind {
                ParamKind::Local
                | ParamKind::EpochWord
                | ParamKind::Counters
                | ParamKind::BlockFlags
                | ParamKind::Far(_) => add(name, 8, 1),
                any!(symmetric) => add(name, 8, pointers),
                ParamKind::Scalar => add(name, p.dtype.bytes(), 1),
            }
        }
        add("status", 8, kernel.ranks);
        add("wait_budget_ns", 8, 1);
        add("rank", 4, 1);
        if kernel.far_channel().is_some() {
            add("far", 8, far_bytes(engine) / 8);
        }
        if timeline.is_some() {
            add("timeline", 8, 1);
        }
        for map in &mut maps {
            map.offset = end.next_multiple_of(TENSOR_MAP_BYTES);
            end = map.offset + TENSOR_MAP_BYTES;
        }
        ArgsLayout { fields, maps, bytes: end.next_multiple_of(8) }
    }
}

/// A member of the argument struct in emitted source.
#[derive(Debug, Serialize)]
pub(crate) struct FieldText {
    pub declaration: String,
    pub comment: Option<String>,
}

/// A member of the argument struct in the header: all there is to say stands above it.
#[derive(Debug, Serialize)]
pub(crate) struct DocumentedText {
    pub about: Vec<String>,
    pub declaration: String,
}

/// A buffer that a host program allocates.
#[derive(Debug, Serialize)]
pub(crate) struct BufferText {
    pub name: String,
    pub kind: &'static str,
    /// On each rank; 0 for a buffer that the kernel does not use.
    pub bytes: u64,
}

/// A member that the launcher makes of a pointer.
#[derive(Debug, Serialize)]
pub(crate) struct MapText {
    pub name: String,
    /// The expression of the pointer in the host's argument struct.
    pub of: String,
    /// The driver's name for the type of an element.
    pub dtype: &'static str,
    pub rows: u64,
    pub columns: u64,
    /// Bytes of a row.
    pub pitch: u64,
    pub box_rows: u32,
    pub box_columns: u32,
}

impl MapText {
    pub fn of(map: &TensorMap) -> MapText {
        let TensorMap { name, of, symmetric, dtype, rows, columns, box_rows, .. } = map;
        MapText {
            name: name.clone(),
            of: format!("{of}{}", if *symmetric { "[args->rank]" } else { "" }),
            dtype: if *dtype == Dtype::Fp16 {
                "CU_TENSOR_MAP_DATA_TYPE_FLOAT16"
            } else if *dtype == Dtype::U32 {
                "CU_TENSOR_MAP_DATA_TYPE_UINT32"
            } else if *dtype == Dtype::Fp8 {
                "CU_TENSOR_MAP_DATA_TYPE_UINT8"
            } else {
                "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"
            },
            rows: *rows,
            columns: *columns,
            pitch: columns * u64::from(dtype.bytes()),
            box_rows: *box_rows,
            box_columns: map.box_columns(),
        }
    }
}

/// A member that holds pointers which the kernel follows.
#[derive(Debug, Serialize)]
pub(crate) struct PointerText {
    pub name: String,
    pub count: u32,
}

/// The language that members are declared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    /// The emitted source.
    Device,
    /// The C header.
    Host,
}

/// The members of the argument struct in emitted source.
pub(crate) fn fields(
    kernel: &Kernel,
    names: &ArgNames,
    timeline: Option<&Timeline>,
    maps: &[TensorMap],
) -> Vec<FieldText> {
    let params = declarations(kernel, names, Language::Device).into_iter();
    let comments = comments(kernel).into_iter().map(|text| shorten(&text));
    let (of_machine, on_machine) = of_several(kernel);
    let mut rows: Vec<_> = params.zip(comments).collect();
    rows.push((format!("Status* status[{}];", kernel.ranks), format!("each rank's status{of_machine}")));
    let budget = "how long a wait may last before the world is aborted";
    rows.push(("u64 wait_budget_ns;".into(), budget.into()));
    rows.push(("u32 rank;".into(), format!("this rank{on_machine}")));
    let far = kernel.far_channel().map(|_| ("Far far;".into(), "what carries far channels".into()));
    rows.extend(far);
    let records =
        |t: &Timeline| ("TimelineEvent* timeline;".into(), format!("{} records", t.bytes / EVENT_BYTES));
    rows.extend(timeline.map(records));
    let boxes = |m: &TensorMap| {
        (format!("TensorMap {};", m.name), format!("{} rows of {} at a time", m.box_rows, m.of))
    };
    rows.extend(maps.iter().map(boxes));
    let width = rows.iter().map(|r| r.0.len()).filter(|&n| n < 40).max().unwrap_or(0);
    rows.into_iter()
        .map(|(declaration, comment)| match comment.is_empty() {
            true => FieldText { declaration, comment: None },
            false => FieldText { declaration: format!("{declaration:width$}"), comment: Some(comment) },
        })
        .collect()
}

/// The members of the argument struct in the header, with comments of at most `width` columns.
pub(crate) fn documented(
    kernel: &Kernel,
    names: &ArgNames,
    timeline: Option<&Timeline>,
    maps: &[TensorMap],
    (engine, width): (FarEngine, usize),
) -> Vec<DocumentedText> {
    let used = used(kernel);
    let (of_machine, on_machine) = of_several(kernel);
    let about = |(i, text): (usize, String)| match kernel.params[i].kind {
        kind if kind == ParamKind::Scalar || used.contains(&ParamId(i as u32)) => text,
        _ => format!("Not used by this variant, may be null. {text}"),
    };
    let params = declarations(kernel, names, Language::Host);
    let mut rows: Vec<_> =
        params.into_iter().zip(comments(kernel).into_iter().enumerate().map(about)).collect();
    rows.push((
        format!("PeerwarpStatus* status[{}];", kernel.ranks),
        format!("Each rank's status record{of_machine}."),
    ));
    let budget = "How many nanoseconds a wait may last before the world is aborted, at least 1.";
    rows.push(("uint64_t wait_budget_ns;".into(), budget.into()));
    rows.push(("uint32_t rank;".into(), format!("This rank{on_machine}, from 0.")));
    let carrier = match engine {
        FarEngine::Ring => "PeerwarpFar far;",
        FarEngine::Gin => "PeerwarpGin far;",
    };
    let far = kernel.far_channel().map(|_| (carrier.into(), "What carries the far channels.".into()));
    rows.extend(far);
    let records =
        |_| ("PeerwarpTimelineEvent* timeline;".into(), "Where this rank records its timeline.".into());
    rows.extend(timeline.map(records));
    rows.extend(maps.iter().map(|m| (format!("PeerwarpTensorMap {};", m.name), about_map(m))));
    rows.into_iter()
        .map(|(declaration, about)| {
            let about = if about.is_empty() { vec![] } else { wrap_words(&about, width) };
            DocumentedText { about, declaration }
        })
        .collect()
}

/// What members of ranks are of where ranks are on several machines, and where a rank's number counts.
fn of_several(kernel: &Kernel) -> (&'static str, &'static str) {
    if kernel.nodes > 1 { (", of this machine", "'s number on its machine") } else { ("", "") }
}

/// What the header says about boxes, for launchers of their own.
fn about_map(map: &TensorMap) -> String {
    let TensorMap { of, dtype, rows, columns, box_rows, .. } = map;
    let own = if map.symmetric { "this rank's own " } else { "" };
    format!(
        "_launch makes it: pass zeros. A program that launches the entry makes it by cuTensorMapEncodeTiled: {own}{of}, {dtype}, \
         sizes {columns} and {rows}, a stride of {} bytes, boxes of {} and {box_rows}, element strides 1, no \
         interleaving, CU_TENSOR_MAP_SWIZZLE_128B, zeros for what is not there.",
        columns * u64::from(dtype.bytes()),
        map.box_columns()
    )
}

/// The parameters as members.
fn declarations(kernel: &Kernel, names: &ArgNames, language: Language) -> Vec<String> {
    let (written, multicast) = (written(kernel), kernel.multicast());
    let declaration = |(i, p): (usize, &Param)| {
        let id = ParamId(i as u32);
        let name = names.of(id);
        let ranks = kernel.ranks + u32::from(multicast.contains(&id));
        let ty = scalar_type(p.dtype, language);
        match p.kind {
            ParamKind::Local if !written.contains(&id) => format!("const {ty}* {name};"),
            ParamKind::Local | ParamKind::Counters | ParamKind::BlockFlags | ParamKind::Far(_) => {
                format!("{ty}* {name};")
            }
            ParamKind::Symmetric | ParamKind::Window | ParamKind::Flags | ParamKind::Counts => {
                format!("{ty}* {name}[{ranks}];")
            }
            ParamKind::Messages(transport) => {
                let word = transport.traits().word.unwrap_or(p.dtype);
                format!("{}* {name}[{ranks}];", scalar_type(word, language))
            }
            ParamKind::EpochWord if language == Language::Device => format!("EpochWord* {name};"),
            ParamKind::EpochWord => format!("PeerwarpEpochWord* {name};"),
            ParamKind::Scalar => format!("{ty} {name};"),
        }
    };
    kernel.params.iter().enumerate().map(declaration).collect()
}

/// Bytes of a status record.
const STATUS_BYTES: u64 = 56;
/// Bytes of an epoch word and its count of blocks.
const EPOCH_BYTES: u64 = 8;

/// What a host program allocates on each rank.
pub(crate) fn buffers(kernel: &Kernel, names: &ArgNames, timeline: Option<&Timeline>) -> Vec<BufferText> {
    let used = used(kernel);
    let buffer = |(i, p): (usize, &Param)| {
        let id = ParamId(i as u32);
        let all = p.len * u64::from(p.element_bytes());
        let (kind, bytes) = match p.kind {
            ParamKind::Local => ("LOCAL", all),
            ParamKind::Symmetric | ParamKind::Window => ("SYMMETRIC", all),
            ParamKind::Flags => ("FLAGS", all),
            ParamKind::Counts => ("COUNTS", all),
            ParamKind::Messages(transport) => (transport.traits().constant, all),
            ParamKind::EpochWord => ("EPOCH", EPOCH_BYTES),
            ParamKind::Counters => ("COUNTERS", all),
            ParamKind::BlockFlags => ("BLOCK_FLAGS", all),
            ParamKind::Far(part) => (part.constant(), all),
            ParamKind::Scalar => return None,
        };
        let bytes = if used.contains(&id) { bytes } else { 0 };
        Some(BufferText { name: names.of(id).into(), kind, bytes })
    };
    let mut all: Vec<_> = kernel.params.iter().enumerate().filter_map(buffer).collect();
    all.push(BufferText { name: "status".into(), kind: "STATUS", bytes: STATUS_BYTES });
    all.extend(timeline.map(|t| BufferText { name: "timeline".into(), kind: "TIMELINE", bytes: t.bytes }));
    all
}

/// The members whose pointers a launch checks.
pub(crate) fn pointers(
    kernel: &Kernel,
    names: &ArgNames,
    timeline: Option<&Timeline>,
    engine: FarEngine,
) -> Vec<PointerText> {
    let multicast: Vec<&str> = kernel.multicast().into_iter().map(|p| names.of(p)).collect();
    let count = |b: &BufferText| match b.kind {
        "LOCAL" | "EPOCH" | "COUNTERS" | "BLOCK_FLAGS" | "TIMELINE" => 1,
        kind if FarPart::ALL.iter().any(|part| part.constant() == kind) => 1,
        _ => kernel.ranks + u32::from(multicast.contains(&b.name.as_str())),
    };
    let pointer = |b: BufferText| PointerText { count: count(&b), name: b.name };
    let mut all: Vec<_> =
        buffers(kernel, names, timeline).into_iter().filter(|b| b.bytes > 0).map(pointer).collect();
    // Rings, words, memory and numbers of commands; or communicators, memory and numbers of puts.
    let count = if engine == FarEngine::Gin { 3 } else { 4 };
    all.extend(kernel.far_channel().map(|_| PointerText { name: "far".into(), count }));
    all
}

/// What each parameter is, and which pointer is not a rank's.
fn comments(kernel: &Kernel) -> Vec<String> {
    let multicast = kernel.multicast();
    let put: HashSet<ParamId> = kernel.ops.iter().filter_map(|op| op.kind.puts()).map(|(_, to)| to).collect();
    let one = |(i, p): (usize, &Param)| {
        let id = ParamId(i as u32);
        let comment = comment(p, put.contains(&id));
        match multicast.contains(&id) {
            true => format!("of each rank, then of all at once; {comment}"),
            false => comment,
        }
    };
    kernel.params.iter().enumerate().map(one).collect()
}

/// What a parameter is, in a few words, and whether ranks put into it.
fn comment(p: &Param, put: bool) -> String {
    let what = match p.kind {
        ParamKind::Local => format!("{}[{}]", p.dtype, p.len),
        ParamKind::Symmetric => format!("symmetric {}[{}]", p.dtype, p.len),
        ParamKind::Window if put => format!("peers write it, {}[{}]", p.dtype, p.len),
        ParamKind::Window => format!("peers read it, {}[{}]", p.dtype, p.len),
        ParamKind::Flags => format!("{} flags on each rank", p.len),
        ParamKind::Counts => format!("{} counts on each rank", p.len),
        ParamKind::Messages(transport) => format!("{} {}[{}]", transport.traits().comment, p.dtype, p.len),
        ParamKind::EpochWord => "advances with each launch".into(),
        ParamKind::Counters => format!("{} counters, zero at first", p.len),
        ParamKind::BlockFlags => format!("{} flags between blocks, zero at first", p.len),
        ParamKind::Far(part) => format!("{}, {}[{}]", ParamKind::Far(part).name(), p.dtype, p.len),
        ParamKind::Scalar => String::new(),
    };
    // A doc comment is the author's text: no line of it may end a C comment.
    let doc = p.doc.replace("*/", "* /");
    match (what.is_empty(), doc.is_empty()) {
        (_, true) => what,
        (true, false) => doc,
        (false, false) => format!("{what}: {doc}"),
    }
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

/// The parameters that some operation names.
fn used(kernel: &Kernel) -> HashSet<ParamId> {
    let mut found = HashSet::new();
    let regions = kernel.roles.iter().map(|r| &r.body).chain([&kernel.prologue]);
    for region in regions {
        kernel.walk(region, &mut |_, op| {
            op.kind.parts(&mut |part| {
                if let Part::Param(param) = part {
                    found.insert(param);
                }
            });
        });
    }
    found
}

/// The local buffers that the kernel writes.
pub(crate) fn written(kernel: &Kernel) -> HashSet<ParamId> {
    let mut found = HashSet::new();
    for role in &kernel.roles {
        kernel.walk(&role.body, &mut |_, op| {
            let stored = op.kind.accesses().into_iter().filter(|a| a.access.stores());
            found.extend(stored.filter_map(|a| a.place.param()));
        });
    }
    found
}
