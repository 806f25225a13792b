//! `snug verify`: how far "lossless" is proven, and no further.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgMatches, Args, Command, ValueEnum};
use serde_json::{Value, json};

use super::globals::{Context, parse_device};
use super::output::{Outcome, note};
use super::work::{Report, Work};
use super::{Verb, files, parsed, refs, threads};
use crate::backend::cuda::driver;
use crate::backend::cuda::images::BUILD_ID;
use crate::engine::model::Words;
use crate::engine::protocol::Variant;
use crate::engine::prove::device::{self, Prover};
use crate::engine::prove::{self, Proof};
use crate::error::{Error, Kind, Result, visible};
use crate::import;
use crate::model::program::Program;
use crate::store::Store;

pub(super) const VERB: Verb = Verb {
    name: "verify",
    aliases: &[],
    about: "Prove that a packed model is what it was made from, level by level",
    examples: &[
        "snug verify demo",
        "snug verify model.snug --against ./source-dir --receipt receipt.json",
        "snug verify model.snug -d cuda --against-device cpu",
    ],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    /// The model
    #[arg(value_name = "MODEL")]
    model: String,
    /// Compare with this source, word by word, besides the hashes in the file
    #[arg(long, value_name = "DIR|GGUF")]
    against: Option<PathBuf>,
    /// How far to go: container (L0), decode (L1), kernel (L2), logits (L3), tokens (L4) [default: all]
    #[arg(long, value_name = "LEVEL", hide_possible_values = true)]
    level: Option<Level>,
    /// Steps to compare at L3 and L4
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Also compare the greedy tokens of the device with those of this one (256 unless --steps says more)
    #[arg(long, value_name = "DEV")]
    against_device: Option<String>,
    /// Write what was proven as JSON
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Worker threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads::count)]
    jobs: Option<usize>,
}

/// Tokens that two devices are compared for at least.
const DEVICE_STEPS: u32 = 256;

/// What a level says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Level {
    /// Decoded weights equal the source's.
    #[value(alias = "L0")]
    Container,
    /// Every decoder of this machine gives the same.
    #[value(alias = "L1")]
    Decode,
    /// Products equal those of bf16.
    #[value(alias = "L2")]
    Kernel,
    /// Logits equal those of bf16.
    #[value(alias = "L3")]
    Logits,
    /// Greedy tokens equal those of bf16.
    #[value(alias = "L4")]
    Tokens,
    /// Two devices agree; no level, but a comparison beside them.
    #[value(skip)]
    Devices,
}

impl Level {
    fn short(self) -> &'static str {
        ["L0", "L1", "L2", "L3", "L4", "~"][self as usize]
    }

    fn name(self) -> &'static str {
        ["container", "decode", "kernel", "logits", "tokens", "devices"][self as usize]
    }
}

/// A level that was reached.
struct Reached {
    level: Level,
    said: String,
    compared: u64,
    /// `cpu`, `cuda:0`, or both.
    device: String,
}

/// What has been proven so far.
#[derive(Default)]
struct Record {
    steps: Vec<Reached>,
    failure: Option<Error>,
    /// Why it ended before the level that was wanted.
    short_of: Option<String>,
}

impl Record {
    /// The highest level.
    fn level(&self) -> Option<Level> {
        self.steps.iter().map(|s| s.level).filter(|l| *l != Level::Devices).max()
    }
}

/// What climbing needs.
struct Climb<'a> {
    o: &'a Options,
    store: &'a Arc<Store>,
    work: &'a Work,
    on: Prover,
    against: Option<Prover>,
    seed: u64,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    let on = Prover::of(&cx.device()?, o.jobs)?;
    let against = match &o.against_device {
        Some(text) => Some(Prover::of(&parse_device(text)?, o.jobs)?),
        None => None,
    };
    if against.as_ref() == Some(&on) {
        return Err(Error::new(
            Kind::Usage,
            "cannot compare a device with itself",
            format!("both are {}", on.id()),
            "name two with --device and --against-device",
        )
        .into());
    }
    let work = Work::new(cx, o.jobs);
    let model = refs::find(&o.model)?;
    let store = Arc::new(work.run("opening", |report| refs::open_with(&model, report, &work))?);
    let mut record = Record::default();
    let seed = RandomState::new().hash_one(0) >> 32;
    let climb = Climb { o: &o, store: &store, work: &work, on, against, seed };
    let mismatch = match climb.all(&mut record, cx) {
        Ok(()) => None,
        Err(e) if e.kind == Kind::Mismatch => Some(e),
        Err(e) => return Err(e.into()),
    };
    record.failure = mismatch;
    if let Some(path) = &o.receipt {
        let text = format!("{:#}\n", receipt(&climb, &model, &record));
        files::write(path, text.as_bytes())?;
    }
    if cx.globals.json {
        cx.out.json(&receipt(&climb, &model, &record))?;
    } else {
        let level = record.level().map_or("none", Level::short);
        cx.out.line(format_args!("device: {}, {}", climb.on.id(), climb.on.name()))?;
        cx.out.line(format_args!("level reached: {level}"))?;
        if let Some(why) = &record.short_of {
            note(format!("snug: no further: {why}"));
        }
    }
    match record.failure {
        Some(e) => Err(e.into()),
        None => Ok(()),
    }
}

