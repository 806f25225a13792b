// How weights get into shared memory: each warp streams the records it computes, in order, through a ring of its own.
//
//   places   ring of 16, looked up columns ahead by lanes of the warp: nobody waits for an index
//   slots    ring of `stages` (1, 2 or 4), one piece each. A piece is a whole record, or half a bf16 one
//
// Records begin at multiples of 16 bytes. A record lies in its slot as it lies in memory, modulo SLOT_ALIGN: the copy engine
// works through aligned units of shared memory, and one that straddles sectors of the cache asks for a fifth more of them.
#pragma once
#include "abi.cuh"
#include "ptx.cuh"

constexpr uint32_t WARPS = 8, THREADS = 32 * WARPS;

enum Epilogue { STORE, ADD, ACT };  // y = Wx + b;  y += Wx + b;  hidden = act(W₀x + b₀)·(W₁x + b₁)

// Where a piece of a matrix lies: [base + 16·begin, base + 16·end). `base` is a multiple of SLOT_ALIGN.
struct alignas(16) Place {
    uint64_t base;
    uint32_t begin, end;
};

constexpr uint32_t PLACES = 16;

constexpr uint32_t SLOT_ALIGN = 128;

// Bytes of a token's x in shared memory: 16 more than a multiple of 128, so that a warp reads B fragments without bank
// conflicts.
__device__ __forceinline__ uint32_t x_bytes(const MatvecArgs& a) { return a.tiles * 128 + 16; }

// Shared memory of a block. The host computes the same sum (backend/cuda/matvec.rs).
struct Layout {
    uint32_t scratch, ring, places, x, parts, bars;

    __device__ __forceinline__ Layout(const MatvecArgs& a, uint32_t scratch_bytes) {
        scratch = 0;
        ring = scratch + WARPS * scratch_bytes;
        places = ring + WARPS * a.stages * a.slot_bytes;
        x = places + WARPS * PLACES * 16;
        parts = x + (a.x_in_shared ? a.n * x_bytes(a) : 0);
        bars = parts + 2 * 2 * WARPS * 16 * 4 * a.n;  // [set][row block][warp][token][16]
    }                                                 // 4 for the sums, then [warp][stage]
};

// Row block `row` of this thread block: which matrix, and where in it.
template <int EPI>
__device__ __forceinline__ bool find_row_block(const MatvecArgs& a, uint32_t row, uint32_t& which, uint32_t& block) {
    which = EPI == ACT ? row & 1 : 0;
    block = blockIdx.x + gridDim.x * (EPI == ACT ? row / 2 : row);
    if (block >= a.jobs) return false;
    if (EPI == STORE)
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t blocks = (a.m[k].rows + 15) / 16;
            if (which == k && k + 1 < a.count && block >= blocks) block -= blocks, which = k + 1;
        }
    return true;
}

// What a warp streams: the pieces of its records, in the order it computes them. Pairs of row blocks take turns at each
// column of records; a last row block without a partner goes alone.
template <class L, int EPI>
struct Stream {
    // Columns looked up ahead. With the current one they fill `places`, so that a place is there until its piece is used.
    static constexpr uint32_t AHEAD = 7 / L::pieces;
    const MatvecArgs& a;
    uint32_t columns, rows;  // records of a row block for this warp; row blocks of this thread block
    Place* places;           // of piece i at i mod PLACES

    __device__ __forceinline__ Stream(const MatvecArgs& args, uint8_t* shared, const Layout& at) : a(args) {
        const uint32_t warp = threadIdx.x / 32;
        places = (Place*)(shared + at.places) + warp * PLACES;
        columns = warp < a.records ? (a.records - warp + WARPS - 1) / WARPS : 0;
        const uint32_t jobs = (a.jobs - blockIdx.x + gridDim.x - 1) / gridDim.x;
        rows = EPI == ACT ? 2 * jobs : jobs;
        if (columns == 0) return;
#pragma unroll 1
        for (uint32_t i = 0; i < AHEAD; i++) look_up(0, i);
        cp_async_wait_all();
        __syncwarp();  // all of these places are there
    }

    __device__ __forceinline__ uint32_t total() const { return rows * columns * L::pieces; }

    // Starts to look up the pieces of a column, which may lie in a later pair of row blocks than the one named.
    __device__ __forceinline__ void look_up(uint32_t pair, uint32_t column) const {
        while (column >= columns) column -= columns, pair++;
        const uint32_t lane = threadIdx.x & 31, row = 2 * pair + lane / L::pieces;
        if (lane >= 2 * L::pieces || row >= rows) return;
        const uint32_t of_pair = (2 * pair + 1 < rows ? 2 : 1) * L::pieces;
        uint32_t which, block;
        find_row_block<EPI>(a, row, which, block);
        L::locate(a.m[which], block, threadIdx.x / 32 + WARPS * column, lane % L::pieces, a.records, a.tiles,
                  places + (pair * columns * 2 * L::pieces + column * of_pair + lane) % PLACES);
    }
};

