//! `snug bench`: tokens a second, and how much of the memory's speed that is.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, ValueEnum};

use super::bench_rows::{Printer, Row};
use super::globals::Context;
use super::output::{Outcome, note};
use super::progress::Progress;
use super::work::Work;
use super::{Verb, bench_kernels, input, parsed, records, refs, threads};
use crate::backend::{self, Backend, Device, Setup};
use crate::bench::bandwidth;
use crate::bench::speed::{Runner, Test};
use crate::bench::synthetic::{SHAPES, Synthetic, shape};
use crate::codec::Format;
use crate::engine::protocol::{Load, Variant};
use crate::engine::weights::Opened;
use crate::error::{Error, Kind, Result, visible};
use crate::model::program::Program;

pub(super) const VERB: Verb = Verb {
    name: "bench",
    aliases: &[],
    about: "Measure tokens a second of models, on disk or synthetic",
    examples: &[
        "snug bench demo",
        "snug bench model.snug -p 512 -n 128 --depth 0,4096 -r 5 --bandwidth",
        "snug bench --synthetic llama-3.1-8b --codec lossless,bf16 -o csv",
        "snug bench kernels --synthetic llama-3.1-8b -d cuda",
    ],
    args: |command: Command| {
        Options::augment_args(command).subcommand(bench_kernels::args(Command::new("kernels")))
    },
    main: |matches: &ArgMatches, cx: &mut Context| match matches.subcommand() {
        Some((_, kernels)) => {
            nothing_before_kernels(matches)?;
            bench_kernels::main(kernels, cx)
        }
        None => main(parsed(matches)?, cx),
    },
};

/// Bytes that are read to measure the CPU's memory: more than any cache holds.
const CPU_READ_BYTES: u64 = 1 << 30;
/// The same of a GPU.
const GPU_READ_BYTES: u64 = 8 << 30;
const GPU_SHORT_READ_BYTES: u64 = 256 << 20;

#[derive(Args, Clone, Debug)]
struct Options {
    /// Models
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// Random weights in this shape: llama-3.1-8b, llama-3.2-1b, qwen3-8b, smollm2-135m or a config.json
    #[arg(long, value_name = "SHAPE", value_delimiter = ',')]
    synthetic: Vec<String>,
    /// How synthetic weights are stored: lossless, bf16 or both
    #[arg(
        long,
        value_name = "CODEC",
        value_delimiter = ',',
        default_value = "lossless",
        hide_possible_values = true
    )]
    codec: Vec<Codec>,
    /// Tokens of a prompt; 0 is no such test
    #[arg(short = 'p', long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<u32>,
    /// Tokens of a reply; 0 is no such test
    #[arg(short = 'n', long, value_name = "N,…", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<u32>,
    /// Also a prompt and then a reply, timed together
    #[arg(long, value_name = "P,N", value_parser = pair)]
    pg: Vec<(u32, u32)>,
    /// Tokens that are in the cache already
    #[arg(
        long,
        visible_alias = "n-depth",
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "0"
    )]
    depth: Vec<u32>,
    /// How often each test is timed
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Runs of each test before the first that counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    warmup: u32,
    /// Measure how fast memory can be read, and compare with it
    #[arg(long)]
    bandwidth: bool,
    /// md, csv, json or jsonl (--json is jsonl)
    #[arg(short, long, value_name = "FORMAT", default_value = "md", hide_possible_values = true)]
    output_format: OutputFormat,
    /// Worker threads of the CPU [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads::count)]
    threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Codec {
    /// Compressed.
    Lossless,
    /// As it is.
    Bf16,
}

impl Codec {
    /// The format of its matrices.
    pub(super) fn format(self) -> Format {
        match self {
            Codec::Lossless => Format::Pairlut,
            Codec::Bf16 => Format::Bf16,
        }
    }

    /// How people call it.
    pub(super) fn variant(self) -> Variant {
        match self {
            Codec::Lossless => Variant::Lossless,
            Codec::Bf16 => Variant::Bf16,
        }
    }
}

/// How rows are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// A table.
    Md,
    /// Values with commas.
    Csv,
    /// One array of objects.
    Json,
    /// One object a line.
    Jsonl,
}

/// What is measured.
pub(super) enum Subject {
    /// A model on disk.
    Model(refs::Model),
    /// Random weights.
    Synthetic { name: String, config: String, codec: Codec },
}

/// A subject on its device.
struct Running {
    name: String,
    variant: Variant,
    bytes: u64,
    program: Arc<Program>,
    backend: Box<dyn Backend>,
}

