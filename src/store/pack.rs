//! A model in somebody else's format → a `.snug` file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::reader::interrupted;
use super::writer::{self, Writer};
use super::{ModelSource, SourceTensor};
use crate::codec::{Format, Shape};
use crate::error::{Error, Kind, Result, visible};

/// Words that are read, or hashed, before anybody is asked whether to go on: 8 MiB.
const CHUNK: usize = 4 << 20;

/// Told how many bytes of how many are done; called from several threads.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);
/// Asked whether to give up; called from several threads.
pub type Cancel<'a> = &'a (dyn Fn() -> bool + Sync);

/// How to write the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct PackOptions {
    /// Replace a file that is there.
    pub overwrite: bool,
}

/// What a packed file takes, and what it took to make it.
#[derive(Clone, Debug, Default)]
pub struct PackReport {
    /// Weights of one kind together, sorted by name.
    pub classes: Vec<Class>,
    /// All weights together.
    pub total: Class,
    /// Size of the file.
    pub file_bytes: u64,
    /// Whether the source was bf16 throughout.
    pub exact: bool,
    /// From the first read to the last rename.
    pub elapsed: Duration,
}

impl PackReport {
    /// Speed in bytes of bf16 a second.
    pub fn bytes_per_s(&self) -> f64 {
        2.0 * self.total.weights as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Weights whose names differ in numbers only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Their common name, `*` for a number: `model.layers.*.mlp.up_proj.weight`.
    pub name: String,
    /// How many tensors.
    pub tensors: u64,
    /// How many of them are stored in the format asked for; the others are bf16.
    pub encoded: u64,
    /// How many weights.
    pub weights: u64,
    /// Stored bytes, without alignment.
    pub bytes: u64,
}

impl Class {
    /// Stored bits a weight.
    pub fn bits_per_weight(&self) -> f64 {
        8.0 * self.bytes as f64 / self.weights.max(1) as f64
    }

    /// Stored size by the size in bf16.
    pub fn ratio(&self) -> f64 {
        self.bits_per_weight() / 16.0
    }

    fn add(&mut self, encoded: bool, weights: u64, bytes: u64) {
        self.tensors += 1;
        self.encoded += u64::from(encoded);
        self.weights += weights;
        self.bytes += bytes;
    }
}

/// The name of a weight's class: every component that is a number becomes `*`.
pub fn class_name(weight: &str) -> String {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let parts: Vec<&str> = weight.split('.').map(|p| if number(p) { "*" } else { p }).collect();
    parts.join(".")
}

/// Packs a model into `out`: matrices in `format` where that makes them smaller, everything else in bf16.
///
/// Memory is bounded by about three times the largest tensor: batches of tensors that are together no larger than it
/// are encoded while the batch before is written. The bytes depend on the source and the format alone.
///
/// # Errors
/// `Interrupted` when `cancel` said so, `DiskFull`, `Failure` when `out` exists and may not be overwritten, and what
/// reading the source gives. Nothing is left behind.
pub fn pack(
    source: &dyn ModelSource,
    format: Format,
    out: &Path,
    options: PackOptions,
    progress: Progress<'_>,
    cancel: Cancel<'_>,
) -> Result<PackReport> {
    let start = Instant::now();
    source.texts().check()?;
    let shown = visible(&out.to_string_lossy());
    let mut report = writer::create(out, options.overwrite, |file| {
        pack_into(source, format, Watched { file, unsynced: 0, cancel }, progress, cancel)
            .map_err(|e| Error { what: format!("cannot write {shown}"), ..e })
    })?;
    report.elapsed = start.elapsed();
    Ok(report)
}

/// Packs a model into anything that can be written and sought.
fn pack_into<W: Write + Seek + Send>(
    source: &dyn ModelSource,
    format: Format,
    out: W,
    progress: Progress<'_>,
    cancel: Cancel<'_>,
) -> Result<PackReport> {
    let failed = |e: io::Error| {
        if cancel() { stopped() } else { Error::io("cannot write", &e) }
    };
    let tensors = source.tensors();
    let job = Job {
        source,
        format,
        done: AtomicU64::new(0),
        of: tensors.iter().map(|t| 2 * t.shape().len()).sum(),
        progress,
        cancel,
    };
    let mut classes: BTreeMap<String, Class> = BTreeMap::new();
    let mut total = Class { name: "total".into(), ..Class::default() };
    let mut writer = Writer::begin(out, source, format).map_err(failed)?;
    let mut ready: Vec<Encoded<'_>> = Vec::new();
    for batch in batches(tensors).chain(std::iter::once(0..0)) {
        let (encoded, written) = rayon::join(
            || batch.into_par_iter().map(|i| job.encode(i)).collect::<Result<Vec<_>>>(),
            || ready.drain(..).try_for_each(|tensor| tensor.write(&mut writer)),
        );
        written.map_err(failed)?;
        ready = encoded?;
        for t in &ready {
            let class = classes.entry(class_name(&t.listed.name)).or_default();
            for class in [class, &mut total] {
                class.add(t.format != Format::Bf16, t.listed.shape().len(), t.bytes());
            }
        }
    }
    let (_, file_bytes) = writer.finish(source).map_err(failed)?;
    let classes = classes.into_iter().map(|(name, class)| Class { name, ..class }).collect();
    Ok(PackReport { classes, total, file_bytes, exact: source.exact(), ..PackReport::default() })
}

/// Runs of tensors that are together no larger than the largest.
fn batches(tensors: &[SourceTensor]) -> impl Iterator<Item = Range<usize>> {
    let len = |i: usize| tensors[i].shape().len();
    let most = (0..tensors.len()).map(len).max().unwrap_or(0);
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        let mut words = 0;
        while at < tensors.len() && (at == start || words + len(at) <= most) {
            words += len(at);
            at += 1;
        }
        (at > start).then_some(start..at)
    })
}

