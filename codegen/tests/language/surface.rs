//! The public surface of the prelude, as the sources of `dsl` have it: types, functions, their signatures and docs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::visit::Visit;

use super::expand::Macros;

/// Types of the crate's other hosts: what derives and tracing need, no kernel names them.
const OF_HOSTS: [&str; 7] = ["Arg", "Binder", "ErasedArg", "FieldSpec", "MatrixArg", "ParamSpec", "TypedArg"];

/// Types whose functions no kernel calls: derived code and hosts do.
const OF_DERIVES: [&str; 4] = ["KernelArgs", "Message", "Payload", "TraceError"];

/// A type or trait.
pub struct Kind {
    /// Its declaration, in a line.
    pub declaration: String,
    pub docs: String,
}

/// A function, a method, or a method of a trait.
#[derive(Clone)]
pub struct Op {
    /// `load` of `Ptr`, or a function of its own.
    pub owner: Option<String>,
    pub name: String,
    /// What it is a method of, with bounds: `impl<T: Int> Ptr<T>`.
    pub of: String,
    pub signature: String,
    pub docs: String,
    /// Names of `dsl` in the signature.
    mentions: BTreeSet<String>,
}

impl Op {
    /// The type it is a method of, or itself.
    fn begins(&self) -> &str {
        let name = self.owner.as_ref().unwrap_or(&self.name);
        name.split('<').next().unwrap_or(name)
    }

    /// `Ptr::load`, or `role`.
    pub fn key(&self) -> String {
        self.owner.iter().chain([&self.name]).cloned().collect::<Vec<_>>().join("::")
    }
}

/// All that kernels can name.
pub struct Surface {
    pub kinds: BTreeMap<String, Kind>,
    pub ops: Vec<Op>,
    /// The names that the prelude brings.
    pub prelude: BTreeSet<String>,
}

/// The names that a module in a file brings.
fn uses(module: &syn::ItemMod, found: &mut BTreeSet<String>) {
    let (_, items) = module.content.as_ref().expect("the module stands in its file");
    for item in items {
        if let syn::Item::Use(u) = item {
            names(&u.tree, found);
        }
    }
}

impl Surface {
    pub fn read() -> Surface {
        let parsed = parsed();
        let mut macros = Macros::default();
        parsed.iter().for_each(|items| macros.define(items));
        let (mut exported, mut prelude) = (BTreeSet::new(), BTreeSet::new());
        for item in &parse(&folder().join("mod.rs")) {
            match item {
                syn::Item::Use(u) if is_public(&u.vis) && !is_hidden(&u.attrs) => {
                    names(&u.tree, &mut exported)
                }
                syn::Item::Mod(m) if m.ident == "prelude" => uses(m, &mut prelude),
                _ => {}
            }
        }
        // Both have all of it.
        for item in &parse(&folder().join("comm/mod.rs")) {
            if let syn::Item::Mod(m) = item
                && m.ident == "transports"
            {
                [&mut exported, &mut prelude].into_iter().for_each(|found| uses(m, found));
            }
        }
        let mut surface = Surface { kinds: BTreeMap::new(), ops: vec![], prelude: BTreeSet::new() };
        for items in parsed {
            macros.items(items).into_iter().for_each(|item| surface.add(item, &macros, &exported));
        }
        surface.keep(&prelude, &exported);
        surface.add_others();
        surface.prelude = prelude;
        surface
    }

