//! Runs a program on a device. `cpu` is the definition; `cuda` is the same, fast.

pub mod cpu;
pub mod cuda;
mod packed;
pub mod scripted;

use std::cell::RefCell;
use std::sync::Arc;

use crate::codec::{Format, Parts, Shape};
use crate::error::{Error, Kind, Result, visible};
use crate::model::kv::{KvFormat, KvLayout};
use crate::model::op::{Buf, Op, Sampling, Step, WeightId};
use crate::model::program::Program;
use cpu::Cpu;
use cuda::Cuda;
use cuda::driver::{self, DeviceInfo};
use cuda::images::{Coverage, coverage};
use packed::Packed;
use scripted::{Script, Scripted};

/// A weight as a backend sees it.
#[derive(Clone, Debug)]
pub struct Weight<'a> {
    /// Its codec.
    pub format: Format,
    /// Its shape.
    pub shape: Shape,
    /// Its bytes, validated.
    pub parts: Parts<'a>,
}

/// Where a backend gets its weights from. Implemented by the engine over a store, and by tests over memory.
/// The CPU backend keeps it and reads in place; a GPU backend copies and lets go.
pub trait Weights: Send + Sync {
    /// The weight of this id. The engine has checked names, shapes and parts before it hands the source over.
    fn weight(&self, id: WeightId) -> Weight<'_>;
    /// Whether matrices that lie here as bf16 are to be packed while they are loaded.
    fn to_be_packed(&self) -> bool {
        false
    }
}

/// What a backend runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct Card {
    /// `cpu` or `cuda:0`.
    pub id: String,
    /// Product name.
    pub name: String,
    /// Instruction set or architecture in use: `avx512`, `sm_90a`.
    pub path: String,
}

/// Bytes held, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Weights (mapped or copied).
    pub weights: u64,
    /// Cache in use by true tokens.
    pub kv_used: u64,
    /// Cache allocated.
    pub kv_reserved: u64,
    /// Activations, staging, tables.
    pub scratch: u64,
    /// Device context and code.
    pub context: u64,
}

/// What loading takes, in bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The weights.
    pub weights: u64,
    /// Cache, scratch and what is used on the way.
    pub rest: u64,
}

impl Need {
    /// Compares it with what is there, before anything is allocated.
    ///
    /// # Errors
    /// `DoesNotFit`, with how much is missing.
    pub fn check(&self, device: &str, free: u64, total: u64) -> Result<()> {
        let need = self.weights.saturating_add(self.rest);
        if need <= free {
            return Ok(());
        }
        let gib = |b: u64| b as f64 / f64::from(1u32 << 30);
        Err(Error::new(
            Kind::DoesNotFit,
            format!("cannot load the model on {device}"),
            format!(
                "it needs {:.2} GiB (weights {:.2}, the rest for cache and scratch); {:.2} of {:.2} GiB are free: {:.2} GiB are missing",
                gib(need),
                gib(self.weights),
                gib(free),
                gib(total),
                gib(need - free)
            ),
            "use a smaller context (-c), a smaller format, another device (-d), or --device cpu",
        ))
    }
}

/// A device with a loaded program.
pub trait Backend {
    /// What it runs on.
    fn card(&self) -> Card;
    /// Bytes held now.
    fn ledger(&self) -> Ledger;
    /// How many tokens one step may carry (prompts are cut into chunks of this many).
    fn max_step(&self) -> u32;
    /// Tokens the cache can hold.
    fn capacity(&self) -> u32;
    /// Sets how tokens are chosen; `history` are the tokens already in the cache, for the penalties.
    fn set_sampling(&mut self, sampling: &Sampling, history: &[u32]) -> Result<()>;
    /// Runs one op of the step. The differential tests live on this method.
    fn exec(&mut self, op: &Op, step: &Step<'_>) -> Result<()>;
    /// Runs a whole step. A backend may fuse, capture or overlap as long as `exec` in order gives the same bits.
    fn run(&mut self, program: &Program, step: &Step<'_>) -> Result<()> {
        program.ops.iter().try_for_each(|op| self.exec(op, step))
    }
    /// Waits for the oldest sampled token not yet taken: the engine queues step n+1 before it asks for token n.
    fn token(&mut self) -> Result<u32>;
    /// Waits, then copies `out.len()` values from the start of a buffer of the last step.
    fn read(&mut self, buf: Buf, out: &mut [f32]) -> Result<()>;
    /// How tests set the stage.
    fn write(&mut self, buf: Buf, data: &[f32]) -> Result<()>;
    /// Bytes of weights and cache read by a one-token step at position `pos`.
    fn bytes_per_token(&self, pos: u32) -> u64;
    /// Whether `run` returns before the step is done, so that queueing the next one hides the host's work.
    fn runs_ahead(&self) -> bool {
        false
    }
}

/// Where to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    /// The best there is.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this index.
    Cuda(u32),
    /// No device: a script (for tests of the terminal side).
    Scripted(Script),
}

