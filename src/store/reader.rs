//! Opens a `.snug` file or a model directory and hands out parts of the mapped file.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use rayon::prelude::*;

use super::container::{self, Contents, Weight};
use super::dir::ModelDir;
use super::header::Dtype;
use super::mapped::{Bytes, map};
use super::{Entry, Input, Source, Texts};
use crate::codec::{Format, Parts};
use crate::error::{Error, Kind, Result, visible};

/// How often a caller that waits is asked whether to go on.
const POLL: Duration = Duration::from_millis(50);

/// The parts of a weight: ranges of one file.
#[derive(Clone, Debug)]
struct Place {
    file: usize,
    parts: Vec<Range<usize>>,
}

/// An open model. Bytes stay in the mapped file(s); nothing is expanded.
pub struct Store {
    files: Vec<Arc<Bytes>>,
    texts: Texts,
    source: Source,
    packer: Option<String>,
    entries: Vec<Entry>,
    /// One for each entry.
    places: Vec<Place>,
}

impl Store {
    /// Opens a `.snug` file, or a directory with `config.json`, `tokenizer.json` and `*.safetensors` in bf16.
    /// Checks the header and every part ([`crate::codec::Codec::validate`]), not the hashes. The files are mapped and
    /// must stay as they are while the store is open: replace them, do not write into them.
    ///
    /// # Errors
    /// `ModelNotFound` when there is nothing there; `BadFile` for damage and for what this build does not know, by name.
    pub fn open(path: &Path) -> Result<Store> {
        Store::open_with(path, &|_, _| (), &|| false)
    }

    /// Like [`Store::open`]; says how many bytes of how many are checked, and gives up with `Interrupted` soon after
    /// `cancel` says so. Both are called on the calling thread.
    pub fn open_with(
        path: &Path,
        progress: &dyn Fn(u64, u64),
        cancel: &dyn Fn() -> bool,
    ) -> Result<Store> {
        let shown = visible(&path.to_string_lossy());
        let what = format!("cannot open {shown}");
        if !path.exists() {
            let why = "there is no such file or directory";
            return Err(Error::new(Kind::ModelNotFound, what, why, "check the path"));
        }
        let store = if path.is_dir() { Store::of_dir(path) } else { Store::of_file(path) };
        let store = store.and_then(|store| {
            store.validate(progress, cancel)?;
            Ok(store)
        });
        store.map_err(|e| Error { what, ..e })
    }

    /// Opens a `.snug` file that is part of the program (the built-in model).
    ///
    /// # Errors
    /// `BadFile`, as [`Store::open`].
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Store> {
        let open = || {
            let store = Store::of_contents(container::read(bytes)?, Bytes::Static(bytes));
            store.validate(&|_, _| (), &|| false)?;
            Ok(store)
        };
        open().map_err(|e: Error| Error { what: format!("cannot open {name}"), ..e })
    }

    pub(super) fn of_file(path: &Path) -> Result<Store> {
        let input = Input::open(path)?;
        let mut magic = [0; 4];
        if input.len() >= 4 {
            input.read_at(0, &mut magic)?;
        }
        if &magic == b"GGUF" {
            return Err(Error::bad_file(
                "cannot open",
                "it is a GGUF file",
                format!("make a .snug file of it: snug pack {}", visible(&path.to_string_lossy())),
            ));
        }
        let bytes = map(&input)?;
        Ok(Store::of_contents(container::read(&bytes)?, bytes))
    }

    fn of_contents(contents: Contents, bytes: Bytes) -> Store {
        let Contents { texts, source, weights, packer } = contents;
        let (entries, places) = weights
            .into_iter()
            .map(|Weight { entry, parts }| (entry, Place { file: 0, parts }))
            .unzip();
        Store { files: vec![Arc::new(bytes)], texts, source, packer: Some(packer), entries, places }
    }

    pub(super) fn of_dir(path: &Path) -> Result<Store> {
        let dir = ModelDir::open(path)?;
        let (mut entries, mut places) = (Vec::new(), Vec::new());
        for t in dir.tensors {
            if t.dtype != Dtype::BF16 {
                return Err(Error::bad_file(
                    "cannot open",
                    format!(
                        "tensor {} is {}; a directory is used as it is only when all are BF16",
                        visible(&t.tensor.name),
                        t.dtype.name
                    ),
                    format!("convert it: snug pack {}", visible(&path.to_string_lossy())),
                ));
            }
            entries.push(Entry::of(t.tensor, Format::Bf16, None, t.end - t.begin));
            let part = t.begin as usize..t.end as usize;
            places.push(Place { file: t.shard, parts: Vec::from([part]) });
        }
        let files = dir.shards.iter().map(|s| Ok(Arc::new(map(s)?))).collect::<Result<_>>()?;
        let source = Source { kind: "hf".into(), name: dir.name, exact: true, id: None };
        Ok(Store { files, texts: dir.texts, source, packer: None, entries, places })
    }

