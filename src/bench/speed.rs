//! Tokens a second of a loaded model, the way an answer is made: prompts in chunks, replies with the next step queued
//! before the token is taken where the device allows it.

use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::error::Result;
use crate::model::op::{Buf, Input, Rows, Sampling, Step};
use crate::model::program::Program;
use crate::num::rng::Stream;

/// What is timed: `prompt` tokens read, then `generate` tokens chosen one by one, behind `depth` tokens in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Tokens read at once.
    pub prompt: u32,
    /// Tokens chosen.
    pub generate: u32,
    /// Tokens in the cache before; not timed.
    pub depth: u32,
}

impl Test {
    /// Tokens that are counted.
    pub fn tokens(&self) -> u32 {
        self.prompt.saturating_add(self.generate)
    }

    /// Tokens that the cache must hold.
    pub fn context(&self) -> u32 {
        self.tokens().saturating_add(self.depth)
    }

    /// As other benches call it: `pp512`, `tg128 @ d4096`, `pp512+tg128`.
    pub fn name(&self) -> String {
        let parts = [("pp", self.prompt), ("tg", self.generate)];
        let parts = parts.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{what}{n}"));
        let what = parts.collect::<Vec<_>>().join("+");
        if self.depth == 0 { what } else { format!("{what} @ d{}", self.depth) }
    }
}

/// Mean and deviation of some repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Mean.
    pub mean: f64,
    /// Deviation of a sample (n − 1); 0 for one repetition.
    pub deviation: f64,
}

impl Summary {
    /// Of these values.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Summary {
        let n = values.clone().count();
        if n == 0 {
            return Summary::default();
        }
        let mean = values.clone().sum::<f64>() / n as f64;
        let squares: f64 = values.map(|v| (v - mean) * (v - mean)).sum();
        let deviation = if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 };
        Summary { mean, deviation }
    }
}

/// A model that tests run on.
pub struct Runner<'a> {
    backend: &'a mut dyn Backend,
    program: &'a Program,
    /// Asked between steps; ends the test by an error.
    go_on: &'a dyn Fn() -> Result<()>,
    draws: Stream,
    /// Tokens in the cache: a deeper test begins there.
    filled: u32,
}

