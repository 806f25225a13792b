//! `Sample`: one token from a row of logits, by a rule that any device can repeat bit for bit.
//!
//! 1. aᵢ = logitᵢ plus the bias of i (of several for one token, the last).
//! 2. Tokens that occur c > 0 times among the last `repeat_last_n`: aᵢ becomes aᵢ / r when above zero, else aᵢ · r; then
//!    aᵢ − presence; then aᵢ − frequency · c.
//! 3. NaN and −∞ are out. Order: larger aᵢ first (−0 below +0), lower id among equals. Temperature 0: the first.
//! 4. Else yᵢ = aᵢ / T, and weights that are whole numbers, so that their sums are exact in any order:
//!    wᵢ = ⌊exp(yᵢ − y_max) · 2³⁰⌋ with `num::func::exp`, and 2³⁰ where yᵢ = y_max. Weight 0 is out.
//! 5. top-k keeps the first k. top-p keeps the shortest beginning of those whose sum reaches ⌈p · S⌉, S being the sum of
//!    what top-k kept (the product in float64), and at least one token. min-p drops wᵢ < ⌈min_p · 2³⁰⌉.
//! 6. With S the sum of what is left and r = `num::rng::draw`(seed, position of the token to be chosen): the first, in
//!    the order of step 3, at which the running sum exceeds ⌊r · S / 2⁶⁴⌋.

use std::collections::BTreeMap;

use super::Cpu;
use super::simd::{Isa, Kernel, Lanes};
use crate::error::{Error, Kind, Result};
use crate::model::op::{Sampling, Step};
use crate::num::{func, rng};

/// The weight of the likeliest token.
const ONE: u32 = 1 << 30;

impl Cpu {
    /// Chooses the token after the last row of logits.
    pub(super) fn sample(&mut self, step: &Step<'_>) -> Result<()> {
        if !step.sample {
            return Ok(());
        }
        let vocab = self.program.config.vocab as usize;
        let Some(row) = self.logit_rows.checked_sub(1) else {
            return Err(failed(
                "the step computes no logits",
                "report this; it is a fault of snug",
            ));
        };
        let logits = &self.bufs.logits[row * vocab..][..vocab];
        let position = u64::from(step.pos) + step.input.len() as u64;
        let token = self.sampler.choose(logits, &self.history, position)?;
        self.sampled = Some(token);
        self.tokens.push_back(token);
        Ok(())
    }
}

fn failed(why: impl Into<String>, todo: &str) -> Error {
    Error::new(Kind::Failure, "cannot choose a token", why, todo)
}

/// Whether a rule has a meaning, for a vocabulary of `vocab` tokens.
///
/// # Errors
/// `Kind::Usage` for values that have none, by name.
pub fn check_sampling(s: &Sampling, vocab: usize) -> Result<()> {
    let share = |x: f32| (0.0..=1.0).contains(&x);
    let checks = [
        ("temperature", s.temperature, s.temperature >= 0.0 && s.temperature.is_finite()),
        ("top_p", s.top_p, share(s.top_p)),
        ("min_p", s.min_p, share(s.min_p)),
        (
            "repeat_penalty",
            s.repeat_penalty,
            s.repeat_penalty > 0.0 && s.repeat_penalty.is_finite(),
        ),
        ("presence_penalty", s.presence_penalty, s.presence_penalty.is_finite()),
        ("frequency_penalty", s.frequency_penalty, s.frequency_penalty.is_finite()),
    ];
    let wrong = |why| Error::new(Kind::Usage, "cannot sample like this", why, "see --help");
    if let Some((name, value, _)) = checks.iter().find(|(_, _, good)| !good) {
        return Err(wrong(format!("{name} cannot be {value}")));
    }
    for (id, bias) in &s.logit_bias {
        if *id as usize >= vocab || bias.is_nan() {
            return Err(wrong(format!("a bias of {bias} on token {id} of {vocab}")));
        }
    }
    Ok(())
}

/// A rule, and memory to apply it in.
pub struct Sampler {
    isa: Isa,
    sampling: Sampling,
    /// One a token.
    biases: BTreeMap<u32, f32>,
    /// aᵢ
    adjusted: Vec<f32>,
    /// wᵢ
    weights: Vec<u32>,
    /// Tokens in the order of step 5: see [`key`].
    order: Vec<u64>,
    /// The tokens that the penalties look at, sorted.
    recent: Vec<u32>,
}

/// Larger float, larger integer. 0 for NaN and −∞.
#[inline(always)]
fn ordered(x: f32) -> u32 {
    let bits = x.to_bits();
    let key = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    if x > f32::NEG_INFINITY { key } else { 0 }
}

/// Sorts tokens into the order of step 3.
fn key(a: f32, id: u32) -> u64 {
    u64::from(!ordered(a)) << 32 | u64::from(id)
}

impl Sampler {
    /// Greedy, for rows of `vocab` logits.
    pub fn new(isa: Isa, vocab: usize) -> Sampler {
        Sampler {
            isa,
            sampling: Sampling::default(),
            biases: BTreeMap::new(),
            adjusted: vec![0.0; vocab],
            weights: vec![0; vocab],
            order: Vec::with_capacity(vocab),
            recent: Vec::new(),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.adjusted)
            + size_of_val(&*self.weights)
            + self.order.capacity() * size_of::<u64>()
            + self.recent.capacity() * size_of::<u32>()
    }

