//! What a model says about itself, without a look at its weights: quick however large it is.

use std::path::Path;

use super::{Entry, Source, Store, Texts, demo};
use crate::error::{Error, Kind, Result, visible};

/// The header and texts of a model. The weights are not checked, so they cannot be had.
pub struct Listing(Store);

impl Listing {
    /// Reads the header and texts of a `.snug` file or model directory; `None` is the built-in model.
    ///
    /// # Errors
    /// As [`Store::open`], but for damage within weights, which is not looked for.
    pub fn read(path: Option<&Path>) -> Result<Listing> {
        let Some(path) = path else { return demo::open().map(Listing) };
        let what = format!("cannot open {}", visible(&path.to_string_lossy()));
        if !path.exists() {
            let why = "there is no such file or directory";
            return Err(Error::new(Kind::ModelNotFound, what, why, "check the path"));
        }
        let store = if path.is_dir() { Store::of_dir(path) } else { Store::of_file(path) };
        store.map(Listing).map_err(|e| Error { what, ..e })
    }

    /// Its texts.
    pub fn texts(&self) -> &Texts {
        self.0.texts()
    }

    /// Where its weights came from.
    pub fn source(&self) -> &Source {
        self.0.source()
    }

    /// Its weights, sorted by name.
    pub fn entries(&self) -> &[Entry] {
        self.0.entries()
    }

    /// Size of the file(s) on disk.
    pub fn file_bytes(&self) -> u64 {
        self.0.file_bytes()
    }
}
