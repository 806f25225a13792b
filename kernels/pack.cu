// pack: bf16 rows into pairlut.1 records (FORMAT.md, section 3), byte for byte what src/codec/pairlut/encode.rs writes
// images: sm_80 sm_90a sm_100f sm_120f ptx_80
// agreement: same            order: none, nothing is added but counts
//
// rows_in [rows][cols] bf16      plans [row_blocks · records]      index [row_blocks · records + 1]      data: records
//
//   plan    counts sign and exponent of a record's words, ranks the high bytes under either shift, tries the eight
//           combinations of shift, mode and patch width, keeps the first of the smallest: a table, and the record's size
//   scan    sizes → index, and the largest record
//   write   each warp one tile: L plane, codes by look-up, patches behind those of the tiles before
//
// grid: one block of four warps a record (plan, write); one block (scan)
// bytes: 2·rows·cols read twice, 11.3/8·rows·cols written. 28672 x 4096: 635 MB, 140 us at 4.65 TB/s; what takes longer are
// the instructions, some 2,000 cycles a record in either kernel: 4096 · 132 · 1.7e9 / 4000 = 230 G weights/s, 460 GB/s
#include "common/abi_pack.cuh"

constexpr uint32_t PACK_THREADS = 128, SCAN_THREADS = 1024, SCAN_EACH = 8;
constexpr uint32_t BITS3 = 0, BITS4 = 1, RAW = 2;  // as in a record's header
constexpr uint32_t HIT = 0x80;                     // set in a look-up entry that the table has

// A record: which rows and columns, and how many tiles of them.
struct Where {
    uint32_t record, row, col, tiles;

    __device__ __forceinline__ Where(const PackArgs& a) {
        record = blockIdx.x;
        const uint32_t i = record % a.records;
        row = record / a.records * 16, col = i * 256, tiles = min(4u, a.tiles - 4 * i);
    }
};

__device__ __forceinline__ uint32_t header_bytes(uint32_t mode) { return mode == BITS4 ? 32 : 16; }
__device__ __forceinline__ uint32_t tile_bytes(uint32_t mode) { return mode == RAW ? 2048 : mode == BITS4 ? 1536 : 1408; }
__device__ __forceinline__ uint32_t payload_bytes(uint32_t mode, uint32_t wide, uint32_t tiles, uint32_t patches) {
    return header_bytes(mode) + tiles * tile_bytes(mode) + patches * (wide ? 4 : 2);
}

// Eight neighbouring words of a row; beyond the edges `fill`. Rows of 8·k words begin at multiples of 16 bytes.
__device__ __forceinline__ void load_eight(const PackArgs& a, uint32_t row, uint32_t col, uint32_t fill, uint32_t (&w)[8]) {
    const uint16_t* from = a.rows_in + (uint64_t)row * a.cols + col;
    if (a.cols % 8 == 0 && row < a.rows && col < a.cols) {
        const uint4 v = *(const uint4*)from;
        const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = pairs[i / 2] >> (16 * (i & 1)) & 0xffff;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = row < a.rows && col + i < a.cols ? from[i] : fill;
}

// Counts of sign and exponent in the record. Four tables, so that equal neighbours need not queue for one counter.
__device__ __forceinline__ void count(const PackArgs& a, const Where& at, uint32_t (&counts)[4][512]) {
    for (uint32_t k = threadIdx.x; k < 4 * 512; k += PACK_THREADS) counts[k / 512][k % 512] = 0;
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < 16 * 32; k += PACK_THREADS) {
        const uint32_t row = at.row + k / 32, col = at.col + k % 32 * 8;
        if (row >= a.rows || col >= a.cols) continue;
        uint32_t w[8];
        load_eight(a, row, col, ~0u, w);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (w[i] != ~0u) atomicAdd(&counts[threadIdx.x & 3][w[i] >> 7], 1);
    }
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < 512; k += PACK_THREADS)
        counts[0][k] += counts[1][k] + counts[2][k] + counts[3][k];
    __syncthreads();
}

