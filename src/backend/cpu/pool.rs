//! Threads over pieces of a buffer. What a piece computes never depends on which thread takes it, or on how many
//! threads there are.

use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use super::{attend, matvec};
use crate::error::{Error, Kind, Result};

/// Work memory of one thread.
pub struct Scratch {
    /// For products.
    pub product: matvec::Scratch,
    /// For a second product, `[token][16]`.
    pub side: Vec<f32>,
    /// For attention.
    pub attend: attend::Scratch,
}

impl Scratch {
    /// Bytes held.
    fn bytes(&self) -> usize {
        self.product.bytes() + size_of_val(&*self.side) + self.attend.bytes()
    }

    /// Overwrites everything, to show that nothing old is read.
    fn poison(&mut self) {
        self.product.poison();
        self.side.fill(f32::NAN);
        self.attend.poison();
    }
}

/// Worker threads, with scratch memory for each.
pub struct Pool {
    threads: Arc<rayon::ThreadPool>,
    scratch: Vec<Mutex<Scratch>>,
}

impl Pool {
    /// Starts `threads` workers, or one per core.
    pub fn new(threads: Option<usize>, scratch: impl Fn() -> Scratch) -> Result<Pool> {
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.unwrap_or(0))
            .thread_name(|i| format!("snug-cpu-{i}"))
            .build()
            .map_err(|e| {
                Error::new(
                    Kind::Failure,
                    "cannot start the worker threads",
                    e.to_string(),
                    "ask for fewer threads",
                )
            })?;
        let scratch = (0..threads.current_num_threads()).map(|_| Mutex::new(scratch())).collect();
        Ok(Pool { threads: Arc::new(threads), scratch })
    }

    /// Number of workers.
    pub fn len(&self) -> usize {
        self.scratch.len()
    }

    /// The workers. Everything in this module expects to be called on one of them.
    pub fn threads(&self) -> Arc<rayon::ThreadPool> {
        self.threads.clone()
    }

    /// Calls `f(scratch, i, piece)` for the pieces of `size` elements of `data`, in parallel.
    pub fn pieces<T: Send>(
        &self,
        data: &mut [T],
        size: usize,
        f: impl Fn(&mut Scratch, usize, &mut [T]) + Sync,
    ) {
        let count = data.len().div_ceil(size);
        if self.len() == 1 || count == 1 {
            let mut scratch = self.scratch();
            data.chunks_mut(size).enumerate().for_each(|(i, piece)| f(&mut scratch, i, piece));
            return;
        }
        // A few tasks a thread: enough to even out, few enough to cost nothing.
        let least = (count / (8 * self.len())).max(1);
        data.par_chunks_mut(size)
            .enumerate()
            .with_min_len(least)
            .for_each(|(i, piece)| f(&mut self.scratch(), i, piece));
    }

    /// This worker's scratch memory.
    fn scratch(&self) -> std::sync::MutexGuard<'_, Scratch> {
        let worker = self.threads.current_thread_index().unwrap_or(0);
        // A panic elsewhere does not spoil memory that is always written before it is read.
        self.scratch[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all scratch memory.
    pub fn scratch_bytes(&self) -> usize {
        let bytes = |s: &Mutex<Scratch>| s.lock().unwrap_or_else(PoisonError::into_inner).bytes();
        self.scratch.iter().map(bytes).sum()
    }

    /// Overwrites all scratch memory, to show that nothing old is read.
    pub fn poison(&self) {
        for scratch in &self.scratch {
            scratch.lock().unwrap_or_else(PoisonError::into_inner).poison();
        }
    }
}
