//! A device that computes nothing and "samples" tokens from a script: how the terminal side is tested for what a
//! model cannot be made to do on demand (be slow, fail half-way, send half a character).

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::{Backend, Card, Ledger, Need};
use crate::error::{Error, Kind, Result};
use crate::model::op::{Buf, Op, Sampling, Step};
use crate::model::program::Program;

/// What the device does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// The tokens it samples for every reply, in order; when they are used up it starts again.
    pub tokens: Vec<u32>,
    /// How long loading takes.
    pub load_ms: u64,
    /// How long every step takes.
    pub step_ms: u64,
    /// More of it, in microseconds: the pace at which tokens come, whatever the steps themselves take.
    pub token_us: u64,
    /// Tokens a prompt step may carry.
    pub max_step: Option<u32>,
    /// Memory of the device in bytes; a model that needs more is refused.
    pub memory: Option<u64>,
    /// Fail when the token of this index is due.
    pub fail_at: Option<usize>,
    /// Panic when the token of this index is due.
    pub panic_at: Option<usize>,
}

/// A device that follows a [`Script`].
pub struct Scripted {
    script: Script,
    weight_bytes: u64,
    capacity: u32,
    given: usize,
    waiting: VecDeque<u32>,
    last: u32,
    due: Option<Instant>,
}

impl Scripted {
    /// "Loads", reporting progress.
    ///
    /// # Errors
    /// `DoesNotFit`, or what `progress` returned.
    pub fn open(
        script: Script,
        capacity: u32,
        need: Need,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<Scripted> {
        if let Some(memory) = script.memory {
            need.check("a script", memory, memory)?;
        }
        let start = Instant::now();
        let of = script.load_ms;
        loop {
            let done = (start.elapsed().as_millis() as u64).min(of);
            progress(done, of)?;
            if done == of {
                break;
            }
            thread::sleep(Duration::from_millis((of - done).min(10)));
        }
        let (weight_bytes, waiting) = (need.weights, VecDeque::new());
        Ok(Scripted { script, weight_bytes, capacity, given: 0, waiting, last: 0, due: None })
    }

    /// Waits until the next token is due. Late tokens are made up for, so that the pace holds on average.
    fn keep_pace(&mut self) {
        let pace = Duration::from_micros(self.script.token_us);
        let now = Instant::now();
        let due = self.due.map_or(now, |due| due + pace);
        if due > now {
            thread::sleep(due - now);
        }
        self.due = Some(due);
    }

    fn sample(&mut self) -> Result<()> {
        let index = self.given;
        assert!(self.script.panic_at != Some(index), "the script panics at token {index}");
        if self.script.fail_at == Some(index) {
            return Err(Error::new(
                Kind::Failure,
                "cannot compute a token",
                format!("the script fails at token {index}"),
                "use another script",
            ));
        }
        let tokens = &self.script.tokens;
        self.last = tokens.get(index % tokens.len().max(1)).copied().unwrap_or(0);
        self.given += 1;
        self.waiting.push_back(self.last);
        Ok(())
    }
}

impl Backend for Scripted {
    fn card(&self) -> Card {
        Card { id: "scripted".into(), name: "a script".into(), path: "none".into() }
    }

    fn ledger(&self) -> Ledger {
        Ledger { weights: self.weight_bytes, ..Ledger::default() }
    }

    fn max_step(&self) -> u32 {
        self.script.max_step.unwrap_or(16)
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Every reply begins the script again.
    fn set_sampling(&mut self, _sampling: &Sampling, _history: &[u32]) -> Result<()> {
        self.given = 0;
        self.waiting.clear();
        self.due = None;
        Ok(())
    }

    fn exec(&mut self, op: &Op, step: &Step<'_>) -> Result<()> {
        match op {
            Op::Sample if step.sample => self.sample(),
            _ => Ok(()),
        }
    }

    fn run(&mut self, _program: &Program, step: &Step<'_>) -> Result<()> {
        thread::sleep(Duration::from_millis(self.script.step_ms));
        if step.sample {
            self.keep_pace();
            self.sample()
        } else {
            Ok(())
        }
    }

    fn token(&mut self) -> Result<u32> {
        self.waiting.pop_front().ok_or_else(|| {
            Error::new(Kind::Failure, "cannot take a token", "none was sampled", "report this")
        })
    }

    /// Logits: zero, and eight for the token sampled last.
    fn read(&mut self, buf: Buf, out: &mut [f32]) -> Result<()> {
        out.fill(0.0);
        if buf == Buf::Logits
            && let Some(logit) = out.get_mut(self.last as usize)
        {
            *logit = 8.0;
        }
        Ok(())
    }

    fn write(&mut self, _buf: Buf, _data: &[f32]) -> Result<()> {
        Ok(())
    }

    fn bytes_per_token(&self, _pos: u32) -> u64 {
        0
    }
}
