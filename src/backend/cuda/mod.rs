//! The CUDA backend: the same ops as `cpu`, fast.

pub mod images;
