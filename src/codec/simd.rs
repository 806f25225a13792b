#![allow(unsafe_code)]
//! Decoding one record into words, with the widest instructions the machine has.
//!
//! Every level gives the same bits. A tile's codes lie in planes of one k-step each, its low bytes in units of two
//! k-steps; all levels pair the planes of the two k-steps, turn codes into high bytes with one table look-up, and
//! interleave those with the low bytes. Patches are applied afterwards, to words that are still in the first-level
//! cache: 1 to 2 % of the elements, so that a plane of differences would cost more than it saves.

use std::fmt;
use std::sync::LazyLock;

use super::pairlut::{Header, Mode, RECORD_TILES, TILE};

/// Vector instructions that this machine has: holding a value is the proof, because only [`Level::available`] makes
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level(Isa);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Isa {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

static AVAILABLE: LazyLock<Vec<Level>> =
    LazyLock::new(|| [vec![Level(Isa::Scalar)], detect()].concat());

/// The vector levels of this machine.
fn detect() -> Vec<Level> {
    #[cfg(not(target_arch = "x86_64"))]
    return Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let mut levels = Vec::new();
        if is_x86_feature_detected!("avx2") {
            levels.push(Level(Isa::Avx2));
        }
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vbmi")
        {
            levels.push(Level(Isa::Avx512));
        }
        levels
    }
}

static BEST: LazyLock<Level> = LazyLock::new(|| AVAILABLE[AVAILABLE.len() - 1]);

impl Level {
    /// Every level this machine has, the plainest first. There is always a scalar one.
    pub fn available() -> &'static [Level] {
        &AVAILABLE
    }

    /// The widest level this machine has.
    #[inline]
    pub fn best() -> Level {
        *BEST
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Isa::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
        })
    }
}

/// Decodes a record of `tiles` tiles into `out`: `tiles` × 1024 bf16 words, each tile in the order of positions
/// (`pairlut::fragment`). Patches are applied and the shift is undone.
///
/// # Panics
/// When `out` has another size, or the record has not passed validation. Never reads or writes elsewhere.
pub fn decode_record(record: &[u8], tiles: usize, out: &mut [u16]) {
    decode_record_with(Level::best(), record, tiles, out);
}

/// [`decode_record`] with a given level of instructions.
///
/// # Panics
/// As [`decode_record`].
pub fn decode_record_with(level: Level, record: &[u8], tiles: usize, out: &mut [u16]) {
    assert!(tiles <= RECORD_TILES && out.len() == tiles * TILE, "room for {tiles} tiles");
    let header = Header::read(record).expect("the record has been validated");
    let (head, body) = record.split_at(header.mode.header_bytes());
    let (blocks, patches) = body.split_at(tiles * header.mode.tile_bytes());
    let out = out.as_chunks_mut::<TILE>().0;
    let blocks = blocks.chunks_exact(header.mode.tile_bytes());
    if header.mode == Mode::Raw {
        blocks.zip(out).for_each(|(block, out)| decode_raw(block, out));
        return;
    }
    // The table of the 3-bit mode twice over: bit 3 of its codes belongs to another k-step and must not matter.
    let mut table = [0; 16];
    let entries = header.mode.entries();
    for half in table.chunks_exact_mut(entries) {
        half.copy_from_slice(&head[8..8 + entries]);
    }
    match level.0 {
        Isa::Scalar => scalar::decode(&header, &table, blocks, out),
        // SAFETY: a level is only made after its instructions have been detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::decode(&header, &table, blocks, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512::decode(&header, &table, blocks, out) },
    }
    let shift = header.shift();
    for (t, out) in out.iter_mut().enumerate() {
        let of_tile = header.patch_range(t);
        if header.wide {
            for patch in &patches.as_chunks().0[of_tile] {
                let patch = u32::from_le_bytes(*patch);
                apply(out, patch as usize, (patch >> 16) as u16, shift);
            }
        } else {
            for patch in &patches.as_chunks().0[of_tile] {
                let patch = u16::from_le_bytes(*patch);
                apply(out, usize::from(patch), patch >> 10, shift);
            }
        }
    }
}