fn pair(text: &str) -> std::result::Result<(u32, u32), String> {
    let numbers = text.split_once(',').and_then(|(p, n)| Some((p.parse().ok()?, n.parse().ok()?)));
    match numbers {
        Some((p @ 1.., n @ 1..)) => Ok((p, n)),
        _ => Err("write two numbers like 512,128".into()),
    }
}

/// What stands before `kernels` would be ignored.
fn nothing_before_kernels(matches: &ArgMatches) -> Result<()> {
    let own = Options::augment_args(Command::new("bench"));
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    match own.get_arguments().find(|arg| given(arg.get_id().as_str())) {
        None => Ok(()),
        Some(arg) => Err(Error::new(
            Kind::Usage,
            format!(
                "cannot use {} before `kernels`",
                arg.get_long().map_or("a model".into(), |long| format!("--{long}"))
            ),
            "it belongs to the measurement of whole models",
            "write options and models behind it: snug bench kernels MODEL; see snug bench kernels --help",
        )),
    }
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    let device = cx.device()?;
    let subjects = subjects(&o.models, &o.synthetic, &o.codec)?;
    let tests = tests(&o)?;
    let work = Work::new(cx, o.threads);
    let measured = match o.bandwidth {
        true => Some(measure_bandwidth(&o, &device, &work, cx)?),
        false => None,
    };
    let format = if cx.globals.json { OutputFormat::Jsonl } else { o.output_format };
    let mut printer = Printer::new(format, measured.is_some());
    printer.begin(&mut cx.out)?;
    for subject in &subjects {
        let mut running = load(subject, &tests, &device, &o, &work, cx)?;
        let card = running.backend.card();
        let go_on = || work.go_on();
        let parameters = running.program.parameters();
        let mut rates = Vec::new();
        for test in &tests {
            let pos = test.depth.saturating_add(test.prompt).saturating_add(test.generate / 2);
            rates.push(running.backend.bytes_per_token(pos));
        }
        let mut runner = Runner::new(&mut *running.backend, &running.program, &go_on);
        for (test, bytes_per_token) in tests.iter().zip(rates) {
            let times = runner.run(*test, o.warmup, o.repetitions)?;
            let row = Row {
                model: &running.name,
                variant: running.variant.name(),
                bytes: running.bytes,
                parameters,
                card: &card,
                test: *test,
                times: &times,
                bytes_per_token: (test.prompt == 0).then_some(bytes_per_token),
                bandwidth: measured,
            };
            printer.row(&row, &mut cx.out)?;
        }
    }
    printer.end(&mut cx.out)
}

pub(super) fn subjects(
    models: &[String],
    synthetic: &[String],
    codecs: &[Codec],
) -> Result<Vec<Subject>> {
    let mut list = Vec::new();
    for model in models {
        list.push(Subject::Model(refs::find(model)?));
    }
    for name in synthetic {
        let config = match shape(name) {
            Some(config) => config.to_owned(),
            None if Path::new(name).exists() => input::read_file(Path::new(name), false)?,
            None => {
                let known: Vec<&str> = SHAPES.iter().map(|(name, _)| *name).collect();
                return Err(Error::new(
                    Kind::Usage,
                    format!("cannot make a model like {}", visible(name)),
                    "it is neither a shape that has a name nor a file",
                    format!("name a config.json, or one of {}", known.join(", ")),
                ));
            }
        };
        for codec in codecs {
            let (name, config) = (name.clone(), config.clone());
            list.push(Subject::Synthetic { name, config, codec: *codec });
        }
    }
    if list.is_empty() {
        return Err(Error::new(
            Kind::Usage,
            "cannot tell what to measure",
            "no model was named",
            "snug bench demo; or snug bench --synthetic llama-3.2-1b",
        ));
    }
    Ok(list)
}

/// Every test at every depth, the shallow ones first: what they leave in the cache need not be read again.
fn tests(o: &Options) -> Result<Vec<Test>> {
    let mut depths = o.depth.clone();
    depths.sort_unstable();
    depths.dedup();
    let mut list = Vec::new();
    for depth in depths {
        let prompts = o.n_prompt.iter().map(|p| (*p, 0));
        let replies = o.n_gen.iter().map(|n| (0, *n));
        let each = prompts.chain(replies).chain(o.pg.iter().copied());
        list.extend(each.filter(|(p, n)| p + n > 0).map(|(prompt, generate)| Test {
            prompt,
            generate,
            depth,
        }));
    }
    match list.is_empty() {
        true => Err(Error::new(
            Kind::Usage,
            "there is nothing to measure",
            "prompts and replies have no tokens",
            "give -p or -n a number above 0",
        )),
        false => Ok(list),
    }
}