// The high bytes that occur under a shift, the most frequent first, of equals the smaller one: count · 256 + 255 - value.
// `keys` holds one such number or zero for each value, `ranked` the sorted ones.
__device__ __forceinline__ void rank(const uint32_t (&counts)[512], uint32_t shift, uint32_t (&keys)[256], uint32_t (&ranked)[256],
                                     uint32_t* len) {
    if (threadIdx.x == 0) *len = 0;
    __syncthreads();
    for (uint32_t h = threadIdx.x; h < 256; h += PACK_THREADS) {
        // The exponent 0xff does not occur where shift is 1, so that nothing moves beyond the end, or from sign to sign.
        const uint32_t low = 2 * h - shift;
        const uint32_t n = (low < 512 ? counts[low] : 0) + counts[low + 1];
        keys[h] = n ? n << 8 | (255 - h) : 0;
    }
    __syncthreads();
    for (uint32_t h = threadIdx.x; h < 256; h += PACK_THREADS) {
        const uint32_t key = keys[h];
        if (!key) continue;
        uint32_t place = 0;
        for (uint32_t k = 0; k < 256; k += 4) {
            const uint4 v = *(const uint4*)&keys[k];
            place += (v.x > key) + (v.y > key) + (v.z > key) + (v.w > key);
        }
        ranked[place] = key;
        atomicAdd(len, 1);
    }
    __syncthreads();
}

// The best table for a mode and a kind of patch, unsorted: the most frequent values, but for narrow patches one entry is set
// aside for each group of 64 values that occurs. Returns the patches it leaves; one lane works alone.
__device__ __forceinline__ uint32_t choose(const uint32_t (&ranked)[256], uint32_t len, uint32_t entries, bool wide,
                                           uint8_t* table, uint32_t* used) {
    uint32_t awaited = 0, patches = 0, n = 0;
    if (!wide)
        for (uint32_t k = 0; k < len; k++) awaited |= 1u << ((255 - (ranked[k] & 255)) >> 6);
    for (uint32_t k = 0; k < len; k++) {
        const uint32_t h = 255 - (ranked[k] & 255), group = 1u << (h >> 6);
        const bool first = awaited & group;
        awaited &= ~group;
        if (first || n + __popc(awaited) < entries) table[n++] = h;
        else patches += ranked[k] >> 8;
    }
    *used = n;
    return patches;
}

