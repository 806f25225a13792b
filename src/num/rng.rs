//! A counter-based generator: draw `n` of seed `s` is a pure function, the same on every device.

/// The `counter`-th 64-bit draw of `seed` (the output function of SplitMix64 on `seed + counter·φ`, applied
/// twice so that neighbouring seeds are unrelated).
#[inline]
pub fn draw(seed: u64, counter: u64) -> u64 {
    mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ counter.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of draws, for tests and synthetic weights.
#[derive(Clone, Debug)]
pub struct Stream {
    seed: u64,
    counter: u64,
}

impl Stream {
    /// A stream that starts at draw 0 of `seed`.
    pub fn new(seed: u64) -> Stream {
        Stream { seed, counter: 0 }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let x = draw(self.seed, self.counter);
        self.counter += 1;
        x
    }

    /// Uniform in [0, 1), 24 bits.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 * 2f32.powi(-24)
    }

    /// Standard normal (Box–Muller).
    pub fn normal(&mut self) -> f32 {
        let u = (1.0 - f64::from(self.uniform())).max(1e-12);
        let v = f64::from(self.uniform());
        ((-2.0 * libm::log(u)).sqrt() * libm::cos(std::f64::consts::TAU * v)) as f32
    }

    /// Uniform in 0..n (n > 0; the bias is below 2⁻³²).
    pub fn below(&mut self, n: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(n)) >> 32) as u32
    }
}
