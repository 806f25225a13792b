//! `model_type` → how its config.json and tensor names are read. Names and config, never compute.

mod fields;
pub mod llama;
mod rope;

use serde_json::Value;

use crate::error::{Error, Result, visible};
use crate::model::config::Config;
use fields::Fields;

/// One supported value of `model_type`.
pub struct Arch {
    /// As written in config.json.
    pub model_type: &'static str,
    /// Reads the rest of config.json.
    pub read: fn(&Value) -> Result<Config>,
    /// What its tensors are called.
    pub names: &'static Names,
}

/// What the tensors of a model are called. The names in a layer follow `{layer}{number}.`; a bias is called like its
/// matrix with `.bias` instead of `.weight`.
pub struct Names {
    /// `[vocab][hidden]`
    pub embed: &'static str,
    /// `[hidden]`, before the head.
    pub norm: &'static str,
    /// `[vocab][hidden]`, when it is not the embedding.
    pub head: &'static str,
    /// What comes before the number of a layer.
    pub layer: &'static str,
    /// `[hidden]`, before attention.
    pub attn_norm: &'static str,
    /// `[heads·head_dim][hidden]`
    pub q: &'static str,
    /// `[kv_heads·head_dim][hidden]`
    pub k: &'static str,
    /// `[kv_heads·head_dim][hidden]`
    pub v: &'static str,
    /// `[head_dim]`
    pub q_norm: &'static str,
    /// `[head_dim]`
    pub k_norm: &'static str,
    /// `[hidden][heads·head_dim]`
    pub o: &'static str,
    /// `[hidden]`, before the feed-forward.
    pub ffn_norm: &'static str,
    /// `[ffn][hidden]`
    pub gate: &'static str,
    /// `[ffn][hidden]`
    pub up: &'static str,
    /// `[hidden][ffn]`
    pub down: &'static str,
}

/// Every architecture there is. A new one is a reader and a line here.
pub static ARCHS: &[Arch] = &[
    Arch { model_type: "llama", read: llama::llama, names: &llama::NAMES },
    Arch { model_type: "mistral", read: llama::mistral, names: &llama::NAMES },
    Arch { model_type: "qwen2", read: llama::qwen2, names: &llama::NAMES },
    Arch { model_type: "qwen3", read: llama::qwen3, names: &llama::NAMES },
];

/// The architecture with this `model_type`.
pub fn find(model_type: &str) -> Option<&'static Arch> {
    ARCHS.iter().find(|a| a.model_type == model_type)
}

/// Reads the text of a config.json.
///
/// # Errors
/// `Kind::BadFile`: not JSON, an unknown `model_type`, a missing or absurd dimension, or an option that would change
/// the result and that nothing here computes; named in each case.
pub fn read(text: &str) -> Result<Config> {
    let json: Value = serde_json::from_str(text).map_err(|e| {
        Error::bad_file(
            "cannot read config.json",
            format!("it is not JSON: {}", visible(&e.to_string())),
            "get the model again; the file may be damaged",
        )
    })?;
    let model_type = Fields::of(&json)?.text("model_type")?.ok_or_else(|| {
        Error::bad_file(
            "cannot read config.json",
            "it has no model_type",
            "use a model in the Hugging Face layout",
        )
    })?;
    match find(model_type) {
        Some(arch) => (arch.read)(&json),
        None => Err(Error::bad_file(
            "cannot read config.json",
            format!("model_type {:?} is not supported", visible(model_type)),
            format!("use one of {}", known_types()),
        )),
    }
}

fn known_types() -> String {
    ARCHS.iter().map(|a| a.model_type).collect::<Vec<_>>().join(", ")
}
