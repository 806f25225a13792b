// embed: residual ← rows of the embedding; notes each token in the history that penalties look at
// images: sm_80 sm_90a sm_100f sm_120f ptx_80
// agreement: same            order: none, nothing is added
//
// table  [vocab][cols]  loader L      tokens [n]      residual [n][cols] f32      history: by position
//
// grid: (records of a row, n); one block decodes the record that holds 256 columns of the token's row. A record is 16 rows,
// so 15/16 of what is decoded is dropped: 5.9 KB for 512 bytes, once a token and record; it is not worth another layout.
// bytes: cols/256 records a token. hidden 4096: 94 KB, 20 ns on 4.65 TB/s; latency decides, about 2 us
#include "common/abi.cuh"
#include "common/ptx.cuh"
#include "loader/loaders.cuh"

template <class L>
__device__ __forceinline__ void embed(const EmbedArgs& a) {
    __shared__ __align__(16) uint8_t scratch_all[4 * 1024];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, record = blockIdx.x, i = blockIdx.y;
    uint8_t* scratch = scratch_all + warp * 1024;
    if constexpr (L::scratch > 0)
        for (uint32_t k = lane * 16; k < L::scratch; k += 512) *(uint4*)(scratch + k) = make_uint4(0, 0, 0, 0);
    __syncwarp();
    wait_for_previous_kernel();
    // Only now: kernels behind this one read position and cache before they wait, and both are final from here on.
    let_next_kernel_start();
    const uint32_t token = *(volatile const uint32_t*)(a.tokens + i), pos = *(volatile const uint32_t*)a.pos;
    if (record == 0 && threadIdx.x == 0) a.history[pos + i] = token;
    // The sampler's "no token" stops here: a row that does not exist is not read.
    if (token >= a.m.rows) return;
    const uint32_t tiles = min(4u, a.tiles - 4 * record), want = token % 16;
    if (warp >= tiles) return;
    L::tile(L::record(a.m, token / 16, record, a.records, a.tiles), warp, tiles, scratch, [&](int s, const uint32_t (&w)[4]) {
        if (lane / 4 != want % 8) return;
        const uint32_t col = record * 256 + warp * 64 + 16 * (lane & 3) + 4 * s;
        const uint32_t pairs[2] = {want < 8 ? w[0] : w[1], want < 8 ? w[2] : w[3]};
        for (uint32_t c = 0; c < 4; c++)
            if (col + c < a.cols)
                a.residual[(uint64_t)i * a.cols + col + c] = bf16_to_f32(pairs[c / 2] >> (16 * (c & 1)));
    });
}

#define SNUG_KERNELS(FORMAT, LOADER)                                                                             \
    extern "C" __global__ void __launch_bounds__(128) snug_embed_##FORMAT(const __grid_constant__ EmbedArgs a) { \
        embed<LOADER>(a);                                                                                        \
    }
SNUG_LOADERS(SNUG_KERNELS)
