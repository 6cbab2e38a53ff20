//! Names in emitted source: the author's, made unique among those in scope.

use std::collections::HashSet;

use super::defined::DEFINED;
use crate::ir::{Kernel, ParamId};

/// Words that no emitted variable may be called: the language's, the compilers', and those the printer uses itself.
const RESERVED: &str = "\
    alignas alignof and asm atomicAdd auto bitand bitor bool break case catch char class compl const constexpr \
    continue decltype default delete do double else enum explicit export extern false float for friend goto if \
    inline int long main mutable namespace new noexcept not nullptr operator or private protected public \
    register return short signed sizeof static struct switch template this throw true try typedef typeid \
    typename union unsigned using virtual void volatile wchar_t while xor half warpSize threadIdx blockIdx \
    blockDim gridDim uint ushort uchar bf16 fp16 fp8 f32 i32 u8 u16 u32 u64 List Vec Block Warp Warps Args \
    Status EpochWord Ring Drawn Loader TensorMap WaitSite Sum Min Max And Or args block loader warps group min \
    max abs exp sqrt signal time clock y0 y1 yn j0 j1 jn kernel_id own_blocks ranks all_ranks";

/// A stack of scopes, each with the names declared in it.
#[derive(Debug)]
pub(crate) struct Names {
    scopes: Vec<HashSet<String>>,
}

impl Names {
    /// One open scope that holds the reserved words and `taken`.
    pub fn new(taken: impl IntoIterator<Item = String>) -> Names {
        let mut first: HashSet<String> = RESERVED.split(' ').map(str::to_string).collect();
        first.extend(taken);
        Names { scopes: vec![first, HashSet::new()] }
    }

    /// Opens a scope.
    pub fn enter(&mut self) {
        self.scopes.push(HashSet::new());
    }

    /// Closes the innermost scope; its names are free again.
    pub fn leave(&mut self) {
        self.scopes.pop();
    }

    /// A name like `want` that is free in every open scope, now taken in the innermost.
    pub fn fresh(&mut self, want: &str) -> String {
        let base = identifier(want);
        let mut name = base.clone();
        let mut n = 2;
        while self.scopes.iter().any(|s| s.contains(&name)) {
            name = format!("{base}_{n}");
            n += 1;
        }
        self.scopes.last_mut().expect("two scopes are open from the start").insert(name.clone());
        name
    }
}

/// `want` with everything that a C++ identifier cannot have left out.
fn identifier(want: &str) -> String {
    // Two underscores in a row are reserved to the implementation, as are leading ones.
    let mut out = String::new();
    for c in want.trim_start_matches("r#").chars() {
        match c {
            'a'..='z' | 'A'..='Z' => out.push(c),
            '0'..='9' if !out.is_empty() => out.push(c),
            _ if !out.is_empty() && !out.ends_with('_') => out.push('_'),
            _ => {}
        }
    }
    let out = out.trim_end_matches('_');
    if out.is_empty() { "value".into() } else { out.into() }
}

/// Names of what the printer declares in loops of its own, out of the way of the author's.
#[derive(Debug)]
pub(crate) struct OwnNames {
    /// Index of a lane's first element in a step.
    pub at: String,
    /// Number of the step.
    pub step: String,
    /// Number of the element in a lane's vector.
    pub j: String,
    /// How far past its own rank a rank is in its round of destinations.
    pub turn: String,
}

impl OwnNames {
    /// Picks names that nothing in a kernel has.
    pub fn new(kernel: &Kernel) -> OwnNames {
        let values = kernel.values.iter().filter_map(|v| v.name.as_deref());
        let vars = kernel.vars.iter().filter_map(|v| v.name.as_deref());
        let arrays = kernel.shared.iter().map(|s| s.name.as_str());
        let theirs: HashSet<&str> = values.chain(vars).chain(arrays).collect();
        let pick = |wants: [&str; 2]| match wants.iter().find(|w| !theirs.contains(**w)) {
            Some(name) => name.to_string(),
            // The longer one with as many underscores as it takes.
            None => (1..)
                .map(|n| format!("{}{}", wants[1], "_".repeat(n)))
                .find(|n| !theirs.contains(n.as_str()))
                .expect("some number of underscores is free"),
        };
        OwnNames {
            at: pick(["at", "first_element"]),
            step: pick(["step", "tile_step"]),
            j: pick(["j", "element"]),
            turn: pick(["turn", "destination"]),
        }
    }

    /// All of them.
    pub fn all(&self) -> [String; 4] {
        [self.at.clone(), self.step.clone(), self.j.clone(), self.turn.clone()]
    }
}

/// Members that every kernel has.
const COMMON: [&str; 3] = ["rank", "status", "wait_budget_ns"];

/// Member names of the parameters, clear of C++ words and of the members that every kernel has.
#[derive(Debug)]
pub(crate) struct ArgNames {
    names: Vec<String>,
}

impl ArgNames {
    /// Names the parameters of a kernel.
    pub fn new(kernel: &Kernel, timeline: bool) -> ArgNames {
        let taken = COMMON.into_iter().chain(timeline.then_some("timeline"));
        let mut names = Names::new(taken.map(str::to_owned));
        ArgNames { names: kernel.params.iter().map(|p| names.fresh(&p.name)).collect() }
    }

    /// The member of a parameter.
    pub fn of(&self, param: ParamId) -> &str {
        &self.names[param.index()]
    }

    /// The member that something else gets, clear of the parameters' and of others.
    pub fn another(&self, want: &str, taken: impl IntoIterator<Item = String>) -> String {
        let taken = COMMON.into_iter().map(str::to_owned).chain(self.names.iter().cloned()).chain(taken);
        Names::new(taken).fresh(want)
    }
}

/// FNV-1a.
pub(crate) fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// FNV-1a of the variant's name.
pub(crate) fn kernel_id(kernel: &Kernel) -> String {
    format!("{:#018x}", fnv(&kernel.variant))
}

/// The argument struct's type in the header.
pub(crate) fn args_name(kernel: &Kernel) -> String {
    format!("{}_Args", kernel.variant)
}

/// The namespace of all that is not an entry: short, and no other kernel's.
pub(crate) fn namespace(kernel: &Kernel) -> String {
    format!("kernel_{}", kernel_id(kernel).trim_start_matches("0x"))
}

/// Whether `name` can be a parameter, role or entry name as it stands.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Whether a word of the language, or what primitives define, has this name.
pub(crate) fn is_taken(name: &str) -> bool {
    RESERVED.split(' ').any(|word| word == name) || DEFINED.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_in_scope_and_free_after_it() {
        let mut n = Names::new(["load".to_string()]);
        assert_eq!(n.fresh("row"), "row");
        assert_eq!(n.fresh("load"), "load_2");
        n.enter();
        assert_eq!(n.fresh("row"), "row_2");
        assert_eq!(n.fresh("id"), "id");
        n.leave();
        assert_eq!(n.fresh("id"), "id");
        assert_eq!(n.fresh("int"), "int_2");
        assert_eq!(n.fresh("r#type"), "type");
        assert_eq!(n.fresh("_"), "value");
        assert_eq!(n.fresh("a__b_"), "a_b");
    }

    #[test]
    fn identifiers_are_recognised() {
        assert!(is_identifier("moe_dispatch_h7168__w16"));
        assert!(!is_identifier("7up") && !is_identifier("a-b") && !is_identifier(""));
    }
}
