// Attention over the chunked cache: one warp, 16 rows, 64 keys at a time. Layouts and pictures: attend.cu.
#pragma once
#include "abi.cuh"
#include "ptx.cuh"

constexpr int CHUNK = 64;          // keys of a cache chunk, and of one pass of a warp
constexpr int SPLIT_CHUNKS = 4;    // chunks of a split: one for each warp of a block
constexpr float LOG2E = 1.4426950408889634f;
constexpr float MASKED = -1e30f;   // finite, so that a row without keys never makes inf - inf

// Keys (is_value = 0) or values of one chunk, layer and kv head.
template <int D>
__device__ __forceinline__ uint16_t* cache_tile(const AttendArgs& a, uint32_t chunk, uint32_t kv_head, uint32_t is_value) {
    const uint64_t tile = ((uint64_t)chunk * a.layers + a.layer) * a.kv_heads + kv_head;
    return a.cache + (tile * 2 + is_value) * (CHUNK * D);
}

// One head vector, normed and turned: lane l returns elements l, l+32, … in `out`. Called by whole warps.
template <int D>
__device__ __forceinline__ void head_vector(const AttendArgs& a, const float* x, const uint16_t* norm, uint32_t pos,
                                            float (&out)[D / 32]) {
    const int lane = threadIdx.x & 31;
    float v[D / 32];
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        v[i] = x[i * 32 + lane];
        sum = fmaf(v[i], v[i], sum);
    }
    float r = 1.f;
    if (norm) {
        r = 1.f / sqrtf(warp_sum(sum) / D + a.eps);
#pragma unroll
        for (int i = 0; i < D / 32; i++) v[i] = v[i] * r * bf16_to_f32(norm[i * 32 + lane]);
    }
    // Element e turns with its partner e ± rotary/2. Partners of a lane's elements sit in other registers or lanes:
    // fetch them from the input again instead of shuffling; it is in L1.
    const uint32_t half = a.rotary / 2;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        const uint32_t e = i * 32 + lane;
        out[i] = v[i];
        if (e >= a.rotary) continue;
        const uint32_t partner = e < half ? e + half : e - half;
        float p = x[partner];
        if (norm) p = p * r * bf16_to_f32(norm[partner]);
        const float* angle = a.rope + (uint64_t)pos * a.rotary + (e < half ? e : e - half);  // [cos · half][sin · half]
        const float turned = p * angle[half];
        out[i] = fmaf(v[i], angle[0], e < half ? -turned : turned);
    }
}

// Writes keys and values of token i (of this step) at its position. Called by a whole warp.
template <int D>
__device__ __forceinline__ void append_token(const AttendArgs& a, uint32_t i, uint32_t pos, uint32_t kv_head) {
    const int lane = threadIdx.x & 31;
    const uint32_t width = (a.heads + 2 * a.kv_heads) * D;
    const float* k = a.qkv + (uint64_t)i * width + (a.heads + kv_head) * D;
    const float* v = k + (uint64_t)a.kv_heads * D;
    float turned[D / 32];
    head_vector<D>(a, k, a.k_norm, pos, turned);
    uint16_t* keys = cache_tile<D>(a, pos / CHUNK, kv_head, 0) + (pos % CHUNK) * D;
    uint16_t* values = cache_tile<D>(a, pos / CHUNK, kv_head, 1) + pos % CHUNK;
#pragma unroll
    for (int e = 0; e < D / 32; e++) {
        keys[e * 32 + lane] = f32_to_bf16(turned[e]);
        values[(e * 32 + lane) * CHUNK] = f32_to_bf16(v[e * 32 + lane]);
    }
}

// A row of queries: which token, which head.
struct Row {
    uint32_t token, head;
    bool live;
};

// 16 rows of queries as A operand: k-step s of 32-column block b takes columns 8t+4s+{0,1} and {2,3}. In registers
// up to heads of 128; wider ones would not leave room for the value sums, so they are read from shared memory each time.
template <int D>
struct Queries {
    static constexpr bool resident = D <= 128;
    const uint16_t* stage;
    uint32_t frag[resident ? D / 16 : 1][4];

    // `stage_` is 16 × D bf16 in shared memory, complete and left alone from now on.
    __device__ __forceinline__ void load(const uint16_t* stage_) {
        stage = stage_;
        if constexpr (resident) {
#pragma unroll
            for (int b = 0; b < D / 32; b++) read(b, frag[2 * b], frag[2 * b + 1]);
        }
    }

