#![allow(unsafe_code)]
//! The bytes of a file, without reading it.

use std::ops::Deref;

use memmap2::Mmap;

use super::Input;
use crate::error::{Error, Result};

/// The bytes of one file.
pub(super) enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Static(bytes) => bytes,
        }
    }
}

/// Maps a whole file.
pub(super) fn map(input: &Input) -> Result<Bytes> {
    if input.is_empty() {
        // Nothing can be mapped there, and the header's check has the better message.
        return Ok(Bytes::Static(&[]));
    }
    // SAFETY: the map is read-only and private to this process's view of the file. Should another program change the
    // file meanwhile, decoders may compute nonsense (they never leave their arguments, whatever the bytes), and should
    // it be cut short, the system stops this program: both are stated to be unsupported while a model is open.
    let map = unsafe { Mmap::map(input.file()) }
        .map_err(|e| Error::io(format!("cannot map {}", input.path().display()), &e))?;
    if map.len() as u64 != input.len() {
        return Err(Error::bad_file(
            "cannot open",
            format!("{} changed its size while it was opened", input.path().display()),
            "wait until the file is complete",
        ));
    }
    Ok(Bytes::Mapped(map))
}
