//! Examples: kernels that are traced, run on the simulator and printed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytemuck::Pod;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Any, Binder, ErasedArg, MatrixArg, Payload, TraceMeta, TypedArg, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::{Const, Dtype, Kernel, ParamKind, verify};
use peerwarp_codegen::print::{EmitInfo, EmitOptions, Source, emit_with};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Memory, Options};

/// Ranks of every example.
pub const RANKS: u32 = 2;

/// Threads of a block, on each target.
pub const LANES: u32 = 64;

/// What scalar parameters are.
pub const SCALAR: u32 = 37;

/// A kernel, its input, and what it leaves.
pub struct Example {
    pub name: &'static str,
    /// The ops whose entry it stands in.
    pub ops: &'static [&'static str],
    /// Its parameters: name, type, and what its declaration says of length, element type and shape.
    pub params: &'static [(&'static str, &'static str, &'static str)],
    pub body: fn(&mut Binder),
    pub fill: fn(&mut Machine, &Kernel),
    /// Panics where the memory of a rank is not what the example says.
    pub check: fn(&Memory, u32),
}

impl Example {
    /// Nodes that its ranks are on: as many as ranks, where it is about nodes.
    fn nodes(&self) -> u32 {
        if self.ops.contains(&"nodes") { RANKS } else { 1 }
    }

    pub fn kernel(&self, warp_size: u32) -> Result<Kernel, String> {
        // Only whole warpgroups multiply with scales of blocks, and in pairs.
        let whole = ["MatrixRows::scaled_by", "MatrixRows::in_pairs"];
        let lanes = if whole.iter().any(|op| self.ops.contains(op)) { 2 * LANES } else { LANES };
        let meta = TraceMeta::new(self.name, RANKS, warp_size, lanes / warp_size);
        trace(TraceMeta { nodes: self.nodes(), ..meta }, self.body).map_err(|e| format!("{}: {e}", self.name))
    }

    /// Runs it under a schedule and compares what it leaves.
    pub fn run(&self, seed: u64) -> Result<(), String> {
        let verified = verify(self.kernel(32)?).map_err(|e| format!("{}: {e}", self.name))?;
        let kernel = Arc::new(Compiled::new(verified));
        let mut machine = Machine::of_nodes(self.nodes(), RANKS / self.nodes());
        machine.buffers_of(kernel.kernel()).map_err(|e| e.to_string())?;
        (self.fill)(&mut machine, kernel.kernel());
        let scalars = kernel.kernel().params.iter().filter(|p| p.kind == ParamKind::Scalar);
        let bindings = scalars.fold(Bindings::new(), |b, p| b.scalar(&p.name, Const::U32(SCALAR)));
        machine.launch_all(&kernel, &bindings).map_err(|e| e.to_string())?;
        let options = Options::default().with_seed(seed);
        let outcome = machine.run(&options).map_err(|e| format!("{}: {e}", self.name))?;
        for rank in 0..RANKS {
            let checked = catch_unwind(AssertUnwindSafe(|| (self.check)(&outcome.memory, rank)));
            checked.map_err(|_| format!("{}: rank {rank} has another result", self.name))?;
        }
        Ok(())
    }

    /// What a target prints: the lines before the roles and those of each role, or why it refuses the kernel.
    pub fn printed(&self, target: &str) -> Result<Vec<String>, String> {
        self.source(target).map(|source| lines_of_ops(source.roles()))
    }

    /// The whole source, without the author's lines.
    pub fn source(&self, target: &str) -> Result<Source, String> {
        let target: Target = target.parse().expect("the pages name targets that exist");
        let kernel = verify(self.kernel(target.warp_size())?).map_err(|e| e.to_string())?;
        let options = EmitOptions { lines: false, ..EmitOptions::default() };
        let info = EmitInfo { command: "a page".into() };
        emit_with(&kernel, target, &info, &options).map_err(|e| e.to_string())
    }
}

/// The lines of a source's roles and of its kernel that belong to ops: neither signatures nor what every kernel has.
fn lines_of_ops(text: &str) -> Vec<String> {
    let (roles, entry) = text.split_once("\n// ---- The kernel").expect("a source has a kernel");
    let entry: Vec<&str> = entry.lines().skip_while(|line| !line.ends_with('{')).skip(1).collect();
    // Behind the first ones stands which block is of which role.
    let call = entry.iter().position(|line| line.contains("_role(")).unwrap_or(entry.len());
    let end = if call > 0 && entry[call - 1].starts_with("    if (") { call - 1 } else { call };
    let of_all = ["asm volatile(\"griddepcontrol", "// ", "if (epoch == 0)", "__shared__"];
    let is_of_op = |line: &&str| !line.is_empty() && !of_all.iter().any(|start| line.starts_with(start));
    let inner = entry[..end].iter().map(|line| line.strip_prefix("    ").unwrap_or(line));
    let mut lines: Vec<String> = inner.filter(is_of_op).map(str::to_owned).collect();

    let several = roles.matches("\n__device__").count() > 1;
    let mut in_signature = false;
    for line in roles.lines().skip(1) {
        in_signature |= line.starts_with("__device__");
        if in_signature {
            in_signature = !line.ends_with('{');
        } else if let Some(role) = line.strip_prefix("// ") {
            lines.extend(several.then(|| format!("// {}", role.split(" (").next().unwrap_or(role))));
        } else if let Some(inner) = line.strip_prefix("    ") {
            let code = inner.split("  // ").next().unwrap_or(inner);
            let is_of_op = !code.starts_with("const Block block(") && !code.trim_start().starts_with("// ");
            lines.extend(is_of_op.then(|| code.to_owned()));
        }
    }
    // What a comment that goes on in a second line leaves.
    lines.retain(|line| !line.trim().is_empty());
    lines
}

