//! A decode step as a graph, replayed ahead of the host: step n+1 is queued before token n has been looked at.

use super::Cuda;
use super::driver::Event;
use super::ops::Shape;
use crate::error::{Error, Kind, Result};
use crate::model::op::{Input, Rows, Step};

/// Slots of the ring in host memory through which token ids arrive; more than steps in flight.
pub const RING: u32 = 64;

/// The id that says no logit was a number.
const NO_TOKEN: u32 = u32::MAX;

/// A sampled token on its way.
#[derive(Debug)]
pub struct Pending {
    position: u32,
    done: Event,
}

/// The launch shape of a step.
pub fn shape(step: &Step<'_>) -> Shape {
    Shape { n: step.input.len() as u32, all_rows: step.rows == Rows::All }
}

impl Cuda {
    /// Puts tokens and position where kernels read them. After a sampled step both are already there.
    pub(super) fn write_tokens(&mut self, step: &Step<'_>) -> Result<()> {
        let Input::Tokens(tokens) = step.input else { return Ok(()) };
        self.stream.synchronize()?;
        let vocab = self.program.config.vocab;
        if let Some(bad) = tokens.iter().find(|t| **t >= vocab) {
            return Err(Error::new(
                Kind::Failure,
                "cannot read the prompt",
                format!("token {bad} is outside the vocabulary of {vocab}"),
                "check that tokenizer and weights belong together",
            ));
        }
        self.buffers.tokens.write(0, bytemuck::cast_slice(tokens))?;
        self.buffers.pos.write(0, &step.pos.to_le_bytes())
    }

    /// Whether this step is the one that the graph holds.
    pub(super) fn replayable(&self, step: &Step<'_>) -> bool {
        step.input == Input::Last && step.rows == Rows::Last && step.sample && !self.trace
    }

    /// Queues the captured step, capturing it first if need be.
    pub(super) fn replay(&mut self, step: &Step<'_>) -> Result<()> {
        self.cache.hold(step.pos + 1)?;
        self.used = step.pos + 1;
        if self.graph.is_none() {
            self.capturing.set(true);
            let one = Shape { n: 1, all_rows: false };
            let graph = self
                .stream
                .capture(|| self.program.ops.iter().try_for_each(|op| self.queue(op, one)));
            self.capturing.set(false);
            self.graph = Some(graph?);
        }
        if let Some(graph) = &self.graph {
            self.stream.replay(graph)?;
        }
        self.announce(step.pos + 1)
    }

    /// Notes that the token for `position` will arrive once everything queued so far is done.
    pub(super) fn announce(&mut self, position: u32) -> Result<()> {
        let done = self.device.event()?;
        done.record(&self.stream)?;
        self.pending.push_back(Pending { position, done });
        Ok(())
    }

    /// Waits for the oldest token on its way.
    pub(super) fn take_token(&mut self) -> Result<u32> {
        let Some(pending) = self.pending.pop_front() else {
            return Err(Error::new(
                Kind::Failure,
                "cannot take a token",
                "no step has sampled one",
                "report this",
            ));
        };
        pending.done.synchronize()?;
        match self.sampler.ring.read_u32((pending.position % RING) as usize) {
            NO_TOKEN => Err(Error::new(
                Kind::Failure,
                "cannot choose a token",
                "no logit is a number above -infinity",
                "check the model with `snug verify`, or drop the logit bias",
            )),
            token => Ok(token),
        }
    }
}
