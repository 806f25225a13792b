//! RMSNorm: x / √(mean(x²) + ε) · w.

use super::matvec::{Strip, arrange};
use super::simd::{Isa, Kernel, Lanes};

/// 1 / √(mean(x²) + ε). The squares are exact in float64 and summed there in eight partial sums (element i in sum
/// i mod 8, then 4, 2 and 1 apart), so that the result is rounded to float32 once.
#[inline(always)]
fn scale(x: &[f32], eps: f32) -> f32 {
    let mut sums = [0f64; 8];
    let (eights, rest) = x.as_chunks::<8>();
    for eight in eights {
        for (sum, x) in sums.iter_mut().zip(eight) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += f64::from(*x) * f64::from(*x);
    }
    for half in [4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    (1.0 / (sums[0] / x.len() as f64 + f64::from(eps)).sqrt()) as f32
}

/// Normalises `x` in place.
pub fn in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = scale(x, eps);
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * scale * w;
    }
}

/// Normalises one token and lays it out as the input of a matrix.
pub fn to_strips(isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [Strip]) {
    isa.run(Norm { x, weight, eps, out });
}

struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [Strip],
}

impl Kernel for Norm<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let scale = scale(self.x, self.eps);
        let weight = &self.weight[..self.x.len()];
        arrange(self.x.len(), |c| self.x[c] * scale * weight[c], self.out);
    }
}
