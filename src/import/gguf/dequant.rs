//! Quantised blocks → float32 → bf16.
//!
//! Values are formed with the roundings of the format's reference implementation: scales are products rounded to
//! float32 first, then one product and at most one sum an element, never fused. Elements of a super-block of 256
//! are numbered e = 128·half + 32·group + l; a sub-block of 16 or 32 of them shares a scale.

use super::types::GgmlType;
use crate::num::{bf16_to_f32, f16_to_f32, f32_to_bf16};

/// Dequantises whole blocks: `out` has `bytes.len() / block_bytes · block_len` elements.
pub fn to_f32(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    convert(ty, bytes, out, |x| x);
}

/// Dequantises whole blocks and rounds to the nearest bf16, ties to even. BF16 is copied bit for bit.
pub fn to_bf16(ty: GgmlType, bytes: &[u8], out: &mut [u16]) {
    if ty == GgmlType::BF16 {
        check(ty, bytes, out.len());
        for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *o = u16::from_le_bytes(*b);
        }
        return;
    }
    convert(ty, bytes, out, f32_to_bf16);
}

fn check(ty: GgmlType, bytes: &[u8], elements: usize) {
    let blocks = bytes.len() / ty.block_bytes();
    assert!(
        blocks * ty.block_bytes() == bytes.len() && blocks * ty.block_len() == elements,
        "{} bytes of {} are not {elements} elements",
        bytes.len(),
        ty.name()
    );
}

fn convert<T>(ty: GgmlType, bytes: &[u8], out: &mut [T], finish: impl Fn(f32) -> T + Copy) {
    check(ty, bytes, out.len());
    match ty {
        GgmlType::F32 => {
            each(bytes, out, finish, |b, v: &mut [f32; 1]| v[0] = f32::from_le_bytes(*b))
        }
        GgmlType::F16 => each(bytes, out, finish, |b: &[u8; 2], v: &mut [f32; 1]| v[0] = f16(b, 0)),
        GgmlType::BF16 => each(bytes, out, finish, |b, v: &mut [f32; 1]| {
            v[0] = bf16_to_f32(u16::from_le_bytes(*b));
        }),
        GgmlType::Q4_0 => each(bytes, out, finish, q4_0),
        GgmlType::Q4_1 => each(bytes, out, finish, q4_1),
        GgmlType::Q5_0 => each(bytes, out, finish, q5_0),
        GgmlType::Q5_1 => each(bytes, out, finish, q5_1),
        GgmlType::Q8_0 => each(bytes, out, finish, q8_0),
        GgmlType::Q2_K => each(bytes, out, finish, q2_k),
        GgmlType::Q3_K => each(bytes, out, finish, q3_k),
        GgmlType::Q4_K => each(bytes, out, finish, q4_k),
        GgmlType::Q5_K => each(bytes, out, finish, q5_k),
        GgmlType::Q6_K => each(bytes, out, finish, q6_k),
    }
}

/// Decodes blocks of `SIZE` bytes into `LEN` values each. Lengths are constants so that loops over them unroll.
#[inline(always)]
fn each<T, const SIZE: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [T],
    finish: impl Fn(f32) -> T,
    decode: impl Fn(&[u8; SIZE], &mut [f32; LEN]),
) {
    for (block, out) in bytes.as_chunks::<SIZE>().0.iter().zip(out.as_chunks_mut::<LEN>().0) {
        let mut values = [0f32; LEN];
        decode(block, &mut values);
        for (o, v) in out.iter_mut().zip(values) {
            *o = finish(v);
        }
    }
}

/// The half-precision number at byte `at`.
#[inline(always)]
fn f16(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// 32 elements from 16 bytes, the low nibbles first, then the high ones.
#[inline(always)]
fn nibbles(qs: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// The same with a fifth bit of each from four bytes, element 0 lowest.
#[inline(always)]
fn five_bits(high: &[u8], qs: &[u8]) -> [u8; 32] {
    let mut q = nibbles(qs);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= (high[i / 8] >> (i % 8) & 1) << 4;
    }
    q
}

/// `d | 16 nibble pairs`: d·(q − 8)
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16(block, 0);
    for (o, q) in out.iter_mut().zip(nibbles(&block[2..])) {
        *o = d * (i32::from(q) - 8) as f32;
    }
}

/// `d | m | 16 nibble pairs`: d·q + m
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16(block, 0), f16(block, 2));
    for (o, q) in out.iter_mut().zip(nibbles(&block[4..])) {
        *o = d * f32::from(q) + m;
    }
}

