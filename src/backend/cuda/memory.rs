//! What is held on the device: weights, the cache, scratch; and the ledger of it.

use super::driver::{Addr, Device, Event, Growing, Memory, Pinned, Stream};
use crate::backend::Ledger;
use crate::codec::Format;
use crate::error::{Error, Kind, Result};
use crate::model::kv::KvLayout;

/// Tokens of a cache chunk; mirrors `CHUNK` in `kernels/common/attend.cuh`.
pub const CHUNK_TOKENS: u32 = 64;

/// Bytes of one staging buffer. Two of them: one is filled while the other travels.
const STAGE_BYTES: usize = 8 << 20;

/// A weight on the device.
#[derive(Debug)]
pub struct DeviceWeight {
    /// How it is stored.
    pub format: Format,
    /// `pairlut`: the records. `bf16` matrices: tiles of 2,048 bytes in raw-record order. Vectors: bf16.
    pub data: Memory,
    /// `pairlut`: where the records start.
    pub index: Option<Memory>,
    /// The largest record in bytes: what a kernel's ring slot must hold.
    pub slot_bytes: u32,
}

impl DeviceWeight {
    /// Device bytes.
    pub fn bytes(&self) -> u64 {
        self.data.bytes() + self.index.as_ref().map_or(0, Memory::bytes)
    }
}

/// Copies host memory to the device through two pinned buffers, reading ahead of the copy.
#[derive(Debug)]
pub struct Uploader {
    stream: Stream,
    stages: [(Pinned, Event); 2],
    next: usize,
}

impl Uploader {
    /// Allocates the buffers.
    pub fn new(device: &Device) -> Result<Uploader> {
        let stage = || -> Result<_> { Ok((device.alloc_pinned(STAGE_BYTES)?, device.event()?)) };
        Ok(Uploader { stream: device.stream()?, stages: [stage()?, stage()?], next: 0 })
    }

    /// Queues a copy of `data` to the start of `to`. `poll` is called between pieces and may cancel.
    ///
    /// # Errors
    /// What `poll` returns, or a driver error.
    pub fn copy(
        &mut self,
        to: &Memory,
        data: &[u8],
        poll: &dyn Fn(usize) -> Result<()>,
    ) -> Result<()> {
        for (i, piece) in data.chunks(STAGE_BYTES).enumerate() {
            let (pinned, done) = &mut self.stages[self.next];
            done.synchronize()?;
            copy_parallel(&mut pinned.bytes_mut()[..piece.len()], piece);
            self.stream.upload(to, (i * STAGE_BYTES) as u64, pinned, piece.len())?;
            done.record(&self.stream)?;
            self.next ^= 1;
            poll(piece.len())?;
        }
        Ok(())
    }

    /// Waits for all queued copies.
    pub fn finish(&self) -> Result<()> {
        self.stream.synchronize()
    }
}

impl Drop for Uploader {
    /// A load that is given up may have copies on their way out of the buffers.
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}

/// `memcpy` by all cores: the source is a mapped file, and page faults are what takes the time.
fn copy_parallel(to: &mut [u8], from: &[u8]) {
    use rayon::prelude::*;
    let piece = 1 << 18;
    to.par_chunks_mut(piece)
        .zip(from.par_chunks(piece))
        .for_each(|(to, from)| to.copy_from_slice(from));
}

/// The cache: addresses for the whole capacity, memory for what is used.
///
/// `[chunk][layer][kv_head][keys, values][64 · head_dim]` bf16; keys `[64][head_dim]`, values `[head_dim][64]`.
#[derive(Debug)]
pub struct Cache {
    layout: KvLayout,
    range: Growing,
}

impl Cache {
    /// Reserves addresses for `layout.capacity` tokens.
    pub fn new(device: &Device, layout: KvLayout) -> Result<Cache> {
        let chunks = u64::from(layout.capacity.div_ceil(CHUNK_TOKENS));
        let range = device.reserve(chunks * u64::from(CHUNK_TOKENS) * layout.bytes_per_token())?;
        Ok(Cache { layout, range })
    }

    /// Makes room for `tokens` tokens.
    ///
    /// # Errors
    /// `Kind::ContextOverflow` beyond the capacity, `Kind::DoesNotFit` when the device is full.
    pub fn hold(&mut self, tokens: u32) -> Result<()> {
        if tokens > self.layout.capacity {
            return Err(Error::new(
                Kind::ContextOverflow,
                "cannot go on",
                format!("{tokens} tokens are more than the context of {}", self.layout.capacity),
                "start a new conversation, or load the model with a larger -c",
            ));
        }
        let chunks = u64::from(tokens.div_ceil(CHUNK_TOKENS));
        self.range.grow(chunks * u64::from(CHUNK_TOKENS) * self.layout.bytes_per_token())
    }

    /// Where it starts.
    pub fn addr(&self) -> Addr {
        self.range.addr()
    }

    /// Its shape.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Bytes of memory behind it.
    pub fn mapped(&self) -> u64 {
        self.range.mapped()
    }
}

/// Adds up what is held.
pub fn ledger(weights: u64, cache: &Cache, tokens: u32, scratch: u64, context: u64) -> Ledger {
    Ledger {
        weights,
        kv_used: u64::from(tokens) * cache.layout.bytes_per_token(),
        kv_reserved: cache.mapped(),
        scratch,
        context,
    }
}