    __device__ __forceinline__ void block(int b, uint32_t (&s0)[4], uint32_t (&s1)[4]) const {
        if constexpr (resident) {
#pragma unroll
            for (int i = 0; i < 4; i++) s0[i] = frag[2 * b][i], s1[i] = frag[2 * b + 1][i];
        } else {
            read(b, s0, s1);
        }
    }

    __device__ __forceinline__ void read(int b, uint32_t (&s0)[4], uint32_t (&s1)[4]) const {
        const int g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3;
        const uint4 lo = *(const uint4*)(stage + g * D + b * 32 + t * 8);
        const uint4 hi = *(const uint4*)(stage + (g + 8) * D + b * 32 + t * 8);
        s0[0] = lo.x, s0[1] = hi.x, s0[2] = lo.y, s0[3] = hi.y;
        s1[0] = lo.z, s1[1] = hi.z, s1[2] = lo.w, s1[3] = hi.w;
    }
};

// Normed, turned queries of 16 rows as bf16 into shared memory. Called by whole warps; `row(r)` names row r.
template <int D, class RowOf>
__device__ __forceinline__ void stage_queries(const AttendArgs& a, uint32_t pos, uint16_t* stage, int warp, int warps,
                                              RowOf row) {
    const int lane = threadIdx.x & 31;
    const uint32_t width = (a.heads + 2 * a.kv_heads) * D;
    for (int r = warp; r < 16; r += warps) {
        const Row who = row(r);
        float q[D / 32];
        if (who.live) head_vector<D>(a, a.qkv + (uint64_t)who.token * width + who.head * D, a.q_norm, pos + who.token, q);
#pragma unroll
        for (int e = 0; e < D / 32; e++) stage[r * D + e * 32 + lane] = who.live ? f32_to_bf16(q[e]) : 0;
    }
}