/// `d | 32 fifth bits | 16 nibble pairs`: d·(q − 16)
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16(block, 0);
    for (o, q) in out.iter_mut().zip(five_bits(&block[2..6], &block[6..])) {
        *o = d * (i32::from(q) - 16) as f32;
    }
}

/// `d | m | 32 fifth bits | 16 nibble pairs`: d·q + m
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16(block, 0), f16(block, 2));
    for (o, q) in out.iter_mut().zip(five_bits(&block[4..8], &block[8..])) {
        *o = d * f32::from(q) + m;
    }
}

/// `d | 32 × i8`: d·q
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16(block, 0);
    for (o, q) in out.iter_mut().zip(&block[2..]) {
        *o = d * f32::from(*q as i8);
    }
}

/// `16 × (scale, min) nibbles | 64 bytes of four 2-bit groups | d | dmin`: (d·scale)·q − (dmin·min), 16 elements a scale
fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, qs) = (&block[..16], &block[16..80]);
    let (d, dmin) = (f16(block, 80), f16(block, 82));
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[sub] & 15);
        let min = dmin * f32::from(scales[sub] >> 4);
        let (half, group, l) = split(sub);
        let qs = &qs[32 * half + l..];
        for (o, q) in out.iter_mut().zip(qs) {
            *o = scale * f32::from(q >> (2 * group) & 3) - min;
        }
    }
}

/// Sub-block of 16 → (half, group, first l).
fn split(sub: usize) -> (usize, usize, usize) {
    (sub / 8, sub / 2 % 4, sub % 2 * 16)
}

/// `32 bytes of high bits | 64 bytes of four 2-bit groups | 12 bytes of 6-bit scales | d`: d·(scale − 32)·q, where a
/// high bit that is *clear* subtracts 4
fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, qs, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = f16(block, 108);
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        // Low nibbles of scales 0..8, then 8..16, in bytes 0..8; their top two bits, four to a byte, in bytes 8..12.
        let low = if sub < 8 { packed[sub] & 15 } else { packed[sub - 8] >> 4 };
        let top = packed[8 + sub % 4] >> (2 * (sub / 4)) & 3;
        let scale = d * (i32::from(low | top << 4) - 32) as f32;
        let (half, group, l) = split(sub);
        let (qs, high) = (&qs[32 * half + l..], &high[l..]);
        for ((o, q), h) in out.iter_mut().zip(qs).zip(high) {
            let clear = !(h >> (4 * half + group)) & 1;
            *o = scale * (i32::from(q >> (2 * group) & 3) - i32::from(clear << 2)) as f32;
        }
    }
}

/// Scale and min j of eight, six bits each, from 12 bytes: 0..4 plainly in bytes 0..8, 4..8 in the nibbles of bytes
/// 8..12 and the spare top bits of bytes 0..8.
fn scale_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// `d | dmin | 12 bytes of scales and mins | 128 nibble pairs`: (d·scale)·q − (dmin·min), 32 elements a scale
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16(block, 0), f16(block, 2));
    let (packed, qs) = (&block[4..16], &block[16..144]);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(packed, sub);
        let (scale, min) = (d * scale, dmin * min);
        for (o, q) in out.iter_mut().zip(&qs[32 * (sub / 2)..]) {
            *o = scale * f32::from(q >> (4 * (sub % 2)) & 15) - min;
        }
    }
}

/// `d | dmin | 12 bytes of scales and mins | 32 bytes of fifth bits | 128 nibble pairs`: as Q4_K; bit `sub` of byte l
/// is the fifth bit
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16(block, 0), f16(block, 2));
    let (packed, high, qs) = (&block[4..16], &block[16..48], &block[48..176]);
    for (sub, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(packed, sub);
        let (scale, min) = (d * scale, dmin * min);
        for ((o, q), h) in out.iter_mut().zip(&qs[32 * (sub / 2)..]).zip(high) {
            let q = q >> (4 * (sub % 2)) & 15 | (h >> sub & 1) << 4;
            *o = scale * f32::from(q) - min;
        }
    }
}

/// `128 nibble pairs | 64 bytes of four 2-bit groups | 16 × i8 scale | d`: (d·scale)·(q − 32), 16 elements a scale
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = f16(block, 208);
    for (sub, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[sub] as i8);
        let (half, group, l) = split(sub);
        // Groups 0 and 1 are the low nibbles of two runs of 32 bytes, groups 2 and 3 their high nibbles.
        let low = &low[64 * half + 32 * (group % 2) + l..];
        let high = &high[32 * half + l..];
        for ((o, q), h) in out.iter_mut().zip(low).zip(high) {
            let q = q >> (4 * (group / 2)) & 15 | (h >> (2 * group) & 3) << 4;
            *o = scale * (i32::from(q) - 32) as f32;
        }
    }
}
