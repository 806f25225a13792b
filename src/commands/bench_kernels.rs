//! `snug bench kernels`: each kernel of a model on a GPU against the memory's speed, and against cuBLAS.

use std::sync::Arc;

use clap::{ArgMatches, Args, Command};
use serde_json::{Value, json};

use super::bench::{Codec, Subject, subjects};
use super::globals::Context;
use super::output::{Outcome, note};
use super::parsed;
use super::progress::Progress;
use super::table::Table;
use super::work::Work;
use crate::backend::Weights;
use crate::backend::cuda::driver::{Device, DeviceInfo};
use crate::backend::cuda::images::BUILD_ID;
use crate::backend::cuda::{self, Cuda};
use crate::bench::bandwidth;
use crate::bench::kernels::{Bench, Peer, Timing, packing, peer, shapes};
use crate::bench::synthetic::Synthetic;
use crate::codec::Shape;
use crate::engine::protocol::Load;
use crate::engine::weights::Opened;
use crate::error::{Error, Kind, Result, visible};
use crate::model::program::Program;

/// Bytes that are read to measure the memory.
const READ_BYTES: u64 = 8 << 30;

#[derive(Args, Clone, Debug)]
struct Options {
    /// Models
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// Random weights in this shape (see `snug bench --help`) [default: llama-3.1-8b]
    #[arg(long, value_name = "SHAPE", value_delimiter = ',')]
    synthetic: Vec<String>,
    /// How synthetic weights are stored: lossless, bf16 or both
    #[arg(
        long,
        value_name = "CODEC",
        value_delimiter = ',',
        default_value = "lossless,bf16",
        hide_possible_values = true
    )]
    codec: Vec<Codec>,
    /// Tokens of a step
    #[arg(short = 'n', long, value_name = "N,…", value_delimiter = ',', default_value = "1,8", value_parser = clap::value_parser!(u32).range(1..=8))]
    tokens: Vec<u32>,
    /// Tokens in the cache, for attention
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0,8192")]
    depth: Vec<u32>,
    /// Use the portable kernels even where newer ones run
    #[arg(long)]
    portable: bool,
}

/// Adds the arguments.
pub(super) fn args(command: Command) -> Command {
    Options::augment_args(command).about("Time each kernel on a GPU against memory and cuBLAS")
}

/// What is known of the machine.
struct Machine {
    device: Device,
    bandwidth: f64,
    /// cuBLAS: its version and times, where it is installed.
    peers: Option<(String, Vec<Peer>)>,
}

/// A measured row and where it belongs.
struct Row<'a> {
    model: &'a str,
    variant: &'static str,
    /// `product` alone, or `op` with what is fused into it, or `pack`.
    kind: &'static str,
    timing: Timing,
}

pub(super) fn main(matches: &ArgMatches, cx: &mut Context) -> Outcome {
    let mut o: Options = parsed(matches)?;
    let index = match cx.named_device()? {
        crate::backend::Device::Auto => 0,
        crate::backend::Device::Cuda(index) => index as usize,
        _ => {
            return Err(Error::new(
                Kind::Usage,
                "cannot time kernels here",
                "there are kernels on GPUs only",
                "use --device cuda, or `snug bench` for the CPU",
            )
            .into());
        }
    };
    if o.models.is_empty() && o.synthetic.is_empty() {
        o.synthetic.push("llama-3.1-8b".into());
    }
    let device = Device::open(index)?;
    let work = Work::new(cx, None);
    let list = subjects(&o.models, &o.synthetic, &o.codec)?;
    let mut machine =
        Machine { bandwidth: bandwidth::gpu(index, &[READ_BYTES])?[0].1, device, peers: None };
    let mut seen: Option<String> = None;
    for subject in &list {
        work.go_on()?;
        let (name, program) = described(subject)?;
        if seen.as_ref() != Some(&name) {
            machine.peers = peer(&machine.device, &shapes(&program), &o.tokens)?;
            head(&machine, cx)?;
            seen = Some(name.clone());
        }
        let rows = measure(subject, &name, &program, &o, &machine, &work, cx)?;
        show(&rows, &machine, cx)?;
    }
    Ok(())
}

/// The name and program of a subject, without its weights.
fn described(subject: &Subject) -> Result<(String, Arc<Program>)> {
    match subject {
        Subject::Synthetic { name, config, .. } => {
            Ok((format!("{} (synthetic)", visible(name)), Arc::new(Program::read(config)?)))
        }
        Subject::Model(model) => {
            let listing = super::refs::list(model)?;
            Ok((visible(&model.name), Arc::new(Program::read(&listing.texts().config)?)))
        }
    }
}

fn weights(
    subject: &Subject,
    program: &Program,
    work: &Work,
) -> Result<(Arc<dyn Weights>, &'static str)> {
    match subject {
        Subject::Synthetic { codec, .. } => {
            Ok((Arc::new(Synthetic::new(program, codec.format())), codec.variant().name()))
        }
        Subject::Model(model) => {
            let load = Load {
                name: model.name.clone(),
                path: model.path.clone(),
                variant: model.variant,
                device: crate::backend::Device::Auto,
                context: None,
                threads: None,
                chat_template: None,
            };
            let opened = Opened::read(&load, &mut |_, _| work.go_on())?;
            Ok((opened.weights(), opened.variant.name()))
        }
    }
}