    fn add(&mut self, item: syn::Item, macros: &Macros, exported: &BTreeSet<String>) {
        let mut op = |owner: Option<String>,
                      of: &str,
                      sig: &syn::Signature,
                      attrs: &[syn::Attribute],
                      whole: String| {
            if !is_hidden(attrs) {
                let (name, docs) = (sig.ident.to_string(), docs(attrs, macros));
                let (of, mentions) = (of.to_owned(), mentions(&whole, exported));
                self.ops.push(Op { owner, name, of, signature: pretty_signature(sig), docs, mentions });
            }
        };
        match item {
            syn::Item::Fn(f) if is_public(&f.vis) => {
                let whole = f.sig.to_token_stream().to_string();
                op(None, "", &f.sig, &f.attrs, whole);
            }
            syn::Item::Impl(block) if block.trait_.is_none() => {
                let syn::Type::Path(path) = &*block.self_ty else { return };
                let owner = plain(path.path.segments.last().expect("a path has a segment"));
                let of_any = owner.ends_with("Any>");
                let owner = match owner.split_once('<') {
                    Some((name, _)) if of_any => format!("{name}<Any>"),
                    Some((name, _)) => name.to_owned(),
                    None => owner,
                };
                let mut header = block.clone();
                (header.items, header.attrs) = (vec![], vec![]);
                let of = pretty(syn::Item::Impl(header))
                    .trim_end_matches([' ', '{', '}', '\n'])
                    .replace("super::", "");
                for f in macros.functions(block.items).iter().filter(|f| is_public(&f.vis)) {
                    let whole = format!("{of} {}", f.sig.to_token_stream());
                    op(Some(owner.clone()), &of, &f.sig, &f.attrs, whole);
                }
            }
            syn::Item::Trait(t) if is_public(&t.vis) => {
                let owner = t.ident.to_string();
                for item in &t.items {
                    let syn::TraitItem::Fn(f) = item else { continue };
                    let whole = f.sig.to_token_stream().to_string();
                    op(
                        Some(owner.clone()),
                        &format!("trait {owner}{}", plain(&t.generics)),
                        &f.sig,
                        &f.attrs,
                        whole,
                    );
                }
                self.kind(owner, format!("trait {}{}", t.ident, plain(&t.generics)), &t.attrs, macros);
            }
            syn::Item::Struct(s) if is_public(&s.vis) => {
                self.kind(
                    s.ident.to_string(),
                    format!("struct {}{}", s.ident, plain(&s.generics)),
                    &s.attrs,
                    macros,
                );
            }
            syn::Item::Enum(e) if is_public(&e.vis) => {
                self.kind(
                    e.ident.to_string(),
                    format!("enum {}{}", e.ident, plain(&e.generics)),
                    &e.attrs,
                    macros,
                );
                let Some(kind) = self.kinds.get_mut(&e.ident.to_string()) else { return };
                kind.docs += "\n";
                for v in &e.variants {
                    let (of, told) = (v.fields.to_token_stream(), docs(&v.attrs, macros).replace('\n', " "));
                    let told = if told.is_empty() { told } else { format!(": {told}") };
                    kind.docs += &format!("\n- `{}{of}`{told}", v.ident);
                }
            }
            syn::Item::Type(t) if is_public(&t.vis) => {
                let whole = format!("type {} = {}", t.ident, plain(&t.ty));
                self.kind(t.ident.to_string(), whole, &t.attrs, macros);
            }
            _ => {}
        }
    }

    fn kind(&mut self, name: String, declaration: String, attrs: &[syn::Attribute], macros: &Macros) {
        if !is_hidden(attrs) {
            self.kinds.insert(name, Kind { declaration, docs: docs(attrs, macros) });
        }
    }

    /// Types of the prelude that are not the DSL's own.
    fn add_others(&mut self) {
        let ir = parse(&folder().join("../ir/op.rs"));
        let reduce = ir.into_iter().find(|item| matches!(item, syn::Item::Enum(e) if e.ident == "ReduceOp"));
        self.add(reduce.expect("the IR has reductions"), &Macros::default(), &BTreeSet::new());
        for (name, docs) in [
            (
                "f16",
                "A float of 5 exponent and 10 mantissa bits, of the crate `half`. A storage type: cast it.",
            ),
            (
                "bf16",
                "A float of 8 exponent and 7 mantissa bits, of the crate `half`. A storage type: cast it.",
            ),
        ] {
            self.kinds.insert(name.into(), Kind { declaration: format!("struct {name}"), docs: docs.into() });
        }
    }

