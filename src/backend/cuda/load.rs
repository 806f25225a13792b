//! Copies a program's weights to the device and arranges them for the kernels.

use std::cell::Cell;

use super::abi::{Matrix, UnpackArgs};
use super::driver::{Device, Kernel, Launch, Memory, Stream};
use super::kernels::Library;
use super::matvec::tiles;
use super::memory::{DeviceWeight, Uploader};
use super::pack::Packer;
use crate::backend::{Need, Weight, Weights};
use crate::codec::{Format, Shape};
use crate::error::Result;
use crate::model::op::WeightId;
use crate::model::program::{Program, Role};

/// Tenths of bits that a packed weight takes at most when it is like those of trained models.
const PACKED_BITS: u64 = 115;

/// Whether a weight is packed on its way.
fn is_packed_here(weight: &Weight<'_>, role: Role, packs: bool) -> bool {
    packs && weight.format == Format::Bf16 && role != Role::Vector
}

/// Bytes of a bf16 matrix in tiles.
fn tiled_bytes(shape: Shape) -> u64 {
    u64::from(shape.rows.div_ceil(16)) * u64::from(tiles(shape.cols)) * 2048
}

/// Bytes a weight takes on the device; of one that is packed on its way, about.
fn device_bytes(weight: &Weight<'_>, role: Role, packs: bool) -> u64 {
    match (weight.format, role) {
        _ if is_packed_here(weight, role, packs) => weight.shape.len() * PACKED_BITS / 80,
        (Format::Bf16, Role::Vector) => weight.shape.len() * 2,
        (Format::Bf16, _) => tiled_bytes(weight.shape),
        (Format::Pairlut, _) => sent_bytes(weight),
    }
}

/// Bytes that are copied for a weight.
fn sent_bytes(weight: &Weight<'_>) -> u64 {
    weight.parts.0.iter().map(|p| p.len() as u64).sum()
}

/// Bytes beside the loaded weights while they are being loaded: the rows of the largest matrix that is rearranged.
fn staging_bytes(weight: &Weight<'_>, role: Role) -> u64 {
    let rearranged = weight.format == Format::Bf16 && role != Role::Vector;
    if rearranged { sent_bytes(weight) } else { 0 }
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
    let packs = weights.to_be_packed();
    let list: Vec<(Weight<'_>, Role)> = program
        .weights
        .iter()
        .enumerate()
        .map(|(i, spec)| (weights.weight(WeightId(i as u32)), spec.role))
        .collect();
    let staging = list.iter().map(|(w, role)| staging_bytes(w, *role)).max().unwrap_or(0);
    let (free, total) = device.memory()?;
    let need = Need {
        weights: list.iter().map(|(w, role)| device_bytes(w, *role, packs)).sum(),
        // The cache grows later; the rows are gone by then.
        rest: reserve.max(staging),
    };
    need.check(&device.info().name, free, total)?;
    let mut loader = Loader {
        device,
        uploader: Uploader::new(device)?,
        stream: device.stream()?,
        retile: library.get("unpack", "unpack_retile", false)?,
        packer: if packs { Some(Packer::new(device, library)?) } else { None },
    };
    let of: u64 = list.iter().map(|(w, _)| sent_bytes(w)).sum();
    let mut done = 0;
    let mut loaded = Vec::with_capacity(list.len());
    for (weight, role) in &list {
        let poll = |so_far: u64| progress(done + so_far, of);
        loaded.push(loader.one(weight, *role, &poll)?);
        done += sent_bytes(weight);
    }
    loader.uploader.finish()?;
    loader.stream.synchronize()?;
    Ok(loaded)
}

/// What copies, rearranges and packs.
struct Loader<'a> {
    device: &'a Device,
    uploader: Uploader,
    stream: Stream,
    retile: Kernel,
    packer: Option<Packer>,
}

impl Loader<'_> {
    /// One weight: copied as it is, but for bf16 matrices, which are packed or rearranged into tiles on the device.
    fn one(
        &mut self,
        weight: &Weight<'_>,
        role: Role,
        poll: &dyn Fn(u64) -> Result<()>,
    ) -> Result<DeviceWeight> {
        let data = self.copy(weight.parts.0[0], 0, poll)?;
        match (weight.format, role) {
            (Format::Bf16, Role::Vector) => {
                Ok(DeviceWeight { format: Format::Bf16, data, index: None, slot_bytes: 0 })
            }
            (Format::Bf16, _) => {
                self.uploader.finish()?;
                if let Some(packer) = &mut self.packer {
                    let packed =
                        packer.pack(self.device, &self.stream, weight.shape, data.addr())?;
                    if let Some(packed) = packed {
                        return Ok(packed);
                    }
                }
                self.tiled(weight.shape, &data)
            }
            (Format::Pairlut, _) => {
                let index = weight.parts.0[1];
                let entries =
                    index.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                let largest =
                    entries.clone().zip(entries.skip(1)).map(|(a, b)| b - a).max().unwrap_or(0);
                let index = self.copy(index, weight.parts.0[0].len() as u64, poll)?;
                let slot_bytes = largest * 16;
                Ok(DeviceWeight { format: Format::Pairlut, data, index: Some(index), slot_bytes })
            }
        }
    }

    /// Copies one part; `before` bytes of its weight have been copied.
    fn copy(
        &mut self,
        part: &[u8],
        before: u64,
        poll: &dyn Fn(u64) -> Result<()>,
    ) -> Result<Memory> {
        let to = self.device.alloc(part.len() as u64)?;
        let sent = Cell::new(before);
        self.uploader.copy(&to, part, &|bytes| {
            sent.set(sent.get() + bytes as u64);
            poll(sent.get())
        })?;
        Ok(to)
    }

    /// Row-major bf16 as tiles.
    fn tiled(&self, shape: Shape, rows: &Memory) -> Result<DeviceWeight> {
        let tiled = self.device.alloc(tiled_bytes(shape))?;
        let args = UnpackArgs {
            m: Matrix { rows: shape.rows, ..Matrix::default() },
            out: tiled.addr(),
            rows_in: rows.addr(),
            cols: shape.cols,
            tiles: tiles(shape.cols),
            records: tiles(shape.cols).div_ceil(4),
            depth: 0,
        };
        let grid = (shape.rows.div_ceil(16) * tiles(shape.cols), 1, 1);
        let launch = Launch { grid, block: 128, shared_bytes: 0, overlap: false };
        self.stream.launch(&self.retile, &launch, &args)?;
        self.stream.synchronize()?;
        let slot_bytes = tiles(shape.cols).min(4) * 2048;
        Ok(DeviceWeight { format: Format::Bf16, data: tiled, index: None, slot_bytes })
    }
}
