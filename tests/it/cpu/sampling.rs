//! The rules by which a token is chosen from a row of logits.

use snug::backend::cpu::{Isa, Sampler};
use snug::error::Kind;
use snug::model::op::Sampling;
use snug::num::rng::Stream;
use snug::num::{func, rng};

fn sampler(vocab: usize, sampling: &Sampling) -> Sampler {
    let mut sampler = Sampler::new(Isa::best(), vocab);
    sampler.set(sampling).unwrap();
    sampler
}

fn choose(logits: &[f32], sampling: &Sampling, history: &[u32], position: u64) -> u32 {
    sampler(logits.len(), sampling).choose(logits, history, position).unwrap()
}

fn hot(temperature: f32) -> Sampling {
    Sampling { temperature, ..Sampling::default() }
}

/// The rule as the documentation of `cpu::sample` states it, with sorting and nothing clever.
fn by_the_book(logits: &[f32], s: &Sampling, history: &[u32], position: u64) -> Option<u32> {
    let mut a = logits.to_vec();
    for (id, a) in a.iter_mut().enumerate() {
        if let Some((_, bias)) = s.logit_bias.iter().rev().find(|(b, _)| *b as usize == id) {
            *a += bias;
        }
        let last = if s.repeat_last_n == 0 { history.len() } else { s.repeat_last_n as usize };
        let window = &history[history.len().saturating_sub(last)..];
        let count = window.iter().filter(|t| **t as usize == id).count();
        if count > 0 {
            *a = if *a > 0.0 { *a / s.repeat_penalty } else { *a * s.repeat_penalty };
            *a -= s.presence_penalty;
            *a -= s.frequency_penalty * count as f32;
        }
    }
    let mut ids: Vec<usize> = (0..a.len()).filter(|i| a[*i] > f32::NEG_INFINITY).collect();
    ids.sort_by(|i, j| a[*j].total_cmp(&a[*i]).then(i.cmp(j)));
    let best = *ids.first()?;
    if s.temperature == 0.0 {
        return Some(best as u32);
    }
    let y = |i: usize| a[i] / s.temperature;
    let weight = |i: usize| {
        let e = if y(i) == y(best) { 1.0 } else { func::exp(y(i) - y(best)) };
        (e * 2f32.powi(30)) as u64
    };
    ids.retain(|i| weight(*i) > 0);
    if s.top_k > 0 {
        ids.truncate(s.top_k as usize);
    }
    let sum = |ids: &[usize]| ids.iter().map(|i| weight(*i)).sum::<u64>();
    if s.top_p < 1.0 {
        let want = (f64::from(s.top_p) * sum(&ids) as f64).ceil() as u64;
        let count = (1..=ids.len()).find(|n| sum(&ids[..*n]) >= want)?;
        ids.truncate(count);
    }
    ids.retain(|i| weight(*i) as f64 >= f64::from(s.min_p) * 2f64.powi(30));
    let target = (u128::from(rng::draw(s.seed, position)) * u128::from(sum(&ids))) >> 64;
    let at = (0..ids.len()).find(|n| u128::from(sum(&ids[..=*n])) > target)?;
    Some(ids[at] as u32)
}

#[test]
fn choices_are_those_of_the_book() {
    let mut r = Stream::new(77);
    let mut varied = 0;
    for round in 0..3000u64 {
        let vocab = [1, 2, 7, 70, 400][r.below(5) as usize];
        let mut logits: Vec<f32> = (0..vocab).map(|_| r.normal() * 4.0).collect();
        for _ in 0..r.below(4) {
            // Ties, signed zeros and values that are not numbers.
            let odd = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3.5, 3.5];
            logits[r.below(vocab as u32) as usize] = odd[r.below(7) as usize];
        }
        let mut any = |values: &[f32]| values[r.below(values.len() as u32) as usize];
        let sampling = Sampling {
            temperature: any(&[0.0, 0.7, 1.0, 1.3, 100.0, 1e-30]),
            top_k: any(&[0.0, 1.0, 2.0, 40.0]) as u32,
            top_p: any(&[1.0, 0.0, 0.5, 0.95]),
            min_p: any(&[0.0, 0.0, 0.05, 1.0]),
            repeat_penalty: any(&[1.0, 1.3, 0.8]),
            repeat_last_n: any(&[0.0, 3.0, 64.0]) as u32,
            presence_penalty: any(&[0.0, 0.5]),
            frequency_penalty: any(&[0.0, -0.25]),
            logit_bias: vec![(0, any(&[0.0, 5.0, f32::NEG_INFINITY])), (0, any(&[0.0, -2.0]))],
            seed: round,
        };
        let history: Vec<u32> = (0..10).map(|_| r.below(vocab as u32)).collect();
        let want = by_the_book(&logits, &sampling, &history, round);
        for isa in Isa::available() {
            let mut sampler = Sampler::new(isa, vocab);
            sampler.set(&sampling).unwrap();
            let got = sampler.choose(&logits, &history, round);
            assert_eq!(got.ok(), want, "{}: {sampling:?} of {logits:?}", isa.name());
        }
        varied += usize::from(want.is_some_and(|t| t != 0));
    }
    assert!(varied > 1000, "the cases are all alike: {varied}");
}