impl Device {
    /// What [`Device::Auto`] means on this machine: the first GPU that the kernels run on, else the CPU; others mean
    /// themselves. Beside it, why a GPU that is there, or whose driver is, was passed over.
    pub fn chosen(&self) -> (Device, Option<String>) {
        if *self != Device::Auto {
            return (self.clone(), None);
        }
        let devices = match driver::devices() {
            Ok(devices) => devices,
            Err(e) => return (Device::Cpu, driver::is_installed().then_some(e.why)),
        };
        let runs = |d: &&DeviceInfo| coverage(d.capability) != Coverage::None;
        match (devices.iter().find(runs), devices.first()) {
            (Some(d), _) => (Device::Cuda(d.index as u32), None),
            (None, None) => (Device::Cpu, None),
            (None, Some(d)) => {
                let (name, (major, minor)) = (visible(&d.name), d.capability);
                let why = format!(
                    "the compute capability of {name} is {major}.{minor}, and the kernels need 8.0 or newer"
                );
                (Device::Cpu, Some(why))
            }
        }
    }
}

/// What a backend is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Tokens the cache holds.
    pub context: u32,
    /// Worker threads of the CPU; `None` is one per core.
    pub threads: Option<usize>,
}

/// Opens a device with a program. `progress` hears of bytes done and in all, and ends it by an error.
///
/// # Errors
/// `NoGpu` when a GPU is wanted and cannot be used, `DoesNotFit`, or what `progress` returned. Nothing falls back: only
/// [`Device::Auto`] may choose.
pub fn open(
    device: &Device,
    program: &Arc<Program>,
    weights: Arc<dyn Weights>,
    setup: &Setup,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<Box<dyn Backend>> {
    let packed = |weights: Arc<dyn Weights>, progress: &mut dyn FnMut(u64, u64) -> Result<()>| {
        Ok::<Arc<dyn Weights>, Error>(match weights.to_be_packed() {
            true => Arc::new(Packed::of(program, weights, setup.threads, progress)?),
            false => weights,
        })
    };
    match device {
        Device::Auto => open(&device.chosen().0, program, weights, setup, progress),
        Device::Cpu => {
            progress(0, 0)?;
            let weights = packed(weights, progress)?;
            let program = Arc::clone(program);
            Ok(Box::new(Cpu::new(program, weights, setup.context, setup.threads)?))
        }
        Device::Cuda(index) => {
            let options =
                cuda::Options { index: *index as usize, capacity: setup.context, portable: false };
            let progress = RefCell::new(progress);
            let tell = |done, of| (progress.borrow_mut())(done, of);
            Ok(Box::new(Cuda::new(Arc::clone(program), &*weights, options, &tell)?))
        }
        Device::Scripted(script) => {
            let weights = packed(weights, progress)?;
            let ids = (0..program.weights.len() as u32).map(WeightId);
            let parts = |id| weights.weight(id).parts.0.iter().map(|p| p.len() as u64).sum::<u64>();
            let need = Need {
                weights: ids.map(parts).sum(),
                rest: KvLayout::of(program, setup.context, KvFormat::Bf16).bytes_per_token()
                    * u64::from(setup.context),
            };
            Ok(Box::new(Scripted::open(script.clone(), setup.context, need, progress)?))
        }
    }
}

/// Memory that a program could still get, where the system tells.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let rest = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|n| n * 1024)
}

/// The product name of this machine's CPU.
pub fn cpu_name() -> String {
    cpu::processor()
}

/// The instruction set that the CPU backend uses on this machine.
pub fn cpu_path() -> String {
    crate::codec::simd::Level::best().to_string()
}
