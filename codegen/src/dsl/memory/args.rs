//! Kernel parameters: what `#[derive(KernelArgs)]` implements, and how a parameter becomes a handle.

use std::sync::Arc;

use crate::dsl::channel::{ChannelShape, Declared};
use crate::dsl::trace::{
    TraceError,
    error::raise,
    tracer::{attempt, with},
};
use crate::ir::{Access, Dtype, Kernel, Loc, ParamId, ParamKind, signature};
use serde::{Deserialize, Serialize};

/// Whose a parameter's memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Binding {
    /// The caller's, which the kernel reads: `#[input]`.
    Input,
    /// The caller's, which the kernel writes: `#[output]`.
    Output,
    /// The caller's, which the kernel reads and writes: `#[inout]`.
    InOut,
    /// The operation's own: the maker of the operation allocates it, and it lasts from launch to launch.
    #[default]
    State,
}

impl Binding {
    /// Whether the kernel writes memory of the caller.
    pub const fn writes(self) -> bool {
        matches!(self, Binding::Output | Binding::InOut)
    }

    /// Whether the kernel reads what the caller has written.
    pub const fn reads(self) -> bool {
        matches!(self, Binding::Input | Binding::InOut)
    }
}

/// That a launch has as many rows of a buffer as one of its numbers says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    /// The parameter that is the number.
    pub scalar: String,
    /// The most rows: the parameter's length is that of so many.
    pub most: u64,
}

/// A parameter of a kernel: what the runtime has to pass, and what the simulator and the manifest need to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamSpec {
    /// Field name in the author's struct.
    pub name: String,
    /// What it is.
    pub kind: ParamKind,
    /// Element type.
    pub dtype: Dtype,
    /// Number of elements (1 for a scalar).
    pub len: u64,
    /// Elements of a row, of a matrix.
    pub columns: Option<u64>,
    /// First paragraph of the field's doc comment.
    pub doc: String,
    /// Whose memory it is.
    pub binding: Binding,
    /// What says how many rows of it there are; all of its length if nothing does.
    pub rows: Option<Rows>,
    /// The channel that it is a part of. Stored parameters have none.
    #[serde(skip)]
    pub(crate) channel: Option<Arc<Declared>>,
}

impl ParamSpec {
    /// A parameter whose type says its element type: `Ptr<T>`, `Sym<T>`, `Window<T>`, `Flags`, `EpochWord`, `Val<T>`.
    pub fn of<A: TypedArg>(name: &str, len: u64, doc: &str) -> ParamSpec {
        ParamSpec::new::<A>(name, len, A::DTYPE, doc)
    }

    /// A parameter whose element type a config chooses: `AnyPtr`, `AnySym`, `AnyWindow`.
    pub fn erased<A: ErasedArg>(name: &str, len: u64, dtype: Dtype, doc: &str) -> ParamSpec {
        ParamSpec::new::<A>(name, len, dtype, doc)
    }

    fn new<A: Arg>(name: &str, len: u64, dtype: Dtype, doc: &str) -> ParamSpec {
        let (name, doc) = (name.into(), doc.into());
        let (binding, rows, channel, columns) = (Binding::default(), None, None, None);
        ParamSpec { name, kind: A::KIND, dtype, len, columns, doc, binding, rows, channel }
    }

    /// A matrix of so many rows and columns: `AnyMatrix`, `AnySymMatrix`, `AnyWindowMatrix`. Rows follow one another.
    pub fn matrix<A: MatrixArg>(name: &str, [rows, columns]: [u32; 2], dtype: Dtype, doc: &str) -> ParamSpec {
        let (rows, columns) = (u64::from(rows), u64::from(columns));
        ParamSpec { columns: Some(columns), ..ParamSpec::new::<A>(name, rows * columns, dtype, doc) }
    }

    /// The same, of memory that is the caller's or the operation's own.
    #[must_use]
    pub fn bound(self, binding: Binding) -> ParamSpec {
        ParamSpec { binding, ..self }
    }

    /// The same, of rows of which a launch has as many as the number `scalar` says, and its length is that of `most` rows.
    #[must_use]
    pub fn of_rows(self, scalar: &str, most: u64) -> ParamSpec {
        ParamSpec { rows: Some(Rows { scalar: scalar.to_owned(), most }), ..self }
    }

    /// [`ParamSpec::of_rows`], where there is such a number.
    #[must_use]
    pub fn rows_of(self, scalar_most: Option<(&str, u64)>) -> ParamSpec {
        match scalar_most {
            Some((scalar, most)) => self.of_rows(scalar, most),
            None => self,
        }
    }

