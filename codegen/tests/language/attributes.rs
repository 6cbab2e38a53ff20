//! The page of attributes: the docs of the macros, and of families.

use std::collections::BTreeSet;
use std::path::Path;

use syn::visit::Visit;

use crate::page::{Page, with_code};
use crate::surface;

fn parsed(path: &str) -> syn::File {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    syn::parse_file(&std::fs::read_to_string(&path).unwrap()).unwrap()
}

pub fn page() -> Page {
    let mut text = String::from(
        "A family is a configuration, its parameters and its kernel. Macros make them of a struct, a struct of handles and a function. A \
         setting or an attribute that a macro does not know does not compile, and the error lists those that it knows.\n\nThe author \
         implements two traits. `Legal` refuses configurations. `Workload` of the crate `peerwarp` states inputs, expected results and bytes. [The guide](../../tutorial/guide.md#4-what-goes-in-and-what-must-come-out) has both. `peerwarp::build::emit::roles` gives the lines of a \
         variant for a snapshot, as the tests of [examples/add_all_gather](https://github.com/peerwarp/peerwarp/tree/main/examples/add_all_gather) do.",
    );
    let family = surface::docs_of(&parsed("src/family/mod.rs").attrs);
    let family = family.replace("\n# Attributes\n", "\n");
    text += &format!("\n\n## Families\n\n{}", with_code(&family));
    for item in parsed("macros/src/lib.rs").items {
        let syn::Item::Fn(f) = item else { continue };
        let title = match macro_of(&f) {
            Some((name, "derive")) => format!("`#[derive({name})]`"),
            Some((name, "attribute")) => format!("`#[{name}]`"),
            Some((name, _)) => format!("`{name}!`"),
            None => continue,
        };
        text += &format!("\n\n## {title}\n\n{}", with_code(&surface::docs_of(&f.attrs)));
    }
    let kinds = &["KernelArgs", "TraceError"];
    Page { file: "attributes", title: "Attributes", intro: text, kinds, examples: vec![], source: "" }
}

/// The name of a macro, and what it is.
fn macro_of(f: &syn::ItemFn) -> Option<(String, &'static str)> {
    f.attrs.iter().find_map(|attr| match attr.path().get_ident()?.to_string().as_str() {
        "proc_macro" => Some((f.sig.ident.to_string(), "function")),
        "proc_macro_attribute" => Some((f.sig.ident.to_string(), "attribute")),
        "proc_macro_derive" => {
            let text = attr.meta.require_list().ok()?.tokens.to_string();
            Some((text.split([',', ' ']).next()?.to_owned(), "derive"))
        }
        _ => None,
    })
}

/// Attributes that the macros register, and settings that they look for.
fn known() -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    for item in parsed("macros/src/lib.rs").items {
        let syn::Item::Fn(f) = item else { continue };
        let derives = f.attrs.iter().filter(|a| a.path().is_ident("proc_macro_derive"));
        for text in derives.filter_map(|a| a.meta.require_list().ok().map(|l| l.tokens.to_string())) {
            let (_, names) = text.split_once('(').expect("a derive has attributes");
            known.extend(names.split(',').map(|name| name.trim_matches([' ', ')', '\n']).to_owned()));
        }
    }
    /// Lists of settings: those named `known` and `own`, and those given to `Settings::of`.
    #[derive(Default)]
    struct Lists(BTreeSet<String>, bool);
    impl<'a> Visit<'a> for Lists {
        fn visit_local(&mut self, local: &'a syn::Local) {
            let before = self.1;
            self.1 = matches!(&local.pat, syn::Pat::Ident(p) if p.ident == "known")
                || matches!(&local.pat, syn::Pat::Type(p) if matches!(&*p.pat, syn::Pat::Ident(p) if p.ident == "own"));
            syn::visit::visit_local(self, local);
            self.1 = before;
        }
        fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
            let before = self.1;
            self.1 |= matches!(&*call.func, syn::Expr::Path(f) if f.path.segments.first().is_some_and(|s| s.ident == "Settings"));
            syn::visit::visit_expr_call(self, call);
            self.1 = before;
        }
        fn visit_expr_array(&mut self, array: &'a syn::ExprArray) {
            let texts = array.elems.iter().filter_map(|e| match e {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
                _ => None,
            });
            self.0.extend(texts.filter(|_| self.1));
            syn::visit::visit_expr_array(self, array);
        }
    }
    for file in ["args.rs", "family/field.rs", "family/model.rs", "choice.rs"] {
        let mut lists = Lists::default();
        lists.visit_file(&parsed(&format!("macros/src/{file}")));
        known.extend(lists.0);
    }
    known.remove("");
    known
}

#[test]
fn every_attribute_and_setting_stands_on_the_page() {
    let (known, text) = (known(), page().intro);
    assert!(known.len() > 25 && known.contains("omitted") && known.contains("channel"), "{known:?}");
    let stands = |name: &String| {
        [' ', ']', '(', '`', ','].iter().any(|end| {
            ["`", "#[", "[", "("].iter().any(|start| text.contains(&format!("{start}{name}{end}")))
        })
    };
    let missing: Vec<_> = known.iter().filter(|name| !stands(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