// Sorts the used entries of a table and makes code 0 fit for padding; lanes 0 … 15 hold one entry each (0 beyond `used`).
__device__ __forceinline__ uint32_t sort(uint32_t entry, uint32_t used, bool shifted, uint32_t lane, uint32_t* used_out) {
    const bool zero = shifted && (entry & 0x7f) == 0;
    const uint32_t key = lane < used ? (zero ? 256 : 0) | entry : ~0u;
    uint32_t place = 0, sorted = 0;
    for (uint32_t k = 0; k < 16; k++) place += __shfl_sync(~0u, key, k) < key;
    for (uint32_t k = 0; k < 16; k++) {
        const uint32_t e = __shfl_sync(~0u, entry, k), p = __shfl_sync(~0u, place, k);
        if (k < used && p == lane) sorted = e;
    }
    // Only the two zeros occur: a shifted record whose code 0 were one of them would decode padding to an infinity.
    const bool move = shifted && (__shfl_sync(~0u, sorted, 0) & 0x7f) == 0;
    const uint32_t before = __shfl_up_sync(~0u, sorted, 1);
    *used_out = used + move;
    return !move ? sorted : lane == 0 ? 1 : before;
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS) snug_pack_plan(const __grid_constant__ PackArgs a) {
    __shared__ uint32_t counts[4][512];
    __shared__ __align__(16) uint32_t keys[256], ranked[2][256];
    __shared__ uint32_t len[2];
    __shared__ uint8_t tables[8][16];
    const Where at(a);
    const uint32_t lane = threadIdx.x;
    count(a, at, counts);
    const bool may_shift = counts[0][0x0ff] == 0 && counts[0][0x1ff] == 0;
    rank(counts[0], 0, keys, ranked[0], &len[0]);
    if (may_shift) rank(counts[0], 1, keys, ranked[1], &len[1]);
    if (lane >= 32) return;
    // Candidate = 4·shifted + 2·mode + wide, in the encoder's order. Of bytes, then patches, then order, the smallest wins; the
    // raw record, which comes first of all, is candidate 8.
    uint32_t used = 0, patches = 0, cost = ~0u;
    const uint32_t shifted = lane / 4 & 1, mode = lane / 2 & 1, wide = lane & 1;
    if (lane < 8 && (!shifted || may_shift)) {
        patches = choose(ranked[shifted], len[shifted], mode ? 16 : 8, wide, tables[lane], &used);
        cost = (payload_bytes(mode, wide, at.tiles, patches) + 15) / 16;
    }
    if (lane == 8) cost = (payload_bytes(RAW, 0, at.tiles, 0) + 15) / 16;
    // Units below 2^11 of them, patches below 2^13, then the order, raw first.
    uint32_t score = cost == ~0u ? ~0u : cost << 17 | patches << 4 | (lane == 8 ? 0 : lane + 1);
    for (int d = 16; d > 0; d >>= 1) score = min(score, __shfl_xor_sync(~0u, score, d));
    const uint32_t winner = (score & 15) == 0 ? 8 : (score & 15) - 1;
    used = __shfl_sync(~0u, used, winner), patches = __shfl_sync(~0u, patches, winner), cost = __shfl_sync(~0u, cost, winner);
    __syncwarp();  // the tables are written
    const bool raw = winner == 8, shift = !raw && winner >= 4;
    const uint32_t entry = !raw && lane < used ? tables[winner][lane] : 0;
    const uint32_t sorted = sort(entry, raw ? 0 : used, shift, lane, &used);
    PackPlan* plan = a.plans + at.record;
    if (lane < 16) plan->table[lane] = raw ? 0 : sorted;
    if (lane == 0) {
        plan->mode = raw ? RAW : winner / 2 & 1;
        plan->wide = raw ? 0 : winner & 1;
        plan->shifted = shift;
        plan->used = raw ? 0 : used;
        plan->patches = patches;
        plan->units = cost;
    }
}

// index[0] = 0, index[i + 1] = sum of the sizes of records 0 … i; totals[0] = the largest size.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) snug_pack_scan(const __grid_constant__ PackArgs a) {
    __shared__ uint32_t sums[32];
    __shared__ uint32_t largest;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t done = 0, most = 0;
    if (threadIdx.x == 0) a.index[0] = 0, largest = 0;
    for (uint32_t from = 0; from < a.count; from += SCAN_THREADS * SCAN_EACH) {
        const uint32_t first = from + threadIdx.x * SCAN_EACH;
        uint32_t units[SCAN_EACH], own = 0;
#pragma unroll
        for (uint32_t k = 0; k < SCAN_EACH; k++) {
            units[k] = first + k < a.count ? a.plans[first + k].units : 0;
            own += units[k], most = max(most, units[k]);
        }
        uint32_t sum = own;
        for (int d = 1; d < 32; d *= 2) {
            const uint32_t before = __shfl_up_sync(~0u, sum, d);
            if (lane >= d) sum += before;
        }
        if (lane == 31) sums[warp] = sum;
        __syncthreads();
        uint32_t ahead = done, all = 0;
        for (uint32_t k = 0; k < 32; k++) {
            const uint32_t s = sums[k];
            if (k < warp) ahead += s;
            all += s;
        }
        uint32_t end = ahead + sum - own;
#pragma unroll
        for (uint32_t k = 0; k < SCAN_EACH; k++) {
            end += units[k];
            if (first + k < a.count) a.index[first + k + 1] = end;
        }
        done += all;
        __syncthreads();  // the sums have been read
    }
    atomicMax(&largest, most);
    __syncthreads();
    if (threadIdx.x == 0) a.totals[0] = largest;
}

