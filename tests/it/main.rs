//! The only integration binary; the `mod` list is its table of contents.

// clippy.toml exempts `#[test]` functions; what they call is test code too.
#![allow(clippy::unwrap_used, clippy::panic)]

mod cli;
mod codecs;
mod cpu;
mod emulated;
mod engine;
mod fuzz;
mod gguf;
mod golden;
mod gpu;
mod kernels;
mod model;
mod package;
mod screen;
mod smollm2;
mod stops;
mod store;
mod template;
mod tidy;
mod tokens;
mod ui;
mod util;
