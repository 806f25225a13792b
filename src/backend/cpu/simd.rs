#![allow(unsafe_code)]
//! Sixteen floats at a time, on whatever the machine has.
//!
//! A [`Kernel`] is written once, over [`Lanes`]; [`Isa::run`] compiles it for each instruction set and picks one at
//! run time. All of them round alike (`+`, `×` and fma are exact operations with one rounding) and no operation here
//! adds across lanes except [`Lanes::fold`], whose order is a definition: so all of them give the same bits.
//!
//! A token such as `Avx512` can only be had inside [`Isa::run`], after the feature was detected: that is what makes
//! the methods of [`Lanes`] safe to call.
//!
//! Weights come as *pairs*: rows g and g + 8 of a row block, eight columns of each of the four column groups of a
//! tile. The 32 words of one row of a pair are a *strip*: word 8t + i is column 16t + 8h + i of the tile, h = 0, 1.

use crate::num::order::tree32;

/// Sixteen lanes of f32, and 32 bf16 words that become two of them.
pub trait Lanes: Copy {
    /// Whether there are registers for the sums of eight rows, or of four rows and three tokens.
    const WIDE: bool;
    /// Sixteen f32.
    type F: Copy;
    /// A strip: sixteen pairs of bf16 words.
    type W: Copy;

    /// The same value in all lanes.
    fn splat(self, x: f32) -> Self::F;
    /// Lane i ← element i.
    fn load(self, from: &[f32; 16]) -> Self::F;
    /// Element i ← lane i.
    fn store(self, x: Self::F, to: &mut [f32; 16]);
    /// a + b
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// The larger one; b when either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// a · b + c, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The strips of rows g and g + 8, from one unit of a decoded record (two columns of either row in turn).
    fn record_pair(self, unit: &[u16; 64]) -> [Self::W; 2];
    /// The strips of a pair that lie one after the other.
    fn strip_pair(self, unit: &[u16; 64]) -> [Self::W; 2];
    /// Lays the strips of a pair one after the other.
    fn store_strips(self, pair: [Self::W; 2], unit: &mut [u16; 64]);
    /// Half `half` (0 or 1) of 64 little-endian words of one row, as a strip.
    fn row_strip(self, tile: &[u8; 128], half: usize) -> Self::W;
    /// Asks for 128 bytes that lie `ahead` bytes after these, if there are any, to be brought near.
    fn fetch(self, from: &[u8; 128], ahead: usize);
    /// The first word of each pair, widened.
    fn even(self, w: Self::W) -> Self::F;
    /// The second word of each pair, widened.
    fn odd(self, w: Self::W) -> Self::F;
    /// Adds the 32 partial sums of a row: `even` and `odd` are those that the words of a strip were multiplied into.
    /// The order is `num::order::tree32` of the lanes of `TILE64`.
    fn fold(self, even: Self::F, odd: Self::F) -> f32;
}

/// A computation written over any [`Lanes`]. Mark `run` as `#[inline(always)]`: only then is it compiled anew for
/// each instruction set.
pub trait Kernel {
    /// Computes it.
    fn run<L: Lanes>(self, lanes: L);
}

/// An instruction set this machine has: holding a value is the proof, because only [`Isa::available`] makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// Every instruction set this machine has, the plainest first. There is always a plain one.
    pub fn available() -> Vec<Isa> {
        let mut sets = vec![Isa(Set::Plain)];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 {
                sets.push(Isa(Set::Avx2));
            }
            if avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                sets.push(Isa(Set::Avx512));
            }
        }
        sets
    }

    /// The widest one this machine has.
    pub fn best() -> Isa {
        Isa::available().pop().unwrap_or(Isa(Set::Plain))
    }

    /// `scalar` (on 64-bit ARM `neon`, which every such machine has), `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Plain if cfg!(target_arch = "aarch64") => "neon",
            Set::Plain => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
        }
    }

    /// Runs a kernel on this instruction set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) {
        match self.0 {
            Set::Plain => kernel.run(Plain),
            // SAFETY: `available` makes this value only where the features were detected.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => unsafe { x86::run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => unsafe { x86::run_avx512(kernel) },
        }
    }
}

/// What the processor calls itself, or its architecture.
pub fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    if let Some(name) = x86::brand() {
        return name;
    }
    std::env::consts::ARCH.into()
}

