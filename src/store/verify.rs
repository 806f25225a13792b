//! Level L0: do the stored weights decode to the bytes that were packed? Against the hashes in the file, and against
//! the source itself.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::container::hex;
use super::pack::{Cancel, Progress, le_bytes, rows_at_once};
use super::reader::interrupted;
use super::{Entry, ModelSource, Store};
use crate::error::{Error, Kind, Result, visible};

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Weights that were compared, and are the same.
    pub same: usize,
    /// Weights without a hash to compare with (in a directory).
    pub unhashed: usize,
    /// Bytes of bf16 that were compared.
    pub bytes: u64,
    /// What differs, sorted by name.
    pub differences: Vec<Difference>,
}

/// A weight that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// How it differs, with values.
    pub why: String,
}

impl Checked {
    /// The first difference as an error.
    ///
    /// # Errors
    /// `Mismatch`, when there are differences.
    pub fn into_result(self, model: &str) -> Result<Checked> {
        let Some(first) = self.differences.first() else { return Ok(self) };
        let more = match self.differences.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} more)"),
        };
        Err(Error::new(
            Kind::Mismatch,
            format!("{} is not what was packed", visible(model)),
            format!("weight {}: {}{more}", visible(&first.name), first.why),
            "pack or download the model again",
        ))
    }

    fn add(mut self, outcome: Outcome) -> Checked {
        match outcome {
            Outcome::Same(bytes) => {
                self.same += 1;
                self.bytes += bytes;
            }
            Outcome::Unhashed => self.unhashed += 1,
            Outcome::Differs(difference) => self.differences.push(difference),
        }
        self
    }
}

enum Outcome {
    /// Bytes of bf16.
    Same(u64),
    Unhashed,
    Differs(Difference),
}

fn differs(name: &str, why: String) -> Outcome {
    Outcome::Differs(Difference { name: name.to_owned(), why })
}

impl Store {
    /// Decodes every weight and compares its SHA-256 with the one stored beside it. Memory does not depend on the
    /// model: weights are decoded in runs of rows.
    ///
    /// # Errors
    /// `Interrupted` when `cancel` said so. Differences are no errors here, see [`Checked::into_result`].
    pub fn verify_hashes(&self, progress: Progress<'_>, cancel: Cancel<'_>) -> Result<Checked> {
        let meter = Meter::new(self, progress, cancel);
        let check = |entry: &Entry| {
            let Some(want) = entry.sha256 else {
                meter.add(2 * entry.shape.len());
                return Ok(Outcome::Unhashed);
            };
            let mut hash = Sha256::new();
            self.decode_runs(entry, &meter, |_, words| {
                hash.update(le_bytes(words));
                Ok(true)
            })?;
            let got: [u8; 32] = hash.finalize().into();
            Ok(if got == want {
                Outcome::Same(2 * entry.shape.len())
            } else {
                let why =
                    format!("it decodes to the hash {}, its header says {}", hex(&got), hex(&want));
                differs(&entry.name, why)
            })
        };
        collect(self.entries().par_iter().map(check).collect())
    }

    /// Decodes every weight and compares it with the source, word by word, whatever the hashes say. Names and
    /// dimensions must agree both ways.
    ///
    /// # Errors
    /// `Interrupted` when `cancel` said so, and what reading the source gives.
    pub fn compare_with(
        &self,
        source: &dyn ModelSource,
        progress: Progress<'_>,
        cancel: Cancel<'_>,
    ) -> Result<Checked> {
        let meter = Meter::new(self, progress, cancel);
        let listed = source.tensors();
        let check = |entry: &Entry| {
            let at = listed.binary_search_by(|t| t.name.as_str().cmp(&entry.name));
            let Ok(index) = at else {
                return Ok(differs(&entry.name, "the source has no such tensor".into()));
            };
            if listed[index].dims != entry.dims {
                let why =
                    format!("its shape is {:?}, the source's {:?}", entry.dims, listed[index].dims);
                return Ok(differs(&entry.name, why));
            }
            let mut theirs = Vec::new();
            let mut found = None;
            self.decode_runs(entry, &meter, |rows, ours| {
                theirs.resize(ours.len(), 0);
                source.read_rows(index, rows.clone(), &mut theirs)?;
                let cols = entry.shape.cols as usize;
                found = ours.iter().zip(&theirs).position(|(a, b)| a != b).map(|i| {
                    let row = rows.start as usize + i / cols;
                    let (ours, theirs) = (ours[i], theirs[i]);
                    format!(
                        "at row {row}, column {}: {ours:#06x}, the source has {theirs:#06x}",
                        i % cols
                    )
                });
                Ok(found.is_none())
            })?;
            Ok(match found {
                None => Outcome::Same(2 * entry.shape.len()),
                Some(why) => differs(&entry.name, why),
            })
        };
        let mut outcomes: Vec<Result<Outcome>> = self.entries().par_iter().map(check).collect();
        let missing = listed.iter().filter(|t| self.entry(&t.name).is_none());
        outcomes.extend(missing.map(|t| Ok(differs(&t.name, "it is in the source only".into()))));
        collect(outcomes)
    }

    /// Hands out a weight as runs of rows, until `each` says no.
    fn decode_runs(
        &self,
        entry: &Entry,
        meter: &Meter<'_>,
        mut each: impl FnMut(Range<u32>, &[u16]) -> Result<bool>,
    ) -> Result<()> {
        let parts = self.parts(entry);
        let (codec, shape) = (entry.format.codec(), entry.shape);
        let run = rows_at_once(shape);
        let mut words = vec![0; run as usize * shape.cols as usize];
        let mut row = 0;
        while row < shape.rows {
            meter.go_on()?;
            let rows = row..shape.rows.min(row.saturating_add(run));
            let words = &mut words[..rows.len() * shape.cols as usize];
            codec.decode_rows(shape, &parts, rows.clone(), words);
            if !each(rows.clone(), words)? {
                break;
            }
            row = rows.end;
            meter.add(2 * words.len() as u64);
        }
        Ok(())
    }
}

fn collect(outcomes: Vec<Result<Outcome>>) -> Result<Checked> {
    let add = |checked: Checked, outcome: Result<Outcome>| Ok(checked.add(outcome?));
    let mut checked = outcomes.into_iter().try_fold(Checked::default(), add)?;
    checked.differences.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(checked)
}

/// Progress in bytes of bf16, and the question whether to go on.
struct Meter<'a> {
    done: AtomicU64,
    of: u64,
    progress: Progress<'a>,
    cancel: Cancel<'a>,
}

impl<'a> Meter<'a> {
    fn new(store: &Store, progress: Progress<'a>, cancel: Cancel<'a>) -> Meter<'a> {
        let of = store.entries().iter().map(|e| 2 * e.shape.len()).sum();
        Meter { done: AtomicU64::new(0), of, progress, cancel }
    }

    fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.progress)(done, self.of);
    }

    fn go_on(&self) -> Result<()> {
        if (self.cancel)() { Err(interrupted("stopped while verifying")) } else { Ok(()) }
    }
}
