//! The part of a model that is numbers: its store, what its config.json makes of it, and the device that runs it.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use super::protocol::{Load, Variant};
use crate::backend::{self, Backend, Device, Setup, Weight, Weights};
use crate::codec::Shape;
use crate::error::{Error, Result, visible};
use crate::model::op::WeightId;
use crate::model::program::Program;
use crate::store::{Store, demo};

/// A model that is open and understood, and not yet on a device.
pub struct Opened {
    /// Its file, or directory.
    pub store: Arc<Store>,
    /// What to compute.
    pub program: Arc<Program>,
    /// How its weights are stored, or will be once it is loaded.
    pub variant: Variant,
    /// Whether its matrices lie as bf16 and are packed while they are loaded.
    pub packs: bool,
    /// By [`WeightId`], the index of the store's entry.
    entries: Vec<usize>,
}

impl Opened {
    /// Opens what `load` names. `progress` hears of bytes checked and in all, and ends it by an error.
    ///
    /// # Errors
    /// As [`Store::open`]; `BadFile` when the weights are stored otherwise than `load` insists, or do not fit config.json.
    pub fn read(load: &Load, progress: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<Opened> {
        progress(0, 0)?;
        let store = checked_store(load.path.as_deref(), progress)?;
        let variant = Variant::of(store.entries());
        let name = visible(&load.name);
        // Packing loses nothing, so what is asked for can be made; the way back would not be what was asked for.
        let packs = load.variant == Some(Variant::Lossless) && variant == Variant::Bf16;
        let variant = if packs { Variant::Lossless } else { variant };
        if let Some(wanted) = load.variant.filter(|v| *v != variant) {
            return Err(Error::bad_file(
                format!("cannot use {name} as {}", wanted.name()),
                format!("its weights are stored as {}", variant.name()),
                format!("leave out `:{}`, or pack the source again", wanted.name()),
            ));
        }
        let failed = |e: Error| e.while_doing(format!("cannot load {name}"));
        let program = Arc::new(Program::read(&store.texts().config).map_err(failed)?);
        let entries = matching(&program, &store).map_err(failed)?;
        Ok(Opened { store: Arc::new(store), program, variant, packs, entries })
    }

    /// Loads it on a device.
    ///
    /// # Errors
    /// As [`backend::open`].
    pub fn backend(
        &self,
        device: &Device,
        setup: &Setup,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Box<dyn Backend>> {
        backend::open(device, &self.program, self.weights(), setup, progress)
    }

    /// Its weights, in the file.
    pub fn weights(&self) -> Arc<dyn Weights> {
        let (store, entries) = (Arc::clone(&self.store), self.entries.clone());
        Arc::new(Stored { store, entries, packs: self.packs })
    }
}

/// The weights of a program, in a store. Reads in place.
pub(super) struct Stored {
    pub store: Arc<Store>,
    /// By [`WeightId`], the index of the store's entry.
    pub entries: Vec<usize>,
    /// Whether bf16 matrices are to be packed.
    pub packs: bool,
}

impl Weights for Stored {
    fn to_be_packed(&self) -> bool {
        self.packs
    }

    fn weight(&self, id: WeightId) -> Weight<'_> {
        let entry = &self.store.entries()[self.entries[id.0 as usize]];
        Weight { format: entry.format, shape: entry.shape, parts: self.store.parts(entry) }
    }
}

/// [`open_store`] with progress; `progress` may end it.
fn checked_store(
    path: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<Store> {
    let Some(path) = path else { return demo::open() };
    let ended = RefCell::new(Ok(()));
    let progress = RefCell::new(progress);
    let tell = |done, of| {
        let told = (progress.borrow_mut())(done, of);
        if told.is_err() && ended.borrow().is_ok() {
            *ended.borrow_mut() = told;
        }
    };
    let store = Store::open_with(path, &tell, &|| {
        tell(0, 0);
        ended.borrow().is_err()
    });
    ended.into_inner().and(store)
}

/// Finds every weight of the program in the store, with the shape it must have.
pub(super) fn matching(program: &Program, store: &Store) -> Result<Vec<usize>> {
    let shape = |s: Shape| format!("{} × {}", s.rows, s.cols);
    let todo = "get the model again; its config.json and weights do not belong together";
    program
        .weights
        .iter()
        .map(|spec| {
            let found = store.entries().binary_search_by(|e| e.name.as_str().cmp(&spec.name));
            let Ok(index) = found else {
                let why = format!("there is no tensor {}", visible(&spec.name));
                return Err(Error::bad_file("the weights do not fit config.json", why, todo));
            };
            let is = store.entries()[index].shape;
            if is != spec.shape {
                let why =
                    format!("{} is {}, not {}", visible(&spec.name), shape(is), shape(spec.shape));
                return Err(Error::bad_file("the weights do not fit config.json", why, todo));
            }
            Ok(index)
        })
        .collect()
}