/// Exchanges a high byte; the shift has been undone, so it is done again around it.
#[inline(always)]
fn apply(out: &mut [u16; TILE], position: usize, xor: u16, shift: u16) {
    let word = &mut out[position & (TILE - 1)];
    *word = (word.wrapping_add(shift) ^ xor << 8).wrapping_sub(shift);
}

/// A raw tile keeps the k-steps of a lane 512 bytes apart.
fn decode_raw(block: &[u8], out: &mut [u16; TILE]) {
    for (unit, eight) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (half, lane, odd) = (unit / 64, unit / 2 % 32, unit % 2);
        let from = 512 * (2 * half + odd) + 16 * lane;
        for (w, pair) in eight.iter_mut().zip(block[from..from + 16].as_chunks::<2>().0) {
            *w = u16::from_le_bytes(*pair);
        }
    }
}

/// Low bytes and code planes of a tile. Four planes in the 4-bit mode, else three.
#[inline]
fn split(block: &[u8]) -> (&[u8; TILE], &[[u8; 128]]) {
    let (low, planes) = block.split_first_chunk().expect("a tile begins with its low bytes");
    (low, planes.as_chunks().0)
}

mod scalar {
    use super::*;

    /// The 3-bit mode's spare bits, one of each code of k-step 3 a plane.
    const SPARE: u32 = 0x8888_8888;

