//! Shapes from the `config.json` of a model on Hugging Face, and from its relatives: the `params.json` of Mistral,
//! configurations of Megatron.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Map, Value};

use super::{Model, Shape, slug};
use crate::input::{InputError, file};

/// The file of a model's folder that has its configuration.
const FILE: &str = "config.json";

/// Keys of the row that experts receive where that is not the hidden size.
const LATENT: &[&str] = &["moe_latent_size", "routed_expert_hidden_size"];
/// Keys of the hidden size.
const HIDDEN: &[&str] = &["hidden_size", "d_model", "n_embd", "dim"];
/// Keys of the number of routed experts.
const EXPERTS: &[&str] = &[
    "n_routed_experts",
    "num_local_experts",
    "num_experts",
    "moe_num_experts",
    "num_routed_experts",
    "num_moe_experts",
    "moe_num_primary_experts",
];
/// Keys of the experts per token.
const TOPK: &[&str] = &[
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "moe_router_topk",
    "top_k_experts",
    "num_selected_experts",
    "n_activated_experts",
    "moe_num_active_primary_experts",
];
/// Objects in which multimodal models keep the configuration of their language model. A vision tower has a `hidden_size` of its own,
/// so no other object is entered.
const TEXT: &[&str] = &["text_config", "language_config", "llm_config", "thinker_config"];
/// Objects in which some models keep what concerns their experts.
const FFN: &[&str] = &["ffn_config", "moe_config", "moe"];

/// The most keys that an error quotes from a configuration.
const QUOTED: usize = 12;

/// Reads the configuration at `path`: a file, a folder with a `config.json`, a pipe, or `-` for standard input.
///
/// # Errors
/// It cannot be read within the time that a pipe has, or has no shape.
pub fn from_hf_file(path: &Path) -> Result<Model, InputError> {
    const FIELD: &str = "--hf-config";
    /// What came out of pipes. A pipe gives its text once, and one command may ask twice.
    static PIPED: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());
    let path = if path.is_dir() { Cow::Owned(path.join(FILE)) } else { Cow::Borrowed(path) };
    let origin = path.display().to_string();
    if !file::is_stream(&path) {
        return from_hf_text(&file::text(FIELD, &path)?, &origin);
    }
    let mut piped = PIPED.lock().unwrap_or_else(|e| e.into_inner());
    let text = match piped.get(&*path) {
        Some(text) => text.clone(),
        None => {
            let text = file::stream_text(FIELD, &path)?;
            piped.insert(path.into_owned(), text.clone());
            text
        }
    };
    from_hf_text(&text, &origin)
}

/// Reads the text of a configuration; `origin` is the file's name for messages.
///
/// # Errors
/// It is no JSON object, or does not say the shape.
pub fn from_hf_text(text: &str, origin: &str) -> Result<Model, InputError> {
    let text = file::without_mark(text);
    let parsed: Value = serde_json::from_str(text)
        .or_else(|e| serde_json::from_str(&quoted(text)).map_err(|_| e))
        .map_err(|e| {
            let allowed = "a JSON object, as transformers writes it";
            InputError::malformed("--hf-config", origin, format!("not JSON: {e}"), allowed)
        })?;
    let Value::Object(top) = &parsed else {
        return Err(InputError::malformed("--hf-config", origin, "not a JSON object", "a config.json"));
    };
    let config = HfConfig { levels: levels(top), origin };
    config.no_other_latent_size()?;
    let hidden = match config.find("the latent size", LATENT)? {
        Some(latent) => latent,
        None => config.number("the hidden size", HIDDEN)?,
    };
    let shape = Shape {
        hidden,
        experts: config.number("the number of routed experts", EXPERTS)?,
        topk: config.number("the experts per token", TOPK)?,
    };
    Ok(Model { name: config.name(), shape })
}

/// The numbers that Python's `json` writes and JSON does not have, the longest first.
const PYTHON: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// JSON in which numbers that only Python's `json` writes are strings.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let taken = match next {
            '"' => string(rest),
            _ => match PYTHON.iter().find(|number| rest.starts_with(**number)) {
                Some(number) => {
                    out.extend(['"'].into_iter().chain(number.chars()).chain(['"']));
                    rest = &rest[number.len()..];
                    continue;
                }
                None => next.len_utf8(),
            },
        };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

/// Bytes of the string that a text begins with, quotes included; all of it if the string has no end.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The objects to look for a key in, first the one that is most about the language model's experts.
fn levels(top: &Map<String, Value>) -> Vec<(String, &Map<String, Value>)> {
    let mut found = vec![(String::new(), top)];
    // Twice into the text configuration: `thinker_config.text_config` exists.
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
    /// As [`HfConfig::find`], of what every configuration must have.
    fn number(&self, what: &str, keys: &[&str]) -> Result<u32, InputError> {
        self.find(what, keys)?.ok_or_else(|| self.missing(what, keys))
    }

    /// The value that the level nearest to the experts gives for any of `keys`.
    fn find(&self, what: &str, keys: &[&str]) -> Result<Option<u32>, InputError> {
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
                return Ok(Some(n));
            }
        }
        Ok(None)
    }

    /// Fails for a number whose key says that it is a size of experts' latent space in words that are not known: rows would be too
    /// long without it.
    fn no_other_latent_size(&self) -> Result<(), InputError> {
        let says_so = |key: &str| {
            let of_experts = key.contains("moe") || key.contains("expert") || key.starts_with("latent_");
            key.contains("latent") && of_experts && !LATENT.contains(&key)
        };
        let all = self.levels.iter().flat_map(|(prefix, map)| map.iter().map(move |of| (prefix, of)));
        match all.into_iter().find(|(_, (key, value))| says_so(key) && value.is_number()) {
            None => Ok(()),
            Some((prefix, (key, value))) => {
                let allowed = format!("{}, where experts work in a latent space", LATENT.join(" or "));
                Err(InputError::not_allowed(format!("{}: {prefix}{key}", self.origin), value, allowed))
            }
        }
    }

    fn missing(&self, what: &str, keys: &[&str]) -> InputError {
        let mut there = vec![];
        if let Some((_, top)) = self.levels.last() {
            mentioned(top, "", keys, &mut there);
        }
        let has = |map: &Map<String, Value>| EXPERTS.iter().chain(TOPK).any(|key| map.contains_key(*key));
        let dense = there.is_empty() && !self.levels.iter().any(|(_, map)| has(map)) && keys != HIDDEN;
        let note = if dense { "; a dense model has no experts to dispatch to" } else { "" };
        let has = if there.is_empty() { String::new() } else { format!("; it has {}", there.join(", ")) };
        let field = format!("{}: {what}", self.origin);
        let inside = [TEXT, FFN].concat().join(", ");
        let allowed = format!("one of the keys {}, there or in {inside}{note}{has}", keys.join(", "));
        InputError::missing(field, allowed)
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

/// Paths of keys, at any depth, that look as if they said what `keys` say: up to [`QUOTED`] of them.
fn mentioned(map: &Map<String, Value>, prefix: &str, keys: &[&str], found: &mut Vec<String>) {
    for (key, value) in map {
        if found.len() == QUOTED {
            return;
        }
        let path = format!("{prefix}{key}");
        if let Value::Object(inner) = value {
            mentioned(inner, &format!("{path}."), keys, found);
            continue;
        }
        if keys.contains(&key.as_str()) || ["expert", "top_k", "topk"].iter().any(|part| key.contains(part)) {
            found.push(path);
        }
    }
}
