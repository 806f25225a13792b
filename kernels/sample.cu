// sample: the next token from one row of logits, chosen on the device; only its id crosses to the host
// images: sm_80 sm_90a sm_100f sm_120f ptx_80
// agreement: same            order: none. Weights are integers, so sums are exact in any order
//
// Order of effects: logit bias, penalties, temperature, top-k, top-p, min-p, draw (src/backend/cpu/sample.rs is the
// definition). Candidates are ranked by key = (logit as ordered integer) << 32 | ~id: larger logit first, then lower id.
// Top-k, top-p and the draw are one question, "at which candidate does the running sum of a measure, best first, reach a
// target?", answered by descending the key eight bits at a time (`descend`).
//
//   count    one block      occurrences of tokens within the penalty window (only when a penalty is on)
//   scan     many blocks    adjusted logits, best key
//   weigh    many blocks    integer weights floor(2^30·e^(y - y_max)), candidates with weight > 0  (not when greedy)
//   pick     one block      cut-offs and draw; writes the token
//
// bytes: 4·vocab read, 4·vocab written, candidates 12 each. At 128,256: 1 MB, from L2; launches dominate, about 4 us
#include "common/abi.cuh"
#include "common/func.cuh"
#include "common/ptx.cuh"
#include "common/rng.cuh"

constexpr uint32_t NO_TOKEN = 0xffffffffu;  // no logit was a number above -inf

// Larger float, larger integer; NaN and -inf below everything and never candidates.
__device__ __forceinline__ uint32_t ordered(float x) {
    if (!(x > -__int_as_float(0x7f800000))) return 0;
    const uint32_t b = __float_as_uint(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

__device__ __forceinline__ float unordered(uint32_t k) {
    return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k);
}

__device__ __forceinline__ uint64_t key_of(float x, uint32_t id) {
    const uint32_t k = ordered(x);
    return k ? (uint64_t)k << 32 | (uint32_t)~id : 0;
}

__device__ __forceinline__ bool penalised(const SampleParams& p) {
    return p.repeat_penalty != 1.f || p.presence_penalty != 0.f || p.frequency_penalty != 0.f;
}

extern "C" __global__ void __launch_bounds__(1024) snug_sample_count(const __grid_constant__ SampleArgs a) {
    wait_for_previous_kernel();
    const SampleParams p = *a.params;
    if (!penalised(p)) return;
    SampleState* s = a.state;
    const uint32_t old_lo = s->window_lo, old_hi = s->window_hi;
    const uint32_t hi = *a.pos + a.n, lo = p.last_n && hi > p.last_n ? hi - p.last_n : 0;
    for (uint32_t i = old_lo + threadIdx.x; i < old_hi; i += 1024) a.counts[a.history[i]] = 0;
    __syncthreads();  // every old count is gone before the first new one
    for (uint32_t i = lo + threadIdx.x; i < hi; i += 1024) atomicAdd(&a.counts[a.history[i]], 1);
    if (threadIdx.x == 0) s->window_lo = lo, s->window_hi = hi;
}

extern "C" __global__ void __launch_bounds__(256) snug_sample_scan(const __grid_constant__ SampleArgs a) {
    wait_for_previous_kernel();
    const SampleParams p = *a.params;
    const bool penalties = penalised(p);
    uint64_t best = 0;
    for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < a.vocab; i += gridDim.x * 256) {
        float x = a.logits[i];
        if (p.has_bias) x += a.bias[i];
        if (penalties) {
            const uint32_t count = a.counts[i];
            if (count) {
                x = x > 0.f ? x / p.repeat_penalty : x * p.repeat_penalty;
                x = x - p.presence_penalty;
                x = x - p.frequency_penalty * (float)count;
            }
        }
        a.adjusted[i] = x;
        const uint64_t k = key_of(x, i);
        best = k > best ? k : best;
    }
    for (int d = 16; d > 0; d >>= 1) {
        const uint64_t other = __shfl_xor_sync(~0u, best, d);
        best = other > best ? other : best;
    }
    if ((threadIdx.x & 31) == 0) atomicMax((unsigned long long*)&a.state->best, best);
}

extern "C" __global__ void __launch_bounds__(256) snug_sample_weigh(const __grid_constant__ SampleArgs a) {
    wait_for_previous_kernel();
    const SampleParams p = *a.params;
    if (p.temperature == 0.f) return;
    const uint64_t best = a.state->best;
    if (!best) return;
    const float top = unordered(best >> 32) / p.temperature;
    for (uint32_t i0 = blockIdx.x * 256; i0 < a.vocab; i0 += gridDim.x * 256) {
        const uint32_t i = i0 + threadIdx.x;
        uint32_t w = 0;
        uint64_t key = 0;
        if (i < a.vocab) {
            const float x = a.adjusted[i];
            key = key_of(x, i);
            if (key) {
                const float y = x / p.temperature;
                // Where the largest is infinite, the difference to it is not a number.
                w = (uint32_t)(snug_exp(y == top ? 0.f : y - top) * 1073741824.f);
            }
        }
        const uint32_t votes = __ballot_sync(~0u, w > 0);
        if (!votes) continue;
        uint32_t base = 0;
        if ((threadIdx.x & 31) == 0) base = atomicAdd(&a.state->candidates, __popc(votes));
        base = __shfl_sync(~0u, base, 0);
        if (w) {
            const uint32_t at = base + __popc(votes & ((1u << (threadIdx.x & 31)) - 1));
            a.keys[at] = key;
            a.weights[at] = w;
        }
    }
}

