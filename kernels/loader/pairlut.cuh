// pairlut.1 records (FORMAT.md, section 3) as A fragments.
//
// A lane owns 32 weights of a tile: 32 bytes of L, three code words, and 32 bytes of the delta plane, a kilobyte of this
// warp's shared memory that is zero but where a patch lane has just put the XOR of its element. One byte permute looks up
// four H bytes, another interleaves two of them with their L: 45 integer instructions for 32 weights.
#pragma once
#include "../common/abi.cuh"
#include "../common/ptx.cuh"

struct LoadPairlut {
    static constexpr uint32_t scratch = 1024;

    __device__ __forceinline__ static void locate(const Matrix& m, uint32_t block, uint32_t i, uint32_t records,
                                                  uint32_t tiles, uint64_t& first, uint32_t& bytes) {
        const uint32_t* at = m.index + (uint64_t)block * records + i;
        const uint32_t a = __ldg(at), b = __ldg(at + 1);
        first = (uint64_t)a * 16;
        bytes = (b - a) * 16;
    }

    template <class Use>
    __device__ __forceinline__ static void tile(const uint8_t* slot, uint32_t t, uint32_t tiles, uint8_t* delta, Use use) {
        const uint4 header = *(const uint4*)slot;
        const uint32_t mode = header.x >> 13 & 3;
        if (mode == 2) return raw_tile(slot + 16 + t * 2048, use);
        const uint64_t ends = header.x | (uint64_t)header.y << 32;
        const uint32_t from = t == 0 ? 0 : ends >> (16 * t - 16) & 0x1fff, to = ends >> (16 * t) & 0x1fff;
        const bool wide = header.x & 0x8000, shifted = header.x >> 31;
        const uint32_t head = mode ? 32 : 16, stride = mode ? 1536 : 1408;
        const uint8_t* patches = slot + head + tiles * stride;
        write_patches(patches, from, to, wide, delta, false);
        __syncwarp();  // every patch is in the plane
        const uint8_t* planes = slot + head + t * stride;
        if (mode == 0) {
            if (shifted) coded<true>(planes, header.z, header.w, delta, use);
            else coded<false>(planes, header.z, header.w, delta, use);
        } else {
            wide_coded(planes, slot, shifted, delta, use);
        }
        __syncwarp();  // every lane has read the plane
        write_patches(patches, from, to, wide, delta, true);
        __syncwarp();  // the plane is zero again
    }

  private:
    // Puts the XOR bytes of patches [from, to) into the plane, or zeros there.
    __device__ __forceinline__ static void write_patches(const uint8_t* patches, uint32_t from, uint32_t to, bool wide,
                                                         uint8_t* delta, bool clear) {
        for (uint32_t k = from + (threadIdx.x & 31); k < to; k += 32) {
            const uint32_t v = wide ? ((const uint32_t*)patches)[k] : ((const uint16_t*)patches)[k];
            delta[v & 1023] = clear ? 0 : wide ? v >> 16 : v >> 10;
        }
    }

    // Interleaves four H and four L bytes into two registers of two bf16 each.
    template <bool SHIFTED>
    __device__ __forceinline__ static void join(uint32_t low, uint32_t high, uint32_t& a, uint32_t& b) {
        a = __byte_perm(low, high, 0x5140);
        b = __byte_perm(low, high, 0x7362);
        if (SHIFTED) {
            // Each stored half is at least 0x0080, so the subtraction never borrows from its neighbour.
            a -= 0x00800080;
            b -= 0x00800080;
        }
    }

    template <bool SHIFTED, class Use>
    __device__ __forceinline__ static void coded(const uint8_t* planes, uint32_t t0, uint32_t t1, const uint8_t* delta, Use use) {
        const int lane = threadIdx.x & 31;
        const uint4* low = (const uint4*)planes + lane;
        const uint32_t* code = (const uint32_t*)(planes + 1024) + lane;
        const uint4* xors = (const uint4*)delta + lane;
        const uint32_t w0 = code[0], w1 = code[32], w2 = code[64];
        uint32_t sel[4] = {w0 & 0x77777777, w1 & 0x77777777, w2 & 0x77777777, 0};
        sel[3] = (w0 >> 3 & 0x11111111) | (w1 >> 2 & 0x22222222) | (w2 >> 1 & 0x44444444);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 l = low[h * 32], x = xors[h * 32];
            const uint32_t ls[4] = {l.x, l.y, l.z, l.w}, xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t s = sel[2 * h + i];
                uint32_t a[4];
                join<SHIFTED>(ls[2 * i], __byte_perm(t0, t1, s) ^ xs[2 * i], a[0], a[1]);
                join<SHIFTED>(ls[2 * i + 1], __byte_perm(t0, t1, s >> 16) ^ xs[2 * i + 1], a[2], a[3]);
                use(2 * h + i, a);
            }
        }
    }

    // Four H bytes of 4-bit codes: both halves of the table, chosen by bit 3 of each code.
    __device__ __forceinline__ static uint32_t look_up16(const uint4& a, const uint2& b, uint32_t sel) {
        const uint32_t low = __byte_perm(a.z, a.w, sel & 0x7777), high = __byte_perm(b.x, b.y, sel & 0x7777);
        uint32_t pick = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) pick |= (sel >> (4 * i + 3) & 1) * (0xffu << (8 * i));
        return (low & ~pick) | (high & pick);
    }

    template <class Use>
    __device__ __forceinline__ static void wide_coded(const uint8_t* planes, const uint8_t* slot, bool shifted,
                                                      const uint8_t* delta, Use use) {
        const int lane = threadIdx.x & 31;
        const uint4 table = *(const uint4*)slot;
        const uint2 table2 = *(const uint2*)(slot + 16);
        const uint32_t minus = shifted ? 0x00800080 : 0;
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint2 l = *(const uint2*)(planes + 512 * (s / 2) + 16 * lane + 8 * (s % 2));
            const uint2 x = *(const uint2*)(delta + 512 * (s / 2) + 16 * lane + 8 * (s % 2));
            const uint32_t sel = ((const uint32_t*)(planes + 1024))[32 * s + lane];
            uint32_t a[4];
            join<false>(l.x, look_up16(table, table2, sel) ^ x.x, a[0], a[1]);
            join<false>(l.y, look_up16(table, table2, sel >> 16) ^ x.y, a[2], a[3]);
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] -= minus;
            use(s, a);
        }
    }

    template <class Use>
    __device__ __forceinline__ static void raw_tile(const uint8_t* words, Use use) {
        const uint4* at = (const uint4*)words + (threadIdx.x & 31);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint4 v = at[s * 32];
            const uint32_t a[4] = {v.x, v.y, v.z, v.w};
            use(s, a);
        }
    }
};