/// Arrays of sixteen, for the compiler to vectorise as it can: one fma instruction at a time where the target has
/// one (64-bit ARM), correctly rounded library calls where it has not.
#[derive(Clone, Copy)]
struct Plain;

impl Lanes for Plain {
    const WIDE: bool = false;
    type F = [f32; 16];
    type W = [u16; 32];

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 16] {
        [x; 16]
    }

    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> [f32; 16] {
        *from
    }

    #[inline(always)]
    fn store(self, x: [f32; 16], to: &mut [f32; 16]) {
        *to = x;
    }

    #[inline(always)]
    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn max(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn fma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline(always)]
    fn record_pair(self, unit: &[u16; 64]) -> [[u16; 32]; 2] {
        [0, 2].map(|row| std::array::from_fn(|i| unit[4 * (i / 2) + row + i % 2]))
    }

    #[inline(always)]
    fn strip_pair(self, unit: &[u16; 64]) -> [[u16; 32]; 2] {
        [0, 32].map(|row| std::array::from_fn(|i| unit[row + i]))
    }

    #[inline(always)]
    fn store_strips(self, pair: [[u16; 32]; 2], unit: &mut [u16; 64]) {
        let (first, second) = unit.split_at_mut(32);
        first.copy_from_slice(&pair[0]);
        second.copy_from_slice(&pair[1]);
    }

    #[inline(always)]
    fn row_strip(self, tile: &[u8; 128], half: usize) -> [u16; 32] {
        std::array::from_fn(|i| {
            let at = 32 * (i / 8) + 16 * half + 2 * (i % 8);
            u16::from_le_bytes([tile[at], tile[at + 1]])
        })
    }

    #[inline(always)]
    fn fetch(self, _: &[u8; 128], _: usize) {}

    #[inline(always)]
    fn even(self, w: [u16; 32]) -> [f32; 16] {
        std::array::from_fn(|i| f32::from_bits(u32::from(w[2 * i]) << 16))
    }

    #[inline(always)]
    fn odd(self, w: [u16; 32]) -> [f32; 16] {
        std::array::from_fn(|i| f32::from_bits(u32::from(w[2 * i + 1]) << 16))
    }

    #[inline(always)]
    fn fold(self, even: [f32; 16], odd: [f32; 16]) -> f32 {
        // Lane 2i of TILE64 is lane i of `even`, lane 2i + 1 that of `odd`.
        tree32(&std::array::from_fn(|i| if i % 2 == 0 { even[i / 2] } else { odd[i / 2] }))
    }
}