// The sixteen words of a lane in one half of its tile, two columns of row g and of row g + 8 in turn.
__device__ __forceinline__ void load_unit(const PackArgs& a, uint32_t row, uint32_t col, uint32_t fill, uint32_t (&unit)[16]) {
    uint32_t upper[8], lower[8];
    load_eight(a, row, col, fill, upper);
    load_eight(a, row + 8, col, fill, lower);
#pragma unroll
    for (int c = 0; c < 8; c++) unit[4 * (c / 2) + c % 2] = upper[c], unit[4 * (c / 2) + 2 + c % 2] = lower[c];
}

// A raw tile: k-step s of a lane at 512·s + 16·lane.
__device__ __forceinline__ void write_raw(const PackArgs& a, uint32_t row, uint32_t col, uint32_t lane, uint8_t* tile) {
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t w[16];
        load_unit(a, row, col + 8 * half, 0, w);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t* v = w + 8 * k;
            *(uint4*)(tile + 512 * (2 * half + k) + 16 * lane) =
                make_uint4(v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16);
        }
    }
}

// What a lane finds out about its 32 words.
struct Found {
    uint4 low[2];
    uint32_t codes[4];   // of its k-steps, four bits each
    uint32_t missed[2];  // bits: elements of either half whose high byte is not in the table
    uint32_t high[8];    // their high bytes, four to a word
};

