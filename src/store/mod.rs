//! Models on disk: the `.snug` file (a valid safetensors file) and plain model directories, behind one reader.

pub mod header;
pub mod reader;
pub mod writer;

use crate::codec::{Format, Shape};

/// The text files of a model, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// `config.json`
    pub config: String,
    /// `generation_config.json`
    pub generation_config: Option<String>,
    /// `tokenizer.json`
    pub tokenizer: String,
    /// `tokenizer_config.json`
    pub tokenizer_config: Option<String>,
    /// `chat_template.jinja`; the template inside `tokenizer_config.json` is used when there is none.
    pub chat_template: Option<String>,
}

/// Where the weights came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// `hf` or `gguf`.
    pub kind: String,
    /// Base name of the directory or file it was made from.
    pub name: String,
    /// Whether every source tensor was bf16, so that "lossless" means the source's own bits.
    pub exact: bool,
    /// SHA-256 over the names and hashes of all source tensors; `None` for a directory that was never hashed.
    pub id: Option<String>,
}

/// One weight as listed by a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the source.
    pub name: String,
    /// How it is stored.
    pub format: Format,
    /// Rows and columns; a vector is one row.
    pub shape: Shape,
    /// The source's dimensions (one or two).
    pub dims: Vec<u32>,
    /// The source's element type: `BF16`, `F16`, `F32`, `Q4_K`, …
    pub source_dtype: String,
    /// SHA-256 of the weight as row-major little-endian bf16.
    pub sha256: Option<[u8; 32]>,
    /// Stored bytes, all parts, without alignment between tensors.
    pub bytes: u64,
}