    pub(super) fn decode<'a>(
        header: &Header,
        table: &[u8; 16],
        blocks: impl Iterator<Item = &'a [u8]>,
        out: &mut [[u16; TILE]],
    ) {
        // Two codes at a time: a byte of codes gives two high bytes, already in place for two words.
        let mut pairs = [[0u16; 2]; 256];
        for (byte, pair) in pairs.iter_mut().enumerate() {
            *pair = [byte % 16, byte / 16].map(|code| u16::from(table[code]) << 8);
        }
        let shift = header.shift();
        for (block, out) in blocks.zip(out) {
            let (low, planes) = split(block);
            for (unit, (out, low)) in
                out.as_chunks_mut::<8>().0.iter_mut().zip(low.as_chunks::<8>().0).enumerate()
            {
                let (step, lane) = (2 * (unit / 64) + unit % 2, unit / 2 % 32);
                let word = codes(header.mode, planes, step, lane);
                let codes = word.to_le_bytes().map(|byte| pairs[usize::from(byte)]);
                for (i, w) in out.iter_mut().enumerate() {
                    *w = (codes[i / 2][i % 2] | u16::from(low[i])).wrapping_sub(shift);
                }
            }
        }
    }

    /// The eight codes of a lane in a k-step. Bit 3 of a 3-bit code is left undefined.
    #[inline(always)]
    fn codes(mode: Mode, planes: &[[u8; 128]], step: usize, lane: usize) -> u32 {
        let word = |s: usize| u32::from_le_bytes(planes[s].as_chunks().0[lane]);
        if mode == Mode::Bits4 || step < 3 {
            return word(step);
        }
        (word(0) & SPARE) >> 3 | (word(1) & SPARE) >> 2 | (word(2) & SPARE) >> 1
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::*;

    #[target_feature(enable = "avx2")]
    pub(super) fn decode<'a>(
        header: &Header,
        table: &[u8; 16],
        blocks: impl Iterator<Item = &'a [u8]>,
        out: &mut [[u16; TILE]],
    ) {
        let table = _mm256_broadcastsi128_si256(load128(table));
        let shift = _mm256_set1_epi16(header.shift() as i16);
        for (block, out) in blocks.zip(out) {
            let (low, planes) = split(block);
            let mut planes4 = [[0; 128]; 4];
            planes4[..planes.len()].copy_from_slice(planes);
            if header.mode == Mode::Bits3 {
                spare_plane(&mut planes4);
            }
            let mut to = low.as_chunks().0.iter().zip(out.as_chunks_mut().0);
            for [even, odd] in planes4.as_chunks().0 {
                let lanes = even.as_chunks().0.iter().zip(odd.as_chunks().0);
                for ((even, odd), (low, out)) in lanes.zip(&mut to) {
                    four_lanes(load128(even), load128(odd), table, shift, low, out);
                }
            }
        }
    }

    /// Gathers the codes of k-step 3 from the spare bits of the other planes.
    #[target_feature(enable = "avx2")]
    fn spare_plane(planes: &mut [[u8; 128]; 4]) {
        let bit = |b: i32| _mm256_set1_epi32(0x1111_1111 << b);
        let [p0, p1, p2, p3] = planes;
        for i in 0..4 {
            let at = |plane: &[u8; 128]| load256(&plane.as_chunks().0[i]);
            let b0 = _mm256_and_si256(_mm256_srli_epi32::<3>(at(p0)), bit(0));
            let b1 = _mm256_and_si256(_mm256_srli_epi32::<2>(at(p1)), bit(1));
            let b2 = _mm256_and_si256(_mm256_srli_epi32::<1>(at(p2)), bit(2));
            let all = _mm256_or_si256(_mm256_or_si256(b0, b1), b2);
            let to: &mut [u8; 32] = &mut p3.as_chunks_mut().0[i];
            // SAFETY: `to` is 32 bytes long; the store needs no alignment.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), all) };
        }
    }

    /// Decodes four lanes of one half of a tile: codes of its two k-steps, 64 low bytes, 64 words.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn four_lanes(
        even: __m128i,
        odd: __m128i,
        table: __m256i,
        shift: __m256i,
        low: &[u8; 64],
        out: &mut [u16; 64],
    ) {
        let lanes = [_mm_unpacklo_epi32(even, odd), _mm_unpackhi_epi32(even, odd)];
        for ((lanes, low), out) in
            lanes.into_iter().zip(low.as_chunks().0).zip(out.as_chunks_mut::<32>().0)
        {
            // A byte of two codes becomes two bytes of one code each.
            let wide = _mm256_cvtepu8_epi16(lanes);
            let codes = _mm256_and_si256(
                _mm256_or_si256(wide, _mm256_slli_epi16::<4>(wide)),
                _mm256_set1_epi8(0x0f),
            );
            let high = _mm256_shuffle_epi8(table, codes);
            let low = load256(low);
            let a = _mm256_sub_epi16(_mm256_unpacklo_epi8(low, high), shift);
            let b = _mm256_sub_epi16(_mm256_unpackhi_epi8(low, high), shift);
            let first = _mm256_permute2x128_si256::<0x20>(a, b);
            let second = _mm256_permute2x128_si256::<0x31>(a, b);
            let to = out.as_mut_ptr().cast::<__m256i>();
            // SAFETY: `out` is 64 bytes long: two stores of 32, which need no alignment.
            unsafe {
                _mm256_storeu_si256(to, first);
                _mm256_storeu_si256(to.add(1), second);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load128(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the array is 16 bytes long; the load needs no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load256(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: the array is 32 bytes long; the load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::*;

    /// Sixteen lanes of two k-steps → four lanes, both k-steps of a lane side by side. Each code word goes to the
    /// lower half of a 64-bit unit. Units alternate between the halves of the four lanes, because that is how
    /// `unpack` wants them: its lower results are then the first 32 words.
    const PAIRS: [[i32; 16]; 4] = {
        let order = [0, 4, 1, 5, 2, 6, 3, 7];
        let mut index = [[0; 16]; 4];
        let mut q = 0;
        while q < 4 {
            let mut i = 0;
            while i < 8 {
                // Unit u holds lane u / 2, k-step u % 2; the second k-step comes from the second operand.
                let unit = order[i];
                index[q][2 * i] = 4 * q as i32 + unit / 2 + 16 * (unit % 2);
                i += 1;
            }
            q += 1;
        }
        index
    };

    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(super) fn decode<'a>(
        header: &Header,
        table: &[u8; 16],
        blocks: impl Iterator<Item = &'a [u8]>,
        out: &mut [[u16; TILE]],
    ) {
        // SAFETY: the array is 16 bytes long; the load needs no alignment.
        let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
        let table = _mm512_broadcast_i32x4(table);
        let shift = _mm512_set1_epi16(header.shift() as i16);
        for (block, out) in blocks.zip(out) {
            fetch_ahead(block);
            let (low, bytes) = split(block);
            let mut planes = [[_mm512_setzero_si512(); 2]; 4];
            for (plane, bytes) in planes.iter_mut().zip(bytes) {
                let (halves, _) = bytes.as_chunks();
                *plane = [load(&halves[0]), load(&halves[1])];
            }
            if header.mode == Mode::Bits3 {
                planes[3] = [0, 1].map(|i| spare(planes[0][i], planes[1][i], planes[2][i]));
            }
            let mut to = low.as_chunks().0.iter().zip(out.as_chunks_mut().0);
            for [even, odd] in planes.as_chunks().0 {
                for (&even, &odd) in even.iter().zip(odd) {
                    for (pairs, (low, out)) in PAIRS.iter().zip(&mut to) {
                        let codes = _mm512_permutex2var_epi32(even, index(pairs), odd);
                        four_lanes(codes, table, shift, low, out);
                    }
                }
            }
        }
    }

    /// Asks for the bytes 4 KiB after this tile: some three tiles on, in the same record or the next. Decoding is so
    /// much faster than memory that the hardware's own prefetching does not keep ahead of it. (Beyond the last record
    /// the request is in vain.)
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn fetch_ahead(block: &[u8]) {
        const LINE: usize = 64;
        const AHEAD: usize = 4096;
        for line in (0..block.len()).step_by(LINE) {
            let at = block.as_ptr().wrapping_add(line + AHEAD);
            _mm_prefetch::<_MM_HINT_T1>(at.cast());
        }
    }

    /// Gathers the codes of k-step 3 from the spare bits of the other planes; bit 3 of each is arbitrary.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn spare(p0: __m512i, p1: __m512i, p2: __m512i) -> __m512i {
        const SELECT: i32 = 0xca; // first ? second : third
        let (b0, b1) = (_mm512_srli_epi32::<3>(p0), _mm512_srli_epi32::<2>(p1));
        let b01 = _mm512_ternarylogic_epi32::<SELECT>(_mm512_set1_epi32(0x1111_1111), b0, b1);
        let b2 = _mm512_srli_epi32::<1>(p2);
        _mm512_ternarylogic_epi32::<SELECT>(_mm512_set1_epi32(0x4444_4444), b2, b01)
    }

    /// Decodes four lanes of one half of a tile: their code words, 64 low bytes, 64 words.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn four_lanes(
        codes: __m512i,
        table: __m512i,
        shift: __m512i,
        low: &[u8; 64],
        out: &mut [u16; 64],
    ) {
        // Byte j of a unit: the eight bits from 4j on. The look-up reads six of them, and the table repeats every
        // sixteen entries, so what follows the code does not matter.
        let nibbles = _mm512_set1_epi64(0x1c18_1410_0c08_0400);
        let high = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(nibbles, codes), table);
        let alternate = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        let low = _mm512_permutexvar_epi64(alternate, load(low));
        let first = _mm512_sub_epi16(_mm512_unpacklo_epi8(low, high), shift);
        let second = _mm512_sub_epi16(_mm512_unpackhi_epi8(low, high), shift);
        let to = out.as_mut_ptr().cast::<__m512i>();
        // SAFETY: `out` is 128 bytes long: two stores of 64, which need no alignment.
        unsafe {
            _mm512_storeu_si512(to, first);
            _mm512_storeu_si512(to.add(1), second);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn load(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: the array is 64 bytes long; the load needs no alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn index(lanes: &[i32; 16]) -> __m512i {
        // SAFETY: the array is 64 bytes long; the load needs no alignment.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    }
}
