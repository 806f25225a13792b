//! Other people's files → named tensors + config + tokenizer + template.

pub mod gguf;
pub mod hf;

use std::path::Path;

use crate::error::{Error, Kind, Result};
pub use crate::store::{Input, ModelSource, SourceTensor};

/// Opens a model directory, a `.safetensors` file (for the directory it lies in) or a `.gguf` file.
///
/// # Errors
/// `ModelNotFound` when there is nothing there, `BadFile` for what is not understood, by name.
pub fn open(path: &Path) -> Result<Box<dyn ModelSource>> {
    let what = || format!("cannot read the model {}", path.display());
    if path.is_dir() {
        return hf::open(path);
    }
    if !path.exists() {
        return Err(Error::new(
            Kind::ModelNotFound,
            what(),
            "there is no such file or directory",
            "check the path",
        ));
    }
    match path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("gguf") => gguf::open(path),
        Some("safetensors") => match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => hf::open(dir),
            _ => hf::open(Path::new(".")),
        },
        _ => Err(Error::new(
            Kind::BadFile,
            what(),
            "it is neither a directory nor a .safetensors or .gguf file",
            "name a Hugging Face model directory or a GGUF file",
        )),
    }
}
