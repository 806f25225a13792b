//! Models on disk: the `.snug` file (a valid safetensors file) and plain model directories, behind one reader.
//!
//! [`container`] holds the rules of section 1 below, [`header`] those of safetensors; [`pack`](pack::pack) writes,
//! [`Store`] reads. The rest of this page is the normative description of the file.
#![doc = ""]
#![doc = include_str!("../../FORMAT.md")]

pub mod container;
pub mod demo;
pub mod dir;
pub mod header;
mod input;
mod listing;
mod mapped;
pub mod pack;
pub mod reader;
mod texts;
pub mod verify;
pub mod writer;

pub use input::Input;
pub use listing::Listing;
pub use pack::pack;
pub use reader::Store;
pub use texts::{MAX_TEXT, Texts};
pub use writer::discard_unfinished;

use std::ops::Range;

use crate::codec::{Format, Shape};
use crate::error::Result;

/// Most elements of one weight.
pub const MAX_WEIGHTS: u64 = 1 << 40;

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

impl Entry {
    /// The entry of a listed tensor that is stored this way.
    pub(crate) fn of(
        listed: SourceTensor,
        format: Format,
        sha256: Option<[u8; 32]>,
        bytes: u64,
    ) -> Entry {
        let shape = listed.shape();
        let SourceTensor { name, dims, dtype: source_dtype } = listed;
        Entry { name, format, shape, dims, source_dtype, sha256, bytes }
    }
}

/// One tensor as a source lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Its Hugging Face name (GGUF names are mapped).
    pub name: String,
    /// Its dimensions, outputs first; one or two, each ≥ 1.
    pub dims: Vec<u32>,
    /// The element type in the source: `BF16`, `F16`, `F32`, `Q4_K`, …
    pub dtype: String,
}

impl SourceTensor {
    /// Rows and columns; a vector is one row.
    pub fn shape(&self) -> Shape {
        match *self.dims.as_slice() {
            [cols] => Shape { rows: 1, cols },
            [rows, cols] => Shape { rows, cols },
            _ => unreachable!("a source lists tensors of one or two dimensions only"),
        }
    }
}

/// A model in somebody else's format, as named bf16 matrices and texts. Implemented in [`crate::import`].
pub trait ModelSource: Send + Sync {
    /// `hf` or `gguf`.
    fn kind(&self) -> &'static str;
    /// Base name of the directory or file.
    fn name(&self) -> &str;
    /// Configuration, tokenizer and chat template.
    fn texts(&self) -> &Texts;
    /// Every weight, sorted by name, names unique.
    fn tensors(&self) -> &[SourceTensor];
    /// Reads rows `rows` of tensor `index` of [`ModelSource::tensors`] as row-major bf16 bit patterns into `out`,
    /// which holds `rows.len() * shape.cols` words. Other element types are converted and rounded to the nearest
    /// bf16, ties to even. Callers ask for rows in ascending runs; `out` is all the memory that depends on the tensor.
    ///
    /// # Errors
    /// Reading failed, or the file changed since it was opened.
    fn read_rows(&self, index: usize, rows: Range<u32>, out: &mut [u16]) -> Result<()>;
    /// Whether every tensor is bf16, so that "lossless" means the source's own bits.
    fn exact(&self) -> bool {
        self.tensors().iter().all(|t| t.dtype == "BF16")
    }
}