#[test]
fn greedy_takes_the_largest_and_the_lower_id_of_equals() {
    let greedy = Sampling::default();
    for (logits, want) in [
        (vec![1.0, 3.0, 3.0, 2.0], 1),
        (vec![-5.0], 0),
        (vec![f32::NAN, -1.0, f32::NAN, -2.0], 1),
        (vec![f32::NEG_INFINITY, f32::MIN], 1),
        (vec![1.0, f32::INFINITY, f32::INFINITY], 1),
    ] {
        assert_eq!(choose(&logits, &greedy, &[], 0), want, "{logits:?}");
        // So do the narrowest draws, whatever the seed.
        for seed in 0..20 {
            let narrow = [
                Sampling { top_k: 1, ..hot(1.0) },
                Sampling { top_p: 0.0, ..hot(1.0) },
                Sampling { top_k: 1, top_p: 0.0, min_p: 1.0, ..hot(2.0) },
            ];
            for narrow in narrow {
                let narrow = Sampling { seed, ..narrow };
                assert_eq!(choose(&logits, &narrow, &[], 5), want, "{logits:?} {narrow:?}");
            }
        }
    }
}

#[test]
fn rows_without_a_number_are_an_error() {
    for bad in [f32::NAN, f32::NEG_INFINITY] {
        for sampling in [hot(0.0), hot(1.0)] {
            let mut sampler = sampler(3, &sampling);
            let e = sampler.choose(&[bad; 3], &[], 0).expect_err("no number");
            assert_eq!(e.kind, Kind::Failure);
            assert!(e.why.contains("3 logits"), "{e}");
        }
    }
}

#[test]
fn penalties_look_at_the_window_and_follow_their_formulas() {
    let logits = [2.0, 1.9, -1.0, 0.5];
    let greedy = Sampling::default();
    let case = |s: &Sampling, history: &[u32]| choose(&logits, s, history, 0);
    let repeat = Sampling { repeat_penalty: 2.0, repeat_last_n: 2, ..greedy.clone() };
    assert_eq!(case(&repeat, &[3, 3, 0]), 1, "2.0 / 2 is below 1.9");
    assert_eq!(case(&repeat, &[0, 3, 3]), 0, "outside the window");
    let all = Sampling { repeat_last_n: 0, ..repeat };
    assert_eq!(case(&all, &[0, 3, 3]), 1);
    let frequency = Sampling { frequency_penalty: 0.06, ..greedy.clone() };
    assert_eq!(case(&frequency, &[0]), 0);
    assert_eq!(case(&frequency, &[0, 0]), 1, "twice counts twice");
    let presence = Sampling { presence_penalty: 0.06, ..greedy.clone() };
    assert_eq!(case(&presence, &[0, 0]), 0, "twice counts once");
    // Negative logits are multiplied: −1 · 2 falls below −1.5.
    let negative = Sampling { repeat_penalty: 2.0, ..greedy.clone() };
    assert_eq!(choose(&[-1.0, -1.5], &negative, &[0], 0), 1);
    let bias = Sampling { logit_bias: vec![(2, 9.0)], ..greedy };
    assert_eq!(case(&bias, &[]), 2);
}

#[test]
fn draws_follow_the_distribution_and_the_seed() {
    let p: [f32; 5] = [0.5, 0.25, 0.15, 0.1, 0.0];
    let logits = p.map(f32::ln);
    let counts = |sampling: Sampling| {
        let mut sampler = sampler(5, &sampling);
        let mut counts = [0f64; 5];
        for position in 0..40_000 {
            counts[sampler.choose(&logits, &[], position).unwrap() as usize] += 1.0;
        }
        counts.map(|c| c / 40_000.0)
    };
    // Five standard deviations of a share of 40,000 draws are 0.0125 at most.
    let close = |got: [f64; 5], want: [f64; 5]| {
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 0.0125, "{got:?} for {want:?}");
            assert!(want > 0.0 || *got == 0.0, "a token of weight zero was drawn");
        }
    };
    close(counts(hot(1.0)), p.map(f64::from));
    let squared = [0.25, 0.0625, 0.0225, 0.01, 0.0].map(|w| w / 0.345);
    close(counts(hot(0.5)), squared);
    close(counts(Sampling { top_k: 2, ..hot(1.0) }), [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0, 0.0]);
    close(
        counts(Sampling { top_p: 0.8, ..hot(1.0) }),
        [0.5, 0.25, 0.15, 0.0, 0.0].map(|w| w / 0.9),
    );
    close(
        counts(Sampling { min_p: 0.25, ..hot(1.0) }),
        [0.5, 0.25, 0.15, 0.0, 0.0].map(|w| w / 0.9),
    );
    assert_eq!(counts(hot(1.0)), counts(hot(1.0)));
    assert_ne!(counts(hot(1.0)), counts(Sampling { seed: 1, ..hot(1.0) }));
}
