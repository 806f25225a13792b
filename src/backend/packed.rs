//! Weights that lie somewhere as bf16, packed in memory for the CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rayon::ThreadPool;

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
            records[i] = encode(&pool, shape, parts.0[0], &mut || progress(done, of))?;
            done += bytes(i);
        }
        progress(done, of)?;
        Ok(Packed { source, records })
    }
}

/// How often a caller that waits is asked whether to go on.
const POLL: Duration = Duration::from_millis(50);

/// Packs one matrix; `None` where it would not shrink. Gives up soon after `go_on` returned an error.
fn encode(
    pool: &ThreadPool,
    shape: Shape,
    bytes: &[u8],
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<Option<Vec<Vec<u8>>>> {
    let stop = &AtomicBool::new(false);
    let work = move || {
        // Mapped bytes need not lie at even addresses.
        let words: Vec<u16> =
            bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
        Format::Pairlut.codec().encode_while(shape, &words, &|| !stop.load(Ordering::Relaxed))
    };
    pool.in_place_scope(|scope| {
        let (sender, encoded) = mpsc::channel();
        // Nobody listens any more when the caller gave up.
        scope.spawn(move |_| drop(sender.send(work())));
        loop {
            match encoded.recv_timeout(POLL) {
                Ok(parts) => return Ok(parts),
                // It panicked, and the scope goes on with that.
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    go_on().inspect_err(|_| stop.store(true, Ordering::Relaxed))?;
                }
            }
        }
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::num::f32_to_bf16;
    use crate::num::rng::Stream;

    #[test]
    fn a_matrix_is_packed_or_given_up() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let shape = Shape { rows: 64, cols: 256 };
        let mut stream = Stream::new(8);
        let words: Vec<u16> =
            (0..shape.len()).map(|_| f32_to_bf16(0.02 * stream.normal())).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let packed = encode(&pool, shape, &bytes, &mut || Ok(())).unwrap();
        assert_eq!(packed, Format::Pairlut.codec().encode(shape, &words));

        // The only thread is busy until somebody has said stop, so that the wait is long enough to be asked.
        let (release, busy) = mpsc::channel::<()>();
        pool.spawn(move || {
            let _ = busy.recv();
        });
        let stopped = Error::new(Kind::Interrupted, "stopped", "said so", "again");
        let mut asked = 0;
        let result = encode(&pool, shape, &bytes, &mut || {
            asked += 1;
            if asked < 3 {
                return Ok(());
            }
            release.send(()).unwrap();
            Err(stopped.clone())
        });
        assert_eq!((result.unwrap_err(), asked), (stopped, 3));
    }
}
