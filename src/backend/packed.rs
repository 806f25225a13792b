//! Weights that lie somewhere as bf16, packed in memory for the CPU.

use std::sync::Arc;

use super::{Need, Weight, Weights, available_memory};
use crate::codec::{Format, Parts, Shape};
use crate::error::{Error, Kind, Result};
use crate::model::op::WeightId;
use crate::model::program::{Program, Role};

/// The weights of a source, its bf16 matrices as records; what would not shrink stays where it is.
pub(super) struct Packed {
    source: Arc<dyn Weights>,
    /// By [`WeightId`].
    records: Vec<Option<Vec<Vec<u8>>>>,
}

impl Packed {
    /// Packs on `threads` cores. `progress` hears of bytes done and in all, and ends it by an error.
    ///
    /// # Errors
    /// `DoesNotFit` when memory is short, and what `progress` returned.
    pub fn of(
        program: &Program,
        source: Arc<dyn Weights>,
        threads: Option<usize>,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Packed> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
        let pool = pool.map_err(|e| {
            let why = e.to_string();
            Error::new(Kind::Failure, "cannot start the worker threads", why, "ask for fewer")
        })?;
        let is_packed = |i: usize| {
            let format = source.weight(WeightId(i as u32)).format;
            program.weights[i].role != Role::Vector && format == Format::Bf16
        };
        let bytes = |i: usize| 2 * program.weights[i].shape.len();
        let chosen: Vec<usize> = (0..program.weights.len()).filter(|i| is_packed(*i)).collect();
        let of = chosen.iter().map(|i| bytes(*i)).sum();
        let largest = chosen.iter().map(|i| bytes(*i)).max().unwrap_or(0);
        if let Some(free) = available_memory() {
            // Records take 0.71 of it; the words of one matrix and its records are there at once.
            Need { weights: of / 100 * 72, rest: largest }.check("the CPU", free, free)?;
        }
        let mut records = vec![None; program.weights.len()];
        let mut done = 0;
        for i in chosen {
            progress(done, of)?;
            let Weight { shape, parts, .. } = source.weight(WeightId(i as u32));
            records[i] = pool.install(|| encode(shape, parts.0[0]));
            done += bytes(i);
        }
        progress(done, of)?;
        Ok(Packed { source, records })
    }
}

fn encode(shape: Shape, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    // Mapped bytes need not lie at even addresses.
    let words: Vec<u16> =
        bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
    Format::Pairlut.codec().encode(shape, &words)
}

impl Weights for Packed {
    fn weight(&self, id: WeightId) -> Weight<'_> {
        let plain = self.source.weight(id);
        match &self.records[id.0 as usize] {
            None => plain,
            Some(records) => {
                let parts = Parts(records.iter().map(Vec::as_slice).collect());
                Weight { format: Format::Pairlut, shape: plain.shape, parts }
            }
        }
    }
}
