//! The handlebars templates, and how one is rendered.

use std::sync::OnceLock;

use handlebars::{Handlebars, no_escape};
use serde::Serialize;

use super::{Prim, PrintError};

/// A file of `templates`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    /// Its path there, without the extension.
    pub name: &'static str,
    pub text: &'static str,
}

/// The template whose name the parts make up.
macro_rules! template {
    ($($part:literal),+) => {
        Template {
            name: concat!($($part),+),
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/", $($part,)+ ".hbs")),
        }
    };
}
pub(crate) use template;

/// The templates that are not of primitives.
const SKELETONS: &[Template] = &[
    template!("cuda/kernel"),
    template!("hip/kernel"),
    template!("cuda/launch"),
    template!("hip/launch"),
    template!("hip/prelude"),
    template!("abi.h"),
];

/// Every template.
fn all() -> impl Iterator<Item = Template> {
    SKELETONS.iter().copied().chain(Prim::ALL.iter().flat_map(|p| p.templates().each()))
}

/// A named constant of the emitted source.
#[derive(Debug, Serialize)]
pub(crate) struct ConstantText {
    pub r#type: &'static str,
    pub name: String,
    pub value: String,
    pub comment: Option<String>,
}

/// What all other primitives' templates are rendered with.
#[derive(Debug, Serialize)]
pub(crate) struct NothingText {}

fn registry() -> Result<&'static Handlebars<'static>, PrintError> {
    static REGISTRY: OnceLock<Result<Handlebars<'static>, PrintError>> = OnceLock::new();
    let built = REGISTRY.get_or_init(|| {
        let mut h = Handlebars::new();
        h.set_strict_mode(true);
        h.register_escape_fn(no_escape);
        for Template { name, text } in all() {
            h.register_template_string(name, text)
                .map_err(|e| PrintError::Template { template: name, message: e.to_string() })?;
        }
        Ok(h)
    });
    built.as_ref().map_err(Clone::clone)
}

pub(crate) fn render(name: &'static str, context: &impl Serialize) -> Result<String, PrintError> {
    registry()?
        .render(name, context)
        .map_err(|e| PrintError::Template { template: name, message: e.to_string() })
}

/// What stands in for `hip/hip_runtime.h` where there is no ROCm.
pub(crate) fn hip_prelude() -> Result<String, PrintError> {
    render("hip/prelude", &NothingText {})
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        fs,
        path::{Path, PathBuf},
    };

    use super::*;

    /// The files below a folder.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
        entries.flat_map(|p| if p.is_dir() { files(&p) } else { vec![p] }).collect()
    }

    #[test]
    fn every_file_is_used_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../templates");
        let mut there = files(&root);
        let mut used: Vec<PathBuf> = all().map(|t| root.join(format!("{}.hbs", t.name))).collect();
        there.sort();
        used.sort();
        assert_eq!(there, used);
    }

    #[test]
    fn every_text_stands_once() {
        let mut names = BTreeMap::new();
        for Template { name, text } in all() {
            assert!(!text.trim().is_empty(), "`{name}` is empty");
            if let Some(other) = names.insert(text, name) {
                panic!("`{other}` and `{name}` have the same text; what targets share is in templates/prim");
            }
        }
    }
}
