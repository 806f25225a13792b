// As much of CUDA as the kernels need that are tested without a GPU: a block's threads are fibres that take turns, one block
// after the other. Barriers and shuffles wait for whom they wait on a GPU; a thread that never comes is a deadlock, and said.
#pragma once
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <algorithm>
#include <vector>

using std::max;
using std::min;

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(threads)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

struct Dim {
    uint32_t x;
};
static Dim blockIdx, threadIdx, gridDim;

enum Wait { NOTHING, BLOCK, WARP, END };
struct Fibre {
    ucontext_t start;
    jmp_buf at;  // jumps are quicker than contexts, which ask the system about signals each time
    bool started;
    std::vector<char> stack;
    Wait wait;
    uint32_t value;
};
static std::vector<Fibre> fibres;
static jmp_buf scheduler;

static void wait_for(Wait what) {
    fibres[threadIdx.x].wait = what;
    if (!_setjmp(fibres[threadIdx.x].at)) _longjmp(scheduler, 1);
}

// Runs thread t until it waits.
static void resume(uint32_t t) {
    threadIdx.x = t;
    Fibre& f = fibres[t];
    if (_setjmp(scheduler)) return;
    if (f.started) _longjmp(f.at, 1);
    f.started = true;
    setcontext(&f.start);
}

inline void __syncthreads() { wait_for(BLOCK); }
inline void __syncwarp() { wait_for(WARP); }

// What `lane` of this warp gave.
static uint32_t exchange(uint32_t value, uint32_t lane) {
    fibres[threadIdx.x].value = value;
    wait_for(WARP);
    const uint32_t got = fibres[threadIdx.x / 32 * 32 + lane].value;
    wait_for(WARP);
    return got;
}
inline uint32_t __shfl_sync(uint32_t, uint32_t value, int lane) { return exchange(value, lane & 31); }
inline uint32_t __shfl_xor_sync(uint32_t, uint32_t value, int mask) { return exchange(value, (threadIdx.x & 31) ^ mask); }
inline uint32_t __shfl_up_sync(uint32_t, uint32_t value, uint32_t by) {
    const uint32_t lane = threadIdx.x & 31;
    return exchange(value, lane >= by ? lane - by : lane);
}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline uint32_t atomicAdd(uint32_t* at, uint32_t by) { return (*at += by) - by; }
inline uint32_t atomicMax(uint32_t* at, uint32_t with) {
    const uint32_t before = *at;
    *at = max(before, with);
    return before;
}

template <class Args>
struct Launch {
    static inline void (*kernel)(const Args);
    static inline Args args;

    static void enter() {
        kernel(args);
        wait_for(END);
    }
};

// Lets go whoever waits for nobody but those who wait with him. Threads that have ended are not waited for.
static bool release(uint32_t from, uint32_t to, Wait what) {
    bool any = false;
    for (uint32_t t = from; t < to; t++) {
        if (fibres[t].wait != what && fibres[t].wait != END) return false;
        any |= fibres[t].wait == what;
    }
    for (uint32_t t = from; t < to; t++)
        if (fibres[t].wait == what) fibres[t].wait = NOTHING;
    return any;
}

template <class Args>
void launch(void (*kernel)(const Args), uint32_t blocks, uint32_t threads, const Args& args) {
    using L = Launch<Args>;
    L::kernel = kernel, L::args = args, gridDim.x = blocks;
    if (fibres.size() < threads) fibres.resize(threads);
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        for (uint32_t t = 0; t < threads; t++) {
            Fibre& f = fibres[t];
            f.stack.resize(1 << 16);
            f.wait = NOTHING, f.started = false;
            getcontext(&f.start);
            f.start.uc_stack.ss_sp = f.stack.data();
            f.start.uc_stack.ss_size = f.stack.size();
            f.start.uc_link = nullptr;
            makecontext(&f.start, L::enter, 0);
        }
        for (uint32_t ended = 0; ended < threads;) {
            bool ran = false;
            for (uint32_t t = 0; t < threads; t++) {
                if (fibres[t].wait != NOTHING) continue;
                resume(t);
                ran = true;
                ended += fibres[t].wait == END;
            }
            for (uint32_t warp = 0; warp < threads; warp += 32) ran |= release(warp, min(warp + 32, threads), WARP);
            ran |= release(0, threads, BLOCK);
            if (!ran && ended < threads) {
                fprintf(stderr, "block %u: %u threads wait for each other\n", blockIdx.x, threads - ended);
                exit(3);
            }
        }
    }
}
