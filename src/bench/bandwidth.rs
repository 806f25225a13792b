//! How fast memory can be read: the roof over everything that decodes.

use std::hint::black_box;
use std::time::Instant;

use rayon::prelude::*;

use crate::backend::cuda::abi::ReadArgs;
use crate::backend::cuda::driver::{Device, Launch};
use crate::backend::cuda::kernels::Library;
use crate::error::{Error, Kind, Result};

/// Passes over the memory; the fastest counts.
const PASSES: usize = 5;
/// Bytes one thread reads at a time.
const PIECE: usize = 1 << 20;

/// Plain reads of the start of GPU memory: for each of `sizes`, how many bytes were read (no more than half of what is
/// free), and how many a second.
///
/// # Errors
/// `NoGpu`, or a driver error.
pub fn gpu(index: usize, sizes: &[u64]) -> Result<Vec<(u64, f64)>> {
    let device = Device::open(index)?;
    let kernel = Library::load(&device)?.get("probe", "probe_read", false)?;
    let stream = device.stream()?;
    let room = device.memory()?.0 / 2;
    let sizes: Vec<u64> = sizes.iter().map(|bytes| (*bytes).min(room) / 16 * 16).collect();
    let most = sizes.iter().copied().max().unwrap_or(0);
    let memory = device.alloc(most)?;
    let blocks = device.info().sms * 2;
    let out = device.alloc(u64::from(blocks) * 4)?;
    memory.fill(&stream, 0x5a)?;
    out.fill(&stream, 0)?;
    let launch = Launch { grid: (blocks, 1, 1), block: 512, shared_bytes: 0, overlap: false };
    let (start, end) = (device.event()?, device.event()?);
    let speed = |bytes: u64| {
        let args = ReadArgs { data: memory.addr(), out: out.addr(), count: bytes / 16 };
        let mut best = f32::INFINITY;
        for _ in 0..PASSES {
            start.record(&stream)?;
            stream.launch(&kernel, &launch, &args)?;
            end.record(&stream)?;
            end.synchronize()?;
            best = best.min(end.ms_since(&start)?);
        }
        Ok((bytes, bytes as f64 / f64::from(best) * 1e3))
    };
    sizes.iter().map(|bytes| speed(*bytes)).collect()
}

/// Bytes per second that the threads of the current pool read from `bytes` of memory together.
///
/// # Errors
/// `DoesNotFit` when there is not that much.
pub fn cpu(bytes: usize) -> Result<f64> {
    let words = bytes / 8;
    let mut memory: Vec<u64> = Vec::new();
    memory.try_reserve_exact(words).map_err(|_| {
        let why = format!("{bytes} bytes are not to be had");
        Error::new(Kind::DoesNotFit, "cannot measure memory", why, "close something else")
    })?;
    // Written by the threads that read it, and not zero: zero pages of which nothing was written are one page in truth.
    memory.resize(words, 0);
    memory.par_chunks_mut(PIECE / 8).enumerate().for_each(|(i, piece)| piece.fill(i as u64 + 1));
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        let start = Instant::now();
        let fold = memory.par_chunks(PIECE / 8).map(fold).reduce(|| 0, |a, b| a ^ b);
        black_box(fold);
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((words * 8) as f64 / best)
}

/// All words folded into one, in lanes so that vector registers can.
fn fold(words: &[u64]) -> u64 {
    let (chunks, rest) = words.as_chunks::<32>();
    let mut lanes = [0u64; 32];
    for chunk in chunks {
        for (lane, w) in lanes.iter_mut().zip(chunk) {
            *lane ^= w;
        }
    }
    lanes.iter().chain(rest).fold(0, |a, b| a ^ b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (0..1000).collect();
        let want = words.iter().fold(0, |a, b| a ^ b);
        assert_eq!(fold(&words), want);
        for at in [0, 31, 32, 991, 999] {
            let mut changed = words.clone();
            changed[at] ^= 1 << 40;
            assert_eq!(fold(&changed), want ^ 1 << 40, "{at}");
        }
        assert!(cpu(1 << 22).unwrap() > 0.0);
    }
}
