//! Timing on the device's own clock.

use super::driver::{Device, Graph, Stream};
use crate::error::Result;

/// Milliseconds of one replay of a graph: the least of `repeats` means over `replays`, after one that does not count.
///
/// # Errors
/// A driver error.
pub fn best_replay_ms(
    device: &Device,
    stream: &Stream,
    graph: &Graph,
    replays: u32,
    repeats: u32,
) -> Result<f32> {
    let (start, end) = (device.event()?, device.event()?);
    let mut best = f32::INFINITY;
    for repeat in 0..=repeats {
        start.record(stream)?;
        for _ in 0..replays {
            stream.replay(graph)?;
        }
        end.record(stream)?;
        end.synchronize()?;
        if repeat > 0 {
            best = best.min(end.ms_since(&start)? / replays as f32);
        }
    }
    Ok(best)
}
