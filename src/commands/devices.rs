//! `snug devices`: what there is to run on.

use clap::{ArgMatches, Args, Command};
use serde_json::{Value, json};

use super::globals::Context;
use super::output::{Outcome, note};
use super::progress::size;
use super::table::Table;
use super::{Verb, parsed, records};
use crate::backend::cuda::driver::{self, DeviceInfo, Versions};
use crate::backend::cuda::images::{Coverage, coverage};
use crate::backend::{self, Device};
use crate::error::{Result, visible};

pub(super) const VERB: Verb = Verb {
    name: "devices",
    aliases: &[],
    about: "List the GPUs and the CPU, and what runs on them",
    examples: &["snug devices", "snug devices --json", "snug devices -d cuda"],
    args: |command: Command| Options::augment_args(command),
    main: |matches: &ArgMatches, cx: &mut Context| main(parsed(matches)?, cx),
};

#[derive(Args, Clone, Debug)]
struct Options {}

/// A GPU and its memory now.
struct Gpu {
    info: DeviceInfo,
    /// Free and total bytes, as a program that opens it sees them.
    memory: Result<(u64, u64)>,
}

fn main(_: Options, cx: &mut Context) -> Outcome {
    // `--device` narrows the list, and makes a missing driver an error.
    let device = cx.named_device()?;
    let only = match &device {
        Device::Cuda(index) => Some(*index as usize),
        _ => None,
    };
    let gpus = match (gpus(only), &device) {
        (gpus, Device::Cuda(_)) => gpus.map(Some)?,
        (_, Device::Cpu | Device::Scripted(_)) => None,
        (Ok(gpus), Device::Auto) => Some(gpus),
        (Err(e), Device::Auto) => {
            if cx.globals.json {
                let record = json!({ "v": 1, "type": "no_gpu", "message": e.why, "hint": e.todo });
                cx.out.json(&record)?;
            } else if !cx.globals.quiet {
                note(format!("snug: no GPU: {}", e.why));
            }
            None
        }
    };
    let (versions, gpus) = match gpus {
        Some((versions, gpus)) => (Some(versions), gpus),
        None => (None, Vec::new()),
    };
    if cx.globals.json {
        for gpu in &gpus {
            cx.out.json(&gpu.to_json(versions.as_ref()))?;
        }
        return if only.is_none() { cx.out.json(&cpu_json()) } else { Ok(()) };
    }
    let mut table = Table::new(&["device", "name", "runs", ">memory", ">free", "uuid"]);
    gpus.iter().for_each(|gpu| table.row(gpu.cells()));
    if only.is_none() {
        table.row(cpu_cells());
    }
    cx.out.line(table.render())?;
    if let Some(v) = versions.filter(|_| !cx.globals.quiet) {
        let driver = v.driver.map_or(String::new(), |d| format!("driver {d}, "));
        cx.out.line(format_args!("{driver}CUDA {}.{}", v.cuda.0, v.cuda.1))?;
    }
    Ok(())
}

fn gpus(only: Option<usize>) -> Result<(Versions, Vec<Gpu>)> {
    let mut list = driver::devices()?;
    if let Some(index) = only {
        driver::find(&index.to_string())?;
        list.retain(|info| info.index == index);
    }
    let gpus = list.into_iter().map(|info| {
        let memory = driver::Device::open(info.index).and_then(|device| device.memory());
        Gpu { info, memory }
    });
    Ok((driver::versions()?, gpus.collect()))
}

impl Gpu {
    /// Compute capability, and where its kernels come from.
    fn runs(&self) -> String {
        let (major, minor) = self.info.capability;
        match coverage((major, minor)) {
            Coverage::Code(image) => format!("{major}.{minor}: kernels {image}"),
            Coverage::Ptx(image) => format!("{major}.{minor}: kernels from {image}"),
            Coverage::None => format!("{major}.{minor}: no kernels (8.0 or newer is needed)"),
        }
    }

    fn cells(&self) -> [String; 6] {
        let free = match &self.memory {
            Ok((free, _)) => size(*free),
            Err(e) => e.why.clone(),
        };
        [
            format!("cuda:{}", self.info.index),
            visible(&self.info.name),
            self.runs(),
            size(self.info.memory),
            free,
            self.info.uuid.clone(),
        ]
    }

    fn to_json(&self, versions: Option<&Versions>) -> Value {
        let (major, minor) = self.info.capability;
        let kernels = coverage((major, minor));
        let mut record = json!({
            "v": 1, "type": "device", "id": format!("cuda:{}", self.info.index),
            "index": self.info.index, "uuid": self.info.uuid, "name": self.info.name,
            "compute_capability": format!("{major}.{minor}"),
            "memory": self.info.memory,
            "multiprocessors": self.info.sms, "l2_bytes": self.info.l2_bytes,
            "kernels": kernels.image(), "kernels_from_ptx": matches!(kernels, Coverage::Ptx(_)),
            "driver": versions.and_then(|v| v.driver.as_ref()),
            "cuda": versions.map(|v| format!("{}.{}", v.cuda.0, v.cuda.1)),
        });
        match &self.memory {
            Ok((free, _)) => record["free"] = json!(free),
            Err(e) => record["error"] = super::output::error_record(e),
        }
        record
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn cpu_cells() -> [String; 6] {
    let bytes = |b: Option<u64>| b.map_or_else(String::new, size);
    [
        "cpu".into(),
        visible(&backend::cpu_name()),
        format!("{} cores, {}", cores(), backend::cpu_path()),
        bytes(records::total_memory()),
        bytes(records::available_memory()),
        String::new(),
    ]
}

fn cpu_json() -> Value {
    json!({
        "v": 1, "type": "device", "id": "cpu", "name": backend::cpu_name(), "cores": cores(),
        "simd": backend::cpu_path(), "memory": records::total_memory(),
        "free": records::available_memory(),
    })
}