/// In all of this module: the intrinsics need the features of the token they are called with, and a token exists only
/// inside the function that has those features enabled.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Kernel, Lanes};

    #[derive(Clone, Copy)]
    pub(super) struct Avx2(());

    #[derive(Clone, Copy)]
    pub(super) struct Avx512(());

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn run_avx2<K: Kernel>(kernel: K) {
        kernel.run(Avx2(()));
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    pub(super) fn run_avx512<K: Kernel>(kernel: K) {
        kernel.run(Avx512(()));
    }

    /// Calls intrinsics under the promise of the token.
    macro_rules! with_token {
        ($body:expr) => {
            // SAFETY: `self` proves that the features are there (module documentation); every pointer is derived
            // from a reference to an array of at least the size accessed, and the accesses are unaligned ones.
            unsafe { $body }
        };
    }

    impl Lanes for Avx2 {
        const WIDE: bool = false;
        type F = [__m256; 2];
        type W = [__m256i; 2];

        #[inline(always)]
        fn splat(self, x: f32) -> [__m256; 2] {
            with_token!([_mm256_set1_ps(x); 2])
        }

        #[inline(always)]
        fn load(self, from: &[f32; 16]) -> [__m256; 2] {
            let p = from.as_ptr();
            with_token!([_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))])
        }

        #[inline(always)]
        fn store(self, x: [__m256; 2], to: &mut [f32; 16]) {
            let p = to.as_mut_ptr();
            with_token!({
                _mm256_storeu_ps(p, x[0]);
                _mm256_storeu_ps(p.add(8), x[1]);
            });
        }

        #[inline(always)]
        fn add(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            with_token!([_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])])
        }

        #[inline(always)]
        fn mul(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            with_token!([_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])])
        }

        #[inline(always)]
        fn max(self, a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
            with_token!([_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])])
        }

        #[inline(always)]
        fn fma(self, a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
            with_token!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
        }

        #[inline(always)]
        fn record_pair(self, unit: &[u16; 64]) -> [[__m256i; 2]; 2] {
            let p = unit.as_ptr().cast::<f32>();
            with_token!({
                let (a, b) = (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8)));
                let (c, d) = (_mm256_loadu_ps(p.add(16)), _mm256_loadu_ps(p.add(24)));
                [
                    [
                        in_order(_mm256_shuffle_ps::<0x88>(a, b)),
                        in_order(_mm256_shuffle_ps::<0x88>(c, d)),
                    ],
                    [
                        in_order(_mm256_shuffle_ps::<0xdd>(a, b)),
                        in_order(_mm256_shuffle_ps::<0xdd>(c, d)),
                    ],
                ]
            })
        }

        #[inline(always)]
        fn strip_pair(self, unit: &[u16; 64]) -> [[__m256i; 2]; 2] {
            let p = unit.as_ptr().cast::<__m256i>();
            with_token!([
                [_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))],
                [_mm256_loadu_si256(p.add(2)), _mm256_loadu_si256(p.add(3))],
            ])
        }

        #[inline(always)]
        fn store_strips(self, pair: [[__m256i; 2]; 2], unit: &mut [u16; 64]) {
            let p = unit.as_mut_ptr().cast::<__m256i>();
            with_token!({
                _mm256_storeu_si256(p, pair[0][0]);
                _mm256_storeu_si256(p.add(1), pair[0][1]);
                _mm256_storeu_si256(p.add(2), pair[1][0]);
                _mm256_storeu_si256(p.add(3), pair[1][1]);
            });
        }

        #[inline(always)]
        fn row_strip(self, tile: &[u8; 128], half: usize) -> [__m256i; 2] {
            let p = tile.as_ptr().cast::<__m256i>();
            with_token!({
                let (a, b) = (_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1)));
                let (c, d) = (_mm256_loadu_si256(p.add(2)), _mm256_loadu_si256(p.add(3)));
                match half {
                    0 => [
                        _mm256_permute2x128_si256::<0x20>(a, b),
                        _mm256_permute2x128_si256::<0x20>(c, d),
                    ],
                    _ => [
                        _mm256_permute2x128_si256::<0x31>(a, b),
                        _mm256_permute2x128_si256::<0x31>(c, d),
                    ],
                }
            })
        }

        #[inline(always)]
        fn fetch(self, from: &[u8; 128], ahead: usize) {
            // A prefetch is no access: any address will do.
            let p = from.as_ptr().wrapping_add(ahead).cast::<i8>();
            with_token!({
                _mm_prefetch::<_MM_HINT_T1>(p);
                _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(64));
            });
        }

        #[inline(always)]
        fn even(self, w: [__m256i; 2]) -> [__m256; 2] {
            with_token!([
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w[0])),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w[1])),
            ])
        }

        #[inline(always)]
        fn odd(self, w: [__m256i; 2]) -> [__m256; 2] {
            with_token!({
                let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
                [
                    _mm256_castsi256_ps(_mm256_and_si256(w[0], upper)),
                    _mm256_castsi256_ps(_mm256_and_si256(w[1], upper)),
                ]
            })
        }

        #[inline(always)]
        fn fold(self, even: [__m256; 2], odd: [__m256; 2]) -> f32 {
            with_token!(fold4(
                quarter(_mm256_add_ps(even[0], even[1])),
                quarter(_mm256_add_ps(odd[0], odd[1]))
            ))
        }
    }

    impl Lanes for Avx512 {
        const WIDE: bool = true;
        type F = __m512;
        type W = __m512i;

        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            with_token!(_mm512_set1_ps(x))
        }

        #[inline(always)]
        fn load(self, from: &[f32; 16]) -> __m512 {
            with_token!(_mm512_loadu_ps(from.as_ptr()))
        }

        #[inline(always)]
        fn store(self, x: __m512, to: &mut [f32; 16]) {
            with_token!(_mm512_storeu_ps(to.as_mut_ptr(), x))
        }

        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            with_token!(_mm512_add_ps(a, b))
        }

        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            with_token!(_mm512_mul_ps(a, b))
        }

        #[inline(always)]
        fn max(self, a: __m512, b: __m512) -> __m512 {
            with_token!(_mm512_max_ps(a, b))
        }

        #[inline(always)]
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            with_token!(_mm512_fmadd_ps(a, b, c))
        }

        #[inline(always)]
        fn record_pair(self, unit: &[u16; 64]) -> [__m512i; 2] {
            let p = unit.as_ptr().cast::<__m512i>();
            with_token!({
                let (a, b) = (_mm512_loadu_si512(p), _mm512_loadu_si512(p.add(1)));
                let upper =
                    _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
                let lower =
                    _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
                [_mm512_permutex2var_epi32(a, upper, b), _mm512_permutex2var_epi32(a, lower, b)]
            })
        }

        #[inline(always)]
        fn strip_pair(self, unit: &[u16; 64]) -> [__m512i; 2] {
            let p = unit.as_ptr().cast::<__m512i>();
            with_token!([_mm512_loadu_si512(p), _mm512_loadu_si512(p.add(1))])
        }

        #[inline(always)]
        fn store_strips(self, pair: [__m512i; 2], unit: &mut [u16; 64]) {
            let p = unit.as_mut_ptr().cast::<__m512i>();
            with_token!({
                _mm512_storeu_si512(p, pair[0]);
                _mm512_storeu_si512(p.add(1), pair[1]);
            });
        }

        #[inline(always)]
        fn row_strip(self, tile: &[u8; 128], half: usize) -> __m512i {
            let p = tile.as_ptr().cast::<__m512i>();
            with_token!({
                let (a, b) = (_mm512_loadu_si512(p), _mm512_loadu_si512(p.add(1)));
                match half {
                    0 => _mm512_shuffle_i32x4::<0x88>(a, b),
                    _ => _mm512_shuffle_i32x4::<0xdd>(a, b),
                }
            })
        }

        #[inline(always)]
        fn fetch(self, from: &[u8; 128], ahead: usize) {
            // A prefetch is no access: any address will do.
            let p = from.as_ptr().wrapping_add(ahead).cast::<i8>();
            with_token!({
                _mm_prefetch::<_MM_HINT_T1>(p);
                _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(64));
            });
        }

        #[inline(always)]
        fn even(self, w: __m512i) -> __m512 {
            with_token!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(w)))
        }

        #[inline(always)]
        fn odd(self, w: __m512i) -> __m512 {
            with_token!({
                let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                _mm512_castsi512_ps(_mm512_and_si512(w, upper))
            })
        }

        #[inline(always)]
        fn fold(self, even: __m512, odd: __m512) -> f32 {
            with_token!(fold4(quarter(half(even)), quarter(half(odd))))
        }
    }

    /// The brand string, without the blanks that some pad it with.
    pub(super) fn brand() -> Option<String> {
        const FIRST: u32 = 0x8000_0002;
        const LAST: u32 = 0x8000_0004;
        if __cpuid(0x8000_0000).eax < LAST {
            return None;
        }
        let mut bytes = Vec::new();
        for leaf in FIRST..=LAST {
            let r = __cpuid(leaf);
            bytes.extend([r.eax, r.ebx, r.ecx, r.edx].map(u32::to_le_bytes).as_flattened());
        }
        let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
        let words: Vec<&str> = text.split_whitespace().collect();
        (!words.is_empty()).then(|| words.join(" "))
    }

    /// What `shuffle_ps` took of two lanes of a record, in the order of columns.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn in_order(x: __m256) -> __m256i {
        _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(x))
    }

    /// Adds the halves of sixteen lanes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
    fn half(x: __m512) -> __m256 {
        _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))
    }

    /// Adds the halves of eight lanes.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn quarter(x: __m256) -> __m128 {
        _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x))
    }

    /// The last three steps of the tree: partial sums 4, 2 and 1 apart.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn fold4(even: __m128, odd: __m128) -> f32 {
        let (even, odd) =
            (_mm_add_ps(even, _mm_movehl_ps(even, even)), _mm_add_ps(odd, _mm_movehl_ps(odd, odd)));
        // [e0 o0 e1 o1] + [e1 o1 ..] = [e o ..]
        let both = _mm_unpacklo_ps(even, odd);
        let both = _mm_add_ps(both, _mm_movehl_ps(both, both));
        _mm_cvtss_f32(_mm_add_ss(both, _mm_shuffle_ps::<1>(both, both)))
    }
}
