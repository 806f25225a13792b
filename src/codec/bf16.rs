//! Row-major bf16: the identity codec.

use std::ops::Range;

use super::{Breakdown, Codec, Format, Parts, Shape};
use crate::error::{Error, Result};

/// Row-major bf16, little-endian, as in the source file. One part without a name of its own.
pub struct Bf16;

impl Codec for Bf16 {
    fn format(&self) -> Format {
        Format::Bf16
    }

    fn id(&self) -> &'static str {
        "bf16"
    }

    fn part_names(&self) -> &'static [&'static str] {
        &[]
    }

    fn encode_while(
        &self,
        _shape: Shape,
        src: &[u16],
        _go_on: &(dyn Fn() -> bool + Sync),
    ) -> Option<Vec<Vec<u8>>> {
        // A copy, and the packer takes even that without it.
        let mut bytes = bytemuck::cast_slice(src).to_vec();
        swap_on_big_endian(&mut bytes);
        Some(vec![bytes])
    }

    fn validate(&self, shape: Shape, parts: &Parts<'_>) -> Result<()> {
        let want = u128::from(shape.len()) * 2;
        match parts.0.as_slice() {
            [data] if data.len() as u128 == want => Ok(()),
            other => Err(Error::bad_file(
                "cannot use a bf16 tensor",
                format!(
                    "{} × {} weights take {want} bytes in one part, found {:?}",
                    shape.rows,
                    shape.cols,
                    other.iter().map(|p| p.len()).collect::<Vec<_>>()
                ),
                "pack the model again",
            )),
        }
    }

    fn decode_rows(&self, shape: Shape, parts: &Parts<'_>, rows: Range<u32>, out: &mut [u16]) {
        let cols = shape.cols as usize;
        let from = rows.start as usize * cols * 2;
        let bytes = &parts.0[0][from..from + rows.len() * cols * 2];
        // As bytes, because mapped parts need not lie at even addresses; `out` always does.
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        out.copy_from_slice(bytes);
        swap_on_big_endian(out);
    }

    fn breakdown(&self, shape: Shape, _parts: &Parts<'_>) -> Breakdown {
        Breakdown { low: shape.len() * 2, ..Breakdown::default() }
    }

    fn lossless(&self) -> bool {
        true
    }
}

/// Exchanges the bytes of each word where memory is not little-endian.
fn swap_on_big_endian(bytes: &mut [u8]) {
    if cfg!(target_endian = "big") {
        bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|pair| pair.reverse());
    }
}
