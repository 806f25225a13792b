//! Streams tensors into a new `.snug` file: room for the header first, data as they come, the header last.
//! The file gets its name when it is complete and on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{Builder, NamedTempFile};

use super::container::{
    self, DATA_ALIGN, SourceLine, TENSOR_ALIGN, WeightLine, pad_name, part_names, text_name,
};
use super::header::{self, Dtype, Header, Tensor};
use super::{ModelSource, SourceTensor};
use crate::codec::{Codec, Format};
use crate::error::{Error, Kind, Result, visible};

/// Writes the bytes of a `.snug` file, in order, to anything that can seek back to its start once.
pub(super) struct Writer<W: Write + Seek> {
    out: BufWriter<W>,
    room: u64,
    at: u64,
    pads: usize,
    tensors: Vec<Tensor>,
    weights: BTreeMap<String, WeightLine>,
}

impl<W: Write + Seek> Writer<W> {
    /// Leaves room for the header and writes the texts. `format` is the widest that weights will be stored in.
    pub fn begin(out: W, source: &dyn ModelSource, format: Format) -> io::Result<Writer<W>> {
        let mut writer = Writer {
            out: BufWriter::with_capacity(1 << 20, out),
            room: header_room(source, format),
            at: 0,
            pads: 0,
            tensors: Vec::new(),
            weights: BTreeMap::new(),
        };
        zeros(&mut writer.out, writer.room)?;
        for (name, text) in source.texts().files() {
            writer.tensor(text_name(name), Dtype::U8, vec![text.len() as u64], text.as_bytes())?;
        }
        Ok(writer)
    }

    /// Appends a weight; its parts are in the order of the codec's part names.
    pub fn weight(
        &mut self,
        listed: &SourceTensor,
        format: Format,
        sha256: &[u8; 32],
        parts: &[&[u8]],
    ) -> io::Result<()> {
        let codec = format.codec();
        let dims: Vec<u64> = listed.dims.iter().map(|d| u64::from(*d)).collect();
        let plain = codec.part_names().is_empty();
        for (name, part) in part_names(&listed.name, codec).into_iter().zip(parts) {
            let (dtype, shape) = match plain {
                true => (Dtype::BF16, dims.clone()),
                false => (Dtype::U8, vec![part.len() as u64]),
            };
            self.tensor(name, dtype, shape, part)?;
        }
        self.weights.insert(listed.name.clone(), weight_line(listed, codec, sha256));
        Ok(())
    }

    fn tensor(
        &mut self,
        name: String,
        dtype: Dtype,
        shape: Vec<u64>,
        bytes: &[u8],
    ) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.list(name, dtype, shape, bytes.len() as u64);
        let pad = self.at.next_multiple_of(TENSOR_ALIGN) - self.at;
        if pad > 0 {
            zeros(&mut self.out, pad)?;
            self.list(pad_name(self.pads), Dtype::U8, vec![pad], pad);
            self.pads += 1;
        }
        Ok(())
    }

    fn list(&mut self, name: String, dtype: Dtype, shape: Vec<u64>, bytes: u64) {
        let (begin, end) = (self.at, self.at + bytes);
        self.tensors.push(Tensor { name, dtype, shape, begin, end });
        self.at = end;
    }

    /// Writes the header into its room and hands the output back, with the number of bytes written.
    pub fn finish(mut self, source: &dyn ModelSource) -> io::Result<(W, u64)> {
        let metadata = container::metadata(&source_line(source, &self.weights), &self.weights);
        let header = Header { tensors: std::mem::take(&mut self.tensors), metadata };
        let bytes = header::write(&header, self.room, DATA_ALIGN);
        if bytes.len() as u64 != self.room || self.room > header::PREFIX + container::MAX_JSON {
            let why = format!("the header takes {} bytes; {} are reserved", bytes.len(), self.room);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&bytes)?;
        let out = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok((out, self.room + self.at))
    }
}

fn zeros(out: &mut impl Write, mut count: u64) -> io::Result<()> {
    let block = [0; DATA_ALIGN as usize];
    while count > 0 {
        let now = count.min(DATA_ALIGN);
        out.write_all(&block[..now as usize])?;
        count -= now;
    }
    Ok(())
}

fn weight_line(listed: &SourceTensor, codec: &dyn Codec, sha256: &[u8; 32]) -> WeightLine {
    WeightLine {
        codec: codec.id().to_owned(),
        shape: listed.dims.clone(),
        source_dtype: listed.dtype.clone(),
        sha256: container::hex(sha256),
    }
}

fn source_line(source: &dyn ModelSource, weights: &BTreeMap<String, WeightLine>) -> SourceLine {
    SourceLine {
        kind: source.kind().to_owned(),
        name: source.name().to_owned(),
        exact: source.exact(),
        id: container::source_id(weights.iter().map(|(name, line)| (name, &line.sha256))),
    }
}