    /// Bytes of `rows` rows of its memory, at most all of it; all of it if nothing says how many rows there are.
    pub fn bytes_of_rows(&self, rows: u64) -> u64 {
        match &self.rows {
            None => self.bytes(),
            Some(Rows { most, .. }) => self.bytes().checked_div(*most).unwrap_or(0) * rows.min(*most),
        }
    }

    /// As [`Param::signature`](crate::ir::Param::signature) of the kernel's parameter.
    pub fn signature(&self) -> String {
        signature(&self.name, self.kind, self.dtype, self.len)
    }

    /// The channel that it is a part of: its name and shape.
    pub fn channel(&self) -> Option<(&str, &ChannelShape)> {
        self.channel.as_ref().map(|declared| (declared.name.as_str(), &declared.shape))
    }

    /// Bytes of its memory on each rank.
    pub fn bytes(&self) -> u64 {
        match self.kind {
            // The epoch, and room beside it for what counts blocks.
            ParamKind::EpochWord => 8,
            any!(symmetric, counted) | ParamKind::Local | ParamKind::Far(_) | ParamKind::Scalar => {
                self.len * u64::from(self.kind.element_bytes(self.dtype))
            }
        }
    }
}

/// A struct of kernel parameters, or an enum of such structs; implemented by `#[derive(KernelArgs)]`.
///
/// A field of type `Option<T>` is a parameter of configs for which its `#[len(..)]` is not 0, and `None` for the others. A field
/// with `#[group]` is a struct of parameters itself, which kernels with other configs may have too: `#[group(|c| ..)]` computes
/// the group's config from this one. Functions of the device that take the group are then of use to all of them.
///
/// Where a kernel has one group or another, an enum of both says so: no `Option`s have to agree then.
///
/// ```
/// # use peerwarp_codegen::dsl::{TraceMeta, prelude::*, trace_args};
/// # struct Count { ranks: u32, early: bool }
/// #[derive(KernelArgs)]
/// #[args(config = Count)]
/// struct FlagArgs {
///     #[len(|c| c.ranks.into())] counts: Sym<u32>,
///     #[len(|c| c.ranks.into())] arrived: Flags,
/// }
/// #[derive(KernelArgs)]
/// #[args(config = Count)]
/// struct LlArgs {
///     #[len(|c| c.ranks.into())] counts: Ll<u32>,
/// }
/// /// How counts travel.
/// #[derive(KernelArgs)]
/// #[args(config = Count)]
/// enum CountArgs {
///     #[when(|c| c.early)]
///     Ll(LlArgs),
///     Flags(FlagArgs),
/// }
/// #[derive(KernelArgs)]
/// #[args(config = Count)]
/// struct Args {
///     #[group] counts: CountArgs,
///     #[len(|c| c.ranks.into())] out: Ptr<u32>,
///     epoch: EpochWord,
/// }
/// # fn count(c: &Count, a: &Args) {
/// # let epoch = a.epoch.begin();
/// # role("count", 1, |_| {
/// let n = splat(1u32, 1);
/// let counts = match &a.counts {
///     CountArgs::Ll(ll) => {
///         ll.counts.send(Peers::all(), rank(), n, epoch);
///         let from = arange(c.ranks);
///         ll.counts.gather(from, from, true, epoch)
///     }
///     CountArgs::Flags(f) => {
///         let mut parcel = send_to(Peers::all());
///         parcel.put(&f.counts, rank(), n);
///         parcel.signal(&f.arrived, rank(), epoch);
///         f.counts.load(&f.arrived.wait_all(0, c.ranks, 1, epoch), 0, c.ranks)
///     }
/// };
/// a.out.store(0, counts);
/// # });
/// # }
/// # for early in [true, false] {
/// #     let kernel = trace_args::<Args>(TraceMeta::new("count", 4, 32, 1), &Count { ranks: 4, early }, count)?;
/// #     assert_eq!(kernel.params.len(), if early { 3 } else { 4 });
/// # }
/// # Ok::<(), TraceError>(())
/// ```
///
/// With `#[rows(rows_there, |c| ..)]` a launch has as many rows of an input or output as the parameter `rows_there` says. The closure
/// computes the most rows, and `#[len(..)]` is their length. A kernel must not touch more.
pub trait KernelArgs: Sized {
    /// The config that decides lengths and element types.
    type Config: ?Sized;
    /// The parameters under a config, in the order of the fields.
    fn params(config: &Self::Config) -> Vec<ParamSpec>;
    /// The handles under the same config, taken from the binder by [`Binder::next`] in the order of the fields.
    fn bind(config: &Self::Config, binder: &mut Binder) -> Self;
}

