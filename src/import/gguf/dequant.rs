//! Quantised blocks → float32 → bf16.
//!
//! Values are formed with the roundings of the format's reference implementation: scales are products rounded to
//! float32 first, then one product and at most one sum an element, never fused. Elements of a super-block of 256
//! are numbered e = 128·half + 32·group + l; a sub-block of 16 or 32 of them shares a scale.

use super::types::GgmlType;
use crate::num::{bf16_to_f32, f16_to_f32, f32_to_bf16};

/// Elements of the largest block.
const MAX_BLOCK: usize = 256;

/// Dequantises whole blocks: `out` has `bytes.len() / block_bytes · block_len` elements.
pub fn to_f32(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    check(ty, bytes, out.len());
    blocks(ty, bytes, |at, values| out[at..at + values.len()].copy_from_slice(values));
}

/// Dequantises whole blocks and rounds to the nearest bf16, ties to even. BF16 is copied bit for bit.
pub fn to_bf16(ty: GgmlType, bytes: &[u8], out: &mut [u16]) {
    check(ty, bytes, out.len());
    if ty == GgmlType::BF16 {
        for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *o = u16::from_le_bytes(*b);
        }
        return;
    }
    blocks(ty, bytes, |at, values| {
        for (o, v) in out[at..].iter_mut().zip(values) {
            *o = f32_to_bf16(*v);
        }
    });
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

/// Calls `sink` with the position and values of each block in turn.
fn blocks(ty: GgmlType, bytes: &[u8], mut sink: impl FnMut(usize, &[f32])) {
    let mut values = [0f32; MAX_BLOCK];
    let len = ty.block_len();
    for (i, block) in bytes.chunks_exact(ty.block_bytes()).enumerate() {
        let out = &mut values[..len];
        match ty {
            GgmlType::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            GgmlType::F16 => out[0] = f16(block, 0),
            GgmlType::BF16 => out[0] = bf16_to_f32(u16::from_le_bytes([block[0], block[1]])),
            GgmlType::Q4_0 => q4_0(block, out),
            GgmlType::Q4_1 => q4_1(block, out),
            GgmlType::Q5_0 => q5_0(block, out),
            GgmlType::Q5_1 => q5_1(block, out),
            GgmlType::Q8_0 => q8_0(block, out),
            GgmlType::Q2_K => q2_k(block, out),
            GgmlType::Q3_K => q3_k(block, out),
            GgmlType::Q4_K => q4_k(block, out),
            GgmlType::Q5_K => q5_k(block, out),
            GgmlType::Q6_K => q6_k(block, out),
        }
        sink(i * len, out);
    }
}

/// The half-precision number at byte `at`.
fn f16(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// Element i of 32 from 16 bytes: the low nibbles come first, then the high ones.
#[inline(always)]
fn nibble(qs: &[u8], i: usize) -> u8 {
    if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 }
}

/// `d | 16 nibble pairs`: d·(q − 8)
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = f16(block, 0);
    for (i, o) in out.iter_mut().enumerate() {
        *o = d * (i32::from(nibble(&block[2..], i)) - 8) as f32;
    }
}

/// `d | m | 16 nibble pairs`: d·q + m
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16(block, 0), f16(block, 2));
    for (i, o) in out.iter_mut().enumerate() {
        *o = d * f32::from(nibble(&block[4..], i)) + m;
    }
}

/// Fifth bit i of `qh`, in place.
#[inline(always)]
fn fifth(qh: &[u8], i: usize) -> u8 {
    (qh[i / 8] >> (i % 8) & 1) << 4
}

/// `d | 32 fifth bits | 16 nibble pairs`: d·(q − 16)
fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = f16(block, 0);
    for (i, o) in out.iter_mut().enumerate() {
        let q = nibble(&block[6..], i) | fifth(&block[2..6], i);
        *o = d * (i32::from(q) - 16) as f32;
    }
}

/// `d | m | 32 fifth bits | 16 nibble pairs`: d·q + m
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16(block, 0), f16(block, 2));
    for (i, o) in out.iter_mut().enumerate() {
        let q = nibble(&block[8..], i) | fifth(&block[4..8], i);
        *o = d * f32::from(q) + m;
    }
}

/// `d | 32 × i8`: d·q
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = f16(block, 0);
    for (o, q) in out.iter_mut().zip(&block[2..]) {
        *o = d * f32::from(*q as i8);
    }
}

/// `16 × (scale, min) nibbles | 64 bytes of four 2-bit groups | d | dmin`: (d·scale)·q − (dmin·min), 16 elements a scale
fn q2_k(block: &[u8], out: &mut [f32]) {
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
fn q3_k(block: &[u8], out: &mut [f32]) {
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
fn q4_k(block: &[u8], out: &mut [f32]) {
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
fn q5_k(block: &[u8], out: &mut [f32]) {
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
fn q6_k(block: &[u8], out: &mut [f32]) {
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
