//! The default lossless codec (FORMAT.md, section 3).

use std::ops::Range;

use super::{Breakdown, Codec, Format, Parts, Shape};
use crate::error::{Error, Result};

/// Byte planes, 3-bit codes into a small table, and a short patch list.
pub struct Pairlut;

impl Codec for Pairlut {
    fn format(&self) -> Format {
        Format::Pairlut
    }

    fn id(&self) -> &'static str {
        "pairlut.1"
    }

    fn part_names(&self) -> &'static [&'static str] {
        &["records", "index"]
    }

    fn encode(&self, _shape: Shape, _src: &[u16]) -> Option<Vec<Vec<u8>>> {
        None
    }

    fn validate(&self, _shape: Shape, _parts: &Parts<'_>) -> Result<()> {
        Err(Error::bad_file("cannot use a pairlut tensor", "not written yet", "wait"))
    }

    fn decode_rows(&self, _shape: Shape, _parts: &Parts<'_>, _rows: Range<u32>, _out: &mut [u16]) {}

    fn breakdown(&self, _shape: Shape, _parts: &Parts<'_>) -> Breakdown {
        Breakdown::default()
    }

    fn lossless(&self) -> bool {
        true
    }
}
