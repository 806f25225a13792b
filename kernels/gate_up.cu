// gate_up: hidden = act(W₀·x̂ + b₀)·(W₁·x̂ + b₁), x̂ = RMSNorm(residual) (1..8 tokens)
// images: sm_80 sm_90a sm_100f sm_120f ptx_80
// agreement: twin            order: WARPS8 (common/matvec.cuh): records of a warp, then warps 0..7
//
// W     [rows][cols] twice, loader L; a block takes the same 16 rows of both      hidden [n][stride] bf16
//
// bytes: 2·rows·cols·11.3/8 packed. 2 x 14336 x 4096 on 4.65 TB/s: 35.7 us (bf16 50.5)
#include "common/matvec.cuh"
#include "loader/loaders.cuh"

#define SNUG_KERNELS(FORMAT, LOADER)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) snug_gate_up_##FORMAT(const __grid_constant__ MatvecArgs a) {      \
        matvec<AsyncRing, LOADER, ACT>(a);                                                                             \
    }                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) snug_gate_up_##FORMAT##_sm90(const __grid_constant__ MatvecArgs a) { \
        if constexpr (HAS_BULK_COPY) matvec<BulkRing, LOADER, ACT>(a);                                                 \
    }
SNUG_LOADERS(SNUG_KERNELS)