// What `pick` shares among its threads.
struct Pick {
    unsigned long long bucket[256];
    unsigned long long total, rest;
    uint64_t prefix;
};

// Sum of weights (or the number) of candidates with key >= cut and weight >= least.
__device__ __forceinline__ uint64_t measure(const SampleArgs& a, Pick& s, uint32_t n, uint64_t cut, uint32_t least) {
    __syncthreads();  // the last reader of `total` is done
    if (threadIdx.x == 0) s.total = 0;
    __syncthreads();
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        if (a.keys[i] >= cut && a.weights[i] >= least) sum += a.weights[i];
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    if ((threadIdx.x & 31) == 0) atomicAdd(&s.total, sum);
    __syncthreads();
    return s.total;
}

// One warp finds the bucket in which the running measure, best first, exceeds `rest`. Lane l sums eight buckets.
__device__ __forceinline__ void choose_digit(Pick& s, uint64_t prefix) {
    const int lane = threadIdx.x, first = 255 - 8 * lane;
    const uint64_t rest = s.rest;
    uint64_t own = 0;
    for (int i = 0; i < 8; i++) own += s.bucket[first - i];
    uint64_t upto = own;
    for (int d = 1; d < 32; d <<= 1) {
        const uint64_t below = __shfl_up_sync(~0u, upto, d);
        if (lane >= d) upto += below;
    }
    const uint32_t over = __ballot_sync(~0u, upto > rest);
    if (lane != __ffs(over) - 1) return;
    uint64_t left = rest - (upto - own);
    int digit = first;
    for (; s.bucket[digit] <= left; digit--) left -= s.bucket[digit];
    s.prefix = prefix << 8 | digit;
    s.rest = left;
}

// The key at which the running measure, best first, exceeds `target` (which is less than the whole). The measure is 1 a
// candidate, or its weight; candidates with key < cut or weight < least do not count.
__device__ __forceinline__ uint64_t descend(const SampleArgs& a, Pick& s, uint32_t n, uint64_t cut, uint32_t least,
                                            bool by_weight, uint64_t target) {
    __syncthreads();
    if (threadIdx.x == 0) s.prefix = 0, s.rest = target;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) s.bucket[i] = 0;
        __syncthreads();  // empty buckets, and prefix of the level above
        const uint64_t prefix = s.prefix;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            const uint64_t key = a.keys[i];
            const uint32_t w = a.weights[i];
            if (key < cut || w < least || (shift < 56 && key >> (shift + 8) != prefix)) continue;
            atomicAdd(&s.bucket[key >> shift & 255], by_weight ? w : 1ull);
        }
        __syncthreads();  // full buckets
        if (threadIdx.x < 32) choose_digit(s, prefix);
        __syncthreads();
    }
    return s.prefix;
}

extern "C" __global__ void __launch_bounds__(1024) snug_sample_pick(const __grid_constant__ SampleArgs a) {
    __shared__ Pick s;
    wait_for_previous_kernel();
    const SampleParams p = *a.params;
    SampleState* state = a.state;
    const uint64_t best = state->best;
    const uint32_t n = state->candidates;
    const uint32_t pos = *a.pos + a.n;  // where the new token will stand
    uint32_t token = best ? ~(uint32_t)best : NO_TOKEN;
    if (best && p.temperature != 0.f) {
        uint64_t cut = 0;
        if (p.top_k && p.top_k < n) cut = descend(a, s, n, 0, 0, false, p.top_k - 1);
        uint64_t total = measure(a, s, n, cut, 0);
        if (p.top_p < 1.f) {
            uint64_t need = (uint64_t)ceil((double)p.top_p * (double)total);
            need = need < 1 ? 1 : need > total ? total : need;
            cut = descend(a, s, n, cut, 0, true, need - 1);
            total = measure(a, s, n, cut, 0);
        }
        const uint32_t least = (uint32_t)ceil((double)p.min_p * 1073741824.0);
        if (least > 0) total = measure(a, s, n, cut, least);
        const uint64_t target = __umul64hi(rng_draw(p.seed, pos), total);
        token = ~(uint32_t)descend(a, s, n, cut, least, true, target);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        state->best = 0;
        state->candidates = 0;
        *a.token = token;
        *a.pos = pos;
        a.ring[pos % a.ring_len] = token;
    }
}