fn load(
    subject: &Subject,
    tests: &[Test],
    device: &Device,
    o: &Options,
    work: &Work,
    cx: &Context,
) -> Result<Running> {
    let mut bar = Progress::new("loading", cx.globals.quiet);
    let mut progress = |done, of| {
        bar.bytes(done, of);
        work.go_on()
    };
    let context = tests.iter().map(Test::context).max().unwrap_or(1);
    let setup = Setup { context, threads: o.threads };
    match subject {
        Subject::Model(model) => {
            let load = Load {
                name: model.name.clone(),
                path: model.path.clone(),
                variant: model.variant,
                device: device.clone(),
                context: Some(context),
                threads: o.threads,
                chat_template: None,
            };
            let opened = Opened::read(&load, &mut progress)?;
            fits(&opened.program, tests)?;
            let backend = opened.backend(device, &setup, &mut progress)?;
            let bytes = match opened.packs {
                true => backend.ledger().weights,
                false => opened.store.entries().iter().map(|e| e.bytes).sum(),
            };
            let (program, variant) = (opened.program, opened.variant);
            Ok(Running { name: model.name.clone(), variant, bytes, program, backend })
        }
        Subject::Synthetic { name, config, codec } => {
            let program = Arc::new(Program::read(config)?);
            fits(&program, tests)?;
            let made = threads::on(o.threads, || Synthetic::new(&program, codec.format()))?;
            let bytes = made.bytes();
            let made = match *device == Device::Cpu {
                true => {
                    room_for(name, bytes)?;
                    made.spread_out()
                }
                false => made,
            };
            let backend = backend::open(device, &program, Arc::new(made), &setup, &mut progress)?;
            let (name, variant) = (format!("{} (synthetic)", visible(name)), codec.variant());
            Ok(Running { name, variant, bytes, program, backend })
        }
    }
}

/// Positions that the model knows.
fn fits(program: &Program, tests: &[Test]) -> Result<()> {
    let limit = program.config.max_positions;
    match tests.iter().find(|t| t.context() > limit) {
        None => Ok(()),
        Some(test) => Err(Error::new(
            Kind::ContextOverflow,
            format!("cannot run {}", test.name()),
            format!("it takes {} tokens of context, the model knows {limit}", test.context()),
            "use fewer tokens, or a smaller depth",
        )),
    }
}

/// Refuses what has no room in memory once every weight has its own.
fn room_for(name: &str, bytes: u64) -> Result<()> {
    match records::available_memory() {
        Some(free) if free < bytes => Err(Error::new(
            Kind::DoesNotFit,
            format!("cannot make a model like {}", visible(name)),
            format!(
                "its weights take {bytes} bytes of memory, {free} are free: {} are missing",
                bytes - free
            ),
            "use a smaller shape",
        )),
        _ => Ok(()),
    }
}

/// Bytes a second of plain reads on the device that will run.
fn measure_bandwidth(o: &Options, device: &Device, work: &Work, cx: &Context) -> Result<f64> {
    let index = match device {
        Device::Cuda(index) => Some(*index as usize),
        _ => None,
    };
    let speed = match index {
        Some(index) => {
            let speeds = bandwidth::gpu(index, &[GPU_SHORT_READ_BYTES, GPU_READ_BYTES])?;
            for (bytes, speed) in &speeds {
                tell(cx, &format!("cuda:{index}"), *bytes, *speed);
            }
            speeds[1].1
        }
        None => {
            let bytes = (records::available_memory().unwrap_or(u64::MAX) / 2).min(CPU_READ_BYTES);
            let speed = threads::on(o.threads, || bandwidth::cpu(bytes as usize))??;
            tell(cx, "cpu", bytes, speed);
            speed
        }
    };
    work.go_on()?;
    Ok(speed)
}

fn tell(cx: &Context, device: &str, bytes: u64, speed: f64) {
    if !cx.globals.quiet {
        let size = super::progress::size(bytes);
        note(format!("snug: {device} reads {size} at {:.1} GB/s", speed / 1e9));
    }
}

/// Seconds of each repetition as tokens a second.
pub(super) fn rates(test: &Test, times: &[Duration]) -> Vec<f64> {
    let tokens = f64::from(test.tokens());
    times.iter().map(|t| tokens / t.as_secs_f64().max(1e-9)).collect()
}
