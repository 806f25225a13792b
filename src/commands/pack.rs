//! `snug pack`: a model directory or GGUF file → one `.snug` file.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, ValueEnum};
use serde_json::json;

use super::globals::Context;
use super::output::Outcome;
use super::progress::size;
use super::table::Table;
use super::work::Work;
use super::{Verb, parsed, refs, threads};
use crate::codec::Format;
use crate::error::visible;
use crate::import;
use crate::store::Store;
use crate::store::pack::{Class, PackOptions, PackReport, pack};

pub(super) const VERB: Verb = Verb {
    name: "pack",
    aliases: &[],
    about: "Pack a model directory or GGUF file into one .snug file, without loss",
    examples: &[
        "snug pack ./SmolLM2-135M-Instruct -o smollm2.snug",
        "snug pack model.Q8_0.gguf -o model.snug --verify",
    ],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {
    /// A model directory, a .gguf file, or ORG/NAME in the Hugging Face cache
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "OUT.snug")]
    output: PathBuf,
    /// Replace OUT.snug if it is there
    #[arg(long)]
    force: bool,
    /// How to store the weights: lossless or bf16
    #[arg(long, value_name = "CODEC", default_value = "lossless", hide_possible_values = true)]
    codec: Codec,
    /// Decode what was written and compare it with the source
    #[arg(long)]
    verify: bool,
    /// Worker threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads::count)]
    jobs: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Codec {
    /// Compressed.
    Lossless,
    /// As it is.
    Bf16,
}

fn main(o: Options, cx: &mut Context) -> Outcome {
    let work = Work::new(cx, o.jobs);
    let source = import::open(&refs::source(&o.source))?;
    let format = match o.codec {
        Codec::Lossless => Format::Pairlut,
        Codec::Bf16 => Format::Bf16,
    };
    let cancel = || work.is_cancelled();
    let options = PackOptions { overwrite: o.force };
    let report = work.run("packing", |report| {
        pack(source.as_ref(), format, &o.output, options, report, &cancel)
    })?;
    if o.verify {
        work.run("verifying", |report| {
            let store = Store::open_with(&o.output, &|_, _| (), &cancel)?;
            let checked = store.compare_with(source.as_ref(), report, &cancel)?;
            checked.into_result(&o.output.display().to_string())
        })?;
    }
    show(&o, &report, cx)
}

fn show(o: &Options, r: &PackReport, cx: &mut Context) -> Outcome {
    let path = visible(&o.output.display().to_string());
    if cx.globals.json {
        let class = |c: &Class| {
            json!({
                "name": c.name, "tensors": c.tensors, "encoded": c.encoded, "weights": c.weights,
                "bytes": c.bytes, "bits_per_weight": c.bits_per_weight(),
            })
        };
        return cx.out.json(&json!({
            "v": 1, "type": "packed", "path": o.output.display().to_string(),
            "file_bytes": r.file_bytes, "exact": r.exact, "verified": o.verify,
            "classes": r.classes.iter().map(class).collect::<Vec<_>>(), "total": class(&r.total),
            "seconds": r.elapsed.as_secs_f64(), "gbps": r.bytes_per_s() / 1e9,
        }));
    }
    if cx.globals.quiet {
        return Ok(());
    }
    let mut table = Table::new(&["tensors", ">count", ">weights", ">bits/weight", ">of bf16"]);
    for c in r.classes.iter().chain([&r.total]) {
        table.row([
            visible(&c.name),
            c.tensors.to_string(),
            c.weights.to_string(),
            format!("{:.2}", c.bits_per_weight()),
            format!("{:.1} %", 100.0 * c.ratio()),
        ]);
    }
    cx.out.line(table.render())?;
    let exact = match (r.exact, o.verify) {
        (true, true) => "decodes to the source's own bits (verified, L0)",
        (true, false) => "every source tensor is bf16; --verify or `snug verify` proves the bits",
        (false, true) => {
            "verified against the source as rounded to bf16; the source was not bf16 throughout"
        }
        (false, false) => "the source was not bf16 throughout: its weights were rounded to bf16",
    };
    cx.out.line(format_args!(
        "{path}: {}, {:.2} GB/s; {exact}",
        size(r.file_bytes),
        r.bytes_per_s() / 1e9
    ))
}