impl<'a> Runner<'a> {
    /// With an empty cache.
    pub fn new(
        backend: &'a mut dyn Backend,
        program: &'a Program,
        go_on: &'a dyn Fn() -> Result<()>,
    ) -> Runner<'a> {
        Runner { backend, program, go_on, draws: Stream::new(1), filled: 0 }
    }

    /// Runs a test `warmup + repetitions` times; the times of the repetitions.
    ///
    /// # Errors
    /// What the backend says, or `go_on`.
    pub fn run(&mut self, test: Test, warmup: u32, repetitions: u32) -> Result<Vec<Duration>> {
        self.backend.set_sampling(&Sampling::default(), &[])?;
        if self.filled < test.depth {
            let (from, missing) = (self.filled, test.depth - self.filled);
            self.prompt(from, missing, false)?;
            self.filled = test.depth;
        }
        let mut times = Vec::new();
        for i in 0..warmup + repetitions {
            let time = self.once(test)?;
            if i >= warmup {
                times.push(time);
            }
        }
        // Going back to an earlier position dropped what lay behind it.
        self.filled = test.context();
        Ok(times)
    }

    fn once(&mut self, test: Test) -> Result<Duration> {
        // What was queued before has come to its end.
        self.backend.set_sampling(&Sampling::default(), &[])?;
        let start = Instant::now();
        if test.prompt > 0 {
            self.prompt(test.depth, test.prompt, test.generate > 0)?;
        }
        if test.generate > 0 {
            self.generate(test.depth + test.prompt, test.generate, test.prompt > 0)?;
        }
        Ok(start.elapsed())
    }

    /// Reads `count` random tokens from position `from` on, and waits.
    fn prompt(&mut self, from: u32, count: u32, sample: bool) -> Result<()> {
        let vocab = self.program.config.vocab;
        let tokens: Vec<u32> = (0..count).map(|_| self.draws.below(vocab)).collect();
        let widest = self.backend.max_step().max(1) as usize;
        let mut pos = from;
        for chunk in tokens.chunks(widest) {
            (self.go_on)()?;
            let last = pos + chunk.len() as u32 == from + count;
            let rows = if last { Rows::Last } else { Rows::None };
            let input = Input::Tokens(chunk);
            self.backend.run(self.program, &Step { input, pos, rows, sample: sample && last })?;
            pos += chunk.len() as u32;
        }
        match sample {
            true => self.backend.token().map(drop),
            false => self.backend.read(Buf::Logits, &mut [0.0]),
        }
    }

    /// Chooses `count` tokens from position `from` on; `sampled` when the step before has chosen what to begin with.
    fn generate(&mut self, from: u32, count: u32, sampled: bool) -> Result<()> {
        let first = [self.draws.below(self.program.config.vocab)];
        let ahead = self.backend.runs_ahead();
        for i in 0..count {
            (self.go_on)()?;
            let input = if i == 0 && !sampled { Input::Tokens(&first) } else { Input::Last };
            let step = Step { input, pos: from + i, rows: Rows::Last, sample: true };
            self.backend.run(self.program, &step)?;
            // One step stays queued: the token taken is that of the step before.
            if !ahead || i > 0 {
                self.backend.token()?;
            }
        }
        if ahead { self.backend.token().map(drop) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Card, Ledger};
    use crate::model::op::Op;

    #[test]
    fn tests_are_named_as_elsewhere() {
        let test = |prompt, generate, depth| Test { prompt, generate, depth }.name();
        assert_eq!(test(512, 0, 0), "pp512");
        assert_eq!(test(0, 128, 4096), "tg128 @ d4096");
        assert_eq!(test(512, 128, 0), "pp512+tg128");
    }

    /// Notes what it is asked to do, and answers at once.
    struct Log {
        ahead: bool,
        told: Vec<String>,
        in_flight: u32,
    }

    impl Backend for Log {
        fn card(&self) -> Card {
            Card { id: "log".into(), name: String::new(), path: String::new() }
        }
        fn ledger(&self) -> Ledger {
            Ledger::default()
        }
        fn max_step(&self) -> u32 {
            4
        }
        fn capacity(&self) -> u32 {
            64
        }
        fn set_sampling(&mut self, _: &Sampling, _: &[u32]) -> Result<()> {
            assert_eq!(self.in_flight, 0, "a token was left");
            self.told.push("reset".into());
            Ok(())
        }
        fn exec(&mut self, _: &Op, _: &Step<'_>) -> Result<()> {
            Ok(())
        }
        fn run(&mut self, _: &Program, step: &Step<'_>) -> Result<()> {
            let what = if step.input == Input::Last { "last" } else { "given" };
            let (n, sampled) = (step.input.len(), if step.sample { "!" } else { "" });
            self.told.push(format!("{what} {n} at {}{sampled}", step.pos));
            self.in_flight += u32::from(step.sample);
            Ok(())
        }
        fn token(&mut self) -> Result<u32> {
            assert!(self.in_flight > 0, "no token to take");
            self.in_flight -= 1;
            self.told.push("take".into());
            Ok(7)
        }
        fn read(&mut self, _: Buf, _: &mut [f32]) -> Result<()> {
            self.told.push("wait".into());
            Ok(())
        }
        fn write(&mut self, _: Buf, _: &[f32]) -> Result<()> {
            Ok(())
        }
        fn bytes_per_token(&self, _: u32) -> u64 {
            0
        }
        fn runs_ahead(&self) -> bool {
            self.ahead
        }
    }

    /// What a device is asked to do for a test that runs once.
    fn asked(ahead: bool, prompt: u32, generate: u32, depth: u32) -> String {
        let config = crate::bench::synthetic::SHAPES[0].1;
        let program = Program::read(config).unwrap();
        let mut log = Log { ahead, told: Vec::new(), in_flight: 0 };
        let test = Test { prompt, generate, depth };
        Runner::new(&mut log, &program, &|| Ok(())).run(test, 0, 1).unwrap();
        assert_eq!(log.in_flight, 0);
        log.told.join(", ")
    }

    #[test]
    fn steps_are_those_of_an_answer() {
        for (ahead, prompt, generate, depth, want) in [
            (false, 6, 0, 0, "reset, reset, given 4 at 0, given 2 at 4, wait"),
            (false, 0, 2, 0, "reset, reset, given 1 at 0!, take, last 1 at 1!, take"),
            // The next step is queued before the token of the one before is taken.
            (
                true,
                0,
                3,
                0,
                "reset, reset, given 1 at 0!, last 1 at 1!, take, last 1 at 2!, take, take",
            ),
            (true, 2, 1, 0, "reset, reset, given 2 at 0!, take, last 1 at 2!, take"),
            (false, 0, 1, 5, "reset, given 4 at 0, given 1 at 4, wait, reset, given 1 at 5!, take"),
        ] {
            assert_eq!(asked(ahead, prompt, generate, depth), want, "{ahead} {prompt} {generate}");
        }
    }

    #[test]
    fn deviations_are_those_of_a_sample() {
        let of = |v: &[f64]| Summary::of(v.iter().copied());
        assert_eq!(of(&[]), Summary::default());
        assert_eq!(of(&[3.0]), Summary { mean: 3.0, deviation: 0.0 });
        assert_eq!(of(&[2.0, 4.0, 6.0]), Summary { mean: 4.0, deviation: 2.0 });
    }
}