fn measure<'a>(
    subject: &Subject,
    name: &'a str,
    program: &Arc<Program>,
    o: &Options,
    machine: &Machine,
    work: &Work,
    cx: &Context,
) -> Result<Vec<Row<'a>>> {
    let info = machine.device.info();
    let mut bar = Progress::new("loading", cx.globals.quiet);
    let (weights, variant) = weights(subject, program, work)?;
    let deepest = o.depth.iter().copied().max().unwrap_or(0);
    let capacity = deepest.saturating_add(64).min(program.config.max_positions);
    let options = cuda::Options { index: info.index, capacity, ..cuda::Options::default() };
    let options = cuda::Options { portable: o.portable, ..options };
    let progress = std::cell::RefCell::new(&mut bar);
    let mut gpu = Cuda::new(Arc::clone(program), &*weights, options, &|done, of| {
        progress.borrow_mut().bytes(done, of);
        work.go_on()
    })?;
    bar.clear();
    let mut bench = Bench::new(&mut gpu, program, &*weights, info.l2_bytes);
    let mut rows = Vec::new();
    let mut add = |kind, timings: Vec<Timing>| {
        rows.extend(timings.into_iter().map(|timing| Row { model: name, variant, kind, timing }));
    };
    for &n in &o.tokens {
        work.go_on()?;
        add("product", bench.products(n)?);
        add("op", bench.ops(&crate::bench::kernels::OPS, n, 0)?);
        for &depth in o.depth.iter().filter(|d| **d > 0 && **d + n <= capacity) {
            add("op", bench.ops(&["attend"], n, depth)?);
        }
    }
    drop(gpu);
    if variant == "lossless" {
        for shape in shapes(program) {
            work.go_on()?;
            add("pack", vec![packing(&machine.device, shape)?]);
        }
    }
    Ok(rows)
}

fn head(machine: &Machine, cx: &Context) -> Outcome {
    if cx.globals.quiet || cx.globals.json {
        return Ok(());
    }
    let DeviceInfo { name, index, .. } = machine.device.info();
    note(format!(
        "snug: cuda:{index}, {}: reads 8 GiB at {:.0} GB/s; {}",
        visible(name),
        machine.bandwidth / 1e9,
        match &machine.peers {
            Some((version, _)) => format!("cuBLAS {version}, bf16 in and out"),
            None => "cuBLAS is not installed (LD_LIBRARY_PATH)".into(),
        }
    ));
    Ok(())
}

impl Machine {
    /// What cuBLAS takes for the same product.
    fn peer_us(&self, row: &Row<'_>) -> Option<f64> {
        let (_, peers) = self.peers.as_ref()?;
        let t = &row.timing;
        peers.iter().find(|p| Some(p.shape) == t.shape && p.n == t.n).map(|p| p.us)
    }
}

fn show(rows: &[Row<'_>], machine: &Machine, cx: &mut Context) -> Outcome {
    if cx.globals.json {
        return rows.iter().try_for_each(|row| cx.out.json(&to_json(row, machine)));
    }
    let Some(first) = rows.first() else { return Ok(()) };
    let peer = if machine.peers.is_some() { ">cuBLAS us" } else { ">cuBLAS" };
    let mut table = Table::new(&[
        "kernel",
        "shape",
        ">n",
        ">depth",
        ">us",
        ">MB",
        ">GB/s",
        ">of read speed",
        peer,
        ">times as fast",
    ]);
    for row in rows {
        table.row(cells(row, machine));
    }
    cx.out.line(format_args!("{} {}", first.model, first.variant))?;
    cx.out.line(table.render())?;
    if rows.iter().any(|r| r.timing.cached) {
        cx.out.line("* all of it fits in the L2 cache")?;
    }
    cx.out.line("")?;
    cx.out.flush()
}

fn cells(row: &Row<'_>, machine: &Machine) -> [String; 10] {
    let t = &row.timing;
    let optional = |there: bool, text: String| if there { text } else { String::new() };
    let reads = t.bytes > 0 && row.kind != "pack";
    let shape = t.shape.map_or(String::new(), |Shape { rows, cols }| format!("{rows} x {cols}"));
    let kernel = if row.kind == "product" { format!("{} W·x", t.kernel) } else { t.kernel.into() };
    let peer = machine.peer_us(row);
    [
        kernel,
        shape,
        optional(t.n > 0, t.n.to_string()),
        optional(t.kernel == "attend", t.depth.to_string()),
        format!("{:.2}", t.us),
        optional(t.bytes > 0, format!("{:.1}", t.bytes as f64 / 1e6)),
        optional(t.bytes > 0, format!("{:.0}", t.rate() / 1e9)),
        optional(
            reads,
            format!(
                "{:.1} %{}",
                100.0 * t.rate() / machine.bandwidth,
                if t.cached { "*" } else { "" }
            ),
        ),
        match (&machine.peers, peer) {
            (None, _) if row.kind == "product" => "not installed".into(),
            _ => peer.map_or(String::new(), |us| format!("{us:.2}")),
        },
        peer.map_or(String::new(), |us| format!("{:.2}", us / t.us)),
    ]
}

fn to_json(row: &Row<'_>, machine: &Machine) -> Value {
    let t = &row.timing;
    let info = machine.device.info();
    let peer = machine.peer_us(row);
    let measured =
        (row.kind != "pack" && t.bytes > 0).then(|| 100.0 * t.rate() / machine.bandwidth);
    json!({
        "v": 1, "type": "kernel", "model": row.model, "variant": row.variant, "kind": row.kind,
        "kernel": t.kernel, "rows": t.shape.map(|s| s.rows), "cols": t.shape.map(|s| s.cols),
        "n": t.n, "depth": t.depth, "us": t.us, "bytes": t.bytes, "gbps": t.rate() / 1e9,
        "measured_gbps": machine.bandwidth / 1e9, "pct_of_measured": measured, "in_l2": t.cached,
        "cublas": machine.peers.as_ref().map(|(version, _)| version), "cublas_us": peer,
        "times_as_fast": peer.map(|us| us / t.us),
        "device": format!("cuda:{}", info.index), "device_name": info.name, "kernels": BUILD_ID,
    })
}
