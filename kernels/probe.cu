// probe: what this card can do at best (read bandwidth), and proof that device functions equal the host's
// images: sm_80 sm_90a sm_100f sm_120f ptx_80
// agreement: same            order: none
//
// read    data[count] of 16 bytes, each read once and folded by xor; grid-stride, four loads in flight a thread
// add     out = a + b
// func    out[i] = f(x[i]) for a function of common/func.cuh, or the value of x[i] rounded to bf16
//
// bytes: read 16·count; add 12·count; func 8·count. 8 GiB at 4.65 TB/s: 1.85 ms
#include "common/abi.cuh"
#include "common/func.cuh"
#include "common/ptx.cuh"

extern "C" __global__ void __launch_bounds__(512) snug_probe_read(const __grid_constant__ ReadArgs a) {
    const uint64_t stride = (uint64_t)gridDim.x * 512;
    uint64_t i = (uint64_t)blockIdx.x * 512 + threadIdx.x;
    uint32_t fold = 0;
    for (; i + 3 * stride < a.count; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = __ldcs(a.data + i + k * stride);
#pragma unroll
        for (int k = 0; k < 4; k++) fold ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    for (; i < a.count; i += stride) {
        const uint4 v = __ldcs(a.data + i);
        fold ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    for (int d = 16; d > 0; d >>= 1) fold ^= __shfl_xor_sync(~0u, fold, d);
    if ((threadIdx.x & 31) == 0) atomicXor(a.out + blockIdx.x, fold);
}

extern "C" __global__ void __launch_bounds__(256) snug_probe_add(const __grid_constant__ AddArgs a) {
    const uint64_t i = (uint64_t)blockIdx.x * 256 + threadIdx.x;
    if (i < a.count) a.out[i] = a.a[i] + a.b[i];
}

extern "C" __global__ void __launch_bounds__(256) snug_probe_func(const __grid_constant__ FuncArgs a) {
    const uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (i >= a.count) return;
    const float x = a.x[i];
    switch (a.func) {
        case FUNC_EXP: a.out[i] = snug_exp(x); break;
        case FUNC_SILU: a.out[i] = snug_silu(x); break;
        case FUNC_TANH: a.out[i] = snug_tanh(x); break;
        case FUNC_GELU_TANH: a.out[i] = snug_gelu_tanh(x); break;
        default: a.out[i] = bf16_to_f32(f32_to_bf16(x));
    }
}
