//! The CPU backend: each op against float64, the same bits whatever the path, and the rules of sampling.

mod bits;
mod misuse;
mod oracle;
mod sampling;
