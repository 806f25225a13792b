//! A source file, read by position. Not mapped: memory stays bounded by what is asked for, and a file that is
//! cut short while it is read is an error instead of a signal.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// An open source file; reads may come from several threads at once.
#[derive(Debug)]
pub struct Input {
    file: File,
    path: PathBuf,
    len: u64,
}

impl Input {
    /// Opens a file and notes its length.
    pub fn open(path: &Path) -> Result<Input> {
        let failed = |e: io::Error| Error::io(format!("cannot open {}", path.display()), &e);
        let file = File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(Error::bad_file(
                format!("cannot open {}", path.display()),
                "it is not a regular file",
                "name a file",
            ));
        }
        Ok(Input { file, path: path.to_owned(), len: meta.len() })
    }

    /// Its path, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The file itself, for mapping.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// True when it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` from the bytes at `offset`.
    ///
    /// # Errors
    /// `BadFile` when the file ends before that, otherwise what the system says.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        read_exact_at(&self.file, offset, out).map_err(|e| {
            let what = format!("cannot read {}", self.path.display());
            if e.kind() == io::ErrorKind::UnexpectedEof {
                let why = format!(
                    "{} bytes at {offset} are wanted, but the file ends before (it had {} bytes when opened)",
                    out.len(),
                    self.len
                );
                Error::bad_file(what, why, "download the file again")
            } else {
                Error::io(what, &e)
            }
        })
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !out.is_empty() {
        match file.seek_read(out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                out = &mut out[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
