//! The cache's shape and how much of it is true. The bytes belong to the backend; rewinding costs nothing.

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvFormat {
    /// bf16 on the GPU.
    Bf16,
    /// float32, the CPU reference.
    F32,
}

impl KvFormat {
    /// Bytes of one value.
    pub fn bytes(self) -> u64 {
        match self {
            KvFormat::Bf16 => 2,
            KvFormat::F32 => 4,
        }
    }
}

/// `[layers][2][kv_heads][capacity][head_dim]`, in the backend's own arrangement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers.
    pub layers: u32,
    /// Key/value heads.
    pub heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Tokens it can hold.
    pub capacity: u32,
    /// Element type.
    pub format: KvFormat,
}

impl KvLayout {
    /// Bytes that one token takes in all layers, keys and values.
    pub fn bytes_per_token(&self) -> u64 {
        u64::from(self.layers)
            * 2
            * u64::from(self.heads)
            * u64::from(self.head_dim)
            * self.format.bytes()
    }
}