impl Climb<'_> {
    /// Climbs, level by level, and says each one as it is reached.
    fn all(&self, record: &mut Record, cx: &mut Context) -> Result<()> {
        let go_on = || self.work.go_on();
        let wanted = self.o.level.unwrap_or(Level::Tokens);
        let (said, compared) = container(self.o, self.store, self.work)?;
        reached(cx, record, Level::Container, "cpu".into(), Proof { said, compared });
        if Variant::of(self.store.entries()) == Variant::Bf16 {
            record.short_of =
                Some("the weights are stored as bf16, so nothing else is decoded".into());
            return self.devices(record, cx);
        }
        if wanted >= Level::Decode {
            let store = self.store;
            let proof =
                self.work.run("decoding", |report| prove::decode_levels(store, report, &go_on))?;
            reached(cx, record, Level::Decode, "cpu".into(), proof);
        }
        if wanted >= Level::Kernel {
            match &self.on {
                Prover::Cpu(threads) => {
                    let (store, seed) = (self.store, self.seed);
                    let proof = self.work.run("multiplying", |report| {
                        prove::products(store, seed, *threads, report, &go_on)
                    })?;
                    reached(cx, record, Level::Kernel, "cpu".into(), proof);
                }
                Prover::Cuda(index) => {
                    let Some(program) = self.program(record)? else { return Ok(()) };
                    self.gpu_kernels(&program, *index, record, cx)?;
                }
            }
        }
        if wanted >= Level::Logits {
            let Some(program) = self.program(record)? else { return Ok(()) };
            let prompt = prompt(self.store, &program)?;
            let (steps, on) = (self.o.steps, &self.on);
            let (logits, tokens) = self.work.run("running", |report| {
                prove::whole_model(self.store, &program, &prompt, steps, on, report, &go_on)
            })?;
            reached(cx, record, Level::Logits, self.on.id(), logits);
            if wanted >= Level::Tokens {
                reached(cx, record, Level::Tokens, self.on.id(), tokens);
            }
        }
        self.devices(record, cx)
    }

    /// L1 and L2 on a GPU.
    fn gpu_kernels(
        &self,
        program: &Arc<Program>,
        index: usize,
        record: &mut Record,
        cx: &mut Context,
    ) -> Result<()> {
        let (store, seed, go_on) = (self.store, self.seed, || self.work.go_on());
        let proof = self.work.run("decoding on the GPU", |report| {
            device::decoder(store, program, index, report, &go_on)
        })?;
        reached(cx, record, Level::Decode, self.on.id(), proof);
        let proof = self.work.run("multiplying", |report| {
            device::products(store, program, seed, index, report, &go_on)
        })?;
        reached(cx, record, Level::Kernel, self.on.id(), proof);
        Ok(())
    }

    /// The comparison with the other device, where one was named.
    fn devices(&self, record: &mut Record, cx: &mut Context) -> Result<()> {
        let Some(other) = &self.against else { return Ok(()) };
        let program = Arc::new(Program::read(&self.store.texts().config)?);
        let prompt = prompt(self.store, &program)?;
        let steps = self.o.steps.max(DEVICE_STEPS);
        let go_on = || self.work.go_on();
        let proof = self.work.run("running on both", |report| {
            let pair = (&self.on, other);
            device::two_devices(self.store, &program, &prompt, steps, pair, report, &go_on)
        })?;
        reached(cx, record, Level::Devices, format!("{}, {}", self.on.id(), other.id()), proof);
        Ok(())
    }

    /// The program, if it can be run; when nobody insisted on a level, why it cannot is noted and no fault.
    fn program(&self, record: &mut Record) -> Result<Option<Arc<Program>>> {
        match runnable(self.o, self.store) {
            Ok(program) => Ok(Some(program)),
            Err(why) if self.o.level.is_some() => Err(why),
            Err(why) => {
                record.short_of = Some(why.why);
                Ok(None)
            }
        }
    }
}

fn reached(cx: &mut Context, record: &mut Record, level: Level, device: String, proof: Proof) {
    let Proof { said, compared } = proof;
    if !cx.globals.json {
        // A closed pipe does not stop a proof whose exit code somebody waits for.
        let line = format!("{:<2} {:<9}  {device}: {said}", level.short(), level.name());
        let _ = cx.out.line(line);
        let _ = cx.out.flush();
    }
    record.steps.push(Reached { level, said, compared, device });
}

