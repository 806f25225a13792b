// y = W·x for 1..8 tokens, W streamed once: the template behind qkv, proj, gate_up and head.
//
//   A block takes two row blocks (16 rows each) at a time; its eight warps split K by records of 256 columns, and each
//   warp streams its own records (stream.cuh) with no word to the others:
//
//     k →          record 0    1    2   …   7    8    9   …
//     row block A      w0     w1   w2       w7   w0   w1        order of warp 0:  A0 B0 A8 B8 A16 …
//     row block B      w0     w1   w2       w7   w0   w1                          └──┴ same 256 activations: in registers
//
//   x is the B operand of the mma: eight columns, one a token. Absent tokens are zero registers, so one token costs what
//   eight do and sums in the same order. The partial sums of a pair of row blocks meet in shared memory, where one warp a
//   token, another one each time, folds them: two sets of sums, so that the others are already at the next pair.
//
// Order of sums (WARPS8): a warp's records ascending, k-steps ascending inside, then warps ascending. Nothing in it depends
// on the number of tokens, blocks or multiprocessors, on what shares the launch, or on the weight's format.
#pragma once
#include "func.cuh"
#include "norm.cuh"
#include "stream.cuh"

// RMSNorm(residual)·weight of every token into shared memory, with the bits of norm.cuh. Two tokens at a time: enough loads
// in flight, and rows of up to 4,096 columns stay in registers between their sum of squares and its use.
struct Normed {
    static constexpr uint32_t KEEP = 4, STEP = 4 * THREADS;  // groups of four that a thread keeps; columns between two of them
    const MatvecArgs& a;
    uint2 weight[KEEP];

    // Weights depend on nothing: this part comes before the wait for the previous kernel.
    __device__ __forceinline__ explicit Normed(const MatvecArgs& args) : a(args) {
#pragma unroll
        for (uint32_t k = 0; k < KEEP; k++) weight[k] = weights(4 * threadIdx.x + k * STEP);
    }

    __device__ __forceinline__ uint2 weights(uint32_t c) const {
        return c < a.cols ? *(const uint2*)(a.norm + c) : make_uint2(0, 0);
    }

    __device__ __forceinline__ float4 values(uint32_t token, uint32_t c) const {
        return token < a.n && c < a.cols ? __ldcg((const float4*)(a.residual + (uint64_t)token * a.cols + c)) : make_float4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void put(uint8_t* x, uint32_t token, uint32_t c, float4 v, float r, uint2 g) const {
        if (token < a.n && c < a.tiles * 64) *(uint2*)(x + token * x_bytes(a) + 2 * c) = normed4(v, g, r);
    }

    // `part` holds the warps' sums of two pairs of tokens in turn: one barrier a pair.
    __device__ __forceinline__ void load(uint8_t* x, float* part) const {
        const uint32_t c0 = 4 * threadIdx.x;
#pragma unroll 1
        for (uint32_t token = 0; token < a.n; token += 2) {
            float4 v[2][KEEP];
#pragma unroll
            for (uint32_t t = 0; t < 2; t++)
#pragma unroll
                for (uint32_t k = 0; k < KEEP; k++) v[t][k] = values(token + t, c0 + k * STEP);
            float* set = part + (token & 2) * WARPS;
#pragma unroll
            for (uint32_t t = 0; t < 2; t++) {
                float sum = 0.f;
#pragma unroll
                for (uint32_t k = 0; k < KEEP; k++) sum = add_squares(v[t][k], sum);
                for (uint32_t c = c0 + KEEP * STEP; c < a.cols; c += STEP) sum = add_squares(values(token + t, c), sum);
                sum = warp_sum(sum);
                if ((threadIdx.x & 31) == 0) set[t * WARPS + threadIdx.x / 32] = sum;
            }
            __syncthreads();  // the warps' sums are there; those of the pair before last have been read
#pragma unroll
            for (uint32_t t = 0; t < 2; t++) {
                const float r = one_over_rms(set + t * WARPS, a.cols, a.eps);
#pragma unroll
                for (uint32_t k = 0; k < KEEP; k++) put(x, token + t, c0 + k * STEP, v[t][k], r, weight[k]);
                for (uint32_t c = c0 + KEEP * STEP; c < a.tiles * 64; c += STEP) put(x, token + t, c, values(token + t, c), r, weights(c));
            }
        }
    }
};

// Waits for the previous kernel and puts x where it is read from, if that is shared memory. What an ADD multiplies is never
// normed.
template <int EPI>
__device__ __forceinline__ void prepare_x(const MatvecArgs& a, uint8_t* x, float* part) {
    if (EPI != ADD && a.norm) {
        const Normed normed(a);
        wait_for_previous_kernel();
        normed.load(x, part);
    } else {
        wait_for_previous_kernel();
        if (!a.x_in_shared) return;
        for (uint32_t token = 0; token < a.n; token++)
            for (uint32_t c = 8 * threadIdx.x; c < a.tiles * 64; c += 8 * THREADS)
                *(uint4*)(x + token * x_bytes(a) + 2 * c) = *(const uint4*)(a.x + (uint64_t)token * a.x_stride + c);
    }
    __syncthreads();  // x is there
}

// This lane's B fragments of a record: token lane/4, columns 16·(lane%4) … of each tile; zeros for absent tokens and tiles.
struct Activations {
    uint32_t b[4][8];

