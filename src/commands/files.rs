//! Output files appear whole or not at all.

use std::io::Write;
use std::path::Path;

use tempfile::{Builder, NamedTempFile};

use crate::error::{Error, Result};

/// Writes a file under a temporary name beside it, then renames.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e: &std::io::Error| Error::io(format!("cannot write {}", path.display()), e);
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mut file = temporary(dir).map_err(|e| failed(&e))?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(|e| failed(&e))?;
    file.persist(path).map(drop).map_err(|e| failed(&e.error))
}

/// A file that others may read, as the user's mask allows (temporary files are private otherwise).
fn temporary(dir: &Path) -> std::io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.prefix(".snug-").tempfile_in(dir)
}