struct Job<'a> {
    source: &'a dyn ModelSource,
    format: Format,
    done: AtomicU64,
    of: u64,
    progress: Progress<'a>,
    cancel: Cancel<'a>,
}

/// A tensor ready to be written.
struct Encoded<'a> {
    listed: &'a SourceTensor,
    format: Format,
    sha256: [u8; 32],
    parts: Vec<Vec<u8>>,
    /// The words themselves, when the format is bf16.
    plain: Vec<u16>,
}

impl Encoded<'_> {
    fn bytes(&self) -> u64 {
        2 * self.plain.len() as u64 + self.parts.iter().map(|p| p.len() as u64).sum::<u64>()
    }

    fn write<W: Write + Seek>(&self, writer: &mut Writer<W>) -> std::io::Result<()> {
        let plain = le_bytes(&self.plain);
        let parts: Vec<&[u8]> = match self.format {
            Format::Bf16 => vec![&plain],
            _ => self.parts.iter().map(Vec::as_slice).collect(),
        };
        writer.weight(self.listed, self.format, &self.sha256, &parts)
    }
}

impl<'a> Job<'a> {
    /// Reads, hashes and encodes one tensor.
    fn encode(&self, index: usize) -> Result<Encoded<'a>> {
        let listed = &self.source.tensors()[index];
        let shape = listed.shape();
        let plain = read_all(self.source, index, &|| self.go_on())?;
        let matrix = listed.dims.len() == 2 && self.format != Format::Bf16;
        let codec = self.format.codec();
        let encode = || matrix.then(|| codec.encode_while(shape, &plain, &|| !(self.cancel)()));
        let (parts, sha256) = rayon::join(|| encode().flatten(), || self.hash(&plain));
        let sha256 = sha256?;
        // What was given up is neither the tensor nor a sign that it does not shrink.
        self.go_on()?;
        let done = self.done.fetch_add(2 * shape.len(), Ordering::Relaxed) + 2 * shape.len();
        (self.progress)(done, self.of);
        Ok(match parts {
            Some(parts) => {
                Encoded { listed, format: self.format, sha256, parts, plain: Vec::new() }
            }
            None => Encoded { listed, format: Format::Bf16, sha256, parts: Vec::new(), plain },
        })
    }

    fn hash(&self, words: &[u16]) -> Result<[u8; 32]> {
        let mut hash = Sha256::new();
        for words in words.chunks(CHUNK) {
            self.go_on()?;
            hash.update(le_bytes(words));
        }
        Ok(hash.finalize().into())
    }

    fn go_on(&self) -> Result<()> {
        if (self.cancel)() { Err(stopped()) } else { Ok(()) }
    }
}

fn stopped() -> Error {
    interrupted("stopped while packing")
}

/// A file that can be given up between any two pieces of a write, and that is never far ahead of its disk: putting all
/// of a large model on disk at the end would take long, and nothing can interrupt that.
struct Watched<'a> {
    file: &'a mut File,
    unsynced: usize,
    cancel: Cancel<'a>,
}

