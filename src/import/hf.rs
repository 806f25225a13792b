//! Hugging Face model directories: single or sharded safetensors in bf16, f16 or f32.

use std::ops::Range;
use std::path::Path;

use super::{ModelSource, SourceTensor};
use crate::error::{Error, Result, visible};
use crate::num::{f16_to_f32, f32_to_bf16};
use crate::store::Texts;
use crate::store::dir::ModelDir;
use crate::store::header::Dtype;

/// Bytes that are converted at a time.
const CHUNK: usize = 256 << 10;

struct Hf {
    dir: ModelDir,
    tensors: Vec<SourceTensor>,
}

/// Opens a model directory.
///
/// # Errors
/// `ModelNotFound` when there is no such directory; `BadFile` for damage and for element types other than
/// BF16, F16 and F32, by name.
pub fn open(path: &Path) -> Result<Box<dyn ModelSource>> {
    let dir = ModelDir::open(path)?;
    let known = [Dtype::BF16, Dtype::F16, Dtype::F32];
    if let Some(t) = dir.tensors.iter().find(|t| !known.contains(&t.dtype)) {
        return Err(Error::bad_file(
            format!("cannot read the model {}", visible(&path.to_string_lossy())),
            format!(
                "tensor {} is {}; BF16, F16 and F32 are understood",
                visible(&t.tensor.name),
                t.dtype.name
            ),
            "use the original bf16, f16 or f32 model",
        ));
    }
    let tensors = dir.tensors.iter().map(|t| t.tensor.clone()).collect();
    Ok(Box::new(Hf { dir, tensors }))
}

impl ModelSource for Hf {
    fn kind(&self) -> &'static str {
        "hf"
    }

    fn name(&self) -> &str {
        &self.dir.name
    }

    fn texts(&self) -> &Texts {
        &self.dir.texts
    }

    fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    fn read_rows(&self, index: usize, rows: Range<u32>, out: &mut [u16]) -> Result<()> {
        let place = &self.dir.tensors[index];
        let shape = place.tensor.shape();
        let wide = place.dtype.bits / 8;
        let words = u64::from(rows.end - rows.start) * u64::from(shape.cols);
        assert!(
            rows.end <= shape.rows && words == out.len() as u64,
            "rows {rows:?} of {shape:?} into {} words",
            out.len()
        );
        let from = place.begin + u64::from(rows.start) * u64::from(shape.cols) * wide;
        let input = &self.dir.shards[place.shard];
        if place.dtype == Dtype::BF16 {
            input.read_at(from, bytemuck::cast_slice_mut(out))?;
            out.iter_mut().for_each(|w| *w = u16::from_le(*w));
            return Ok(());
        }
        let mut bytes = vec![0; CHUNK.min(out.len() * wide as usize)];
        let mut at = from;
        for words in out.chunks_mut(CHUNK / wide as usize) {
            let bytes = &mut bytes[..words.len() * wide as usize];
            input.read_at(at, bytes)?;
            at += bytes.len() as u64;
            round(place.dtype, bytes, words);
        }
        Ok(())
    }
}

/// F16 or F32 to the nearest bf16, ties to even.
fn round(dtype: Dtype, bytes: &[u8], out: &mut [u16]) {
    if dtype == Dtype::F16 {
        for (word, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            *word = f32_to_bf16(f16_to_f32(u16::from_le_bytes([b[0], b[1]])));
        }
    } else {
        for (word, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = f32_to_bf16(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        }
    }
}