// Running softmax of 16 rows over V of the D value columns: lane 4g+t has rows g and g+8, columns 8j+2t+{0,1}.
template <int D, int V = D>
struct Softmax {
    float sum[V / 8][4];
    float top[2], weight[2];  // maximum (in log2 units) and sum of weights; `weight` is this lane's share

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int j = 0; j < V / 8; j++) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0.f;
        top[0] = top[1] = MASKED;
        weight[0] = weight[1] = 0.f;
    }

    // One chunk. `last[r]` is the position of row g + 8r; keys after it, and window keys before, are masked.
    __device__ __forceinline__ void add(const AttendArgs& a, const Queries<D>& q, const uint16_t* keys,
                                        const uint16_t* values, uint32_t first_key, const uint32_t (&last)[2],
                                        uint32_t end) {
        const int g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3;
        float s[8][4];
        // Loads go out in batches before the products that use them: the latency of a batch is paid once.
        constexpr int KEYS_AHEAD = D <= 128 ? 4 : 1, VALUES_AHEAD = D > 128 ? 4 : D == 96 ? 6 : 8;
        static_assert(8 % KEYS_AHEAD == 0 && V / 8 % VALUES_AHEAD == 0, "whole batches");
#pragma unroll
        for (int j0 = 0; j0 < 8; j0 += KEYS_AHEAD) {
            uint4 k[KEYS_AHEAD][D / 32];
#pragma unroll
            for (int i = 0; i < KEYS_AHEAD; i++) {
                const uint4* row = (const uint4*)(keys + (16 * (g / 2) + 2 * (j0 + i) + g % 2) * D) + t;
#pragma unroll
                for (int b = 0; b < D / 32; b++) k[i][b] = row[b * 4];
            }
            asm volatile("" ::: "memory");
#pragma unroll
            for (int i = 0; i < KEYS_AHEAD; i++) {
                float(&sum)[4] = s[j0 + i];
                sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
#pragma unroll
                for (int b = 0; b < D / 32; b++) {
                    uint32_t q0[4], q1[4];
                    q.block(b, q0, q1);
                    mma_bf16(sum, q0, k[i][b].x, k[i][b].y);
                    mma_bf16(sum, q1, k[i][b].z, k[i][b].w);
                }
            }
        }
        scale_and_mask(a, s, first_key, last);
        uint32_t p[4][4];
        weigh(s, p);
#pragma unroll
        for (int j0 = 0; j0 < V / 8; j0 += VALUES_AHEAD) {
            uint4 v[VALUES_AHEAD][2];
#pragma unroll
            for (int i = 0; i < VALUES_AHEAD; i++) {
                const uint4* row = (const uint4*)(values + (8 * (j0 + i) + g) * CHUNK) + 2 * t;
                v[i][0] = row[0], v[i][1] = row[1];
            }
            asm volatile("" ::: "memory");
#pragma unroll
            for (int i = 0; i < VALUES_AHEAD; i++) {
                if (first_key + CHUNK > end) zero_beyond(v[i][0], v[i][1], first_key + 16 * t, end);
                float(&o)[4] = sum[j0 + i];
                mma_bf16(o, p[0], v[i][0].x, v[i][0].y);
                mma_bf16(o, p[1], v[i][0].z, v[i][0].w);
                mma_bf16(o, p[2], v[i][1].x, v[i][1].y);
                mma_bf16(o, p[3], v[i][1].z, v[i][1].w);
            }
        }
    }

    // Scores into log2 units, capped where asked, masked ones far below.
    __device__ __forceinline__ void scale_and_mask(const AttendArgs& a, float (&s)[8][4], uint32_t first_key,
                                                   const uint32_t (&last)[2]) const {
        const int t = threadIdx.x & 3;
#pragma unroll
        for (int j = 0; j < 8; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const uint32_t key = first_key + 16 * t + 2 * j + (c & 1);
                const uint32_t at = last[c / 2];
                float x = s[j][c] * a.scale;
                if (a.softcap > 0.f) x = a.softcap * (1.f - 2.f / (1.f + exp2_fast(x / a.softcap * (2.f * LOG2E))));  // tanh
                const bool seen = key <= at && (a.window == 0 || at - key < a.window);
                s[j][c] = seen ? x * LOG2E : MASKED;
            }
        }
    }

    // Scores → weights as A operand of p·v; rescales what was summed before.
    __device__ __forceinline__ void weigh(const float (&s)[8][4], uint32_t (&p)[4][4]) {
#pragma unroll
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float m = top[r];
#pragma unroll
            for (int j = 0; j < 8; j++) m = fmaxf(m, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
            m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
            const float keep = exp2_fast(top[r] - m);
            top[r] = m;
            float w = 0.f;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                // A masked score stays weightless even in a row that has seen no key yet.
                const float x = s[j][2 * r] <= MASKED ? 0.f : exp2_fast(s[j][2 * r] - m);
                const float y = s[j][2 * r + 1] <= MASKED ? 0.f : exp2_fast(s[j][2 * r + 1] - m);
                w += x + y;
                p[j / 2][(j % 2) * 2 + r] = pack_bf16(x, y);
            }
            weight[r] = fmaf(weight[r], keep, w);
#pragma unroll
            for (int j = 0; j < V / 8; j++) sum[j][2 * r] *= keep, sum[j][2 * r + 1] *= keep;
        }
    }

    // Values of keys that were never written may be anything, NaN too: 0 · NaN would reach every row.
    __device__ __forceinline__ static void zero_beyond(uint4& v0, uint4& v1, uint32_t key, uint32_t end) {
        uint32_t* words[2] = {&v0.x, &v1.x};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t& w = words[i / 4][i % 4];
            if (key + 2 * i + 1 >= end) w = key + 2 * i >= end ? 0 : w & 0xffff;
        }
    }

    // Sum of weights over the four lanes of a row.
    __device__ __forceinline__ float total(int r) const {
        float w = weight[r];
        w += __shfl_xor_sync(~0u, w, 1);
        return w + __shfl_xor_sync(~0u, w, 2);
    }
};

// Brings the keys and values of a split into L2: 4·D bytes a key, 128 bytes a request, from all threads of the block. What
// this launch has yet to write is prefetched as it was; the loads proper come later and see the new values.
template <int D>
__device__ __forceinline__ void prefetch_split(const AttendArgs& a, uint32_t kv_head, uint32_t split, uint32_t end) {
    constexpr uint32_t LINES = CHUNK * D * 2 * 2 / 128;  // of a chunk, keys and values: they lie side by side
    for (uint32_t i = threadIdx.x; i < LINES * SPLIT_CHUNKS; i += 128) {
        const uint32_t chunk = split * SPLIT_CHUNKS + i / LINES;
        if (chunk * CHUNK < end) prefetch_l2((const uint8_t*)cache_tile<D>(a, chunk, kv_head, 0) + i % LINES * 128);
    }
}

