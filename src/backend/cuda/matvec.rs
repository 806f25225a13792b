//! How a matrix-vector kernel is launched: shared memory, stages, grid. Mirrors `Layout` of `common/stream.cuh`.

use super::abi::{Matrix, MatvecArgs};
use super::driver::{Addr, DeviceInfo, Launch};
use super::kernels::Path;
use super::memory::DeviceWeight;
use crate::codec::Format;

const WARPS: u32 = 8;

/// A record lies in its slot as it lies in memory, modulo this.
const SLOT_ALIGN: u32 = 128;
/// Records begin at multiples of this.
const UNIT: u32 = 16;
/// What a warp streams at once of a bf16 record: two tiles.
const BF16_PIECE: u32 = 4096;

/// Rounds columns up to whole tiles.
pub fn tiles(cols: u32) -> u32 {
    cols.div_ceil(64)
}

/// A matrix as kernels see it; its rows go to columns `out..` of the result.
pub fn matrix(w: &DeviceWeight, bias: Addr, rows: u32, out: u32) -> Matrix {
    Matrix {
        data: w.data.addr(),
        index: w.index.as_ref().map_or(Addr(0), |i| i.addr()),
        bias,
        rows,
        out,
    }
}

/// Fills in sizes, stages and where x is read from, and says how to launch the kernel.
///
/// `n`, `cols`, `m`, `count` and `pair` are set, `norm` when x is to be normed on the way, and `slot_bytes` is the largest
/// record, which becomes the size of a slot. Where x fits beside the ring it is kept there, unless no block reads it twice.
pub fn plan(args: &mut MatvecArgs, format: Format, path: Path, device: &DeviceInfo) -> Launch {
    args.tiles = tiles(args.cols);
    args.records = args.tiles.div_ceil(4);
    let blocks = |m: &Matrix| m.rows.div_ceil(16);
    args.jobs = match args.pair {
        1 => blocks(&args.m[0]),
        _ => args.m[..args.count as usize].iter().map(blocks).sum(),
    };
    let (scratch, most) = match format {
        Format::Pairlut => (1024, 2),
        Format::Bf16 => (0, if path == Path::Bulk { 4 } else { 2 }),
    };
    args.slot_bytes = match format {
        Format::Pairlut => (args.slot_bytes + SLOT_ALIGN - UNIT).next_multiple_of(SLOT_ALIGN),
        Format::Bf16 => BF16_PIECE,
    };
    let places = 16 * 16;
    let parts = 2 * 2 * WARPS * 16 * 4 * args.n;
    let x = args.n * (args.tiles * 128 + 16);
    let total = |x: u32, stages: u32| {
        WARPS * (scratch + stages * args.slot_bytes + places) + x + parts + (4 + WARPS * stages) * 8
    };
    let limit = device.shared_bytes - 4096;
    let read_twice = args.jobs * (1 + args.pair) > 2 * device.sms;
    let best = [most, most / 2, most / 4]
        .into_iter()
        .filter(|&stages| stages > 0)
        .find(|&stages| total(x, stages) <= limit)
        .filter(|_| args.norm.0 != 0 || read_twice);
    args.x_in_shared = u32::from(best.is_some());
    let x = if best.is_some() { x } else { 0 };
    args.stages = best.unwrap_or(if total(0, most) <= limit { most } else { 1 });
    Launch {
        grid: (args.jobs.min(device.sms), 1, 1),
        block: 32 * WARPS,
        shared_bytes: total(x, args.stages),
        overlap: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(shared_bytes: u32, sms: u32) -> DeviceInfo {
        DeviceInfo { shared_bytes, sms, ..DeviceInfo::default() }
    }

    /// Fills in a plan for one matrix and checks what the kernel takes for granted.
    fn check(device: &DeviceInfo, format: Format, path: Path, mut args: MatvecArgs) {
        let asked = args;
        let launch = plan(&mut args, format, path, device);
        let what =
            format!("{format:?} {path:?} on {device:?}: {asked:?} gave {launch:?}, {args:?}");
        assert!(launch.shared_bytes <= device.shared_bytes - 4096, "{what}");
        assert!(args.stages.is_power_of_two(), "{what}");
        assert!(path == Path::Bulk || args.stages <= 2, "{what}");
        assert!(args.slot_bytes.is_multiple_of(SLOT_ALIGN), "{what}");
        assert!(args.slot_bytes >= BF16_PIECE.min(asked.slot_bytes), "{what}");
        assert!(launch.grid.0 <= args.jobs && launch.grid.0 <= device.sms, "{what}");
    }

    #[test]
    fn every_plan_fits_and_can_be_counted_by_the_kernel() {
        // Shared memory of a block on sm_80, on sm_86 to sm_120, and on sm_90.
        let devices = [device(163 << 10, 108), device(99 << 10, 84), device(227 << 10, 132)];
        let shapes = [(6144, 4096), (4096, 14336), (128_256, 8192), (17, 70)];
        for device in &devices {
            for (rows, cols) in shapes {
                // The usual record and the largest there is, a raw one.
                for slot_bytes in [5808, 8208] {
                    for n in 1..=8 {
                        for norm in [Addr(0), Addr(256)] {
                            let mut args = MatvecArgs {
                                count: 1,
                                n,
                                cols,
                                norm,
                                slot_bytes,
                                ..MatvecArgs::default()
                            };
                            args.m[0].rows = rows;
                            for path in [Path::Portable, Path::Bulk] {
                                check(device, Format::Bf16, path, args);
                                check(device, Format::Pairlut, path, args);
                            }
                        }
                    }
                }
            }
        }
    }
}
