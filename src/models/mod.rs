//! The shapes that MoE dispatch and combine need of a model: from the built-in table, or from the `config.json` that
//! comes with a model on Hugging Face.

use std::path::Path;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::input::{InputError, file};

/// What dispatch and combine need to know of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Elements a token's row has.
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

/// Reads a Hugging Face `config.json`.
pub fn from_hf_file(path: &Path) -> Result<Model, InputError> {
    from_hf_text(&file::text("--hf-config", path)?, &path.display().to_string())
}

/// Reads the text of a Hugging Face `config.json`; `origin` is the file's name for messages.
pub fn from_hf_text(text: &str, origin: &str) -> Result<Model, InputError> {
    let parsed: Value = serde_json::from_str(text).map_err(|e| {
        let python = text.contains("Infinity") || text.contains("NaN");
        let hint = if python { "; JSON has no Infinity or NaN: write null instead" } else { "" };
        let allowed = format!("a JSON object, as transformers writes it{hint}");
        InputError::malformed("--hf-config", origin, format!("not JSON: {e}"), allowed)
    })?;
    let Value::Object(top) = &parsed else {
        return Err(InputError::malformed("--hf-config", origin, "not a JSON object", "a config.json"));
    };
    let config = HfConfig { levels: levels(top), origin };
    let shape = Shape {
        hidden: config.number("the hidden size", HIDDEN)?,
        experts: config.number("the number of routed experts", EXPERTS)?,
        topk: config.number("the experts per token", TOPK)?,
    };
    Ok(Model { name: config.name(), shape })
}

/// Keys of the hidden size.
const HIDDEN: &[&str] = &["hidden_size", "d_model", "n_embd", "dim"];
/// Keys of the number of routed experts.
const EXPERTS: &[&str] =
    &["n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_routed_experts"];
/// Keys of the experts per token.
const TOPK: &[&str] = &[
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
    "num_selected_experts",
    "n_activated_experts",
];
/// Where multimodal models keep the configuration of their language model. A vision tower beside it has a
/// `hidden_size` of its own, so only these are entered.
const TEXT: &[&str] = &["text_config", "language_config", "llm_config", "thinker_config"];
/// Where some models keep what concerns their experts.
const FFN: &[&str] = &["ffn_config", "moe_config"];

/// The objects to look for a key in, first the one that is most about the language model's experts.
fn levels(top: &Map<String, Value>) -> Vec<(String, &Map<String, Value>)> {
    let mut found = vec![(String::new(), top)];
    // Twice into the text configuration: there is `thinker_config.text_config`.
    for keys in [TEXT, TEXT, FFN] {
        let (prefix, map) = found.last().expect("starts with one level");
        let inner =
            keys.iter().find_map(|key| Some((format!("{prefix}{key}."), map.get(*key)?.as_object()?)));
        found.extend(inner);
    }
    found.reverse();
    found
}

struct HfConfig<'a> {
    /// Path prefix and object, the most specific first.
    levels: Vec<(String, &'a Map<String, Value>)>,
    origin: &'a str,
}

impl HfConfig<'_> {
    /// The value that the level nearest to the experts gives for any of `keys`.
    fn number(&self, what: &str, keys: &[&str]) -> Result<u32, InputError> {
        for (prefix, map) in &self.levels {
            let mut first: Option<(String, u32)> = None;
            for key in keys {
                let Some(value) = map.get(*key).filter(|v| !v.is_null()) else { continue };
                let path = format!("{prefix}{key}");
                let n = self.positive(&path, value)?;
                match &first {
                    Some((other, m)) if *m != n => {
                        return Err(InputError::conflict(
                            format!("{}: {path}", self.origin),
                            n,
                            format!("{other} = {m}"),
                            format!("one value for {what}"),
                        ));
                    }
                    Some(_) => {}
                    None => first = Some((path, n)),
                }
            }
            if let Some((_, n)) = first {
                return Ok(n);
            }
        }
        Err(self.missing(what, keys))
    }

    fn missing(&self, what: &str, keys: &[&str]) -> InputError {
        let dense = !self.levels.iter().any(|(_, m)| EXPERTS.iter().chain(TOPK).any(|k| m.contains_key(*k)));
        let note = if dense && keys != HIDDEN { "; a dense model has no experts to dispatch to" } else { "" };
        let mentions = |k: &&str| ["expert", "top_k", "topk"].iter().any(|part| k.contains(part));
        let there: Vec<&str> =
            self.levels.iter().flat_map(|(_, m)| m.keys().map(String::as_str)).filter(mentions).collect();
        let has = if there.is_empty() { String::new() } else { format!("; it has {}", there.join(", ")) };
        let field = format!("{}: {what}", self.origin);
        InputError::missing(field, format!("one of the keys {}{note}{has}", keys.join(", ")))
    }

    /// A positive number, or a list that repeats one (some models give a value per layer or per modality).
    fn positive(&self, path: &str, value: &Value) -> Result<u32, InputError> {
        let field = format!("{}: {path}", self.origin);
        let allowed = format!("a whole number from 1 to {}", u32::MAX);
        let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        let Value::Array(list) = value else {
            return one(value).ok_or_else(|| InputError::not_allowed(field, value, allowed));
        };
        let first = list.first().and_then(one);
        match first {
            Some(n) if list.iter().all(|v| one(v) == Some(n)) => Ok(n),
            _ => Err(InputError::not_allowed(
                field,
                value,
                format!(
                    "{allowed}, or a list that repeats one; for layers that differ give --hidden, --experts and --topk"
                ),
            )),
        }
    }

    /// A name for messages and files.
    fn name(&self) -> String {
        let (_, top) = self.levels.last().expect("the top level is always there");
        let text = |key: &str| top.get(key).and_then(Value::as_str).filter(|s| !s.is_empty());
        let path = text("_name_or_path").and_then(|p| p.trim_end_matches('/').rsplit('/').next());
        let name = slug(path.or(text("model_type")).unwrap_or("config"));
        if name.is_empty() { "config".into() } else { name }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