/// L0, against the source or against the hashes in the file.
fn container(o: &Options, store: &Store, work: &Work) -> Result<(String, u64)> {
    let name = visible(&o.model);
    let cancel = || work.is_cancelled();
    let source = match &o.against {
        Some(path) => Some(import::open(&refs::source(path))?),
        None => None,
    };
    // The source first: it tells where a difference is.
    let compared = match &source {
        Some(source) => {
            let compare = |report: Report<'_>| store.compare_with(source.as_ref(), report, &cancel);
            Some(work.run("comparing", compare)?.into_result(&o.model)?)
        }
        None => None,
    };
    let hashed = work.run("hashing", |report| store.verify_hashes(report, &cancel))?;
    let hashed = hashed.into_result(&o.model)?;
    let checked = compared.unwrap_or(hashed);
    if checked.unhashed > 0 {
        return Err(Error::new(
            Kind::Usage,
            format!("cannot verify {name}"),
            format!("{} of its tensors have no hash to compare with", checked.unhashed),
            "name its source with --against DIR",
        ));
    }
    let with = match &o.against {
        Some(_) => "the source, word by word",
        None => "the SHA-256 taken from the source when it was packed",
    };
    let rounded = if store.source().exact { "" } else { " (the source rounded to bf16)" };
    Ok((format!("{} tensors decode to {with}{rounded}", checked.same), checked.bytes / 2))
}

/// The program of the model, if it can be run here beside its bf16 twin.
fn runnable(o: &Options, store: &Store) -> Result<Arc<Program>> {
    let program = Program::read(&store.texts().config)?;
    let need = prove::twin_bytes(&program);
    match super::records::available_memory() {
        Some(free) if free < need + need / 8 => Err(Error::new(
            Kind::DoesNotFit,
            format!("cannot run {} beside its bf16 twin", visible(&o.model)),
            format!("the twin takes {need} bytes of memory, {free} are free"),
            "use --level kernel",
        )),
        _ => Ok(Arc::new(program)),
    }
}

/// Some text as the model's tokens, whatever its vocabulary.
fn prompt(store: &Store, program: &Program) -> Result<Vec<u32>> {
    let words = Words::read(store.texts(), None)?;
    let mut ids = words.tokenizer.encode_text("Once upon a time there was a small machine that")?;
    ids.truncate(program.config.max_positions as usize / 2);
    if ids.is_empty() {
        ids.push(0);
    }
    Ok(ids)
}

fn receipt(climb: &Climb<'_>, model: &refs::Model, record: &Record) -> Value {
    let (o, store, seed) = (climb.o, climb.store, climb.seed);
    let source = store.source();
    let hex = |h: [u8; 32]| h.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let tensors: serde_json::Map<String, Value> = store
        .entries()
        .iter()
        .map(|e| {
            (e.name.clone(), json!({ "codec": e.format.codec().id(), "sha256": e.sha256.map(hex) }))
        })
        .collect();
    let steps: Vec<Value> = record
        .steps
        .iter()
        .map(|s| {
            json!({
                "level": (s.level != Level::Devices).then(|| s.level.short()), "name": s.level.name(),
                "device": s.device, "said": s.said, "values_compared": s.compared,
            })
        })
        .collect();
    json!({
        "v": 1,
        "type": "receipt",
        "program": concat!("snug ", env!("CARGO_PKG_VERSION")),
        "time": jiff::Timestamp::now().to_string(),
        "model": model.name,
        "variant": Variant::of(store.entries()).name(),
        "file_bytes": store.file_bytes(),
        "source": { "kind": source.kind, "name": source.name, "exact": source.exact, "id": source.id },
        "against": o.against.as_ref().map(|p| p.display().to_string()),
        "device": device_json(&climb.on),
        "against_device": climb.against.as_ref().map(device_json),
        "seed": seed,
        "result": if record.failure.is_some() { "mismatch" } else { "equal" },
        "level": record.level().map(Level::short),
        "steps": steps,
        "short_of": record.short_of,
        "failure": record.failure.as_ref().map(|e| json!({ "what": e.what, "why": e.why })),
        "tensors": tensors,
    })
}

/// The device a receipt is about.
fn device_json(on: &Prover) -> Value {
    match on {
        Prover::Cpu(_) => {
            json!({ "id": "cpu", "name": on.name(), "path": crate::backend::cpu_path() })
        }
        Prover::Cuda(_) => json!({
            "id": on.id(), "name": on.name(), "kernels": BUILD_ID,
            "driver": driver::versions().ok().and_then(|v| v.driver),
        }),
    }
}
