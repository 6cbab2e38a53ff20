//! What `#[kernel]` makes of representative functions.

use super::expand;

fn expansion(source: &str) -> String {
    // The compiler hands over the item without the attribute.
    let item = source.replace("#[kernel]\n", "");
    let tokens = expand(Default::default(), item.parse().expect("sources are tokens"));
    let text = prettyplease::unparse(&syn::parse2(tokens).expect("expansions are items"));
    format!("{}\n// ---- expands to ----\n\n{text}", source.trim_start())
}

macro_rules! expands {
    ($($name:ident: $source:literal)*) => {
        $(#[test]
        fn $name() {
            insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(expansion($source)) });
        })*
    };
}

expands! {
    branches: "
/// Adds up rows.
///
/// For the launching side: in the header.
#[kernel]
pub fn branches(c: &Config, a: &Args) {
    let n = a.n.get(0);
    let w = if n < c.limit { a.w.get(n) } else { 0.0 };
    if n == 0 || c.all && n >= 3 {
        a.out.set(0, w);
    } else if n != 1 {
        a.out.set(1, 2.0 * w);
    }
}
"
    loops: "
#[kernel]
fn loops(g: Group, x: Ptr<u32>, n: Val<u32>) {
    'rows: for t in g.strided(n) {
        for k in 0..4 {
            if x.get(t + k) == 0 {
                continue 'rows;
            }
        }
        for i in (t..n).step_by(2) {
            if i > 9 {
                break;
            }
        }
    }
    while x.get(0) < n {
        x.set(0, 1);
    }
}
"
    changes: "
#[kernel]
fn changes(x: Ptr<u32>, list: &mut Vec<u32>) -> Val<u32> {
    let mut sum = var(0u32);
    let mut total = x.get(0);
    sum += 1;
    sum = total * 2;
    total = total + x.get(1);
    list[0] = 7;
    list.push(3);
    fill(&mut total);
    let pick = |v: Val<u32>| {
        if list.is_empty() {
            return v;
        }
        v + 1
    };
    pick(sum.get())
}
"
    host: "
#[kernel]
fn host(c: &Config, some: Option<u32>) -> u32 {
    assert!(c.ranks > 1);
    if let Some(k) = some && k < c.ranks {
        return k;
    }
    #[host]
    if c.all {
        drop(some);
    }
    let found = loop {
        match c.kind {
            0 => break 1,
            k if k > c.ranks => break 2,
            _ => {}
        }
    };
    found
}
"
}

#[test]
fn what_nothing_is_to_be_done_about_stays_as_it_is() {
    let source: proc_macro2::TokenStream =
        "fn plain(x: u32) -> Vec<u32> { let y = x; vec![y, 3] }".parse().expect("tokens");
    assert_eq!(expand(Default::default(), source.clone()).to_string(), source.to_string());
}

#[test]
fn a_failed_expansion_keeps_the_item() {
    for (args, item) in [("", "struct NotAFunction;"), ("fast", "fn f() {}"), ("", "fn broken() { if }")] {
        let item: proc_macro2::TokenStream = item.parse().expect("tokens");
        let out = expand(args.parse().expect("tokens"), item.clone()).to_string();
        assert!(out.starts_with(&item.to_string()), "{out}");
        assert!(out.contains("compile_error"), "{out}");
    }
}