// What both rings share: where the slots are, and how far into its slot a piece begins.
template <class L, int EPI>
struct Slots {
    Stream<L, EPI> stream;
    uint8_t* mine;  // this warp's slots

    __device__ __forceinline__ Slots(const MatvecArgs& a, uint8_t* shared, const Layout& at) : stream(a, shared, at) {
        mine = shared + at.ring + threadIdx.x / 32 * a.stages * a.slot_bytes;
    }

    __device__ __forceinline__ uint32_t slot(uint32_t i) const { return i & (stream.a.stages - 1); }

    // Where piece i goes or is.
    __device__ __forceinline__ uint8_t* piece(uint32_t i) const {
        const uint32_t offset = L::aligned ? 0 : stream.places[i % PLACES].begin * 16 % SLOT_ALIGN;
        return mine + slot(i) * stream.a.slot_bytes + offset;
    }
};

// Ring filled by bulk copies: one instruction a piece, completion counted by an mbarrier (sm_90 and later).
template <class L, int EPI>
struct BulkRing : Slots<L, EPI> {
    using Slots<L, EPI>::stream;
    uint32_t bars;

    __device__ __forceinline__ BulkRing(const MatvecArgs& a, uint8_t* shared, const Layout& at) : Slots<L, EPI>(a, shared, at) {
        bars = shared_address(shared) + at.bars + (4 + threadIdx.x / 32 * a.stages) * 8;
        for (uint32_t s = threadIdx.x & 31; s < a.stages; s += 32) barrier_init(bars + 8 * s, 1);
        barrier_init_fence();
        __syncwarp();  // the barriers exist before a lane arms one
    }

    // To be called before each column.
    __device__ __forceinline__ void keep_ahead(uint32_t pair, uint32_t column) {
        cp_async_wait_all();
        __syncwarp();  // what the last call looked up is there, whichever lane did it
        stream.look_up(pair, column + stream.AHEAD);
    }

    // Asks for piece i, whose slot no lane reads any more.
    __device__ __forceinline__ void fill(uint32_t i) {
        if (i >= stream.total()) return;
        if (elect_one()) {
            const Place at = stream.places[i % PLACES];
            const uint32_t bytes = (at.end - at.begin) * 16, bar = bars + 8 * this->slot(i);
            barrier_expect(bar, bytes);
            if (bytes) bulk_copy(shared_address(this->piece(i)), (const void*)(at.base + at.begin * 16ull), bytes, bar, evict_first_policy());
        }
    }

    // Until piece i is there. The stages are a power of two: the bit above the slot's counts its rounds.
    __device__ __forceinline__ void wait(uint32_t i) const { barrier_wait(bars + 8 * this->slot(i), (i & stream.a.stages) != 0); }
};

// Ring filled by cp.async, all lanes of the warp (sm_80 and later). One group a piece, empty past the end, so that the
// number of groups in flight is always that of the stages: 1 or 2. What is looked up belongs to the group of the piece
// asked for next, and is needed at least 6 pieces later: that group has been waited for by then.
template <class L, int EPI>
struct AsyncRing : Slots<L, EPI> {
    using Slots<L, EPI>::stream;

    __device__ __forceinline__ AsyncRing(const MatvecArgs& a, uint8_t* shared, const Layout& at) : Slots<L, EPI>(a, shared, at) {}

    __device__ __forceinline__ void keep_ahead(uint32_t pair, uint32_t column) { stream.look_up(pair, column + stream.AHEAD); }

    __device__ __forceinline__ void fill(uint32_t i) {
        if (i < stream.total()) {
            const Place at = stream.places[i % PLACES];
            const uint8_t* from = (const uint8_t*)at.base + at.begin * 16ull;
            const uint32_t units = at.end - at.begin, to = shared_address(this->piece(i));
            for (uint32_t k = threadIdx.x & 31; k < units; k += 32) cp_async_16_or_zero(to + 16 * k, from + 16 * k, true);
        }
        cp_async_commit();
    }

    __device__ __forceinline__ void wait(uint32_t) const {
        if (stream.a.stages == 1) cp_async_wait<0>();
        else cp_async_wait<1>();
        __syncwarp();  // the other lanes' copies have landed, too
    }
};
