// RMSNorm of a token, the same bits wherever it is computed: thread i of 256 takes groups of four columns i, i + 256, …;
// lanes fold by halves, then warps in order.
#pragma once
#include "ptx.cuh"

__device__ __forceinline__ float add_squares(float4 v, float sum) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
}

// 1/RMS of a token from the sums of eight warps.
__device__ __forceinline__ float one_over_rms(const float* part, uint32_t cols, float eps) {
    float sum = 0.f;
    for (int w = 0; w < 8; w++) sum += part[w];
    return 1.f / sqrtf(sum / cols + eps);
}

// Four normed elements as bf16. `weight`: four bf16.
__device__ __forceinline__ uint2 normed4(float4 v, uint2 weight, float r) {
    return make_uint2(pack_bf16(v.x * r * bf16_to_f32(weight.x), v.y * r * bf16_to_f32(weight.x >> 16)),
                      pack_bf16(v.z * r * bf16_to_f32(weight.y), v.w * r * bf16_to_f32(weight.y >> 16)));
}