/// A parameter of a kernel, made with what its declaration says: a length, an element type, a shape.
pub trait Made<D> {
    fn made(p: &mut Binder, name: &str, of: D) -> Self;
}

impl<A: TypedArg> Made<u64> for A {
    fn made(p: &mut Binder, name: &str, len: u64) -> A {
        p.arg(name, len)
    }
}

impl<A: ErasedArg> Made<(Dtype, u64)> for A {
    fn made(p: &mut Binder, name: &str, (dtype, len): (Dtype, u64)) -> A {
        p.erased(name, len, dtype)
    }
}

impl<A: MatrixArg> Made<(Dtype, u32, u32)> for A {
    fn made(p: &mut Binder, name: &str, (dtype, rows, columns): (Dtype, u32, u32)) -> A {
        p.matrix(name, [rows, columns], dtype)
    }
}

impl<T: Element + Payload> Made<(ChannelShape, u32)> for Channel<T> {
    fn made(p: &mut Binder, name: &str, (shape, len): (ChannelShape, u32)) -> Channel<T> {
        p.declare(Channel::<T>::params(name, shape, len, ""));
        Channel::bind(p, name)
    }
}

impl Made<(ChannelShape, Dtype, u32)> for Channel<Any> {
    fn made(p: &mut Binder, name: &str, (shape, dtype, len): (ChannelShape, Dtype, u32)) -> Channel<Any> {
        p.declare(Channel::<Any>::params_of(name, shape, len, dtype, ""));
        Channel::bind(p, name)
    }
}

/// What messages of fields are sized by.
pub struct Sizes {
    pub row: u32,
}

impl<M: Message<Config = Sizes>> Made<ChannelShape> for Channel<M> {
    fn made(p: &mut Binder, name: &str, shape: ChannelShape) -> Channel<M> {
        p.declare(Channel::<M>::params_for(name, shape, &Sizes { row: 64 }, ""));
        Channel::bind(p, name)
    }
}

/// Writes a parameter's elements on every rank.
pub fn fill<T: Pod>(machine: &mut Machine, kernel: &Kernel, name: &str, value: impl Fn(u32, u32) -> T) {
    let param = kernel.params.iter().find(|p| p.name == name).expect("the kernel has the parameter");
    for rank in 0..RANKS {
        let elements: Vec<T> = (0..param.len as u32).map(|i| value(rank, i)).collect();
        machine.write(rank, name, 0, &elements).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Compares a parameter's elements.
pub fn check<T: Pod + PartialEq + std::fmt::Debug>(
    memory: &Memory,
    rank: u32,
    name: &str,
    want: impl Fn(u32, u32) -> T,
) {
    let got = memory.read::<T>(rank, name).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (i, got) in got.iter().enumerate() {
        assert_eq!(*got, want(rank, i as u32), "element {i} of `{name}` on rank {rank}");
    }
}

/// Kernels, each with the ops it stands for, its parameters with their input, and what it leaves.
macro_rules! examples {
    ($(
        $name:ident [$($op:literal),+]
        ($($arg:ident: $ty:ty[$($of:expr),+] $(= $input:expr)?),*)
        -> ($($out:ident: $want:expr),*)
        $body:block
    )+) => {
        /// The examples of the page.
        pub fn examples() -> Vec<$crate::example::Example> {
            vec![$({
                #[kernel]
                #[allow(clippy::too_many_arguments)]
                fn $name($($arg: $ty),*) $body
                $crate::example::Example {
                    name: stringify!($name),
                    ops: &[$($op),+],
                    params: &[$((stringify!($arg), stringify!($ty), stringify!($($of),+))),*],
                    body: |p| {
                        $(#[allow(unused_parens)]
                        let $arg = <$ty as $crate::example::Made<_>>::made(p, stringify!($arg), ($($of),+));)*
                        $name($($arg),*);
                    },
                    fill: |_machine, _kernel| {
                        $($($crate::example::fill(_machine, _kernel, stringify!($arg), $input);)?)*
                    },
                    check: |_memory, _rank| {
                        $($crate::example::check(_memory, _rank, stringify!($out), $want);)*
                    },
                }
            }),+]
        }

        /// Where they stand.
        pub const SOURCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../", file!()));
    };
}
