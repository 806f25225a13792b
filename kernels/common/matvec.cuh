// y = W·x for 1..8 tokens, W streamed once: the template behind qkv, proj, gate_up and head.
//
//   A block takes one row block (16 rows) at a time; its 16 warps are four quads of four. Quad q streams records q, q+4, …
//   of the row block through a ring of its own; warp t of the quad computes tile t of each:
//
//     k →   record 0      1      2      3      4 …            ring of quad 0:  [record 0][record 4][record 8]
//     quad      0         1      2      3      0                                 ↑ copied    ↑ being read by four warps
//     tile    0 1 2 3   0 1 2 3 …                              one bulk copy a record; slots as large as the largest record
//     warp    0 1 2 3   4 5 6 7 …
//
//   x, as B operand, holds all 8 tokens of an mma; absent tokens are zero registers, so one token costs what eight do and
//   sums in the same order. Partial sums of the 16 warps meet in shared memory and are added in order, warp 0 first.
//   The ring runs on across row blocks: while sums are folded, the next rows are already on their way.
//
// Order of sums (num::order::WARPS16): tiles of a warp ascending, k-steps inside a tile ascending, then warps ascending.
// Nothing in it depends on the number of tokens, blocks or multiprocessors, or on the weight's format.
#pragma once
#include "abi.cuh"
#include "func.cuh"
#include "norm.cuh"
#include "ptx.cuh"

constexpr int WARPS = 16, QUADS = 4, THREADS = WARPS * 32;

enum Epilogue { STORE, ADD, ACT };        // y = Wx + b;  y += Wx + b;  hidden = act(W₀x + b₀)·(W₁x + b₁)

// What a quad works through: its records of all row blocks of this thread block, in order.
template <int EPI>
struct Walk {
    const MatvecArgs& a;
    uint32_t job, block, which, record;   // job: row block (or pair of them); which: matrix

    __device__ __forceinline__ Walk(const MatvecArgs& args, uint32_t quad) : a(args), job(blockIdx.x), record(quad) {
        which = 0;
        settle();
        skip(quad);
    }

    __device__ __forceinline__ bool done() const { return job >= a.jobs; }

    __device__ __forceinline__ void next(uint32_t quad) {
        record += QUADS;
        skip(quad);
    }

    // Steps over the end of a row block. A quad beyond the records of a narrow matrix has nothing to do at all.
    __device__ __forceinline__ void skip(uint32_t quad) {
        if (quad >= a.records) {
            job = a.jobs;
            return;
        }
        if (record < a.records) return;
        record = quad;
        if (EPI == ACT && which == 0) {
            which = 1;
            return;
        }
        which = 0;
        job += gridDim.x;
        settle();
    }

    // Which matrix a row block belongs to, where several stand in a row.
    __device__ __forceinline__ void settle() {
        block = job;
        if (EPI != STORE) return;
        which = 0;
        while (which + 1 < a.count && block >= (a.m[which].rows + 15) / 16) block -= (a.m[which++].rows + 15) / 16;
    }
};

// A place in a ring and the parity of its round; counted up, since a division by the number of stages costs as much as
// unpacking a quarter of a tile.
struct Cursor {
    uint32_t slot = 0, parity = 0;

    __device__ __forceinline__ void next(uint32_t stages) {
        if (++slot == stages) slot = 0, parity ^= 1;
    }
};

// Shared memory of a block. The host computes the same sum (backend/cuda/matvec.rs).
struct Layout {
    uint32_t x, parts, scratch, bars, ring;

    __device__ __forceinline__ Layout(const MatvecArgs& a, uint32_t scratch_bytes) {
        const uint32_t stride = a.tiles * 128 + 64;
        x = 0;
        parts = a.x_in_shared ? (a.n * stride + 127) / 128 * 128 : 0;
        scratch = parts + 2 * (WARPS * 16 * 4) * a.n * (a.pair ? 2 : 1);
        bars = scratch + WARPS * scratch_bytes;
        ring = bars + 2 * QUADS * 16 * 8;
    }
};

