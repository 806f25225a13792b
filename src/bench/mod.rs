//! How fast: a whole model, its kernels, and the memory that they read from.
//!
//! What is measured here is what `snug bench` prints and what `benches/` compares with other programs, so that both
//! say the same.

pub mod bandwidth;
pub mod kernels;
pub mod speed;
pub mod synthetic;