/// A type that can be a field of a [`KernelArgs`] struct.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a kernel parameter",
    note = "parameters are Ptr<T>, Sym<T>, Window<T>, AnyPtr, AnySym, AnyWindow, Matrix<T>, SymMatrix<T>, WindowMatrix<T>, AnyMatrix, AnySymMatrix, AnyWindowMatrix, Packets<T>, AnyPackets, Ll<T>, AnyLl, Flags, BlockFlags, EpochWord, Counters and Val<T>"
)]
pub trait Arg: Sized {
    /// What it is.
    const KIND: ParamKind;
    /// The handle of a declared parameter.
    #[doc(hidden)]
    fn bind(bound: Bound) -> Self;
}

/// A parameter type that fixes its element type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say its element type",
    note = "give the field `#[dtype(|c| ..)]`, or use Ptr<T>, Sym<T>, Window<T>, Packets<T>, Ll<T>, Flags, BlockFlags, EpochWord, Counters or Val<T>"
)]
pub trait TypedArg: Arg {
    /// Element type.
    const DTYPE: Dtype;
}

/// A parameter type whose element type a config chooses.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has an element type of its own",
    note = "`#[dtype(..)]` is for AnyPtr, AnySym and AnyWindow"
)]
pub trait ErasedArg: Arg {}

/// A parameter that is a matrix, whose shape and element type a config chooses.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no matrix",
    note = "`#[shape(..)]` is for matrices: Matrix<T>, SymMatrix<T>, WindowMatrix<T>, AnyMatrix, AnySymMatrix and AnyWindowMatrix"
)]
pub trait MatrixArg: Arg {}

/// A declared parameter of the kernel that is being traced.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    pub(crate) param: ParamId,
    pub(crate) trace: u32,
    pub(crate) len: u64,
    pub(crate) columns: Option<u64>,
    pub(crate) dtype: Dtype,
}

/// Declares parameters of the kernel that is being traced and hands out their handles.
#[derive(Debug)]
pub struct Binder {
    trace: u32,
    next: u32,
    loc: Loc,
}

impl Binder {
    pub(crate) fn new(trace: u32, loc: Loc) -> Binder {
        Binder { trace, next: 0, loc }
    }

    /// Declares parameters, to be taken in this order by [`Binder::next`].
    pub fn declare(&mut self, specs: Vec<ParamSpec>) {
        let loc = self.loc;
        for spec in specs {
            attempt(loc, |t| {
                if let Some(declared) = &spec.channel {
                    t.declare_channel(declared, loc)?;
                }
                check_spec(&spec, loc)?;
                if t.builder.kernel.params.iter().any(|p| p.name == spec.name) {
                    return Err(TraceError::new(
                        loc,
                        format!("two parameters are named `{}`", spec.name),
                        "rename one of them",
                    ));
                }
                let id = t.builder.param(&spec.name, spec.kind, spec.dtype, spec.len);
                let param = &mut t.builder.kernel.params[id.index()];
                (param.doc, param.columns) = (spec.doc, spec.columns);
                param.own = spec.binding == Binding::State;
                Ok(())
            });
        }
    }

    /// The handle of the next declared parameter, which must be of type `A`.
    #[allow(clippy::should_implement_trait)] // the type is chosen by the caller
    pub fn next<A: Arg>(&mut self) -> A {
        let param = ParamId(self.next);
        let loc = self.loc;
        let found = with(loc, |t| t.builder.kernel.params.get(param.index()).cloned());
        let Some(p) = found.filter(|p| p.kind == A::KIND) else {
            raise(TraceError::new(
                loc,
                format!("parameter {} is bound as {:?}, which is not what was declared", self.next, A::KIND),
                "let `KernelArgs::params` and `KernelArgs::bind` go through the fields in the same order",
            ))
        };
        self.next += 1;
        A::bind(Bound { param, trace: self.trace, len: p.len, columns: p.columns, dtype: p.dtype })
    }

    /// The handle of the next declared parameter if it has this name: of one that the config leaves out, none.
    pub fn next_if_declared<A: Arg>(&mut self, name: &str) -> Option<A> {
        let next = ParamId(self.next);
        let found =
            with(self.loc, |t| t.builder.kernel.params.get(next.index()).is_some_and(|p| p.name == name));
        found.then(|| self.next())
    }

    /// Where the kernel is.
    pub(crate) fn loc(&self) -> Loc {
        self.loc
    }

    /// The next declared parameter, which is a part of a channel.
    pub(crate) fn next_part(&mut self) -> Bound {
        let (trace, param) = (self.trace, ParamId(self.next));
        self.next += 1;
        with(self.loc, |t| {
            let p = &t.builder.kernel.params[param.index()];
            Bound { param, trace, len: p.len, columns: p.columns, dtype: p.dtype }
        })
    }

