// prefill: the matrix products of a prompt chunk, on weights unpacked into a reused scratch
// images: sm_80 sm_90a sm_100f sm_120f ptx_80
// agreement: bound            order: k ascending in steps of 16, the hardware's order inside a step
//
//   norm      x̂[n][K'] bf16 ← RMSNorm(residual[n][K]), zeros to K' = K rounded up to 64
//   gemm      y[n][rows] f32 ← or += x[n][K']·Wᵀ + bias, W [rows'][K'] bf16 row-major (what `unpack` left)
//   act_mul   hidden[n][K'] bf16 ← act(gate)·up, zeros to K'
//
//   gemm: a block has 128 tokens × 128 rows, k in steps of 64, three stages of cp.async; eight warps as 2 × 4:
//
//            rows →   32      32      32      32          each warp: 64 tokens × 32 rows = 4 × 4 mma.m16n8k16,
//   tokens 64     ┌───────┬───────┬───────┬───────┐       both operands through ldmatrix from swizzled rows of 128 B
//          64     └───────┴───────┴───────┴───────┘       (16-byte unit u of row r sits at u ^ (r mod 8))
//
// bytes: W once per 128 tokens. 2·n·rows·K operations: 2,048 tokens of the 8B shape take 28.6 TFLOP, 36 ms at 800 TFLOP/s
#include "common/abi.cuh"
#include "common/func.cuh"
#include "common/norm.cuh"
#include "common/ptx.cuh"

constexpr int TILE = 128;         // tokens and rows of a block
constexpr int DEPTH = 64;         // k of a stage
constexpr int STAGES = 3;
constexpr int STAGE_BYTES = 2 * TILE * DEPTH * 2;

extern "C" __global__ void __launch_bounds__(256) snug_prefill_norm(const __grid_constant__ NormArgs a) {
    __shared__ float part[8];
    const float* x = a.residual + (uint64_t)blockIdx.x * a.cols;
    uint16_t* y = a.out + (uint64_t)blockIdx.x * a.padded;
    wait_for_previous_kernel();
    float sum = 0.f;
#pragma unroll 4
    for (uint32_t c = threadIdx.x * 4; c < a.cols; c += 1024) sum = add_squares(*(const float4*)(x + c), sum);
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();  // the warps' sums are there
    const float r = one_over_rms(part, a.cols, a.eps);
    for (uint32_t c = threadIdx.x * 4; c < a.padded; c += 1024)
        *(uint2*)(y + c) = c < a.cols ? normed4(*(const float4*)(x + c), *(const uint2*)(a.weight + c), r) : make_uint2(0, 0);
}

extern "C" __global__ void __launch_bounds__(256) snug_prefill_act_mul(const __grid_constant__ ActMulArgs a) {
    const uint64_t i = (uint64_t)blockIdx.x * 256 + threadIdx.x;
    wait_for_previous_kernel();
    if (i >= (uint64_t)a.n * a.padded) return;
    const uint32_t token = i / a.padded, col = i % a.padded;
    float y = 0.f;
    if (col < a.cols) {
        const float g = a.gate[(uint64_t)token * a.cols + col], u = a.up[(uint64_t)token * a.cols + col];
        y = (a.activation == ACT_SILU ? snug_silu(g) : snug_gelu_tanh(g)) * u;
    }
    a.out[i] = f32_to_bf16(y);
}

// Rows of 64 bf16 into swizzled shared memory; rows beyond `limit` become zeros.
__device__ __forceinline__ void load_rows(uint32_t to, const uint16_t* from, uint32_t stride, uint32_t first, uint32_t limit) {
#pragma unroll
    for (int i = 0; i < TILE * DEPTH / 8 / 256; i++) {
        const uint32_t unit = i * 256 + threadIdx.x, r = unit / 8, u = unit % 8;
        const bool there = first + r < limit;
        const uint16_t* source = from + (uint64_t)(there ? first + r : 0) * stride + u * 8;
        cp_async_16_or_zero(to + r * 128 + ((u ^ (r & 7)) << 4), source, there);
    }
}

// Address of the 16-byte unit that this lane gives to ldmatrix.x4 for a 16 × 16 block at (row, k).
__device__ __forceinline__ uint32_t unit_at(uint32_t base, uint32_t row, uint32_t unit) {
    return base + row * 128 + ((unit ^ (row & 7)) << 4);
}

extern "C" __global__ void __launch_bounds__(256) snug_prefill_gemm(const __grid_constant__ GemmArgs a) {
    extern __shared__ uint4 shared[];
    const uint32_t base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane / 4, t = lane & 3;
    const uint32_t row0 = blockIdx.x * TILE, token0 = blockIdx.y * TILE;
    const uint32_t wt = warp / 4 * 64, wr = warp % 4 * 32;
    const uint32_t steps = a.depth / DEPTH;
    float acc[4][4][4] = {};
    wait_for_previous_kernel();

    auto fetch = [&](uint32_t step) {
        if (step < steps) {
            const uint32_t stage = base + step % STAGES * STAGE_BYTES;
            load_rows(stage, a.x + step * DEPTH, a.depth, token0, a.n);
            load_rows(stage + TILE * DEPTH * 2, a.w + step * DEPTH, a.depth, row0, a.rows);
        }
        cp_async_commit();  // an empty group keeps the count of groups in step with the stages
    };
    for (uint32_t s = 0; s < STAGES - 1; s++) fetch(s);
    for (uint32_t step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // stage `step` is whole, and the one overwritten next has been read by all
        fetch(step + STAGES - 1);
        const uint32_t xs = base + step % STAGES * STAGE_BYTES, ws = xs + TILE * DEPTH * 2;
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            uint32_t x[4][4], w[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) ldmatrix_x4(x[i], unit_at(xs, wt + i * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
            for (int j = 0; j < 2; j++)
                ldmatrix_x4(w[j], unit_at(ws, wr + j * 16 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma_bf16(acc[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const uint32_t token = token0 + wt + i * 16 + g + c / 2 * 8, row = row0 + wr + j * 8 + 2 * t + (c & 1);
                if (token >= a.n || row >= a.rows) continue;
                float* y = a.y + (uint64_t)token * a.stride + row;
                const float v = acc[i][j][c] + (a.bias ? bf16_to_f32(a.bias[row]) : 0.f);
                *y = a.accumulate ? *y + v : v;
            }
}
