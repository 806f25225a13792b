// proj: residual += W·x (attention output, down projection; 1..8 tokens)
// images: sm_80 sm_90a sm_100f sm_120f ptx_80
// agreement: twin            order: WARPS8 (common/matvec.cuh): records of a warp, then warps 0..7
//
// W     [rows][cols]  loader L        x  [n][x_stride] bf16        y  [n][stride] f32, in and out
//
// bytes: rows·cols·11.3/8 packed. 4096 x 14336 on 4.65 TB/s: 17.8 us (bf16 25.3); 4096 x 4096: 5.1 us (7.2)
#include "common/matvec.cuh"
#include "loader/loaders.cuh"

#define SNUG_KERNELS(FORMAT, LOADER)                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) snug_proj_##FORMAT(const __grid_constant__ MatvecArgs a) {      \
        matvec<AsyncRing, LOADER, ADD>(a);                                                                             \
    }                                                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) snug_proj_##FORMAT##_sm90(const __grid_constant__ MatvecArgs a) { \
        if constexpr (HAS_BULK_COPY) matvec<BulkRing, LOADER, ADD>(a);                                                 \
    }
SNUG_LOADERS(SNUG_KERNELS)
