//! The orders of summation, by name. A float sum is only reproducible if its order is part of the definition.

/// Partial sums per row in the CPU's matrix-vector product (see [`tile64`]).
pub const TILE64_LANES: usize = 32;

/// The partial sum of `TILE64` that column `c` belongs to.
#[inline(always)]
pub fn tile64_lane(c: usize) -> usize {
    8 * (c / 16 % 4) + 4 * (c / 4 % 2) + c % 4
}

/// `TILE64`: the order in which the CPU sums a row of `W·x`.
///
/// Column `c` belongs to partial sum [`tile64_lane`]`(c)`; each partial sum starts at +0 and adds its products with
/// one fma each, columns ascending. [`tree32`] folds the thirty-two partial sums. It is the order in which vector
/// registers meet a `pairlut` record (positions of FORMAT.md, section 3: bytes of one k-step pair side by side), and
/// a row-major bf16 row reaches it by regrouping 16-byte units, so both formats sum alike. This function is the
/// definition that every vector path is tested against.
pub fn tile64(w: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0f32; TILE64_LANES];
    for (c, (w, x)) in w.iter().zip(x).enumerate() {
        let lane = tile64_lane(c);
        lanes[lane] = w.mul_add(*x, lanes[lane]);
    }
    tree32(&lanes)
}

/// Folds thirty-two partial sums: 16 apart, then 8, 4, 2, 1.
#[inline(always)]
pub fn tree32(lanes: &[f32; 32]) -> f32 {
    let mut a = *lanes;
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            a[i] += a[i + half];
        }
    }
    a[0]
}
