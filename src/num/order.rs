//! The orders of summation, by name. A float sum is only reproducible if its order is part of the definition.

/// Partial sums per row in the CPU's matrix-vector product (see [`tile64`]).
pub const TILE64_LANES: usize = 16;

/// `TILE64`: the order in which the CPU sums a row of `W·x`.
///
/// Column `c` of every 64-column tile belongs to partial sum `4·(c/16 mod 4) + c mod 4`; each partial sum adds
/// its products with one fma each, columns ascending. [`tree16`] then folds the sixteen partial sums. It is the
/// order in which one vector register meets a `pairlut` record (see `codec::pairlut`), and a row-major bf16 row
/// reaches it with a 4 × 4 transpose, so both formats sum alike. This function is the definition that every
/// vector path is tested against.
pub fn tile64(w: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0f32; TILE64_LANES];
    for (c, (w, x)) in w.iter().zip(x).enumerate() {
        let lane = 4 * (c / 16 % 4) + c % 4;
        lanes[lane] = w.mul_add(*x, lanes[lane]);
    }
    tree16(&lanes)
}

/// Folds sixteen partial sums: 8 apart, then 4, 2, 1.
#[inline(always)]
pub fn tree16(lanes: &[f32; 16]) -> f32 {
    let mut a = *lanes;
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            a[i] += a[i + half];
        }
    }
    a[0]
}
