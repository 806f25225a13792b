// Kernel arguments, one struct a kernel, passed by value. Plain C with fixed-width fields; src/backend/cuda/abi.rs mirrors
// it, and a test compiles this file with the host compiler and compares sizes and offsets.
#pragma once
#include <stdint.h>

// A weight matrix on the device: records and their index (pairlut), or tiles (bf16)
struct Matrix {
    const uint8_t* data;
    const uint32_t* index;    // null for bf16
    const uint16_t* bias;     // [rows] bf16, or null
    uint32_t rows;
    uint32_t out;             // first output column
};

// qkv, proj, gate_up, head (common/matvec.cuh)
struct MatvecArgs {
    Matrix m[3];
    const float* residual;    // [n][cols] f32: input of a norm prologue
    const uint16_t* norm;     // [cols] bf16
    const uint16_t* x;        // [n][x_stride] bf16, zeros from cols to 64·tiles: input of a copy prologue
    float* y;                 // [n][stride] f32
    uint16_t* hidden;         // [n][stride] bf16
    uint32_t count;           // matrices
    uint32_t jobs;            // row blocks of all matrices together (of one, where they are paired)
    uint32_t n, cols, tiles, records;
    uint32_t stride, x_stride;
    uint32_t slot_bytes, stages;
    uint32_t x_in_shared;     // 0: read x through the cache (copy prologue only)
    uint32_t pair;            // 1 when two matrices share their row blocks (gate_up)
    uint32_t activation;
    float eps;
};

// embed.cu
struct EmbedArgs {
    Matrix m;
    const uint32_t* tokens;   // [n]
    const uint32_t* pos;      // position of the step's first token
    uint32_t* history;        // tokens by position
    float* residual;          // [n][cols]
    uint32_t n, cols, tiles, records;
};

// unpack.cu
struct UnpackArgs {
    Matrix m;
    uint16_t* out;            // [rows][depth] bf16, zeros from cols to depth; or tiles
    const uint16_t* rows_in;  // retile: [rows][cols] bf16
    uint32_t cols, tiles, records, depth;
};

// attend, append, prefill (attend.cu)
struct AttendArgs {
    const float* qkv;         // [n][heads + 2·kv_heads][head_dim]
    uint16_t* cache;          // bf16, see attend.cu
    uint16_t* context;        // [n][context_stride] bf16
    float* partial;           // [8·heads][max_splits][head_dim + 2]
    uint32_t* counters;       // [row tiles][kv_heads], zero between launches
    const float* rope;        // [position][cos · rotary/2][sin · rotary/2]
    const uint16_t* q_norm;   // [head_dim] bf16, or null
    const uint16_t* k_norm;   // [head_dim] bf16, or null
    const uint32_t* pos;      // position of the step's first token
    uint32_t n, heads, kv_heads, rotary;
    uint32_t window;          // keys a query sees, itself included; 0 is all
    uint32_t max_splits, layer, layers;
    uint32_t context_stride;  // heads·head_dim rounded up to 64
    float scale, softcap, eps;
};

// How tokens are chosen; lives in device memory so that a captured step need not change (sample.cu)
struct SampleParams {
    float temperature;
    uint32_t top_k;
    float top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    uint32_t last_n, has_bias, unused;
    uint64_t seed;
};

// What the sampling kernels pass each other; zero at first, left zero (but for the window)
struct SampleState {
    uint64_t best;
    uint32_t candidates, window_lo, window_hi, unused;
};

struct SampleArgs {
    const float* logits;      // [vocab]
    const SampleParams* params;
    SampleState* state;
    const float* bias;        // [vocab]
    uint32_t* counts;         // [vocab], zero at first
    const uint32_t* history;  // tokens by position
    float* adjusted;          // [vocab]
    uint64_t* keys;           // [vocab]
    uint32_t* weights;        // [vocab]
    uint32_t* pos;            // position of the step's first token; moved on to the new token's
    uint32_t* token;          // the next token
    uint32_t* ring;           // host memory: token of position p at p mod ring_len
    uint32_t vocab, n, ring_len, unused;
};

// prefill.cu
enum { ACT_SILU = 0, ACT_GELU_TANH = 1 };

struct NormArgs {
    const float* residual;    // [n][cols]
    const uint16_t* weight;   // [cols] bf16
    uint16_t* out;            // [n][padded] bf16
    uint32_t cols, padded;
    float eps;
    uint32_t unused;
};

struct ActMulArgs {
    const float* gate;        // [n][cols]
    const float* up;          // [n][cols]
    uint16_t* out;            // [n][padded] bf16
    uint32_t n, cols, padded, activation;
};

struct GemmArgs {
    const uint16_t* x;        // [n][depth] bf16
    const uint16_t* w;        // [rows][depth] bf16
    const uint16_t* bias;     // [rows] bf16, or null
    float* y;                 // [n][stride]
    uint32_t n, rows, depth, stride, accumulate, unused;
};

// probe.cu
struct ReadArgs {
    const uint4* data;
    uint32_t* out;            // one word a thread block
    uint64_t count;           // of uint4
};

struct AddArgs {
    const float* a;
    const float* b;
    float* out;
    uint64_t count;
};

enum { FUNC_EXP = 0, FUNC_SILU = 1, FUNC_TANH = 2, FUNC_GELU_TANH = 3, FUNC_BF16 = 4 };

struct FuncArgs {
    const float* x;
    float* out;
    uint32_t count, func;
};
