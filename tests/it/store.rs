//! Models on disk: what `pack` writes, what the reader takes, and what both refuse.

pub mod damage;
mod dirs;
pub mod fixture;
mod format;
mod packing;
