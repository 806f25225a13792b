//! One verb per file.
