//! Keys and values of the tokens so far, in pages that are added as the context grows.
//!
//! ```text
//!  keys of a head in a page      [16 groups][head_dim][16 positions]    a vector holds one dimension of 16 keys
//!  values of a head in a page    [256 positions][head_dim]              a vector holds 16 dimensions of one value
//! ```
//!
//! With keys turned that way a score is a plain sum over dimensions and needs no addition across lanes. Values are
//! padded with zeros to whole vectors.

use crate::error::{Error, Kind, Result};
use crate::model::kv::{KvFormat, KvLayout};

/// Positions of a page; the block in which attention proceeds.
pub const PAGE: usize = 256;

/// Sixteen values, of sixteen positions (keys) or sixteen dimensions (values).
pub type Vector = [f32; 16];

/// One layer's keys and values of [`PAGE`] positions, all heads.
struct Page {
    keys: Vec<Vector>,
    values: Vec<Vector>,
}

/// The cache of all layers.
pub struct Cache {
    layout: KvLayout,
    /// `[page][layer]`
    pages: Vec<Vec<Page>>,
    /// How many tokens each layer holds.
    lengths: Vec<u32>,
}

impl Cache {
    /// An empty cache.
    pub fn new(layout: KvLayout) -> Cache {
        debug_assert_eq!(layout.format, KvFormat::F32);
        Cache { layout, pages: Vec::new(), lengths: vec![0; layout.layers as usize] }
    }

    /// Vectors that hold one value.
    pub fn value_width(&self) -> usize {
        (self.layout.head_dim as usize).div_ceil(16)
    }

    fn key_stride(&self) -> usize {
        PAGE / 16 * self.layout.head_dim as usize
    }

    /// Keys of a head in a page, `[group][head_dim]`.
    pub fn keys(&self, layer: usize, page: usize, head: usize) -> &[Vector] {
        let stride = self.key_stride();
        &self.pages[page][layer].keys[head * stride..(head + 1) * stride]
    }

    /// Values of a head in a page, `[position][value_width]`.
    pub fn values(&self, layer: usize, page: usize, head: usize) -> &[Vector] {
        let stride = PAGE * self.value_width();
        &self.pages[page][layer].values[head * stride..(head + 1) * stride]
    }

    /// Makes room for `tokens` tokens in all layers.
    ///
    /// # Errors
    /// `Kind::DoesNotFit` when there is no memory.
    pub fn reserve(&mut self, tokens: u32) -> Result<()> {
        let heads = self.layout.heads as usize;
        while self.pages.len() * PAGE < tokens as usize {
            let keys = heads * self.key_stride();
            let values = heads * PAGE * self.value_width();
            let layers = (0..self.layout.layers)
                .map(|_| Ok(Page { keys: zeros(keys)?, values: zeros(values)? }))
                .collect::<Result<Vec<_>>>()
                .map_err(|e| e.while_doing(format!("cannot keep {tokens} tokens in memory")))?;
            self.pages.push(layers);
        }
        Ok(())
    }

    /// Tokens that a layer holds.
    pub fn len(&self, layer: usize) -> u32 {
        self.lengths[layer]
    }

    /// Writes the keys and values of tokens `pos`, `pos + 1`, … of a layer, each `[heads·head_dim]`; what was there
    /// from `pos` on is gone. There must be room.
    pub fn write(&mut self, layer: usize, pos: u32, keys: &[f32], values: &[f32]) {
        let dim = self.layout.head_dim as usize;
        let (key_stride, value_width) = (self.key_stride(), self.value_width());
        let width = self.layout.heads as usize * dim;
        let tokens = keys.chunks_exact(width).zip(values.chunks_exact(width));
        for (at, (key, value)) in (pos as usize..).zip(tokens) {
            let page = &mut self.pages[at / PAGE][layer];
            let at = at % PAGE;
            let heads = key.chunks_exact(dim).zip(value.chunks_exact(dim)).enumerate();
            for (head, (key, value)) in heads {
                let to = &mut page.keys[head * key_stride + at / 16 * dim..];
                for (to, from) in to.iter_mut().zip(key) {
                    to[at % 16] = *from;
                }
                let to = &mut page.values[(head * PAGE + at) * value_width..][..value_width];
                to.as_flattened_mut()[..dim].copy_from_slice(value);
            }
        }
        self.lengths[layer] = pos + (keys.len() / width) as u32;
    }

    /// Bytes allocated.
    pub fn reserved_bytes(&self) -> u64 {
        let bytes = |p: &Page| size_of_val(&*p.keys) + size_of_val(&*p.values);
        self.pages.iter().flatten().map(bytes).sum::<usize>() as u64
    }

    /// Bytes of the tokens it holds.
    pub fn used_bytes(&self) -> u64 {
        let tokens = self.lengths.iter().copied().max().unwrap_or(0);
        self.layout.bytes_per_token() * u64::from(tokens)
    }

    /// Overwrites everything beyond the tokens it holds, to show that nothing there is read.
    pub fn poison(&mut self, with: f32) {
        let dim = self.layout.head_dim as usize;
        let width = self.value_width();
        for (page, layers) in self.pages.iter_mut().enumerate() {
            for (layer, len) in layers.iter_mut().zip(&self.lengths) {
                let held = (*len as usize).saturating_sub(page * PAGE).min(PAGE);
                for (i, keys) in layer.keys.iter_mut().enumerate() {
                    let first = i / dim % (PAGE / 16) * 16;
                    keys[held.saturating_sub(first).min(16)..].fill(with);
                }
                for (i, values) in layer.values.chunks_exact_mut(width).enumerate() {
                    if i % PAGE >= held {
                        // Padding is zero for ever; only true values may be anything.
                        values.as_flattened_mut()[..dim].fill(with);
                    }
                }
            }
        }
    }
}

fn zeros(len: usize) -> Result<Vec<Vector>> {
    let mut vectors = Vec::new();
    vectors.try_reserve_exact(len).map_err(|e| {
        Error::new(
            Kind::DoesNotFit,
            "cannot grow the cache",
            e.to_string(),
            "use a shorter context, or a smaller model",
        )
    })?;
    vectors.resize(len, [0.0; 16]);
    Ok(vectors)
}
