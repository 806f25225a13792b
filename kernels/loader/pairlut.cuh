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

    // Where record i of a row block lies; reading the index is split off so that it can be done a record ahead.
    struct Place {
        uint32_t a, b;
        __device__ __forceinline__ uint64_t first() const { return (uint64_t)a * 16; }
        __device__ __forceinline__ uint32_t bytes() const { return (b - a) * 16; }
    };

    __device__ __forceinline__ static Place locate(const Matrix& m, uint32_t block, uint32_t i, uint32_t records, uint32_t tiles) {
        const uint32_t* at = m.index + (uint64_t)block * records + i;
        return {__ldg(at), __ldg(at + 1)};
    }

    template <class Use>
    __device__ __forceinline__ static void tile(const uint8_t* slot, uint32_t t, uint32_t tiles, uint8_t* delta, Use use) {
        // Nearly all records are in 3-bit mode: read its planes while the header is on its way. In another mode these reads
        // lie inside the (larger) record and are dropped.
        const Planes p = Planes::read(slot + 16 + t * 1408);
        const uint4 header = *(const uint4*)slot;
        const uint64_t ends = header.x | (uint64_t)header.y << 32;
        const uint32_t from = t == 0 ? 0 : ends >> (16 * t - 16) & 0x1fff, to = ends >> (16 * t) & 0x1fff;
        const bool wide = header.x & 0x8000, shifted = header.x >> 31;
        if ((header.x & 0xe000) == 0) {
            Patch patch(slot + 16 + tiles * 1408, from, to, delta);
            if (shifted) coded<true>(p, header.z, header.w, delta, use);
            else coded<false>(p, header.z, header.w, delta, use);
            patch.clear(slot + 16 + tiles * 1408, from, to, delta);
        } else {
            rare(slot, header, from, to, wide, shifted, t, tiles, delta, use);
        }
    }

  private:
    // What a lane reads of a 3-bit tile.
    struct Planes {
        uint4 low[2];
        uint32_t code[3];

        __device__ __forceinline__ static Planes read(const uint8_t* at) {
            const int lane = threadIdx.x & 31;
            const uint32_t* code = (const uint32_t*)(at + 1024) + lane;
            return {{((const uint4*)at)[lane], ((const uint4*)at)[lane + 32]}, {code[0], code[32], code[64]}};
        }
    };

    // Narrow patches, one a lane; the lane remembers its place so that clearing costs no read. More than 32 are rare.
    struct Patch {
        uint32_t at;
        bool mine;

        __device__ __forceinline__ Patch(const uint8_t* patches, uint32_t from, uint32_t to, uint8_t* delta) {
            const uint32_t k = from + (threadIdx.x & 31);
            mine = k < to;
            at = 0;
            if (mine) {
                const uint32_t v = ((const uint16_t*)patches)[k];
                at = v & 1023;
                delta[at] = v >> 10;
            }
            if (to - from > 32) write_patches(patches, from + 32, to, false, delta, false);
            __syncwarp();  // every patch is in the plane
        }

        __device__ __forceinline__ void clear(const uint8_t* patches, uint32_t from, uint32_t to, uint8_t* delta) const {
            __syncwarp();  // every lane has read the plane
            if (mine) delta[at] = 0;
            if (to - from > 32) write_patches(patches, from + 32, to, false, delta, true);
            __syncwarp();  // the plane is zero again
        }
    };

    // 4-bit and raw records, and those with wide patches.
    template <class Use>
    __device__ __forceinline__ static void rare(const uint8_t* slot, uint4 header, uint32_t from, uint32_t to, bool wide,
                                             bool shifted, uint32_t t, uint32_t tiles, uint8_t* delta, Use use) {
        const uint32_t mode = header.x >> 13 & 3;
        if (mode == 2) return raw_tile(slot + 16 + t * 2048, use);
        const uint32_t head = mode ? 32 : 16, stride = mode ? 1536 : 1408;
        const uint8_t* patches = slot + head + tiles * stride;
        write_patches(patches, from, to, wide, delta, false);
        __syncwarp();  // every patch is in the plane
        const uint8_t* planes = slot + head + t * stride;
        if (mode) wide_coded(planes, slot, shifted, delta, use);
        else if (shifted) coded<true>(Planes::read(planes), header.z, header.w, delta, use);
        else coded<false>(Planes::read(planes), header.z, header.w, delta, use);
        __syncwarp();  // every lane has read the plane
        write_patches(patches, from, to, wide, delta, true);
        __syncwarp();  // the plane is zero again
    }

    // Puts the XOR bytes of patches [from, to) into the plane, or zeros there.
    __device__ __forceinline__ static void write_patches(const uint8_t* patches, uint32_t from, uint32_t to, bool wide,
                                                         uint8_t* delta, bool clear) {
#pragma unroll 1
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
    __device__ __forceinline__ static void coded(const Planes& p, uint32_t t0, uint32_t t1, const uint8_t* delta, Use use) {
        const uint4* xors = (const uint4*)delta + (threadIdx.x & 31);
        const uint32_t w0 = p.code[0], w1 = p.code[1], w2 = p.code[2];
        uint32_t sel[4] = {w0 & 0x77777777, w1 & 0x77777777, w2 & 0x77777777, 0};
        sel[3] = (w0 >> 3 & 0x11111111) | (w1 >> 2 & 0x22222222) | (w2 >> 1 & 0x44444444);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 l = p.low[h], x = xors[h * 32];
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
