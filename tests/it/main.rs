//! The only integration binary; the `mod` list is its table of contents.

mod model;