    /// Keeps what the prelude has and what its signatures lead to.
    fn keep(&mut self, prelude: &BTreeSet<String>, exported: &BTreeSet<String>) {
        let is_of_kernels = |name: &str| !OF_HOSTS.contains(&name);
        let mut reached: BTreeSet<String> = prelude.clone();
        self.ops.retain(|op| {
            let is_own = op.owner.is_some() || exported.contains(&op.name);
            let derived = op.owner.as_deref().is_some_and(|owner| OF_DERIVES.contains(&owner));
            is_own && !derived && op.mentions.iter().all(|m| is_of_kernels(m))
        });
        loop {
            let before = reached.len();
            for op in &self.ops {
                if reached.contains(op.begins()) {
                    reached.extend(op.mentions.iter().cloned());
                }
            }
            if reached.len() == before {
                break;
            }
        }
        self.ops.retain(|op| reached.contains(op.begins()));
        self.kinds.retain(|name, _| reached.contains(name) && is_of_kernels(name));
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/dsl")
}

fn parse(path: &PathBuf) -> Vec<syn::Item> {
    syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap().items
}

/// The items of each file of the DSL, but for what `#[kernel]` expands to.
pub fn parsed() -> Vec<Vec<syn::Item>> {
    let mut files = sources(&folder());
    files.sort();
    files.iter().map(parse).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| match path.is_dir() {
        true if path.ends_with("control") => vec![],
        true => sources(&path),
        false => vec![path],
    });
    files.filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}

fn is_public(vis: &syn::Visibility) -> bool {
    matches!(vis, syn::Visibility::Public(_))
}

fn is_hidden(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|a| matches!(&a.meta, syn::Meta::List(list) if list.path.is_ident("doc")))
}

/// The names that a `use` brings.
fn names(tree: &syn::UseTree, found: &mut BTreeSet<String>) {
    match tree {
        syn::UseTree::Path(path) => names(&path.tree, found),
        syn::UseTree::Name(name) => drop(found.insert(name.ident.to_string())),
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| names(tree, found)),
        syn::UseTree::Rename(_) | syn::UseTree::Glob(_) => {}
    }
}

/// The doc comment. Of one that a macro puts together it is the strings in the macro's call.
fn docs(attrs: &[syn::Attribute], macros: &Macros) -> String {
    struct Strings(Vec<String>);
    impl<'a> Visit<'a> for Strings {
        fn visit_lit_str(&mut self, lit: &'a syn::LitStr) {
            self.0.push(lit.value());
        }
    }
    let mut lines = vec![];
    for attr in attrs.iter().filter(|a| a.path().is_ident("doc")) {
        let syn::Meta::NameValue(meta) = &attr.meta else { continue };
        match &meta.value {
            syn::Expr::Macro(call) => {
                let made = macros.expand(&call.mac).expect("a macro of this crate").to_string();
                let literals = made.split('"').skip(1).step_by(2);
                lines.push(literals.collect::<String>());
            }
            value => {
                let mut strings = Strings(vec![]);
                strings.visit_expr(value);
                lines.extend(strings.0);
            }
        }
    }
    let unindented = lines.iter().flat_map(|l| l.split('\n')).map(|l| l.strip_prefix(' ').unwrap_or(l));
    unindented.collect::<Vec<_>>().join("\n")
}

/// A doc comment that no macro makes.
pub fn docs_of(attrs: &[syn::Attribute]) -> String {
    docs(attrs, &Macros::default())
}

/// Names of `dsl` in a piece of source.
fn mentions(source: &str, exported: &BTreeSet<String>) -> BTreeSet<String> {
    let words = source.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| exported.contains(*word)).map(str::to_owned).collect()
}

fn pretty(item: syn::Item) -> String {
    prettyplease::unparse(&syn::File { shebang: None, frontmatter: None, attrs: vec![], items: vec![item] })
}

/// `fn load(&self, i: impl IntoIndex, len: u32) -> Tile<T>`.
fn pretty_signature(sig: &syn::Signature) -> String {
    let text = pretty(syn::parse_quote!(#sig {}));
    text.replace("super::", "").trim_end().trim_end_matches("{}").trim_end().to_owned()
}

/// Tokens as a reader writes them, of what has no lines of its own.
fn plain(tokens: &impl ToTokens) -> String {
    let text = tokens.to_token_stream().to_string();
    let tight = [
        (" < ", "<"),
        (" >", ">"),
        ("< ", "<"),
        (" :", ":"),
        (" ,", ","),
        (" ::", "::"),
        (":: ", "::"),
        ("& ", "&"),
    ];
    tight.iter().fold(text, |text, (from, to)| text.replace(from, to))
}
