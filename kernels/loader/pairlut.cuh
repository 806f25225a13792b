// pairlut.1 records (FORMAT.md, section 3) as A fragments.
//
// A lane owns 32 weights of a tile: 32 bytes of L, three code words, and 32 bytes of the delta plane, a kilobyte of this
// warp's shared memory that is zero but where a patch lane has just put the XOR of its element. One byte permute looks up
// four H bytes, another interleaves two of them with their L: 45 integer instructions for 32 weights.
#pragma once
#include "../common/stream.cuh"
#include "bf16.cuh"

struct LoadPairlut {
    // A record is streamed whole: its patches stand at the end.
    static constexpr uint32_t pieces = 1;
    static constexpr bool aligned = false;
    static constexpr uint32_t scratch = 1024;

    // Where record i of a row block lies.
    __device__ __forceinline__ static const uint8_t* record(const Matrix& m, uint32_t block, uint32_t i, uint32_t records, uint32_t) {
        return m.data + __ldg(m.index + (uint64_t)block * records + i) * 16ull;
    }

    // The same, into shared memory, while the warp goes on.
    __device__ __forceinline__ static void locate(const Matrix& m, uint32_t block, uint32_t i, uint32_t, uint32_t records,
                                                  uint32_t, Place* place) {
        const uint32_t* index = m.index + (uint64_t)block * records + i;
        place->base = (uint64_t)m.data;
        cp_async_4(shared_address(&place->begin), index);
        cp_async_4(shared_address(&place->end), index + 1);
    }

    // The header's fields that every lane needs.
    struct Header {
        uint32_t mode, wide, minus, ends[4], table[2];

        __device__ __forceinline__ Header(const uint8_t* record) {
            const uint4 v = *(const uint4*)record;
            mode = v.x >> 13 & 3;
            wide = v.x >> 15 & 1;
            minus = v.x >> 31 ? 0x00800080 : 0;
            ends[0] = v.x & 0x1fff, ends[1] = v.x >> 16 & 0x1fff, ends[2] = v.y & 0x1fff, ends[3] = v.y >> 16 & 0x1fff;
            table[0] = v.z, table[1] = v.w;
        }
    };

    // acc += record · x; `done` is called when the slot has been read.
    template <class Done>
    __device__ __forceinline__ static void multiply(const uint8_t* slot, uint32_t, uint32_t tiles, uint8_t* delta,
                                                    const uint32_t (&x)[4][8], float (&acc)[4], Done done) {
        const Header h(slot);
        const uint32_t most = max(max(h.ends[0], h.ends[1] - h.ends[0]), max(h.ends[2] - h.ends[1], h.ends[3] - h.ends[2]));
        if (h.mode == 0 && !h.wide && tiles == 4 && most <= 32) return common(slot, h, delta, x, acc, done);
#pragma unroll 1
        for (uint32_t t = 0; t < tiles; t++) {
            uint32_t b[8];
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (t == k) b[i] = x[k][i];  // registers have no index
            tile(slot, t, tiles, delta, [&](int s, const uint32_t (&w)[4]) { mma_bf16(acc, w, b[2 * s], b[2 * s + 1]); });
        }
        done();
    }

