//! Copies a program's weights to the device and arranges them for the kernels.

use super::abi::{Matrix, UnpackArgs};
use super::driver::{Addr, Device, Launch, Memory, Stream};
use super::kernels::Library;
use super::matvec::tiles;
use super::memory::{DeviceWeight, Uploader};
use crate::backend::{Weight, Weights};
use crate::codec::Format;
use crate::error::{Error, Kind, Result};
use crate::model::op::WeightId;
use crate::model::program::{Program, Role};

/// Bytes a weight takes on the device.
fn device_bytes(weight: &Weight<'_>, role: Role) -> u64 {
    match (weight.format, role) {
        (Format::Bf16, Role::Vector) => weight.shape.len() * 2,
        (Format::Bf16, _) => {
            let blocks = u64::from(weight.shape.rows.div_ceil(16));
            blocks * u64::from(tiles(weight.shape.cols)) * 2048
        }
        (Format::Pairlut, _) => weight.parts.0.iter().map(|p| p.len() as u64).sum(),
    }
}

/// Copies everything. `progress(done, of)` is called every few megabytes and may cancel.
///
/// # Errors
/// `Kind::DoesNotFit`, with the numbers, before anything is allocated when the weights are larger than the free memory.
pub fn load(
    device: &Device,
    library: &Library,
    program: &Program,
    weights: &dyn Weights,
    reserve: u64,
    progress: &dyn Fn(u64, u64) -> Result<()>,
) -> Result<Vec<DeviceWeight>> {
    let list: Vec<(Weight<'_>, Role)> = program
        .weights
        .iter()
        .enumerate()
        .map(|(i, spec)| (weights.weight(WeightId(i as u32)), spec.role))
        .collect();
    let of: u64 = list.iter().map(|(w, role)| device_bytes(w, *role)).sum();
    refuse_if_too_large(device, of, reserve)?;
    let mut uploader = Uploader::new(device)?;
    let stream = device.stream()?;
    let retile = library.get("unpack", "unpack_retile", false)?;
    let mut done = 0;
    let mut loaded = Vec::with_capacity(list.len());
    for (weight, role) in &list {
        let poll = |so_far: u64| progress(done + so_far, of);
        loaded.push(one(device, &mut uploader, &stream, &retile, weight, *role, &poll)?);
        done += device_bytes(weight, *role);
    }
    uploader.finish()?;
    stream.synchronize()?;
    Ok(loaded)
}

fn refuse_if_too_large(device: &Device, weights: u64, reserve: u64) -> Result<()> {
    let (free, total) = device.memory()?;
    let need = weights + reserve;
    if need <= free {
        return Ok(());
    }
    let gib = |b: u64| b as f64 / f64::from(1u32 << 30);
    Err(Error::new(
        Kind::DoesNotFit,
        format!("cannot load the model on {}", device.info().name),
        format!(
            "it needs {:.2} GiB (weights {:.2}, the rest for cache and scratch); {:.2} of {:.2} GiB are free: {:.2} GiB short",
            gib(need),
            gib(weights),
            gib(free),
            gib(total),
            gib(need - free)
        ),
        "use a smaller context (-c), a smaller format, another device (-d), or --device cpu",
    ))
}

/// One weight: copied as it is, but for bf16 matrices, which are rearranged into tiles on the device.
fn one(
    device: &Device,
    uploader: &mut Uploader,
    stream: &Stream,
    retile: &super::driver::Kernel,
    weight: &Weight<'_>,
    role: Role,
    poll: &dyn Fn(u64) -> Result<()>,
) -> Result<DeviceWeight> {
    let mut copy = |part: &[u8], before: u64| -> Result<Memory> {
        let to = device.alloc(part.len() as u64)?;
        let sent = std::cell::Cell::new(before);
        uploader.copy(&to, part, &|bytes| {
            sent.set(sent.get() + bytes as u64);
            poll(sent.get())
        })?;
        Ok(to)
    };
    let data = copy(weight.parts.0[0], 0)?;
    match (weight.format, role) {
        (Format::Bf16, Role::Vector) => {
            Ok(DeviceWeight { format: Format::Bf16, data, index: None, slot_bytes: 0 })
        }
        (Format::Bf16, _) => {
            uploader.finish()?;
            let tiled = device.alloc(device_bytes(weight, role))?;
            let shape = weight.shape;
            let args = UnpackArgs {
                m: Matrix {
                    data: Addr(0),
                    index: Addr(0),
                    bias: Addr(0),
                    rows: shape.rows,
                    out: 0,
                },
                out: tiled.addr(),
                rows_in: data.addr(),
                cols: shape.cols,
                tiles: tiles(shape.cols),
                records: tiles(shape.cols).div_ceil(4),
                depth: 0,
            };
            let grid = (shape.rows.div_ceil(16) * tiles(shape.cols), 1, 1);
            stream.launch(
                retile,
                &Launch { grid, block: 128, shared_bytes: 0, overlap: false },
                &args,
            )?;
            stream.synchronize()?;
            let slot_bytes = tiles(shape.cols).min(4) * 2048;
            Ok(DeviceWeight { format: Format::Bf16, data: tiled, index: None, slot_bytes })
        }
        (Format::Pairlut, _) => {
            let index = weight.parts.0[1];
            let entries =
                index.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            let largest =
                entries.clone().zip(entries.skip(1)).map(|(a, b)| b - a).max().unwrap_or(0);
            let before = weight.parts.0[0].len() as u64;
            let index = copy(index, before)?;
            let slot_bytes = largest * 16;
            Ok(DeviceWeight { format: Format::Pairlut, data, index: Some(index), slot_bytes })
        }
    }
}