    /// Changes the rule.
    ///
    /// # Errors
    /// As [`check_sampling`].
    pub fn set(&mut self, sampling: &Sampling) -> Result<()> {
        check_sampling(sampling, self.adjusted.len())?;
        self.biases = sampling.logit_bias.iter().copied().collect();
        self.sampling = sampling.clone();
        Ok(())
    }

    /// The token at `position`, after the tokens of `history`.
    ///
    /// # Errors
    /// `Kind::Failure` when no logit is a number above negative infinity.
    pub fn choose(&mut self, logits: &[f32], history: &[u32], position: u64) -> Result<u32> {
        self.adjusted.copy_from_slice(logits);
        for (id, bias) in &self.biases {
            self.adjusted[*id as usize] += bias;
        }
        self.penalise(history);
        let best = self.best()?;
        let Sampling { temperature, top_k, top_p, min_p, seed, .. } = self.sampling;
        if temperature == 0.0 {
            return Ok(best);
        }
        let (adjusted, weights) = (&self.adjusted, &mut self.weights);
        let most = adjusted[best as usize] / temperature;
        self.isa.run(Weigh { adjusted, most, temperature, weights });

        let weights = &self.weights;
        let weight = |key: u64| u64::from(weights[key as u32 as usize]);
        let both = self.adjusted.iter().zip(weights).enumerate();
        let positive = both.filter(|(_, (_, w))| **w > 0);
        self.order.clear();
        self.order.extend(positive.map(|(id, (a, _))| key(*a, id as u32)));
        let mut kept = self.order.as_mut_slice();
        if top_k != 0 && (top_k as usize) < kept.len() {
            kept.select_nth_unstable(top_k as usize - 1);
            kept = &mut kept[..top_k as usize];
        }
        if top_p < 1.0 {
            let sum: u64 = kept.iter().map(|key| weight(*key)).sum();
            let share = (f64::from(top_p) * sum as f64).ceil() as u64;
            let last = reaching(kept, weight, share.clamp(1, sum) - 1);
            kept = &mut kept[..=last];
        }
        let least = (f64::from(min_p) * f64::from(ONE)).ceil() as u64;
        let weight = |key: u64| Some(weight(key)).filter(|w| *w >= least).unwrap_or(0);
        let sum: u64 = kept.iter().map(|key| weight(*key)).sum();
        let target = (u128::from(rng::draw(seed, position)) * u128::from(sum)) >> 64;
        let chosen = reaching(kept, weight, target as u64);
        Ok(kept[chosen] as u32)
    }

    /// Step 2.
    fn penalise(&mut self, history: &[u32]) {
        let s = &self.sampling;
        let (repeat, presence, frequency) =
            (s.repeat_penalty, s.presence_penalty, s.frequency_penalty);
        if (repeat, presence, frequency) == (1.0, 0.0, 0.0) {
            return;
        }
        let looked_at = match s.repeat_last_n as usize {
            0 => history.len(),
            n => n.min(history.len()),
        };
        self.recent.clear();
        self.recent.extend_from_slice(&history[history.len() - looked_at..]);
        self.recent.sort_unstable();
        for same in self.recent.chunk_by(|a, b| a == b) {
            let Some(a) = self.adjusted.get_mut(same[0] as usize) else { continue };
            *a = if *a > 0.0 { *a / repeat } else { *a * repeat };
            *a -= presence;
            *a -= frequency * same.len() as f32;
        }
    }

    /// The first token in the order of step 3.
    fn best(&self) -> Result<u32> {
        let mut most = 0;
        self.isa.run(Most { adjusted: &self.adjusted, most: &mut most });
        let first = self.adjusted.iter().position(|a| ordered(*a) == most);
        first.filter(|_| most != 0).map(|id| id as u32).ok_or_else(|| {
            let nans = self.adjusted.iter().filter(|a| a.is_nan()).count();
            failed(
                format!(
                    "of {} logits {nans} are not numbers and the rest are negative infinity",
                    self.adjusted.len()
                ),
                "check the model with `snug verify`; its weights may be damaged",
            )
        })
    }
}

/// The place in the order of step 3 at which the running sum of `weight` exceeds `target`, which is less than the whole
/// sum. Sorts `order` up to there and not much further: the first tokens mostly hold nearly all of the weight.
fn reaching(order: &mut [u64], weight: impl Fn(u64) -> u64, target: u64) -> usize {
    let (mut sum, mut done, mut part) = (0u64, 0, 64);
    while done < order.len() {
        let rest = &mut order[done..];
        part = rest.len().min(part);
        if part < rest.len() {
            rest.select_nth_unstable(part);
        }
        rest[..part].sort_unstable();
        for key in &rest[..part] {
            sum += weight(*key);
            if sum > target {
                return done;
            }
            done += 1;
        }
        part *= 4;
    }
    order.len() - 1
}

/// The largest [`ordered`].
struct Most<'a> {
    adjusted: &'a [f32],
    most: &'a mut u32,
}

impl Kernel for Most<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        *self.most = self.adjusted.iter().map(|a| ordered(*a)).fold(0, u32::max);
    }
}

/// Step 4.
struct Weigh<'a> {
    adjusted: &'a [f32],
    most: f32,
    temperature: f32,
    weights: &'a mut [u32],
}

impl Kernel for Weigh<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        for (w, a) in self.weights.iter_mut().zip(self.adjusted) {
            let y = a / self.temperature;
            // Where the largest is infinite, the difference to it is not a number.
            let weight = if y == self.most { 1.0 } else { func::exp(y - self.most) };
            *w = if *a > f32::NEG_INFINITY { (weight * ONE as f32) as u32 } else { 0 };
        }
    }
}
