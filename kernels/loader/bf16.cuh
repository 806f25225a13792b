// bf16 weights in tiles: 2,048 bytes a tile, the order of a raw pairlut record (FORMAT.md, section 3) without its header.
#pragma once
#include "../common/abi.cuh"
#include "../common/ptx.cuh"

struct LoadBf16 {
    // Where record i of a row block lies.
    struct Place {
        uint64_t at;
        uint32_t tiles;
        __device__ __forceinline__ uint64_t first() const { return at; }
        __device__ __forceinline__ uint32_t bytes() const { return tiles * 2048; }
    };

    __device__ __forceinline__ static Place locate(const Matrix& m, uint32_t block, uint32_t i, uint32_t records, uint32_t tiles) {
        return {((uint64_t)block * tiles + 4 * i) * 2048, min(4u, tiles - 4 * i)};
    }

    // Bytes of shared memory a warp needs beside the ring.
    static constexpr uint32_t scratch = 0;

    // Calls `use(s, fragment)` for the four k-steps of tile t of the record at `slot`.
    template <class Use>
    __device__ __forceinline__ static void tile(const uint8_t* slot, uint32_t t, uint32_t tiles, uint8_t* scratch_, Use use) {
        const uint4* words = (const uint4*)(slot + t * 2048) + (threadIdx.x & 31);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint4 v = words[s * 32];
            const uint32_t a[4] = {v.x, v.y, v.z, v.w};
            use(s, a);
        }
    }
};