/// Bytes that the header takes at most: what it would be if every weight were stored in the way that takes most text,
/// every number had its greatest length, and a pad followed every tensor. Depends on the source and format only.
fn header_room(source: &dyn ModelSource, format: Format) -> u64 {
    let texts = source.texts().files();
    let text_bytes: u64 = texts.iter().map(|(_, t)| t.len() as u64).sum();
    let weight_bytes: u64 = source.tensors().iter().map(|t| 2 * t.shape().len()).sum();
    let mut names: Vec<String> = texts.iter().map(|(name, _)| text_name(name)).collect();
    let mut weights = BTreeMap::new();
    for t in source.tensors() {
        // Names of parts are longer than the weight's own, which a weight in bf16 has.
        names.extend(part_names(&t.name, format.codec()));
        let lines = [Format::Bf16, format].map(|f| weight_line(t, f.codec(), &[0; 32]));
        weights
            .extend(lines.into_iter().max_by_key(|l| l.codec.len()).map(|l| (t.name.clone(), l)));
    }
    let pads = names.len();
    let far = text_bytes + weight_bytes + TENSOR_ALIGN * 2 * pads as u64;
    names.extend((0..pads).map(pad_name));
    let tensors = names
        .into_iter()
        .map(|name| Tensor { name, dtype: Dtype::BF16, shape: vec![far; 2], begin: far, end: far })
        .collect();
    let metadata = container::metadata(&source_line(source, &weights), &weights);
    header::write(&Header { tensors, metadata }, 0, DATA_ALIGN).len() as u64
}

/// Makes a file: writes under another name in the same directory, and renames it when it is on disk. Whatever goes
/// wrong before, an error or a panic, nothing is left behind.
pub(super) fn create<T>(
    path: &Path,
    overwrite: bool,
    write: impl FnOnce(&mut File) -> Result<T>,
) -> Result<T> {
    let what = || format!("cannot write {}", visible(&path.to_string_lossy()));
    let failed = |e: &io::Error| Error::io(what(), e);
    check_target(path, overwrite)?;
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mut temp = named_temp(dir).map_err(|e| failed(&e))?;
    let _listed = Unfinished::list(temp.path());
    let made = write(temp.as_file_mut())?;
    temp.as_file().sync_all().map_err(|e| failed(&e))?;
    let kept = if overwrite { temp.persist(path) } else { temp.persist_noclobber(path) };
    match kept {
        Ok(_) => {}
        Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => return Err(exists(path)),
        Err(e) => return Err(failed(&e.error)),
    }
    sync_dir(dir).map_err(|e| failed(&e))?;
    Ok(made)
}

/// Temporary files of this process that are being written.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes files that are not complete yet. For a process that is about to end while other threads are still writing;
/// whoever is writing one gets an error, or has it in vain.
pub fn discard_unfinished() {
    for path in std::mem::take(&mut *unfinished()) {
        // It may just have got its name.
        let _ = std::fs::remove_file(path);
    }
}

/// Keeps a file listed as unfinished.
struct Unfinished(PathBuf);

impl Unfinished {
    fn list(path: &Path) -> Unfinished {
        unfinished().insert(path.to_owned());
        Unfinished(path.to_owned())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        unfinished().remove(&self.0);
    }
}

/// Whether a file may be made there, to know before the work is done.
pub(super) fn check_target(path: &Path, overwrite: bool) -> Result<()> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io(format!("cannot write {}", path.display()), &e)),
        Ok(_) if !overwrite => Err(exists(path)),
        Ok(meta) if meta.is_file() || meta.is_symlink() => Ok(()),
        Ok(_) => Err(Error::new(
            Kind::Failure,
            format!("cannot write {}", visible(&path.to_string_lossy())),
            "something is there that is not a regular file",
            "choose another name",
        )),
    }
}

fn exists(path: &Path) -> Error {
    Error::new(
        Kind::Failure,
        format!("cannot write {}", visible(&path.to_string_lossy())),
        "the file exists",
        "choose another name, or allow it to be overwritten",
    )
}

fn named_temp(dir: &Path) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(".snug-").suffix(".part");
    // A model is as readable as any new file; a temporary file would be private.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(dir)
}

/// Makes the new name survive a crash.
#[cfg(unix)]
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(not(unix))]
fn sync_dir(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_at_once_leaves_no_half_file() {
        let at = tempfile::tempdir().unwrap();
        let names = || -> Vec<String> {
            let all = std::fs::read_dir(at.path()).unwrap();
            all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        };
        let made = |discard: bool| {
            create(&at.path().join("x"), true, |file| {
                file.write_all(b"half").map_err(|e| Error::io("cannot write", &e))?;
                assert!(names().iter().any(|n| n.ends_with(".part")), "{:?}", names());
                if discard {
                    discard_unfinished();
                    assert!(!names().iter().any(|n| n.ends_with(".part")), "{:?}", names());
                }
                Ok(())
            })
        };
        made(true).unwrap_err();
        assert!(names().is_empty(), "{:?}", names());
        made(false).unwrap();
        discard_unfinished();
        assert_eq!(names(), ["x"], "what has its name is complete");
    }
}
