// What the probes of an L2's requests and lines share: where a block runs, and the clocks.
#pragma once

constexpr int THREADS = 256, CHUNK_VECTORS = 256;  // of a block; 16-byte vectors of 4 KiB

__device__ __forceinline__ int sm_of_block() {
    int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    return sm;
}

// Cycles of the SM's own clock.
__device__ __forceinline__ unsigned clock_now() {
    unsigned now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
}

__device__ __forceinline__ void add(uint4& sum, uint4 v) {
    sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
}

// Under a condition that never holds, so that no load is left out.
__device__ __forceinline__ void keep(uint4 sum, uint4* sink) {
    if (sum.x == 0x12345u && sum.y == 0x678u) *sink = sum;
}