// Place of column c of a token in shared x: the 16 columns of a lane as two units of 16 bytes, units of a tile apart
// so that a warp reads them without bank conflicts.
__device__ __forceinline__ uint32_t x_place(uint32_t c) {
    return c / 64 * 128 + (c / 8 & 1) * 64 + (c / 16 & 3) * 16 + (c & 7) * 2;
}

// x into shared memory: RMSNorm(residual) when there is a norm, bf16 as it is when not.
__device__ __forceinline__ void load_x(const MatvecArgs& a, uint8_t* x, float* part) {
    const uint32_t stride = a.tiles * 128 + 64, half = threadIdx.x / 256, i0 = threadIdx.x & 255;
    for (uint32_t token = half; token < a.n; token += 2) {
        uint8_t* to = x + token * stride;
        if (a.norm) {
            const float* from = a.residual + (uint64_t)token * a.cols;
            const float r = token_rms(from, a.cols, a.eps, part + 8 * half, 1 + half);
#pragma unroll 4
            for (uint32_t c = i0 * 4; c < a.tiles * 64; c += 1024) *(uint2*)(to + x_place(c)) = normed4(from, a.norm, r, c, a.cols);
        } else {
            const uint16_t* from = a.x + (uint64_t)token * a.x_stride;
            for (uint32_t c = i0 * 8; c < a.tiles * 64; c += 256 * 8) *(uint4*)(to + x_place(c)) = *(const uint4*)(from + c);
        }
    }
}

// Where this lane's part of x begins: token lane/4, columns 16·(lane%4) … of tile 0. Tiles are 128 bytes apart either way.
struct Activations {
    const uint8_t* at;
    bool live, in_shared;

    __device__ __forceinline__ Activations(const MatvecArgs& a, const uint8_t* shared_x) {
        const uint32_t lane = threadIdx.x & 31, token = lane / 4, t = lane & 3;
        live = token < a.n;
        in_shared = a.x_in_shared;
        at = in_shared ? shared_x + token * (a.tiles * 128 + 64) + t * 16
                       : (const uint8_t*)(a.x + (uint64_t)token * a.x_stride) + t * 32;
    }

    __device__ __forceinline__ void fragments(uint32_t tile, uint4 (&b)[2]) const {
        b[0] = b[1] = make_uint4(0, 0, 0, 0);
        if (!live) return;
        const uint8_t* p = at + tile * 128;
        b[0] = *(const uint4*)p;
        b[1] = *(const uint4*)(p + (in_shared ? 64 : 16));
    }
};

template <class L>
__device__ __forceinline__ void multiply(const uint8_t* slot, const Activations& x, uint8_t* scratch, uint32_t tiles,
                                         uint32_t tile, uint32_t t, float (&acc)[4]) {
    uint4 b[2];
    x.fragments(tile, b);
    const uint32_t words[8] = {b[0].x, b[0].y, b[0].z, b[0].w, b[1].x, b[1].y, b[1].z, b[1].w};
    L::tile(slot, t, tiles, scratch, [&](int s, const uint32_t (&w)[4]) { mma_bf16(acc, w, words[2 * s], words[2 * s + 1]); });
}

// Bulk copies, one thread a quad (sm_90 and later).
template <class L, int EPI>
struct BulkRing {
    const MatvecArgs& a;
    Walk<EPI> ahead;
    typename L::Place place;  // of the record `ahead` stands at, read one record early: nothing waits for the index
    uint32_t ring, full, empty;
    Cursor filling, using_;
    uint64_t policy;

