//! GGUF files, versions 2 and 3: parsed, renamed, dequantised, and their texts rebuilt the way Hugging Face has them.

mod config;
pub mod dequant;
mod names;
pub mod parse;
mod pretok;
mod rope;
mod tokenizer;
pub mod types;
pub mod value;
mod vocab;

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use super::{Input, ModelSource, SourceTensor};
use crate::error::{Error, Result};
use crate::store::Texts;
use config::Dims;
use parse::{Gguf, bad, unsupported};
use types::GgmlType;

/// How much of a file is read at first; enough for the header of most.
const FIRST_READ: u64 = 8 << 20;
/// A header longer than this is not believed.
const MAX_HEADER: u64 = 512 << 20;
/// Elements a thread converts at a time; a multiple of every block.
const TASK: usize = 1 << 16;

/// An open GGUF file.
#[derive(Debug)]
struct GgufFile {
    input: Input,
    name: String,
    model: Model,
}

/// Everything a header says, checked and translated; independent of the file.
#[derive(Debug)]
pub struct Model {
    /// config.json and the others.
    pub texts: Texts,
    /// Weights by Hugging Face name, sorted.
    pub tensors: Vec<SourceTensor>,
    places: Vec<Place>,
}

/// Where a weight lies.
#[derive(Debug)]
struct Place {
    ty: GgmlType,
    bytes: Range<u64>,
    paired: Option<u32>,
}

/// Opens a GGUF file.
///
/// # Errors
/// `BadFile` for a damaged file, or one with anything unknown in it, by name.
pub fn open(path: &Path) -> Result<Box<dyn ModelSource>> {
    let input = Input::open(path)?;
    let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let model = read_model(&input)
        .map_err(|e| Error { what: format!("cannot import {}", path.display()), ..e })?;
    Ok(Box::new(GgufFile { input, name, model }))
}

fn read_model(input: &Input) -> Result<Model> {
    let mut len = FIRST_READ;
    loop {
        let mut head = vec![0; len.min(input.len()) as usize];
        input.read_at(0, &mut head)?;
        if let Some(gguf) = parse::parse(&head, input.len())? {
            // Factors of a few hundred bytes, among the data.
            return translate(&gguf, |bytes| {
                let mut raw = vec![0; (bytes.end - bytes.start) as usize];
                input.read_at(bytes.start, &mut raw)?;
                Ok(raw)
            });
        }
        if len >= MAX_HEADER {
            return Err(bad(format!("its header is longer than {} MiB", MAX_HEADER >> 20)));
        }
        len *= 4;
    }
}

/// Translates a parsed header. `read` gives bytes of the file.
///
/// # Errors
/// `BadFile`, naming what is missing, contradictory or unknown.
pub fn translate(gguf: &Gguf<'_>, read: impl Fn(Range<u64>) -> Result<Vec<u8>>) -> Result<Model> {
    let m = &gguf.metadata;
    config::refuse_part(m)?;
    let family = config::family(m)?;
    config::refuse_unknown(m, family.arch)?;
    let embedding = gguf.tensors.iter().find(|t| t.name == "token_embd.weight");
    let vocab = embedding
        .and_then(|t| t.dims.first())
        .ok_or_else(|| bad("tensor token_embd.weight is missing"))?;
    let dims = Dims::read(m, family.arch, *vocab)?;
    let (weights, present) = names::map(&gguf.tensors, &dims, family)?;

    let theta = config::positive(m, &format!("{}.rope.freq_base", family.arch))?;
    let theta = theta.unwrap_or(10_000.0);
    let factors = rope_factors(gguf, &dims, read)?;
    let scaling = rope::scaling(m, family.arch, theta, dims.head_dim, factors.as_deref())?;
    let rebuilt = tokenizer::rebuild(m, dims.vocab)?;
    let texts = Texts {
        config: config::config_json(m, family, &dims, present, theta, scaling)?,
        generation_config: Some(config::generation_json(m, &rebuilt.ends)?),
        tokenizer: rebuilt.tokenizer,
        tokenizer_config: Some(rebuilt.config),
        chat_template: None,
    };
    let mut tensors = Vec::with_capacity(weights.len());
    let mut places = Vec::with_capacity(weights.len());
    for (name, weight) in weights {
        let t = &gguf.tensors[weight.tensor];
        tensors.push(SourceTensor { name, dims: weight.dims, dtype: t.ty.name().to_owned() });
        places.push(Place { ty: t.ty, bytes: t.bytes.clone(), paired: weight.paired });
    }
    Ok(Model { texts, tensors, places })
}

/// The content of `rope_freqs.weight`, if there is one.
fn rope_factors(
    gguf: &Gguf<'_>,
    dims: &Dims,
    read: impl Fn(Range<u64>) -> Result<Vec<u8>>,
) -> Result<Option<Vec<f32>>> {
    let Some(t) = gguf.tensors.iter().find(|t| t.name == names::ROPE_FREQS) else {
        return Ok(None);
    };
    if t.ty != GgmlType::F32 || t.dims != [u64::from(dims.head_dim / 2)] {
        return Err(unsupported(format!(
            "{} is {} {:?}, not one F32 for each pair of {} dimensions",
            names::ROPE_FREQS,
            t.ty.name(),
            t.dims,
            dims.head_dim
        )));
    }
    let raw = read(t.bytes.clone())?;
    Ok(Some(raw.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
}

impl ModelSource for GgufFile {
    fn kind(&self) -> &'static str {
        "gguf"
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn texts(&self) -> &Texts {
        &self.model.texts
    }

    fn tensors(&self) -> &[SourceTensor] {
        &self.model.tensors
    }

    fn read_rows(&self, index: usize, rows: Range<u32>, out: &mut [u16]) -> Result<()> {
        let shape = self.model.tensors[index].shape();
        let place = &self.model.places[index];
        let cols = shape.cols as usize;
        assert!(
            rows.start <= rows.end && rows.end <= shape.rows && out.len() == rows.len() * cols,
            "rows {rows:?} of {shape:?} do not fill {} words",
            out.len()
        );
        match place.paired {
            // A vector is one row of pairs.
            Some(head_dim) if shape.rows == 1 => {
                let mut stored = vec![0; out.len()];
                self.read_run(place, 0, &mut stored)?;
                for (i, o) in out.iter_mut().enumerate() {
                    *o = stored[names::paired_row(i as u32, head_dim) as usize];
                }
                Ok(())
            }
            Some(head_dim) => out
                .par_chunks_exact_mut(cols)
                .zip(rows.into_par_iter())
                .try_for_each(|(out, row)| {
                    let stored = names::paired_row(row, head_dim);
                    self.read_run(place, u64::from(stored) * cols as u64, out)
                }),
            None => self.read_run(place, u64::from(rows.start) * cols as u64, out),
        }
    }
}

impl GgufFile {
    /// Reads and converts the elements from `first` on, which begins a row and so a block.
    fn read_run(&self, place: &Place, first: u64, out: &mut [u16]) -> Result<()> {
        let (len, size) = (place.ty.block_len(), place.ty.block_bytes());
        let start = place.bytes.start + first / len as u64 * size as u64;
        let task_bytes = (TASK / len * size) as u64;
        out.par_chunks_mut(TASK).enumerate().try_for_each(|(i, out)| {
            let mut raw = vec![0; out.len() / len * size];
            self.input.read_at(start + i as u64 * task_bytes, &mut raw)?;
            dequant::to_bf16(place.ty, &raw, out);
            Ok(())
        })
    }
}
