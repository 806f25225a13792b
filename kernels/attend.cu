// attend: head norms, RoPE, append to the cache, softmax(q·kᵀ·scale)·v (1..8 tokens; and whole prompt chunks)
// images: sm_80 sm_90a sm_100f sm_120f ptx_80
// agreement: bound            order: keys ascending in chunks of 64, four chunks a split, splits ascending
//
// qkv      [n][heads + 2·kv_heads][D]  f32   what the qkv op left: queries, keys, values before norms and RoPE
// cache    [chunk][layer][kv_head][2][64·D]  bf16, a chunk is 64 tokens:
//            keys    [64 tokens][D]          values  [D][64 tokens]   (transposed: see below)
// context  [n][heads·D]  bf16
// partial  [n·heads][splits][D + 2]  f32     unnormalised sums, running maximum, sum of weights
//
//   one warp = 16 rows (token, head of one kv group) × 64 keys; nothing goes through shared memory:
//
//        keys →   16t + 2j + e, j = 0..7, e = 0, 1          lane 4g+t. Score tile j has its columns n = 2t+e stand
//     rows  ┌──────┬──────┬──────┬──────┐                   for key 16t+2j+e, so that what a lane holds after q·kᵀ
//      g    │ t=0  │ t=1  │ t=2  │ t=3  │                   is what it must hold as A operand of p·v, where its keys
//      g+8  └──────┴──────┴──────┴──────┘                   are 16 in a row: 32 contiguous bytes of a value row.
//
// The block that owns a split also writes the step's keys and values that fall into it; no other block reads them.
// bytes: 4·D a key and kv head. At 8 kv heads of 128 and 8,192 keys: 33.6 MB, 7.2 us on 4.65 TB/s
#include "common/attend.cuh"

#define SNUG_ATTEND(D)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128, 2) snug_attend_##D(const __grid_constant__ AttendArgs a) { \
        attend_step<D>(a);                                                                                   \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(128) snug_append_##D(const __grid_constant__ AttendArgs a) { \
        append_chunk<D>(a);                                                                                  \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(128, 2) snug_prefill_##D(const __grid_constant__ AttendArgs a) { \
        attend_chunk<D>(a);                                                                                  \
    }

SNUG_ATTEND(64)
SNUG_ATTEND(96)
SNUG_ATTEND(128)
SNUG_ATTEND(256)