    __device__ __forceinline__ Activations(const MatvecArgs& a, const uint8_t* shared_x, uint32_t record) {
        const uint32_t token = (threadIdx.x & 31) / 4, at = record * 512 + (threadIdx.x & 3) * 32;
        // Not one load through a pointer to either: that would be neither's instruction.
        if (a.x_in_shared) load(a, shared_x + token * x_bytes(a) + at, token, record);
        else load(a, (const uint8_t*)(a.x + (uint64_t)token * a.x_stride) + at, token, record);
    }

  private:
    __device__ __forceinline__ void load(const MatvecArgs& a, const uint8_t* from, uint32_t token, uint32_t record) {
#pragma unroll
        for (uint32_t t = 0; t < 4; t++) {
            uint4 v[2] = {};
            if (token < a.n && record * 4 + t < a.tiles) {
                v[0] = ((const uint4*)(from + t * 128))[0];
                v[1] = ((const uint4*)(from + t * 128))[1];
            }
            b[t][0] = v[0].x, b[t][1] = v[0].y, b[t][2] = v[0].z, b[t][3] = v[0].w;
            b[t][4] = v[1].x, b[t][5] = v[1].y, b[t][6] = v[1].z, b[t][7] = v[1].w;
        }
    }
};

// Where the warps' sums meet: two sets, used in turn. `full` counts the warps that have written a set, `empty` those that
// have folded it, one a token; every lane arrives, for its own writes and reads.
struct Meeting {
    float* parts;
    uint32_t full, empty, set_floats;

    __device__ __forceinline__ Meeting(const MatvecArgs& a, uint8_t* shared, const Layout& at) {
        parts = (float*)(shared + at.parts);
        full = shared_address(shared) + at.bars;
        empty = full + 16;
        set_floats = 2 * WARPS * a.n * 16;
        if (threadIdx.x < 2) {
            barrier_init(full + 8 * threadIdx.x, THREADS);
            barrier_init(empty + 8 * threadIdx.x, 32 * a.n);
        }
        __syncthreads();  // the barriers exist before a warp arrives
    }

    // Leaves this warp's sums of pair `pair`: [row block][warp][token][16].
    __device__ __forceinline__ void leave(const MatvecArgs& a, uint32_t pair, const float (&acc)[2][4]) {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, which = pair & 1;
        if (pair >= 2) barrier_wait(empty + 8 * which, (pair / 2 - 1) & 1);
        float* to = parts + which * set_floats;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const uint32_t token = 2 * (lane & 3) + (c & 1);
                if (token < a.n) to[((r * WARPS + warp) * a.n + token) * 16 + lane / 4 + c / 2 * 8] = acc[r][c];
            }
        barrier_arrive(full + 8 * which);
    }
};

