//! Opens a `.snug` file or a model directory and hands out parts of the mapped file.

use std::path::Path;

use super::{Entry, Source, Texts};
use crate::codec::Parts;
use crate::error::{Error, Result};

/// An open model. Bytes stay in the mapped file(s); nothing is expanded.
pub struct Store {}

impl Store {
    /// Opens a `.snug` file, or a directory with `config.json`, `tokenizer.json` and `*.safetensors` in bf16.
    /// Checks the header and every part ([`crate::codec::Codec::validate`]), not the hashes.
    pub fn open(path: &Path) -> Result<Store> {
        Err(Error::bad_file(format!("cannot open {}", path.display()), "not written yet", "wait"))
    }

    /// Opens a `.snug` file that is part of the program (the built-in model).
    pub fn from_static(name: &str, _bytes: &'static [u8]) -> Result<Store> {
        Err(Error::bad_file(format!("cannot open {name}"), "not written yet", "wait"))
    }

    /// Its texts.
    pub fn texts(&self) -> &Texts {
        unreachable!()
    }

    /// Where its weights came from.
    pub fn source(&self) -> &Source {
        unreachable!()
    }

    /// Its weights, sorted by name.
    pub fn entries(&self) -> &[Entry] {
        unreachable!()
    }

    /// The weight of this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries().iter().find(|e| e.name == name)
    }

    /// The bytes of an entry of this store.
    pub fn parts(&self, _entry: &Entry) -> Parts<'_> {
        unreachable!()
    }

    /// Size of the file(s) on disk.
    pub fn file_bytes(&self) -> u64 {
        unreachable!()
    }
}
