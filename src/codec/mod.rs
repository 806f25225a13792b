//! Bytes of a tensor ⇄ values. Pure functions on memory: no files, no names of weights, no devices.
//!
//! One file per codec. The same record is what is written to disk, what the CPU decodes tile by tile and what a
//! GPU kernel streams; `kernels/loader/<codec>.cuh` mirrors `codec/<codec>.rs`.

pub mod bf16;
pub mod pairlut;
pub mod simd;

use std::ops::Range;

use crate::error::Result;

/// Names a byte layout for ever: a changed layout gets a new id, never a new meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// Row-major bf16, as in the source file.
    Bf16,
    /// The default lossless codec (`codec::pairlut`).
    Pairlut,
}

/// A matrix as stored: `rows` outputs of `cols` inputs, row-major. A vector is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Outputs (rows of W).
    pub rows: u32,
    /// Inputs (columns of W, the K of the product).
    pub cols: u32,
}

impl Shape {
    /// Number of weights.
    pub fn len(self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols)
    }

    /// True when there are no weights.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// The byte ranges a tensor is made of, in the order of [`Codec::part_names`].
#[derive(Clone, Debug)]
pub struct Parts<'a>(pub Vec<&'a [u8]>);

/// Where the bytes of an encoded tensor went, for `inspect`. The fields add up to the stored size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// Raw low bytes (`L` plane), or whole bf16 values.
    pub low: u64,
    /// Codes.
    pub codes: u64,
    /// Patches.
    pub patches: u64,
    /// Headers and tables.
    pub tables: u64,
    /// The record index.
    pub index: u64,
    /// Alignment.
    pub padding: u64,
}

impl Breakdown {
    /// Sum of all fields.
    pub fn total(&self) -> u64 {
        self.low + self.codes + self.patches + self.tables + self.index + self.padding
    }
}

/// One byte layout. Implementations are stateless; everything about a tensor is in its parts.
pub trait Codec: Sync {
    /// Which format this is.
    fn format(&self) -> Format;
    /// The id written in files: `bf16`, `pairlut.1`.
    fn id(&self) -> &'static str;
    /// Names of the parts, as written in files (`records`, `index`). Empty for a codec whose single part is the
    /// plain tensor itself.
    fn part_names(&self) -> &'static [&'static str];
    /// Encodes `src` (row-major bf16 bit patterns, `shape.len()` of them) into its parts, in parallel.
    ///
    /// Returns `None` when the codec would not make this tensor smaller than raw bf16.
    fn encode(&self, shape: Shape, src: &[u16]) -> Option<Vec<Vec<u8>>> {
        self.encode_while(shape, src, &|| true)
    }
    /// [`Codec::encode`], given up soon after `go_on` says no: then the result is `None`, or parts that are not to be
    /// used. `go_on` is called often, from several threads, and never says yes again.
    fn encode_while(
        &self,
        shape: Shape,
        src: &[u16],
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Option<Vec<Vec<u8>>>;
    /// Checks every bound, so that [`Codec::decode_rows`] and the kernels can trust the parts.
    ///
    /// # Errors
    /// `Kind::BadFile`, naming the first violated rule.
    fn validate(&self, shape: Shape, parts: &Parts<'_>) -> Result<()>;
    /// Decodes `rows` (row-major bf16 bit patterns) into `out`, which holds `rows.len() * shape.cols` words.
    /// The parts must have passed [`Codec::validate`]; on others it may give wrong values or panic, but never
    /// touches memory outside its arguments.
    fn decode_rows(&self, shape: Shape, parts: &Parts<'_>, rows: Range<u32>, out: &mut [u16]);
    /// Where the bytes are. The parts must have passed [`Codec::validate`].
    fn breakdown(&self, shape: Shape, parts: &Parts<'_>) -> Breakdown;
    /// Whether decoding gives back the very bits that were encoded.
    fn lossless(&self) -> bool;
}

/// Every codec there is. Packer, reader, `inspect`, kernel names and tests walk this slice.
pub static CODECS: &[&dyn Codec] = &[&bf16::Bf16, &pairlut::Pairlut];

impl Format {
    /// The codec of this format.
    pub fn codec(self) -> &'static dyn Codec {
        match self {
            Format::Bf16 => &bf16::Bf16,
            Format::Pairlut => &pairlut::Pairlut,
        }
    }

    /// The format with this file id, if this build knows it.
    pub fn from_id(id: &str) -> Option<Format> {
        CODECS.iter().find(|c| c.id() == id).map(|c| c.format())
    }
}
