//! The shapes that MoE dispatch and combine need of a model: from the built-in table, or from the `config.json` that
//! comes with a model on Hugging Face.

mod hf;

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::input::InputError;

pub use hf::{from_hf_file, from_hf_text};

/// What dispatch and combine need to know of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Elements of a row that an expert receives: the hidden size, or the latent size where experts work in a latent space.
    pub hidden: u32,
    /// Routed experts, over all ranks.
    pub experts: u32,
    /// Experts each token goes to.
    pub topk: u32,
}

impl Shape {
    /// A name for a shape that no model is known for.
    pub fn label(&self) -> String {
        format!("h{}-e{}-k{}", self.hidden, self.experts, self.topk)
    }
}

/// A model's name and shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Name, as given to `--model`.
    pub name: String,
    /// Its shape.
    #[serde(flatten)]
    pub shape: Shape,
}

impl Model {
    /// What [`Model::row`] has.
    pub const COLUMNS: [&str; 4] = ["model", "hidden", "experts", "topk"];

    /// Name and numbers, for a table of models.
    pub fn row(&self) -> [String; 4] {
        let Shape { hidden, experts, topk } = self.shape;
        [self.name.clone(), hidden.to_string(), experts.to_string(), topk.to_string()]
    }
}

/// The built-in table, in the order of its file. A catalogue of published shapes, not a limit: any shape works.
pub fn builtin() -> &'static [Model] {
    #[derive(Deserialize)]
    struct Table {
        models: Vec<Model>,
    }
    static TABLE: LazyLock<Vec<Model>> = LazyLock::new(|| {
        let table: Table =
            serde_json::from_str(include_str!("models.json")).expect("the embedded table is well-formed");
        table.models
    });
    &TABLE
}

/// Looks a model up by name. Case, `_` for `-`, and a leading organisation (`deepseek-ai/DeepSeek-V3`) don't matter.
pub fn find(name: &str) -> Result<&'static Model, InputError> {
    let wanted = slug(name.rsplit('/').next().unwrap_or(name));
    builtin()
        .iter()
        .find(|m| m.name == wanted)
        .ok_or_else(|| InputError::unknown("--model", name, builtin().iter().map(|m| m.name.as_str())))
}

/// A name as part of a file name: lower case letters, digits, `.` and `-`.
pub fn slug(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    let dashed: String = name.trim().chars().map(keep).collect();
    dashed.trim_matches(['-', '.']).to_owned()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