/// Bytes that may wait for the disk.
const UNSYNCED: usize = 32 << 20;

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.cancel)() {
            return Err(io::Error::other("given up"));
        }
        let written = self.file.write(&bytes[..bytes.len().min(2 * CHUNK)])?;
        self.unsynced += written;
        if self.unsynced >= UNSYNCED {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for Watched<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Reads a whole tensor of a source, in runs of rows.
fn read_all(
    source: &dyn ModelSource,
    index: usize,
    go_on: &dyn Fn() -> Result<()>,
) -> Result<Vec<u16>> {
    let listed = &source.tensors()[index];
    let shape = listed.shape();
    let len = usize::try_from(shape.len()).unwrap_or(usize::MAX);
    // Asked for first, since the allocation that gets its zeros from the system cannot fail politely.
    Vec::<u16>::new().try_reserve_exact(len).map_err(|_| {
        Error::new(
            Kind::DoesNotFit,
            format!("cannot read {}", visible(&listed.name)),
            format!("its {len} weights do not fit in memory"),
            "use a machine with more memory",
        )
    })?;
    let mut words = vec![0; len];
    let run = rows_at_once(shape);
    for (i, out) in words.chunks_mut(run as usize * shape.cols as usize).enumerate() {
        go_on()?;
        let from = i as u32 * run;
        source.read_rows(index, from..shape.rows.min(from.saturating_add(run)), out)?;
    }
    Ok(words)
}

/// Rows that are worked on at a time: about [`CHUNK`] words, a multiple of 16 where there are so many, since codecs
/// cut matrices into blocks of 16 rows.
pub(super) fn rows_at_once(shape: Shape) -> u32 {
    let rows = (CHUNK / shape.cols as usize).max(1);
    let rows = if rows > 16 { rows / 16 * 16 } else { rows };
    (rows as u32).min(shape.rows)
}

/// The words as they lie in a file.
pub(super) fn le_bytes(words: &[u16]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(words))
    } else {
        Cow::Owned(words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::num::f32_to_bf16;
    use crate::num::rng::Stream;
    use crate::store::{Texts, container};

    /// Two matrices and a vector of normal weights.
    struct Normal {
        texts: Texts,
        tensors: Vec<SourceTensor>,
    }

    impl Normal {
        fn new() -> Normal {
            let tensor = |name: &str, dims: &[u32]| SourceTensor {
                name: name.into(),
                dims: dims.into(),
                dtype: "BF16".into(),
            };
            Normal {
                texts: Texts { config: "{}".into(), tokenizer: "{}".into(), ..Texts::default() },
                tensors: vec![tensor("a", &[48, 320]), tensor("b", &[33, 64]), tensor("c", &[77])],
            }
        }
    }

    impl ModelSource for Normal {
        fn kind(&self) -> &'static str {
            "gguf"
        }

        fn name(&self) -> &str {
            "normal"
        }

        fn texts(&self) -> &Texts {
            &self.texts
        }

        fn tensors(&self) -> &[SourceTensor] {
            &self.tensors
        }

        fn read_rows(&self, index: usize, rows: Range<u32>, out: &mut [u16]) -> Result<()> {
            let mut stream = Stream::new(index as u64 * 1000 + u64::from(rows.start));
            out.fill_with(|| f32_to_bf16(0.02 * stream.normal()));
            Ok(())
        }
    }

    /// A disk of a given size that takes what fits of a write, as disks do.
    struct Disk {
        bytes: Cursor<Vec<u8>>,
        size: u64,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fits = (self.size - self.bytes.position()).min(bytes.len() as u64) as usize;
            if fits == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.write(&bytes[..fits])
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Disk {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.bytes.seek(to)
        }
    }

    fn onto(size: u64) -> (Result<PackReport>, Vec<u8>) {
        let mut disk = Disk { bytes: Cursor::new(Vec::new()), size };
        let report = pack_into(&Normal::new(), Format::Pairlut, &mut disk, &|_, _| (), &|| false);
        (report, disk.bytes.into_inner())
    }

    #[test]
    fn a_disk_that_is_too_small_by_any_amount_is_full() {
        let (report, file) = onto(u64::MAX);
        let report = report.unwrap();
        assert_eq!(report.file_bytes, file.len() as u64);
        assert_eq!(container::read(&file).unwrap().weights.len(), 3);
        assert_eq!(onto(report.file_bytes).1, file, "room for the file is enough");
        for size in (0..report.file_bytes).step_by(509).chain([report.file_bytes - 1]) {
            let error = onto(size).0.unwrap_err();
            assert_eq!(error.kind, Kind::DiskFull, "{size}: {error}");
        }
    }

    #[test]
    fn batches_cover_every_tensor_and_stay_below_the_largest() {
        let mut stream = Stream::new(6);
        for _ in 0..200 {
            let tensor = |_| SourceTensor {
                name: String::new(),
                dims: vec![1 + stream.below(9)],
                dtype: "BF16".into(),
            };
            let tensors: Vec<SourceTensor> = (0..20).map(tensor).collect();
            let most = tensors.iter().map(|t| t.shape().len()).max().unwrap();
            let mut next = 0;
            for batch in batches(&tensors) {
                assert_eq!(batch.start, next);
                let words: u64 = tensors[batch.clone()].iter().map(|t| t.shape().len()).sum();
                assert!(!batch.is_empty() && words <= most, "{batch:?}: {words} of {most}");
                next = batch.end;
            }
            assert_eq!(next, tensors.len());
        }
        assert_eq!(batches(&[]).count(), 0);
    }

    #[test]
    fn runs_of_rows_are_whole_blocks_where_they_can_be() {
        for (rows, cols, want) in [
            (100_000, 4096, 1024),
            (100_000, 576, 7280),
            (10, 576, 10),
            (100_000, 300_000, 13),
            (100, u32::MAX, 1),
            (1, 5, 1),
        ] {
            assert_eq!(rows_at_once(Shape { rows, cols }), want, "{rows} x {cols}");
        }
    }
}
