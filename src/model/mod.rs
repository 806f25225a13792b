//! What to compute: pure data, no bytes, no files, no devices, no text.

pub mod arch;
pub mod config;
pub mod kv;
pub mod memory;
pub mod op;
pub mod program;
pub mod rope;
