//! The safetensors header: parse, check, write. Pure functions on slices.
