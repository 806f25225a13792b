//! Streams tensors into a new `.snug` file: temporary name, fsync, rename; memory bounded by the largest tensor.
