//! How a matrix-vector kernel is launched: shared memory, stages, grid. Mirrors `Layout` of `common/matvec.cuh`.

use super::abi::{Matrix, MatvecArgs};
use super::driver::{Addr, DeviceInfo, Launch};
use super::kernels::Path;
use super::memory::DeviceWeight;
use crate::codec::Format;

/// Threads of a block: sixteen warps.
const THREADS: u32 = 512;
const WARPS: u32 = 16;
const QUADS: u32 = 4;

/// Half of a Hopper multiprocessor's shared memory: two blocks fit, so that the next kernel's weights can be on their way
/// while this one finishes.
const HALF_SM_BYTES: u32 = 112 * 1024;

/// More stages than this gain nothing: the ring then holds more than a row block.
const MAX_STAGES: u32 = 8;

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

/// Fills in sizes, stages and shared memory of `args`, and says how to launch it.
///
/// `n`, `cols`, `m`, `count` and `pair` are set; `wide_x` says whether `x` may be read from global memory instead of being
/// kept in shared memory.
pub fn plan(
    args: &mut MatvecArgs,
    format: Format,
    path: Path,
    device: &DeviceInfo,
    wide_x: bool,
) -> Launch {
    args.tiles = tiles(args.cols);
    args.records = args.tiles.div_ceil(4);
    let blocks = |m: &Matrix| m.rows.div_ceil(16);
    args.jobs = match args.pair {
        1 => blocks(&args.m[0]),
        _ => args.m[..args.count as usize].iter().map(blocks).sum(),
    };
    let limit = device.shared_bytes - 4096;
    let scratch = if format == Format::Pairlut { WARPS * 1024 } else { 0 };
    let parts = 2 * WARPS * 64 * args.n * (1 + args.pair);
    let fixed = parts + scratch + 2 * QUADS * 16 * 8;
    let x = (args.n * (args.tiles * 128 + 64)).next_multiple_of(128);
    let stage = QUADS * args.slot_bytes;
    let stages = |room: u32, x: u32| room.saturating_sub(fixed + x) / stage;
    let (most, least) = if path == Path::Bulk { (MAX_STAGES, 2) } else { (3, 2) };
    // In order of preference: x beside the ring in half a multiprocessor, x beside it in a whole one, x left outside.
    let choices =
        [(HALF_SM_BYTES.min(limit), x), (limit, x), (HALF_SM_BYTES.min(limit), 0), (limit, 0)];
    let fits = |&&(room, x): &&(u32, u32)| stages(room, x) >= least && (x > 0 || wide_x);
    let (room, x) = *choices.iter().find(fits).unwrap_or(&(limit, x));
    args.x_in_shared = u32::from(x > 0);
    args.stages = stages(room, x).clamp(least, most);
    // Unpacking is bound by latency: a second block on each multiprocessor hides it. Plain bf16 is bound by memory, and the
    // room is better used by the next kernel's first weights.
    let blocks = if format == Format::Pairlut && room <= HALF_SM_BYTES { 2 } else { 1 };
    Launch {
        grid: (args.jobs.min(blocks * device.sms), 1, 1),
        block: THREADS,
        shared_bytes: fixed + x + args.stages * stage,
        overlap: true,
    }
}