    /// Checks every part, on all cores. A check that is under way when the caller gives up ends on its own: it
    /// holds the file, not the store.
    fn validate(&self, progress: &dyn Fn(u64, u64), cancel: &dyn Fn() -> bool) -> Result<()> {
        let of = self.entries.iter().map(|e| e.bytes).sum();
        let stop = Arc::new(AtomicBool::new(false));
        let (worker, results) = self.check_all(&stop);
        let mut done = 0;
        let mut first: Option<(usize, Error)> = None;
        progress(done, of);
        loop {
            if cancel() {
                stop.store(true, Ordering::Relaxed);
                return Err(interrupted("stopped while checking the weights"));
            }
            match wait(&results) {
                Ok((i, Ok(()))) => {
                    done += self.entries[i].bytes;
                    progress(done, of);
                }
                // All are checked, so that the first bad weight by name is the one that is named.
                Ok((i, Err(e))) if first.as_ref().is_none_or(|(at, _)| i < *at) => {
                    first = Some((i, e))
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Err(panic) = worker.join() {
            std::panic::resume_unwind(panic);
        }
        match first {
            None => Ok(()),
            Some((i, e)) => {
                let why = format!("weight {}: {}", visible(&self.entries[i].name), e.why);
                Err(Error { why, ..e })
            }
        }
    }

    /// Starts checking every weight; each result comes with the index of its entry.
    fn check_all(&self, stop: &Arc<AtomicBool>) -> (JoinHandle<()>, Receiver<(usize, Result<()>)>) {
        let job = |(entry, place): (&Entry, &Place)| {
            (self.files[place.file].clone(), place.parts.clone(), entry.format, entry.shape)
        };
        let jobs: Vec<_> = self.entries.iter().zip(&self.places).map(job).collect();
        let (sender, results) = mpsc::channel();
        let stop = stop.clone();
        let worker = std::thread::spawn(move || {
            jobs.into_par_iter().enumerate().for_each(|(i, (file, parts, format, shape))| {
                if !stop.load(Ordering::Relaxed) {
                    let checked = format.codec().validate(shape, &parts_of(&file, &parts));
                    // Nobody listens any more when the caller gave up.
                    let _ = sender.send((i, checked));
                }
            });
        });
        (worker, results)
    }

    /// Its texts.
    pub fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Where its weights came from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Program and version that packed it; `None` for a directory.
    pub fn packer(&self) -> Option<&str> {
        self.packer.as_deref()
    }

    /// Its weights, sorted by name.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The weight of this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.position(name).map(|i| &self.entries[i])
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.entries.binary_search_by(|e| e.name.as_str().cmp(name)).ok()
    }

    /// The bytes of an entry of this store.
    ///
    /// # Panics
    /// The entry is of another store, which has a weight that this one lacks.
    pub fn parts(&self, entry: &Entry) -> Parts<'_> {
        let i = self.position(&entry.name).expect("an entry belongs to the store that listed it");
        parts_of(&self.files[self.places[i].file], &self.places[i].parts)
    }

    /// Size of the file(s) on disk.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.len() as u64).sum()
    }
}

fn parts_of<'a>(file: &'a [u8], parts: &[Range<usize>]) -> Parts<'a> {
    Parts(parts.iter().map(|range| &file[range.clone()]).collect())
}

/// Waits a little for the next result. A thread of rayon's pool lends a hand meanwhile: the work it waits for may
/// have no other thread to run on.
fn wait<T>(results: &Receiver<T>) -> Result<T, RecvTimeoutError> {
    match rayon::yield_now() {
        Some(rayon::Yield::Executed) => results.recv_timeout(Duration::ZERO),
        _ => results.recv_timeout(POLL),
    }
}

/// The error of work that the user stopped.
pub(super) fn interrupted(why: &str) -> Error {
    Error::new(Kind::Interrupted, "stopped", why, "start again when you like")
}