// Decode: grid (kv_heads, splits in flight, row tiles), 4 warps; dynamic shared memory: attend_shared_bytes(D).
template <int D>
__device__ __forceinline__ void attend_step(const AttendArgs& a) {
    extern __shared__ uint4 shared[];
    uint16_t* stage = (uint16_t*)shared;                       // [16][D] queries
    float* tops = (float*)(stage + 16 * D);                    // [4 warps][16]
    float* weights = tops + 64;                                // [4][16]
    float* sums = weights + 64;                                // [4][16][D]
    __shared__ bool is_last;

    const int warp = threadIdx.x / 32, g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3;
    const uint32_t kv_head = blockIdx.x, group = a.heads / a.kv_heads;
    const uint32_t row0 = blockIdx.z * 16, live = min(16u, a.n * group - row0);
    auto row = [&](uint32_t r) {
        const uint32_t at = row0 + r;
        return Row{at / group, kv_head * group + at % group, r < live};
    };

    // Position and the tokens before it were final before the kernel ahead started (embed.cu sees to that).
    const uint32_t pos = *a.pos, end = pos + a.n;
    const uint32_t first_split = a.window && pos + 1 > a.window ? (pos + 1 - a.window) / (CHUNK * SPLIT_CHUNKS) : 0;
    const uint32_t end_split = (end - 1) / (CHUNK * SPLIT_CHUNKS) + 1;
    let_next_kernel_start();
    if (first_split + blockIdx.y >= end_split) return;
    prefetch_split<D>(a, kv_head, first_split + blockIdx.y, pos);
    wait_for_previous_kernel();
    // The step's keys and values that fall into splits of this block; the last warps, since the first stage more queries.
    for (uint32_t i = 3 - warp; i < a.n; i += 4) {
        const uint32_t split = (pos + i) / (CHUNK * SPLIT_CHUNKS);
        if (split >= first_split && (split - first_split) % gridDim.y == blockIdx.y) append_token<D>(a, i, pos + i, kv_head);
    }
    stage_queries<D>(a, pos, stage, warp, 4, row);
    __syncthreads();  // queries, and the new keys and values
    Queries<D> q;
    q.load(stage);
    const uint32_t last[2] = {pos + row(g).token, pos + row(g + 8).token};
    const bool alone = end_split - first_split == 1;

    for (uint32_t split = first_split + blockIdx.y; split < end_split; split += gridDim.y) {
        if (split + gridDim.y < end_split) prefetch_split<D>(a, kv_head, split + gridDim.y, pos);
        Softmax<D> soft;
        soft.clear();
        const uint32_t chunk = split * SPLIT_CHUNKS + warp;
        if (chunk * CHUNK < end)
            soft.add(a, q, cache_tile<D>(a, chunk, kv_head, 0), cache_tile<D>(a, chunk, kv_head, 1), chunk * CHUNK, last, end);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float w = soft.total(r);
            if (g + 8 * r >= live) continue;
            if (t == 0) tops[warp * 16 + g + 8 * r] = soft.top[r], weights[warp * 16 + g + 8 * r] = w;
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                *(float2*)(sums + (warp * 16 + g + 8 * r) * D + 8 * j + 2 * t) = make_float2(soft.sum[j][2 * r], soft.sum[j][2 * r + 1]);
        }
        __syncthreads();  // all four partial sums are there
        for (uint32_t i = threadIdx.x; i < live * D; i += 128) {
            const uint32_t r = i / D, d = i % D;
            const Row who = row(r);
            float top = MASKED, weight = 0.f, sum = 0.f;
#pragma unroll
            for (int w = 0; w < 4; w++) top = fmaxf(top, tops[w * 16 + r]);
#pragma unroll
            for (int w = 0; w < 4; w++) {
                const float scale = exp2_fast(tops[w * 16 + r] - top);
                weight = fmaf(weights[w * 16 + r], scale, weight);
                sum = fmaf(sums[(w * 16 + r) * D + d], scale, sum);
            }
            if (alone) {
                a.context[(uint64_t)who.token * a.context_stride + who.head * D + d] = f32_to_bf16(sum / weight);
                continue;
            }
            float* part = a.partial + ((uint64_t)(who.token * a.heads + who.head) * a.max_splits + split) * (D + 2);
            part[d] = sum;
            if (d == 0) part[D] = top, part[D + 1] = weight;
        }
        if (alone) return;
        __threadfence();  // partial sums before the count that announces them
        __syncthreads();  // and the shared sums are free again
        if (threadIdx.x == 0) {
            uint32_t* counter = a.counters + blockIdx.z * a.kv_heads + kv_head;
            is_last = atomicAdd(counter, 1) == end_split - first_split - 1;
            if (is_last) *counter = 0;
        }
        __syncthreads();
        if (!is_last) continue;
        __threadfence();
        for (uint32_t i = threadIdx.x; i < live * D; i += 128) {
            const uint32_t r = i / D, d = i % D;
            const Row who = row(r);
            const float* part = a.partial + (uint64_t)(who.token * a.heads + who.head) * a.max_splits * (D + 2);
            float top = MASKED, weight = 0.f, sum = 0.f;
#pragma unroll 8
            for (uint32_t s = first_split; s < end_split; s++) top = fmaxf(top, __ldcg(part + (uint64_t)s * (D + 2) + D));
#pragma unroll 8
            for (uint32_t s = first_split; s < end_split; s++) {
                const float* p = part + (uint64_t)s * (D + 2);
                const float scale = exp2_fast(__ldcg(p + D) - top);
                weight = fmaf(__ldcg(p + D + 1), scale, weight);
                sum = fmaf(__ldcg(p + d), scale, sum);
            }
            a.context[(uint64_t)who.token * a.context_stride + who.head * D + d] = f32_to_bf16(sum / weight);
        }
    }
}