// Folds the warps' sums of a pair, in order, and finishes the op: one output a thread, token by warp, row block by half warp.
// The warps take turns, so that none falls behind. An ADD is a reduction in the cache, the only one of its element: nobody
// waits for the old value. (It takes subnormals for zero.)
template <int EPI>
__device__ __forceinline__ void finish(const MatvecArgs& a, const Meeting& at, uint32_t pair) {
    const uint32_t token = (threadIdx.x / 32 + pair) % WARPS, half = threadIdx.x >> 4 & 1, lane = threadIdx.x & 15;
    if (token >= a.n) return;
    barrier_wait(at.full + 8 * (pair & 1), pair / 2 & 1);
    const float* part = at.parts + (pair & 1) * at.set_floats + (half * WARPS * a.n + token) * 16 + lane;
    float sum = part[0];
#pragma unroll
    for (uint32_t w = 1; w < WARPS; w++) sum += part[w * a.n * 16];
    barrier_arrive(at.empty + 8 * (pair & 1));
    uint32_t which, block;
    const bool live = find_row_block<EPI>(a, 2 * pair + half, which, block) && block * 16 + lane < a.m[which].rows;
    const uint32_t row = block * 16 + lane;
    if (live && a.m[which].bias) sum += bf16_to_f32(a.m[which].bias[row]);
    if (EPI == ACT) {
        const float up = __shfl_down_sync(~0u, sum, 16);
        if (!live || half) return;
        const float act = a.activation == ACT_SILU ? snug_silu(sum) : snug_gelu_tanh(sum);
        a.hidden[(uint64_t)token * a.stride + row] = f32_to_bf16(act * up);
    } else if (live) {
        float* y = a.y + (uint64_t)token * a.stride + a.m[which].out + row;
        if (EPI == ADD) atomicAdd(y, sum);
        else *y = sum;
    }
}

template <template <class, int> class Ring, class L, int EPI>
__device__ __forceinline__ void matvec(const MatvecArgs& a) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const Layout at(a, L::scratch);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    uint8_t* scratch = shared + at.scratch + warp * L::scratch;

    let_next_kernel_start();
    Ring<L, EPI> ring(a, shared, at);
    ring.fill(0);  // weights depend on nothing: ask for them before waiting
    if constexpr (L::scratch > 0) {
        for (uint32_t k = lane * 16; k < L::scratch; k += 512) *(uint4*)(scratch + k) = make_uint4(0, 0, 0, 0);
        __syncwarp();
    }
    Meeting meeting(a, shared, at);
#pragma unroll 1
    for (uint32_t i = 1; i < a.stages; i++) ring.fill(i);  // every warp's first piece comes before anyone's second
    prepare_x<EPI>(a, shared + at.x, (float*)(shared + at.parts));

    uint32_t used = 0;  // pieces
#pragma unroll 1
    for (uint32_t pair = 0; 2 * pair < ring.stream.rows; pair++) {
        const bool two = 2 * pair + 1 < ring.stream.rows;
        float acc[2][4] = {};
#pragma unroll 1
        for (uint32_t column = 0; column < ring.stream.columns; column++) {
            const uint32_t record = warp + WARPS * column, tiles = min(4u, a.tiles - 4 * record);
            ring.keep_ahead(pair, column);
            const Activations x(a, shared + at.x, record);
#pragma unroll 1
            for (uint32_t r = 0; r < 2; r++) {
                if (r == 0 || two) {
#pragma unroll
                    for (uint32_t piece = 0; piece < L::pieces; piece++) {
                        const uint8_t* slot = ring.piece(used);
                        ring.wait(used);
                        L::multiply(slot, piece, tiles, scratch, x.b, acc[0], [&] {
                            __syncwarp();  // no lane reads the slot any more
                            ring.fill(used + a.stages);
                        });
                        used++;
                    }
                }
#pragma unroll
                for (int c = 0; c < 4; c++) {  // the other row block's sums: an index would cost memory, a second copy code
                    const float other = acc[1][c];
                    acc[1][c] = acc[0][c];
                    acc[0][c] = other;
                }
            }
        }
        meeting.leave(a, pair, acc);
        finish<EPI>(a, meeting, pair);
    }
}