    __device__ __forceinline__ BulkRing(const MatvecArgs& args, uint8_t* shared, const Layout& at, uint32_t quad)
        : a(args), ahead(args, quad) {
        ring = shared_address(shared) + at.ring + quad * a.stages * a.slot_bytes;
        full = shared_address(shared) + at.bars + quad * 128;
        empty = full + QUADS * 128;
        policy = evict_first_policy();
        if ((threadIdx.x & 127) == 0)
            for (uint32_t s = 0; s < a.stages; s++) barrier_init(full + 8 * s, 1), barrier_init(empty + 8 * s, 4);
        barrier_init_fence();
        named_barrier(3 + quad, 128);  // barriers exist before anyone waits on them
        if (!ahead.done()) place = look();
    }

    __device__ __forceinline__ typename L::Place look() const {
        return L::locate(a.m[ahead.which], ahead.block, ahead.record, a.records, a.tiles);
    }

    // Starts the copy of the next record, if there is one. The slot's last readers have arrived on `empty`.
    __device__ __forceinline__ void fill(uint32_t quad) {
        if ((threadIdx.x & 127) != 0 || ahead.done()) return;
        const uint32_t slot = filling.slot;
        barrier_wait(empty + 8 * slot, filling.parity ^ 1);  // in the first round nothing has to be left first
        const uint32_t bytes = place.bytes();
        barrier_expect(full + 8 * slot, bytes);
        bulk_copy(ring + slot * a.slot_bytes, a.m[ahead.which].data + place.first(), bytes, full + 8 * slot, policy);
        ahead.next(quad);
        if (!ahead.done()) place = look();
        filling.next(a.stages);
    }

    __device__ __forceinline__ uint32_t wait() const {
        barrier_wait(full + 8 * using_.slot, using_.parity);
        return using_.slot;
    }

    __device__ __forceinline__ void release(uint32_t quad) {
        __syncwarp();  // all lanes have read the slot
        if ((threadIdx.x & 31) == 0) barrier_arrive(empty + 8 * using_.slot);
        using_.next(a.stages);
        fill(quad);
    }
};

// cp.async by all 128 threads of a quad (sm_80 and later). Two or three stages: the wait counts groups by a constant.
template <class L, int EPI>
struct AsyncRing {
    const MatvecArgs& a;
    Walk<EPI> ahead;
    typename L::Place place;
    uint32_t ring;
    Cursor filling, using_;

    __device__ __forceinline__ AsyncRing(const MatvecArgs& args, uint8_t* shared, const Layout& at, uint32_t quad)
        : a(args), ahead(args, quad) {
        ring = shared_address(shared) + at.ring + quad * a.stages * a.slot_bytes;
        if (!ahead.done()) place = look();
    }

    __device__ __forceinline__ typename L::Place look() const {
        return L::locate(a.m[ahead.which], ahead.block, ahead.record, a.records, a.tiles);
    }

    // Starts the copy of the next record; an empty group when there is none, so that groups stay in step with slots.
    __device__ __forceinline__ void fill(uint32_t quad) {
        if (!ahead.done()) {
            const uint8_t* from = a.m[ahead.which].data + place.first();
            const uint32_t bytes = place.bytes();
            const uint32_t to = ring + filling.slot * a.slot_bytes;
            for (uint32_t i = (threadIdx.x & 127) * 16; i < bytes; i += 128 * 16)
                cp_async_16_or_zero(to + i, from + i, true);
            ahead.next(quad);
            if (!ahead.done()) place = look();
        }
        cp_async_commit();
        filling.next(a.stages);
    }

    __device__ __forceinline__ uint32_t wait() const {
        if (a.stages == 2) cp_async_wait<1>();
        else cp_async_wait<2>();
        named_barrier(3 + (threadIdx.x / 128), 128);  // every thread's part of the record has arrived
        return using_.slot;
    }

    __device__ __forceinline__ void release(uint32_t quad) {
        named_barrier(3 + quad, 128);  // all four warps have read the slot
        using_.next(a.stages);
        fill(quad);
    }
};