// Prompt chunk, first half: grid (n, kv_heads), one warp used a token and head.
template <int D>
__device__ __forceinline__ void append_chunk(const AttendArgs& a) {
    wait_for_previous_kernel();
    const uint32_t i = blockIdx.x * 4 + threadIdx.x / 32;
    if (i < a.n) append_token<D>(a, i, *a.pos + i, blockIdx.y);
}

// Prompt chunk, second half: grid (ceil(n / 64), heads, D / V); each warp has 16 tokens of one head and all their keys.
// Heads wider than 128 compute their scores twice, once for each half of the value columns: 128 sums a lane do not fit.
template <int D, int V = (D > 128 ? D / 2 : D)>
__device__ __forceinline__ void attend_chunk(const AttendArgs& a) {
    extern __shared__ uint4 shared[];
    const int warp = threadIdx.x / 32, g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3;
    uint16_t* stage = (uint16_t*)shared + warp * 16 * D;
    const uint32_t head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    const uint32_t token0 = blockIdx.x * 64 + warp * 16, col0 = blockIdx.z * V;
    wait_for_previous_kernel();
    if (token0 >= a.n) return;
    auto row = [&](uint32_t r) { return Row{token0 + r, head, token0 + r < a.n}; };
    const uint32_t pos = *a.pos;
    stage_queries<D>(a, pos, stage, 0, 1, row);
    __syncwarp();
    Queries<D> q;
    q.load(stage);
    const uint32_t last[2] = {pos + token0 + g, pos + token0 + g + 8};
    const uint32_t end = min(pos + a.n, pos + token0 + 16);
    const uint32_t oldest = a.window && pos + token0 + 1 > a.window ? pos + token0 + 1 - a.window : 0;
    Softmax<D, V> soft;
    soft.clear();
    for (uint32_t chunk = oldest / CHUNK; chunk * CHUNK < end; chunk++)
        soft.add(a, q, cache_tile<D>(a, chunk, kv_head, 0), cache_tile<D>(a, chunk, kv_head, 1) + col0 * CHUNK, chunk * CHUNK, last, end);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float inv = 1.f / soft.total(r);
        const Row who = row(g + 8 * r);
        if (!who.live) continue;
#pragma unroll
        for (int j = 0; j < V / 8; j++) {
            uint32_t* out = (uint32_t*)(a.context + (uint64_t)who.token * a.context_stride + head * D + col0 + 8 * j + 2 * t);
            *out = pack_bf16(soft.sum[j][2 * r] * inv, soft.sum[j][2 * r + 1] * inv);
        }
    }
}
