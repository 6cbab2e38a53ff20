//! Items of a source as the compiler sees them: with the file's own `macro_rules!` expanded.

use std::collections::BTreeMap;
use std::str::FromStr;

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::{ParseStream, Parser};

/// Macros by name: the matcher and the body of each rule.
#[derive(Default)]
pub struct Macros(BTreeMap<String, Vec<(TokenStream, TokenStream)>>);

/// What a variable of a matcher stands for.
#[derive(Clone)]
enum Bound {
    One(TokenStream),
    Many(Vec<Bound>),
}

type Bindings = BTreeMap<String, Bound>;

impl Macros {
    /// Adds the macros that items define.
    pub fn define(&mut self, items: &[syn::Item]) {
        for item in items {
            let syn::Item::Macro(syn::ItemMacro { ident: Some(name), mac, .. }) = item else { continue };
            let trees: Vec<TokenTree> = mac.tokens.clone().into_iter().collect();
            let groups: Vec<TokenStream> = trees.iter().filter_map(inside).collect();
            let rules = groups.chunks(2).map(|rule| (rule[0].clone(), rule[1].clone())).collect();
            let before = self.0.insert(name.to_string(), rules);
            assert!(before.is_none(), "two macros are named `{name}`");
        }
    }

    /// What a call expands to; nothing for a macro that is not defined here.
    pub fn expand(&self, call: &syn::Macro) -> Option<TokenStream> {
        let name = call.path.segments.last()?.ident.to_string();
        let trees: Vec<TokenTree> = call.tokens.clone().into_iter().collect();
        let found = self.0.get(&name)?.iter().find_map(|(matcher, body)| {
            let mut bindings = Bindings::new();
            let rest = matched(&trees_of(matcher), trees.clone(), &mut bindings)?;
            rest.is_empty().then(|| transcribed(&trees_of(body), &bindings))
        });
        Some(found.unwrap_or_else(|| panic!("no rule of `{name}!` takes {}", call.tokens)))
    }

    /// Items with those that macros make.
    pub fn items(&self, items: Vec<syn::Item>) -> Vec<syn::Item> {
        let expanded = items.into_iter().flat_map(|item| {
            let syn::Item::Macro(syn::ItemMacro { ident: None, mac, .. }) = &item else { return vec![item] };
            match self.expand(mac) {
                Some(text) => self.items(syn::parse2::<syn::File>(text).expect("a macro makes items").items),
                None => vec![],
            }
        });
        expanded.collect()
    }