// Folds the partial sums of a row block, in warp order, and finishes the op. `part` is [matrix][warp][token][16].
template <int EPI>
__device__ __forceinline__ void finish(const MatvecArgs& a, const float* part, const Walk<EPI>& at) {
    const uint32_t per_matrix = WARPS * a.n * 16;
    for (uint32_t i = threadIdx.x; i < a.n * 16; i += THREADS) {
        const uint32_t token = i / 16, row = at.block * 16 + i % 16;
        const Matrix& m = a.m[EPI == STORE ? at.which : 0];
        if (row >= m.rows) continue;
        float sum = 0.f;
        for (int w = 0; w < WARPS; w++) sum += part[w * a.n * 16 + i];
        if (m.bias) sum += bf16_to_f32(m.bias[row]);
        if (EPI == ACT) {
            float up = 0.f;
            for (int w = 0; w < WARPS; w++) up += part[per_matrix + w * a.n * 16 + i];
            if (a.m[1].bias) up += bf16_to_f32(a.m[1].bias[row]);
            const float g = a.activation == ACT_SILU ? snug_silu(sum) : snug_gelu_tanh(sum);
            a.hidden[(uint64_t)token * a.stride + row] = f32_to_bf16(g * up);
        } else {
            float* y = a.y + (uint64_t)token * a.stride + m.out + row;
            *y = EPI == ADD ? *y + sum : sum;
        }
    }
}

template <template <class, int> class Ring, class L, int EPI>
__device__ __forceinline__ void matvec(const MatvecArgs& a) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float rms_part[16];
    const Layout at(a, L::scratch);
    const uint32_t warp = threadIdx.x / 32, quad = warp / 4, t = warp & 3, lane = threadIdx.x & 31;
    uint8_t* scratch = shared + at.scratch + warp * L::scratch;
    if constexpr (L::scratch > 0)
        for (uint32_t i = lane * 16; i < L::scratch; i += 512) *(uint4*)(scratch + i) = make_uint4(0, 0, 0, 0);

    let_next_kernel_start();
    Ring<L, EPI> ring(a, shared, at, quad);
    for (uint32_t s = 0; s < a.stages; s++) ring.fill(quad);  // weights depend on nothing: ask for them before waiting
    wait_for_previous_kernel();
    if (a.x_in_shared) load_x(a, shared + at.x, rms_part);
    __syncthreads();  // x is there

    // Every quad passes the same row blocks, also those in which it has no record, so that all meet at the barrier.
    const Activations x(a, shared + at.x);
    const uint8_t* slots = shared + at.ring + quad * a.stages * a.slot_bytes;
    const uint32_t tiles = a.tiles, slot_bytes = a.slot_bytes;
    uint32_t parity = 0;
    Walk<EPI> row(a, 0);
    while (!row.done()) {
        const uint32_t matrices = EPI == ACT ? 2 : 1;
        float* part = (float*)(shared + at.parts) + parity * matrices * WARPS * a.n * 16;
        for (uint32_t which = 0; which < matrices; which++) {
            float acc[4] = {0.f, 0.f, 0.f, 0.f};
            for (uint32_t first = 4 * quad; first < tiles; first += 4 * QUADS) {
                const uint32_t slot = ring.wait(), in_record = min(4u, tiles - first);
                if (t < in_record) multiply<L>(slots + slot * slot_bytes, x, scratch, in_record, first + t, t, acc);
                ring.release(quad);
            }
            float* mine = part + (which * WARPS + warp) * a.n * 16;
            const uint32_t g = lane / 4, token = 2 * (lane & 3);
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (token + (c & 1) < a.n) mine[(token + (c & 1)) * 16 + g + c / 2 * 8] = acc[c];
        }
        __syncthreads();  // all partial sums of this row block; those of the one before last have been read
        finish<EPI>(a, part, row);
        parity ^= 1;
        row.job += gridDim.x;
        row.settle();
    }
}
