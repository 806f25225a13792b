// Mirror of src/num/func.rs, line for line: same constants, same fma, same bits.
#pragma once
#include <stdint.h>

__device__ __forceinline__ float pow2(int n) { return __int_as_float((n + 127) << 23); }

__device__ __forceinline__ float snug_exp(float x) {
    if (x != x) return x;
    if (x > 88.72284f) return __int_as_float(0x7f800000);
    if (x < -104.0f) return 0.0f;
    const float ROUND = 12582912.0f;
    const float shifted = fmaf(x, 1.44269504088896340736f, ROUND);
    const float n = shifted - ROUND;
    float r = fmaf(n, -0.69314575f, x);
    r = fmaf(n, -1.4286068e-6f, r);
    float p = 1.3933884e-3f;
    p = fmaf(p, r, 8.335996e-3f);
    p = fmaf(p, r, 4.166536e-2f);
    p = fmaf(p, r, 1.666665e-1f);
    p = fmaf(p, r, 5.0000006e-1f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    const int i = (int)n;
    const int half = i >> 1;
    return p * pow2(half) * pow2(i - half);
}

__device__ __forceinline__ float snug_silu(float x) { return x / (1.0f + snug_exp(-x)); }

__device__ __forceinline__ float snug_tanh(float x) {
    const float a = fabsf(x);
    if (a < 0.1f) {
        const float s = x * x;
        float p = fmaf(s, -17.0f / 315.0f, 2.0f / 15.0f);
        p = fmaf(p, s, -1.0f / 3.0f);
        return fmaf(p * s, x, x);
    }
    const float e = snug_exp(-2.0f * a);
    return copysignf((1.0f - e) / (1.0f + e), x);
}

__device__ __forceinline__ float snug_gelu_tanh(float x) {
    const float inner = 0.7978846f * fmaf(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + snug_tanh(inner));
}