    /// Functions of an `impl` or trait with those that macros make.
    pub fn functions(&self, items: Vec<syn::ImplItem>) -> Vec<syn::ImplItemFn> {
        let expanded = items.into_iter().flat_map(|item| match item {
            syn::ImplItem::Fn(function) => vec![function],
            syn::ImplItem::Macro(call) => {
                let text = self.expand(&call.mac).expect("a macro of this crate");
                let made: syn::ItemImpl =
                    syn::parse2(quote::quote!(impl X { #text })).expect("a macro makes functions");
                self.functions(made.items)
            }
            _ => vec![],
        });
        expanded.collect()
    }
}

fn inside(tree: &TokenTree) -> Option<TokenStream> {
    match tree {
        TokenTree::Group(group) => Some(group.stream()),
        _ => None,
    }
}

fn trees_of(text: &TokenStream) -> Vec<TokenTree> {
    text.clone().into_iter().collect()
}

fn is_punct(tree: Option<&TokenTree>, c: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(p)) if p.as_char() == c)
}

/// A repetition that begins behind a `$`: what is repeated, its separator, and how many trees it takes.
fn repetition(trees: &[TokenTree]) -> Option<(Vec<TokenTree>, Option<TokenTree>, usize)> {
    let TokenTree::Group(group) = trees.first()? else { return None };
    let is_op = |tree: Option<&TokenTree>| ['*', '+', '?'].iter().any(|&c| is_punct(tree, c));
    let (separator, taken) = match is_op(trees.get(1)) {
        true => (None, 2),
        false => (trees.get(1).cloned(), 3),
    };
    Some((trees_of(&group.stream()), separator, taken))
}

/// Matches trees, binds variables, and returns what is left.
fn matched(
    pattern: &[TokenTree],
    mut trees: Vec<TokenTree>,
    bindings: &mut Bindings,
) -> Option<Vec<TokenTree>> {
    let mut at = 0;
    while at < pattern.len() {
        if is_punct(pattern.get(at), '$') {
            if let Some((inner, separator, taken)) = repetition(&pattern[at + 1..]) {
                let mut turns: Vec<Bindings> = vec![];
                loop {
                    let mut ahead = trees.clone();
                    let separated = separator.as_ref().filter(|_| !turns.is_empty()).map(ToString::to_string);
                    if separated.is_some_and(|s| ahead.is_empty() || ahead.remove(0).to_string() != s) {
                        break;
                    }
                    let mut turn = Bindings::new();
                    match matched(&inner, ahead, &mut turn) {
                        Some(rest) if rest.len() < trees.len() => trees = rest,
                        _ => break,
                    }
                    turns.push(turn);
                }
                for name in variables(&inner) {
                    let all = turns.iter().filter_map(|turn| turn.get(&name).cloned()).collect();
                    bindings.insert(name, Bound::Many(all));
                }
                at += 1 + taken;
                continue;
            }
            let (name, kind) = (pattern[at + 1].to_string(), pattern[at + 3].to_string());
            let (value, rest) = fragment(&kind, trees)?;
            bindings.insert(name, Bound::One(value));
            trees = rest;
            at += 4;
            continue;
        }
        if trees.is_empty() {
            return None;
        }
        match (&pattern[at], trees.remove(0)) {
            (TokenTree::Group(want), TokenTree::Group(got)) if want.delimiter() == got.delimiter() => {
                let rest = matched(&trees_of(&want.stream()), trees_of(&got.stream()), bindings)?;
                if !rest.is_empty() {
                    return None;
                }
            }
            (TokenTree::Group(_), _) => return None,
            (want, got) if want.to_string() != got.to_string() => return None,
            _ => {}
        }
        at += 1;
    }
    Some(trees)
}

/// The names of a pattern's variables.
fn variables(pattern: &[TokenTree]) -> Vec<String> {
    let mut names = vec![];
    for (at, tree) in pattern.iter().enumerate() {
        match tree {
            TokenTree::Group(group) => names.extend(variables(&trees_of(&group.stream()))),
            TokenTree::Ident(name) if at > 0 && is_punct(pattern.get(at - 1), '$') => {
                names.push(name.to_string())
            }
            _ => {}
        }
    }
    names
}

/// The first piece of a kind, and what is left.
fn fragment(kind: &str, mut trees: Vec<TokenTree>) -> Option<(TokenStream, Vec<TokenTree>)> {
    fn parsed<T: syn::parse::Parse + ToTokens>(
        trees: Vec<TokenTree>,
    ) -> Option<(TokenStream, Vec<TokenTree>)> {
        let both = |input: ParseStream<'_>| Ok((input.parse::<T>()?, input.parse::<TokenStream>()?));
        let (first, rest) = both.parse2(trees.into_iter().collect()).ok()?;
        Some((first.to_token_stream(), trees_of(&rest)))
    }
    match kind {
        "ty" => parsed::<syn::Type>(trees),
        "expr" => parsed::<syn::Expr>(trees),
        "meta" => parsed::<syn::Meta>(trees),
        "path" => parsed::<syn::Path>(trees),
        "block" => parsed::<syn::Block>(trees),
        "vis" => parsed::<syn::Visibility>(trees),
        "lifetime" => parsed::<syn::Lifetime>(trees),
        "literal" => parsed::<syn::Lit>(trees),
        "ident" => parsed::<syn::Ident>(trees),
        "tt" if !trees.is_empty() => {
            let first = trees.remove(0);
            Some((first.into(), trees))
        }
        "tt" => None,
        other => panic!("macros of the DSL have no `{other}`"),
    }
}

fn transcribed(body: &[TokenTree], bindings: &Bindings) -> TokenStream {
    let mut text = TokenStream::new();
    let mut at = 0;
    while at < body.len() {
        match &body[at] {
            TokenTree::Punct(p) if p.as_char() == '$' => {
                if let Some((inner, separator, taken)) = repetition(&body[at + 1..]) {
                    let names = variables(&inner);
                    let many = names.iter().filter_map(|name| match bindings.get(name) {
                        Some(Bound::Many(all)) => Some((name.clone(), all)),
                        _ => None,
                    });
                    let many: Vec<_> = many.collect();
                    let turns = many.iter().map(|(_, all)| all.len()).max().unwrap_or(0);
                    for turn in 0..turns {
                        let mut own = bindings.clone();
                        own.extend(many.iter().map(|(name, all)| (name.clone(), all[turn].clone())));
                        text.extend(separator.clone().filter(|_| turn > 0));
                        text.extend(transcribed(&inner, &own));
                    }
                    at += 1 + taken;
                    continue;
                }
                let name = body[at + 1].to_string();
                match bindings.get(&name) {
                    Some(Bound::One(value)) => text.extend(value.clone()),
                    _ => text.extend(TokenStream::from_str(&name)),
                }
                at += 2;
            }
            TokenTree::Group(group) => {
                let inner = transcribed(&trees_of(&group.stream()), bindings);
                text.extend([TokenTree::from(Group::new(group.delimiter(), inner))]);
                at += 1;
            }
            other => {
                text.extend([other.clone()]);
                at += 1;
            }
        }
    }
    text
}
