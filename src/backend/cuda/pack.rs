//! bf16 rows into pairlut records on the device: the bytes that `codec::pairlut` writes, some hundred times as fast.

use super::abi::{PackArgs, PackPlan};
use super::driver::{Addr, Args, Device, Kernel, Launch, Memory, Stream};
use super::kernels::Library;
use super::memory::DeviceWeight;
use crate::codec::pairlut::{Grid, RECORD_TILES, TILE, UNIT};
use crate::codec::{Format, Shape};
use crate::error::Result;

/// Units of the largest record there is, a raw one.
const MOST_UNITS: u64 = (UNIT + 2 * RECORD_TILES * TILE) as u64 / UNIT as u64;

/// The encoder of one device.
#[derive(Debug)]
pub struct Packer {
    plan: Kernel,
    scan: Kernel,
    write: Kernel,
    /// One plan a record, of the largest matrix so far.
    plans: Memory,
    totals: Memory,
}

impl Packer {
    /// Finds the kernels.
    ///
    /// # Errors
    /// A driver error.
    pub fn new(device: &Device, library: &Library) -> Result<Packer> {
        let kernel = |name: &str| library.get("pack", name, false);
        Ok(Packer {
            plan: kernel("pack_plan")?,
            scan: kernel("pack_scan")?,
            write: kernel("pack_write")?,
            plans: device.alloc(0)?,
            totals: device.alloc(4)?,
        })
    }

    /// Packs the rows at `rows` (row-major bf16, 256-byte aligned), and waits. `None` when records would not be smaller, or
    /// would not fit the index of the format: then the matrix stays as it is, as on the CPU.
    ///
    /// # Errors
    /// A driver error; `DoesNotFit` when there is no memory for the records.
    pub fn pack(
        &mut self,
        device: &Device,
        stream: &Stream,
        shape: Shape,
        rows: Addr,
    ) -> Result<Option<DeviceWeight>> {
        let grid = Grid::new(shape);
        let count = grid.records();
        let (Ok(records), true) = (u32::try_from(count), !shape.is_empty()) else {
            return Ok(None);
        };
        if count.saturating_mul(MOST_UNITS) > u64::from(u32::MAX) {
            return Ok(None);
        }
        let plan_bytes = count * size_of::<PackPlan>() as u64;
        if self.plans.bytes() < plan_bytes {
            self.plans = device.alloc(plan_bytes)?;
        }
        let index = device.alloc(4 * (count + 1))?;
        let mut args = PackArgs {
            rows_in: rows,
            plans: self.plans.addr(),
            index: index.addr(),
            data: Addr(0),
            totals: self.totals.addr(),
            rows: shape.rows,
            cols: shape.cols,
            tiles: grid.tiles as u32,
            records: grid.records_per_row as u32,
            count: records,
            unused: 0,
        };
        start(stream, &self.plan, records, 128, &args)?;
        start(stream, &self.scan, 1, 1024, &args)?;
        stream.synchronize()?;
        let units = u64::from(read_u32(&index, 4 * count)?);
        let bytes = units * UNIT as u64;
        if bytes + index.bytes() >= 2 * shape.len() {
            return Ok(None);
        }
        let data = device.alloc(bytes)?;
        args.data = data.addr();
        start(stream, &self.write, records, 128, &args)?;
        let slot_bytes = read_u32(&self.totals, 0)? * UNIT as u32;
        stream.synchronize()?;
        Ok(Some(DeviceWeight { format: Format::Pairlut, data, index: Some(index), slot_bytes }))
    }
}

fn start<A: Args>(
    stream: &Stream,
    kernel: &Kernel,
    blocks: u32,
    block: u32,
    args: &A,
) -> Result<()> {
    let launch = Launch { grid: (blocks, 1, 1), block, shared_bytes: 0, overlap: false };
    stream.launch(kernel, &launch, args)
}

fn read_u32(memory: &Memory, offset: u64) -> Result<u32> {
    let mut word = [0; 4];
    memory.read(offset, &mut word)?;
    Ok(u32::from_le_bytes(word))
}