    // Tile t of any record: `use(s, fragment)` for its k-steps. Short rather than fast: other modes are rare.
    template <class Use>
    __device__ __forceinline__ static void tile(const uint8_t* record, uint32_t t, uint32_t tiles, uint8_t* delta, Use use) {
        const Header h(record);
        if (h.mode == 2) return LoadBf16::words(record + 16 + t * 2048, use);
        const uint32_t head = h.mode ? 32 : 16, stride = h.mode ? 1536 : 1408, lane = threadIdx.x & 31;
        const uint8_t* patches = record + head + tiles * stride;
        uint32_t from = 0, to = h.ends[0];
#pragma unroll
        for (int k = 1; k < 4; k++)
            if (t >= k) from = h.ends[k - 1], to = h.ends[k];
        write_patches(patches, from + lane, to, h.wide, delta, false);
        __syncwarp();  // every patch is in the plane
        const uint8_t* planes = record + head + t * stride;
        const uint32_t* code = (const uint32_t*)(planes + 1024) + lane;
        const uint2 table2 = h.mode ? *(const uint2*)(record + 16) : make_uint2(h.table[0], h.table[1]);
        uint32_t sel[4] = {code[0], code[32], code[64], 0};
        if (h.mode) sel[3] = code[96];
        else spread(sel);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint2 l = ((const uint2*)(planes + 512 * (s / 2) + 16 * lane))[s % 2];
            const uint2 d = ((const uint2*)(delta + 512 * (s / 2) + 16 * lane))[s % 2];
            const uint32_t hi[2] = {look_up16(h.table, table2, sel[s]) ^ d.x, look_up16(h.table, table2, sel[s] >> 16) ^ d.y};
            uint32_t a[4];
            join(l.x, hi[0], h.minus, a[0], a[1]);
            join(l.y, hi[1], h.minus, a[2], a[3]);
            use(s, a);
        }
        __syncwarp();  // every lane has read the plane
        write_patches(patches, from + lane, to, h.wide, delta, true);
        __syncwarp();  // the plane is zero again
    }

  private:
    // Puts the XOR bytes of patches k, k + 32, … < to into the plane, or zeros there.
    __device__ __forceinline__ static void write_patches(const uint8_t* patches, uint32_t k, uint32_t to, bool wide,
                                                         uint8_t* delta, bool clear) {
        for (; k < to; k += 32) {
            const uint32_t v = wide ? ((const uint32_t*)patches)[k] : ((const uint16_t*)patches)[k];
            delta[v & 1023] = clear ? 0 : wide ? v >> 16 : v >> 10;
        }
    }

    // The eight 3-bit codes of k-step 3, from the spare bits of the other three code words, which lose them.
    __device__ __forceinline__ static void spread(uint32_t (&sel)[4]) {
        sel[3] = (sel[0] >> 3 & 0x11111111) | (sel[1] >> 2 & 0x22222222) | (sel[2] >> 1 & 0x44444444);
        sel[0] &= 0x77777777, sel[1] &= 0x77777777, sel[2] &= 0x77777777;
    }

    // Interleaves four H and four L bytes into two registers of two bf16 each. `minus` undoes the shift: each stored half is
    // at least 0x0080 then, so that the subtraction never borrows from its neighbour.
    __device__ __forceinline__ static void join(uint32_t low, uint32_t high, uint32_t minus, uint32_t& a, uint32_t& b) {
        a = permute(low, high, 0x5140) - minus;
        b = permute(low, high, 0x7362) - minus;
    }

    // Four H bytes of 4-bit codes: both halves of the table, chosen by bit 3 of each code. A byte permute repeats the sign
    // of a byte when bit 3 of its selector is set: 0x80 gives 0xff then, and 0x80 otherwise.
    __device__ __forceinline__ static uint32_t look_up16(const uint32_t (&table)[2], uint2 table2, uint32_t sel) {
        const uint32_t low = permute(table[0], table[1], sel & 0x7777), high = permute(table2.x, table2.y, sel & 0x7777);
        const uint32_t pick = (permute(0x80808080, 0x80808080, sel) & 0x01010101) * 255;
        return (low & ~pick) | (high & pick);
    }

    // What a lane needs of a tile, in registers.
    struct Tile {
        uint4 low[2], delta[2];
        uint32_t sel[4];
    };

    // Reads tile t. `patch` is this lane's patch of the tile, if there is one; `plane` the address of `delta`.
    __device__ __forceinline__ static void fetch(const uint8_t* slot, int t, bool patched, uint32_t patch, const uint8_t* delta,
                                                 uint32_t plane, Tile& tile) {
        const uint32_t lane = threadIdx.x & 31, at = (patch & 1023) | plane;
        const uint8_t* planes = slot + 16 + t * 1408;
        if (patched) store_byte(at, patch >> 10);
        __syncwarp();  // every patch is in the plane
#pragma unroll
        for (int i = 0; i < 2; i++) {
            tile.delta[i] = ((const uint4*)delta)[32 * i + lane];
            tile.low[i] = ((const uint4*)planes)[32 * i + lane];
        }
#pragma unroll
        for (int i = 0; i < 3; i++) tile.sel[i] = ((const uint32_t*)(planes + 1024))[32 * i + lane];
        __syncwarp();  // every lane has read the plane
        if (patched) store_byte(at, 0);
        __syncwarp();  // the plane is zero again
    }

    // Four tiles of 3-bit codes and at most 32 narrow patches each: nearly every record. No branches: what a lane needs of the
    // next tile is read while one is decoded.
    template <class Done>
    __device__ __forceinline__ static void common(const uint8_t* slot, const Header& h, uint8_t* delta,
                                                  const uint32_t (&x)[4][8], float (&acc)[4], Done done) {
        const uint32_t lane = threadIdx.x & 31, plane = shared_address(delta);
        const uint16_t* patches = (const uint16_t*)(slot + 16 + 4 * 1408) + lane;
        uint32_t patch[4];
        bool patched[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint32_t from = t ? h.ends[t - 1] : 0;
            patched[t] = lane < h.ends[t] - from;
            patch[t] = patched[t] ? patches[from] : 0;
        }
        Tile tile[2];
        fetch(slot, 0, patched[0], patch[0], delta, plane, tile[0]);
#pragma unroll
        for (int t = 0; t < 4; t++) {
            if (t < 3) fetch(slot, t + 1, patched[t + 1], patch[t + 1], delta, plane, tile[(t + 1) % 2]);
            else done();
            Tile& now = tile[t % 2];
            spread(now.sel);
            const uint32_t* low = (const uint32_t*)now.low;
            const uint32_t* xors = (const uint32_t*)now.delta;
#pragma unroll
            for (int s = 0; s < 4; s++) {
                uint32_t a[4];
                join(low[2 * s], permute(h.table[0], h.table[1], now.sel[s]) ^ xors[2 * s], h.minus, a[0], a[1]);
                join(low[2 * s + 1], permute(h.table[0], h.table[1], now.sel[s] >> 16) ^ xors[2 * s + 1], h.minus, a[2], a[3]);
                mma_bf16(acc, a, x[t][2 * s], x[t][2 * s + 1]);
            }
        }
    }
};
