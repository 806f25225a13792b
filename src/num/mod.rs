//! Arithmetic that must agree everywhere: bf16 conversions, named orders of summation, elementary functions
//! and the random generator. Everything here is built from correctly rounded `+ × ÷ √ fma` and integers, so
//! that CPU and GPU can be held to the same bits.

pub mod func;
pub mod order;
pub mod rng;

/// The value of a bf16 bit pattern. Exact.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest bf16, ties to even. NaN stays NaN (quiet, sign and top payload bits kept).
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let b = x.to_bits();
    if x.is_nan() {
        return ((b >> 16) | 0x0040) as u16;
    }
    // Adding 0x7fff plus the lowest kept bit carries exactly when the dropped half rounds up.
    ((b + 0x7fff + ((b >> 16) & 1)) >> 16) as u16
}

/// The value of an IEEE half-precision bit pattern. Exact, subnormals included; NaN keeps its payload. Without branches,
/// so that loops over it become vector code.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // Exponents count from −15 in one and from −127 in the other: the difference is a factor of 2¹¹².
    let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let not_finite = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(sign | scaled | not_finite)
}

/// The error factor γ_n = n·u / (1 − n·u) of n dependent float32 roundings (Higham, section 3.1).
pub fn gamma(n: usize) -> f64 {
    let nu = n as f64 * f64::from(f32::EPSILON) / 2.0;
    nu / (1.0 - nu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_survives_a_round_trip() {
        for bits in 0..=u16::MAX {
            let x = bf16_to_f32(bits);
            let back = f32_to_bf16(x);
            if x.is_nan() {
                assert_eq!(back, bits | 0x0040, "{bits:#06x}");
            } else {
                assert_eq!(back, bits, "{bits:#06x}");
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        for (x, want) in [
            (0x3f80_8000, 0x3f80), // tie, even below
            (0x3f81_8000, 0x3f82), // tie, even above
            (0x3f80_8001, 0x3f81), // just above a tie
            (0x3f80_7fff, 0x3f80), // just below a tie
            (0x7f7f_ffff, 0x7f80), // largest float rounds to infinity
            (0x0000_8000, 0x0000), // subnormal tie to zero
        ] {
            assert_eq!(f32_to_bf16(f32::from_bits(x)), want, "{x:#010x}");
        }
    }

    #[test]
    fn halves_convert_exactly() {
        for (h, want) in [
            (0x3c00u16, 1.0f32),
            (0xc000, -2.0),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x7bff, 65504.0),
            (0x7c00, f32::INFINITY),
        ] {
            assert_eq!(f16_to_f32(h).to_bits(), want.to_bits(), "{h:#06x}");
        }
        // Every pattern against the definition: (−1)^s · 2^(e − 25) · (1024 + m), and 2^−24 · m below that.
        for bits in 0..=u16::MAX {
            let (exp, man) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            let got = f16_to_f32(bits);
            assert_eq!(got.is_sign_negative(), bits >= 0x8000, "{bits:#06x}");
            let want = match exp {
                31 if man > 0.0 => {
                    assert_eq!(got.to_bits() & 0x7fff_ffff, 0x7f80_0000 | (man as u32) << 13);
                    continue;
                }
                31 => f64::INFINITY,
                0 => man * 2f64.powi(-24),
                _ => (1024.0 + man) * 2f64.powi(exp - 25),
            };
            assert_eq!(f64::from(got.abs()), want, "{bits:#06x}");
        }
        assert!(f16_to_f32(0x7e01).is_nan());
        assert_eq!(f16_to_f32(0x8000).to_bits(), (-0.0f32).to_bits());
    }
}
