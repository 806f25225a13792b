// RMSNorm of a token, the same bits wherever it is computed.
#pragma once
#include "ptx.cuh"

// 1/RMS of one token's residual by 256 threads: thread i takes groups of four elements i, i + 256, …; lanes fold by
// halves, then warps in order. The order of snug_prefill_norm, which calls this too.
__device__ __forceinline__ float token_rms(const float* x, uint32_t cols, float eps, float* part, uint32_t barrier) {
    const uint32_t i0 = threadIdx.x & 255;
    float sum = 0.f;
#pragma unroll 4
    for (uint32_t i = i0 * 4; i < cols; i += 1024) {
        const float4 v = *(const float4*)(x + i);
        sum = fmaf(v.x, v.x, sum), sum = fmaf(v.y, v.y, sum), sum = fmaf(v.z, v.z, sum), sum = fmaf(v.w, v.w, sum);
    }
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    named_barrier(barrier, 256);  // the sums of the token before have been read
    if ((threadIdx.x & 31) == 0) part[i0 / 32] = sum;
    named_barrier(barrier, 256);
    sum = 0.f;
    for (int w = 0; w < 8; w++) sum += part[w];
    return 1.f / sqrtf(sum / cols + eps);
}

// Four normed elements as bf16; zeros beyond the last column.
__device__ __forceinline__ uint2 normed4(const float* x, const uint16_t* weight, float r, uint32_t c, uint32_t cols) {
    if (c >= cols) return make_uint2(0, 0);
    const float4 v = *(const float4*)(x + c);
    const uint2 w = *(const uint2*)(weight + c);
    const uint32_t a = f32_to_bf16(v.x * r * bf16_to_f32(w.x)), b = f32_to_bf16(v.y * r * bf16_to_f32(w.x >> 16));
    const uint32_t d = f32_to_bf16(v.z * r * bf16_to_f32(w.y)), e = f32_to_bf16(v.w * r * bf16_to_f32(w.y >> 16));
    return make_uint2(a | b << 16, d | e << 16);
}