__device__ __forceinline__ void look_up(const PackArgs& a, uint32_t row, uint32_t col, uint32_t fill, uint32_t shift,
                                        const uint8_t* codes_of, const uint8_t* stand_in, Found& f) {
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t w[16], low[4] = {0, 0, 0, 0};
        load_unit(a, row, col + 8 * half, fill, w);
        f.missed[half] = 0;
        f.codes[2 * half] = f.codes[2 * half + 1] = 0;
#pragma unroll
        for (uint32_t j = 0; j < 16; j++) {
            const uint32_t word = w[j] + shift & 0xffff, h = word >> 8;
            low[j / 4] |= (word & 255) << (8 * (j % 4));
            uint32_t code = codes_of[h];
            if (!(code & HIT)) code = stand_in[h >> 6], f.missed[half] |= 1u << j;
            f.codes[2 * half + j / 8] |= (code & 15) << (4 * (j % 8));
            f.high[4 * half + j / 4] = (j % 4 ? f.high[4 * half + j / 4] : 0) | h << (8 * (j % 4));
        }
        f.low[half] = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

// Writes one lane's patches of one half, positions ascending, from patch `k` of the record on.
__device__ __forceinline__ void write_patches(const Found& f, uint32_t half, uint32_t lane, const uint8_t* table, bool wide,
                                              uint8_t* patches, uint32_t k) {
#pragma unroll
    for (uint32_t j = 0; j < 16; j++) {
        if (!(f.missed[half] >> j & 1)) continue;
        const uint32_t code = f.codes[2 * half + j / 8] >> (4 * (j % 8)) & 15;
        const uint32_t h = f.high[4 * half + j / 4] >> (8 * (j % 4)) & 255;
        const uint32_t position = 512 * half + 16 * lane + j, flip = h ^ table[code];
        if (wide) ((uint32_t*)patches)[k] = position | flip << 16;
        else ((uint16_t*)patches)[k] = position | flip << 10;
        k++;
    }
}

__device__ __forceinline__ void write_header(const PackPlan& p, const uint32_t (&ends)[4], uint8_t* record) {
    uint32_t words[8] = {ends[0] | p.mode << 13 | p.wide << 15 | (ends[1] | p.shifted << 15) << 16, ends[2] | ends[3] << 16};
#pragma unroll
    for (int k = 0; k < 4; k++)
        words[2 + k] = p.table[4 * k] | p.table[4 * k + 1] << 8 | p.table[4 * k + 2] << 16 | p.table[4 * k + 3] << 24;
    words[6] = words[7] = 0;
    *(uint4*)record = make_uint4(words[0], words[1], words[2], words[3]);
    if (p.mode == BITS4) *(uint4*)(record + 16) = make_uint4(words[4], words[5], 0, 0);
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS) snug_pack_write(const __grid_constant__ PackArgs a) {
    __shared__ PackPlan p;
    __shared__ __align__(16) uint8_t codes_of[256];
    __shared__ uint8_t stand_in[4];
    __shared__ uint32_t totals[4];
    const Where at(a);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    if (threadIdx.x < sizeof(PackPlan) / 4) ((uint32_t*)&p)[threadIdx.x] = ((const uint32_t*)(a.plans + at.record))[threadIdx.x];
    if (threadIdx.x < 64) ((uint32_t*)codes_of)[threadIdx.x] = 0;
    if (threadIdx.x < 4) totals[threadIdx.x] = 0, stand_in[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x < p.used) codes_of[p.table[threadIdx.x]] = HIT | threadIdx.x;
    // The first entry of a group stands in for what is missed of it.
    if (threadIdx.x < 4)
        for (uint32_t k = p.used; k-- > 0;)
            if (p.table[k] >> 6 == threadIdx.x) stand_in[threadIdx.x] = k;
    __syncthreads();
    uint8_t* record = a.data + a.index[at.record] * 16ull;
    uint8_t* tile = record + header_bytes(p.mode) + warp * tile_bytes(p.mode);
    const uint32_t row = at.row + lane / 4, col = at.col + warp * 64 + 16 * (lane & 3);
    if (p.mode == RAW) {
        if (warp < at.tiles) write_raw(a, row, col, lane, tile);
        const uint32_t none[4] = {0, 0, 0, 0};
        if (threadIdx.x == 0) write_header(p, none, record);
        return;
    }
    const uint32_t shift = p.shifted ? 0x80 : 0, fill = (p.table[0] << 8) - shift & 0xffff;
    Found f;
    uint32_t before = 0, all = 0;  // patches of either half: of the lanes before, and of all; 16 bits each
    if (warp < at.tiles) {
        look_up(a, row, col, fill, shift, codes_of, stand_in, f);
        const uint32_t own = __popc(f.missed[0]) | __popc(f.missed[1]) << 16;
        all = own;
        for (int d = 1; d < 32; d *= 2) {
            const uint32_t ahead = __shfl_up_sync(~0u, all, d);
            if (lane >= d) all += ahead;
        }
        before = all - own, all = __shfl_sync(~0u, all, 31);
        if (lane == 0) totals[warp] = (all & 0xffff) + (all >> 16);
        *(uint4*)(tile + 16 * lane) = f.low[0];
        *(uint4*)(tile + 512 + 16 * lane) = f.low[1];
        uint32_t* planes = (uint32_t*)(tile + 1024) + lane;
#pragma unroll
        for (int s = 0; s < 3; s++) planes[32 * s] = p.mode == BITS3 ? f.codes[s] | (f.codes[3] >> s & 0x11111111) << 3 : f.codes[s];
        if (p.mode == BITS4) planes[96] = f.codes[3];
    }
    __syncthreads();
    uint32_t ends[4], first = 0, end = 0;
#pragma unroll
    for (uint32_t t = 0; t < 4; t++) {
        if (t == warp) first = end;
        ends[t] = end += totals[t];
    }
    uint8_t* patches = record + header_bytes(p.mode) + at.tiles * tile_bytes(p.mode);
    if (warp < at.tiles) {
        write_patches(f, 0, lane, p.table, p.wide, patches, first + (before & 0xffff));
        write_patches(f, 1, lane, p.table, p.wide, patches, first + (all & 0xffff) + (before >> 16));
    }
    const uint32_t payload = payload_bytes(p.mode, p.wide, at.tiles, end);
    if (threadIdx.x < 16 && payload + threadIdx.x < p.units * 16) record[payload + threadIdx.x] = 0;
    if (threadIdx.x == 0) write_header(p, ends, record);
}
