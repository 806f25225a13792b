// Every inline-asm wrapper, with the reason for the instruction; and the conversions that must be bit-exact.
#pragma once
#include <stdint.h>

// 16 × 8 += 16 × 16 · 16 × 8, bf16 in, f32 sums. The portable tensor-core shape: same on sm_80 … sm_120.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 × 8 tiles of 16-bit values, one row of 16 bytes from each lane: the layout mma wants, without shuffles.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

// Shared-window address of a generic pointer, as the instructions below want it.
__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// 16 bytes from global to shared memory without passing registers; zeros instead when `there` is false.
__device__ __forceinline__ void cp_async_16_or_zero(uint32_t to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// 4 bytes, likewise.
__device__ __forceinline__ void cp_async_4(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// Closes a group of cp.async; groups complete in order.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups are unfinished.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Waits for all of this thread's cp.async, in a closed group or not.
__device__ __forceinline__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// 2^x within 2 ulp, 0 for results below the normal range: softmax weights, where the float mma is inexact anyway.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Sum over the lanes of a warp, the same in every lane.
__device__ __forceinline__ float warp_sum(float x) {
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

// Programmatic dependent launch: everything before this may overlap the kernel ahead; what it wrote is visible after.
// Without the launch attribute, and before sm_90, kernels do not overlap and there is nothing to wait for.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start its independent work now.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float bf16_to_f32(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }

// Nearest, ties to even; mirrors src/num/mod.rs, NaN included.
__device__ __forceinline__ uint16_t f32_to_bf16(float x) {
    const uint32_t b = __float_as_uint(x);
    if ((b & 0x7fffffff) > 0x7f800000) return b >> 16 | 0x40;
    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

// Two of them in a register, `lo` in the low half. One instruction; same rounding, but NaN becomes 0x7fff.
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

// Asks for the 128-byte line of an address to be brought into L2; costs no register and waits for nothing.
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// ---- mbarriers (sm_80) and bulk copies (sm_90) ----

// True in one lane of a whole warp; unlike a comparison of lane numbers it tells the compiler that it is one.
__device__ __forceinline__ bool elect_one() {
    uint32_t is_one = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(is_one));
#endif
    return is_one;
}

// One byte of shared memory.
__device__ __forceinline__ void store_byte(uint32_t at, uint32_t byte) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(byte) : "memory");
}

// Expects `count` arrivals a phase.
__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

// Makes fresh barriers visible to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
    asm volatile("{\n .reg .b64 state;\n mbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(bar) : "memory");
}

// One arrival, and `bytes` more to come from the copy engine before the phase ends.
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
#endif
}

// Waits for the end of the phase with this parity. From sm_90 on a waiting thread sleeps meanwhile.
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n .reg .pred p;\n WAIT:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n DONE:\n}"
        ::"r"(bar), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{\n .reg .pred p;\n WAIT:\n mbarrier.test_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n DONE:\n}"
        ::"r"(bar), "r"(parity)
        : "memory");
#endif
}

// The whole record in one instruction, without registers or address arithmetic; weights are read once: evict first.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void* from, uint32_t bytes, uint32_t bar, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar), "l"(policy)
        : "memory");
#endif
}

__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 800
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

// Four bytes of {lo, hi}, one a nibble of `pick`; a set bit 3 repeats the byte's sign instead. __byte_perm masks that bit away
// with an instruction of its own; codes are clean already.
__device__ __forceinline__ uint32_t permute(uint32_t lo, uint32_t hi, uint32_t pick) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(pick));
    return r;
}

// Barrier among `threads` threads, for parts of a block; id 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(uint32_t id, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Whether this image may use mbarriers and bulk copies; kernels that need them are empty elsewhere and never launched.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool HAS_BULK_COPY = true;
#else
constexpr bool HAS_BULK_COPY = false;
#endif
