//! GGUF files.

use std::path::Path;

use super::ModelSource;
use crate::error::{Error, Result};

/// Opens a GGUF file.
pub fn open(path: &Path) -> Result<Box<dyn ModelSource>> {
    Err(Error::bad_file(format!("cannot read {}", path.display()), "not written yet", "wait"))
}
