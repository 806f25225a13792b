// bf16 weights in tiles: 2,048 bytes a tile, the order of a raw pairlut record (FORMAT.md, section 3) without its header.
#pragma once
#include "../common/stream.cuh"

struct LoadBf16 {
    // A record of four tiles is streamed as two pieces: slots of 4 KiB let the ring fill shared memory.
    static constexpr uint32_t pieces = 2;
    // Every piece begins with a line of the cache.
    static constexpr bool aligned = true;
    // Bytes of shared memory a warp needs beside the ring.
    static constexpr uint32_t scratch = 0;

    // Where record i of a row block lies.
    __device__ __forceinline__ static const uint8_t* record(const Matrix& m, uint32_t block, uint32_t i, uint32_t, uint32_t tiles) {
        return m.data + ((uint64_t)block * tiles + 4 * i) * 2048;
    }

    // Where a piece of it lies. The last record may lack its second piece: 0 bytes.
    __device__ __forceinline__ static void locate(const Matrix& m, uint32_t block, uint32_t i, uint32_t piece, uint32_t records,
                                                  uint32_t tiles, Place* place) {
        const uint32_t first = 4 * i + 2 * piece;
        *place = {(uint64_t)record(m, block, i, records, tiles) + piece * 4096, 0, first < tiles ? min(2u, tiles - first) * 128 : 0};
    }

    // The four A fragments of the tile at `words`: `use(s, fragment)`.
    template <class Use>
    __device__ __forceinline__ static void words(const uint8_t* words, Use use) {
        const uint4* at = (const uint4*)words + (threadIdx.x & 31);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint4 v = at[s * 32];
            const uint32_t a[4] = {v.x, v.y, v.z, v.w};
            use(s, a);
        }
    }

    // Tile t of the record at `record`, in place.
    template <class Use>
    __device__ __forceinline__ static void tile(const uint8_t* record, uint32_t t, uint32_t, uint8_t*, Use use) {
        words(record + t * 2048, use);
    }

    // acc += piece · x; `done` is called when the slot has been read.
    template <class Done>
    __device__ __forceinline__ static void multiply(const uint8_t* slot, uint32_t piece, uint32_t tiles, uint8_t*,
                                                    const uint32_t (&x)[4][8], float (&acc)[4], Done done) {
#pragma unroll
        for (int t = 0; t < 2; t++)
            if (2 * piece + t < tiles)
                words(slot + t * 2048, [&](int s, const uint32_t (&w)[4]) {
                    mma_bf16(acc, w, x[2 * piece + t][2 * s], x[2 * piece + t][2 * s + 1]);
                });
        done();
    }
};
