//! Elementary functions from `+ × fma` and bit operations only, so that every device can repeat them bit for bit.
//! Mirrored by `kernels/common/func.cuh`, line for line.

/// e^x. Relative error below 2⁻²² for every finite result; exact 1 at 0; 0 below −104; infinity above 88.73.
///
/// Cody–Waite reduction x = n·ln 2 + r, |r| ≤ ½ ln 2, then a degree-6 polynomial and exponent insertion in two
/// steps so that subnormal results round once.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // 1.5·2²³ pushes the fraction out of the significand: round to nearest even without a library call, and the
    // lowest bits are the integer. No branches, so that loops over this become vector instructions; beyond the edges
    // the arithmetic goes astray and the selects at the end overrule it.
    const ROUND: f32 = 12_582_912.0;
    let shifted = fma(x, std::f32::consts::LOG2_E, ROUND);
    let whole = shifted - ROUND;
    let r = fma(whole, -0.693_145_75, x);
    let r = fma(whole, -1.428_606_8e-6, r);
    let mut p = 1.393_388_4e-3f32;
    p = fma(p, r, 8.335_996e-3);
    p = fma(p, r, 4.166_536e-2);
    p = fma(p, r, 1.666_665e-1);
    p = fma(p, r, 5.000_000_6e-1);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let y = p * pow2(half) * pow2(n.wrapping_sub(half));
    let y = if x > 88.722_84 { f32::INFINITY } else { y };
    let y = if x < -104.0 { 0.0 } else { y };
    if x.is_nan() { x } else { y }
}

/// 2^n for −126 ≤ n ≤ 127.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `a·b + c` rounded once.
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// x·σ(x), the activation of Llama-like feed-forward layers.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// tanh(x) by (1 − e^(−2|x|)) / (1 + e^(−2|x|)), with an odd polynomial near zero where that form cancels.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    if a < 0.1 {
        let s = x * x;
        let p = fma(s, -17.0 / 315.0, 2.0 / 15.0);
        let p = fma(p, s, -1.0 / 3.0);
        return fma(p * s, x, x);
    }
    let e = exp(-2.0 * a);
    ((1.0 - e) / (1.0 + e)).copysign(x)
}

/// The tanh form of GELU (`gelu_new`, `gelu_pytorch_tanh`).
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    let inner = 0.797_884_6 * fma(0.044_715 * x * x, x, x);
    0.5 * x * (1.0 + tanh(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(got: f32, want: f64) -> f64 {
        (f64::from(got) - want).abs() / want.abs()
    }

    #[test]
    fn exp_is_within_its_bound_and_has_the_stated_edges() {
        let mut worst = 0f64;
        let mut x = -87.0f32;
        while x < 88.7 {
            worst = worst.max(relative(exp(x), f64::from(x).exp()));
            x += 0.000_731;
        }
        assert!(worst < 2f64.powi(-22), "worst relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert!((exp(-100.0) - 3.8e-44).abs() < 2e-45);
    }

    #[test]
    fn tanh_and_the_activations_follow_float64() {
        let mut x = -12.0f32;
        while x < 12.0 {
            let v = f64::from(x);
            assert!((f64::from(tanh(x)) - v.tanh()).abs() < 4e-7, "tanh {x}");
            assert!((f64::from(silu(x)) - v / (1.0 + (-v).exp())).abs() < 2e-6, "silu {x}");
            let inner = 0.797_884_560_802_865_4 * (v + 0.044_715 * v * v * v);
            assert!(
                (f64::from(gelu_tanh(x)) - 0.5 * v * (1.0 + inner.tanh())).abs() < 4e-6,
                "gelu {x}"
            );
            x += 0.001_37;
        }
    }
}
