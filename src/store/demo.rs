//! The built-in model (assets/PROVENANCE.md): part of the program, opened like any other file.

use super::Store;
use crate::error::Result;

/// What users call it.
pub const NAME: &str = "demo";

/// Bytes in the program's image, aligned as a mapped file would be.
#[repr(C, align(4096))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../../assets/demo.snug"));

/// The bytes of the built-in `.snug` file.
pub fn bytes() -> &'static [u8] {
    &FILE.0
}

/// Opens the built-in model.
///
/// # Errors
/// As [`Store::from_static`]; a released program's own file follows the rules.
pub fn open() -> Result<Store> {
    Store::from_static(NAME, bytes())
}