    /// Whether a channel is declared.
    pub(crate) fn has_channel(&self, name: &str) -> bool {
        with(self.loc, |t| t.channels.iter().any(|c| c.declared.name == name))
    }

    /// A declared channel.
    pub(crate) fn channel(&self, name: &str) -> (usize, Arc<Declared>) {
        let found = with(self.loc, |t| {
            let at = t.channels.iter().position(|c| c.declared.name == name)?;
            Some((at, t.channels[at].declared.clone()))
        });
        found.unwrap_or_else(|| {
            let help =
                "let `KernelArgs::params` and `KernelArgs::bind` go through the fields in the same order";
            raise(TraceError::new(self.loc, format!("channel `{name}` is not declared"), help))
        })
    }

    /// Declares a parameter and returns its handle.
    pub fn arg<A: TypedArg>(&mut self, name: &str, len: u64) -> A {
        self.declare(vec![ParamSpec::of::<A>(name, len, "")]);
        self.next()
    }

    /// Declares a matrix of the given element type and returns its handle.
    pub fn matrix<A: MatrixArg>(&mut self, name: &str, shape: [u32; 2], dtype: Dtype) -> A {
        self.declare(vec![ParamSpec::matrix::<A>(name, shape, dtype, "")]);
        self.next()
    }

    /// Declares a parameter of the given element type and returns its handle.
    pub fn erased<A: ErasedArg>(&mut self, name: &str, len: u64, dtype: Dtype) -> A {
        self.declare(vec![ParamSpec::erased::<A>(name, len, dtype, "")]);
        self.next()
    }
}

/// Whether what says how many rows there are is a number that launches pass, and the most rows divide the length.
pub(crate) fn check_rows(specs: &[ParamSpec], loc: Loc) -> Result<(), TraceError> {
    let whole = |s: &ParamSpec| s.rows.as_ref().is_none_or(|rows| s.len.checked_rem(rows.most) == Some(0));
    if let Some(spec) = specs.iter().find(|s| !whole(s))
        && let Some(Rows { most, .. }) = spec.rows
    {
        let message = format!("`{}` has {} elements in at most {most} rows", spec.name, spec.len);
        let help = "let the most of `#[rows(..)]` be at least 1 and divide `#[len(..)]`";
        return Err(TraceError::new(loc, message, help));
    }
    let number =
        |s: &ParamSpec, name: &str| s.name == name && (s.kind, s.dtype) == (ParamKind::Scalar, Dtype::U32);
    let lacks = |s: &&ParamSpec| {
        s.rows.as_ref().is_some_and(|rows| !specs.iter().any(|other| number(other, &rows.scalar)))
    };
    let Some((spec, rows)) = specs.iter().find(lacks).and_then(|s| Some((s, s.rows.as_ref()?))) else {
        return Ok(());
    };
    let message = format!("`{}` has as many rows as `{}` says, which is no number", spec.name, rows.scalar);
    Err(TraceError::new(loc, message, format!("declare it beside: `pub {}: Val<u32>`", rows.scalar)))
}

/// Whether a kernel leaves the caller's inputs as they are: callers may pass one to several launches at once.
pub(crate) fn check_inputs(kernel: &Kernel, specs: &[ParamSpec]) -> Result<(), TraceError> {
    for op in &kernel.ops {
        let written = op.kind.accesses().into_iter().filter(|a| a.access.stores() || a.access == Access::Put);
        let mut specs = written.filter_map(|a| specs.get(a.place.param()?.index()));
        if let Some(spec) = specs.find(|spec| spec.binding == Binding::Input) {
            let message = format!("`{}` is an input, and is written", spec.name);
            let help = "mark it `#[inout]`, or `#[output]` if what it held does not matter";
            return Err(TraceError::new(op.loc, message, help));
        }
    }
    Ok(())
}

fn check_spec(spec: &ParamSpec, loc: Loc) -> Result<(), TraceError> {
    let name = &spec.name;
    let wrong = |message, help: &str| Err(TraceError::new(loc, message, help));
    if !is_identifier(name) {
        return wrong(
            format!("a parameter named `{name}`"),
            "use letters, digits and `_`, not starting with a digit",
        );
    }
    if spec.len == 0 {
        return wrong(format!("parameter `{name}` has no elements"), "let its `#[len(..)]` be at least 1");
    }
    if spec.dtype == Dtype::Bool {
        return wrong(format!("parameter `{name}` is of bool"), "truth values live in registers: use u32");
    }
    Ok(())
}

/// Whether text can be a name in emitted source.
pub(crate) fn is_identifier(s: &str) -> bool {
    let mut chars = s.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
