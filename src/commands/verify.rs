//! `snug verify`: how far "lossless" is proven, and no further.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgMatches, Args, Command, ValueEnum};
use serde_json::{Value, json};

use super::globals::Context;
use super::output::{Outcome, note};
use super::work::{Report, Work};
use super::{Verb, files, parsed, refs, threads};
use crate::engine::model::Words;
use crate::engine::protocol::Variant;
use crate::engine::prove;
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
        "snug verify model.snug --level container",
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
    /// Write what was proven as JSON
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Worker threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads::count)]
    jobs: Option<usize>,
}

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
}

impl Level {
    fn short(self) -> &'static str {
        ["L0", "L1", "L2", "L3", "L4"][self as usize]
    }

    fn name(self) -> &'static str {
        ["container", "decode", "kernel", "logits", "tokens"][self as usize]
    }
}

/// What has been proven so far.
#[derive(Default)]
struct Record {
    steps: Vec<(Level, String, u64)>,
    failure: Option<Error>,
    /// Why it ended before the level that was wanted.
    short_of: Option<String>,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    let work = Work::new(cx, o.jobs);
    let model = refs::find(&o.model)?;
    let store = Arc::new(work.run("opening", |report| refs::open_with(&model, report, &work))?);
    let mut record = Record::default();
    let seed = RandomState::new().hash_one(0) >> 32;
    let ended = prove_levels(&o, &store, seed, &work, &mut record, cx);
    let mismatch = match ended {
        Ok(()) => None,
        Err(e) if e.kind == Kind::Mismatch => Some(e),
        Err(e) => return Err(e.into()),
    };
    record.failure = mismatch;
    if let Some(path) = &o.receipt {
        let text = format!("{:#}\n", receipt(&o, &model, &store, seed, &record));
        files::write(path, text.as_bytes())?;
    }
    if cx.globals.json {
        cx.out.json(&receipt(&o, &model, &store, seed, &record))?;
    } else {
        let level = record.steps.last().map_or("none", |(level, ..)| level.short());
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

/// Climbs, level by level, and says each one as it is reached.
fn prove_levels(
    o: &Options,
    store: &Arc<Store>,
    seed: u64,
    work: &Work,
    record: &mut Record,
    cx: &mut Context,
) -> Result<()> {
    let mut reached = |level: Level, said: String, compared: u64, record: &mut Record| {
        if !cx.globals.json {
            // A closed pipe does not stop a proof whose exit code somebody waits for.
            let _ = cx.out.line(format_args!("{} {:<9}  {said}", level.short(), level.name()));
            let _ = cx.out.flush();
        }
        record.steps.push((level, said, compared));
    };
    let wanted = o.level.unwrap_or(Level::Tokens);
    let (said, compared) = container(o, store, work)?;
    reached(Level::Container, said, compared, record);
    if Variant::of(store.entries()) == Variant::Bf16 {
        record.short_of = Some("the weights are stored as bf16, so nothing else is decoded".into());
        return Ok(());
    }
    if wanted >= Level::Decode {
        let go_on = || work.go_on();
        let proof = work.run("decoding", |report| prove::decode_levels(store, report, &go_on))?;
        reached(Level::Decode, proof.said, proof.compared, record);
    }
    if wanted >= Level::Kernel {
        let go_on = || work.go_on();
        let proof =
            work.run("multiplying", |report| prove::products(store, seed, o.jobs, report, &go_on))?;
        reached(Level::Kernel, proof.said, proof.compared, record);
    }
    if wanted >= Level::Logits {
        let program = match runnable(o, store) {
            Ok(program) => program,
            Err(why) if o.level.is_some() => return Err(why),
            Err(why) => {
                record.short_of = Some(why.why);
                return Ok(());
            }
        };
        let prompt = prompt(store, &program)?;
        let go_on = || work.go_on();
        let (logits, tokens) = work.run("running", |report| {
            prove::whole_model(store, &program, &prompt, o.steps, o.jobs, report, &go_on)
        })?;
        reached(Level::Logits, logits.said, logits.compared, record);
        if wanted >= Level::Tokens {
            reached(Level::Tokens, tokens.said, tokens.compared, record);
        }
    }
    Ok(())
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

fn receipt(o: &Options, model: &refs::Model, store: &Store, seed: u64, record: &Record) -> Value {
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
        .map(|(level, said, compared)| {
            json!({ "level": level.short(), "name": level.name(), "said": said, "values_compared": compared })
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
        "device": { "id": "cpu", "path": crate::backend::cpu_path() },
        "seed": seed,
        "result": if record.failure.is_some() { "mismatch" } else { "equal" },
        "level": record.steps.last().map(|(level, ..)| level.short()),
        "steps": steps,
        "short_of": record.short_of,
        "failure": record.failure.as_ref().map(|e| json!({ "what": e.what, "why": e.why })),
        "tensors": tensors,
    })
}
