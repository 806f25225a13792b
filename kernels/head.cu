// head: logits = W·RMSNorm(residual) (1..8 tokens)
// images: sm_80 sm_90a sm_100f sm_120f ptx_80
// agreement: twin            order: WARPS8 (common/matvec.cuh): records of a warp, then warps 0..7
//
// W     [vocab][cols], loader L      residual [n][cols] f32      y [n][stride] f32
//
// bytes: rows·cols·11.3/8 packed. 128256 x 4096 on 4.65 TB/s: 160 us (bf16 226)
#include "common/matvec.cuh"
#include "loader/loaders.cuh"

#define SNUG_KERNELS(FORMAT, LOADER)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) snug_head_##FORMAT(const __grid_constant__ MatvecArgs a) {      \
        matvec<AsyncRing, LOADER, STORE>(a);                                                                             \
    }                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) snug_head_##FORMAT##_sm90(const __grid_constant__ MatvecArgs a) { \
        if constexpr (HAS_BULK_COPY) matvec<BulkRing, LOADER, STORE>(a);                                                 \
    }
SNUG_LOADERS(SNUG_KERNELS)
