//! The CUDA backend: the same ops as `cpu`, fast.

pub mod driver;
pub mod images;
