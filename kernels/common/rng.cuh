// Mirror of src/num/rng.rs: draw n of seed s is a pure function, the same on every device.
#pragma once
#include <stdint.h>

__device__ __forceinline__ uint64_t rng_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ uint64_t rng_draw(uint64_t seed, uint64_t counter) {
    return rng_mix(rng_mix(seed + 0x9e3779b97f4a7c15ull) ^ (counter * 0x9e3779b97f4a7c15ull));
}
