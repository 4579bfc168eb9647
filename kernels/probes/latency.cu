// Latencies by pointer chase: one thread, each load's address from the load before it.
#include "probe.cuh"

// Each word holds the address of the next one to read, so that nothing but loads is in the chain.
template <bool THROUGH_L1>
__device__ __forceinline__ unsigned long long hop(unsigned long long at) {
    if (THROUGH_L1)
        asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(at)::"memory");
    else
        asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at)::"memory");
    return at;
}

template <bool THROUGH_L1>
__device__ __forceinline__ void chase(unsigned long long at, int warmup, int hops,
                                      unsigned long long* sink, Stamp* stamps) {
    for (int i = 0; i < warmup; ++i) at = hop<THROUGH_L1>(at);
    if (at == 1) *sink = at;  // so that the clock waits for the warm-up
    start_watch(stamps);
    for (int i = 0; i < hops; i += 8)
#pragma unroll
        for (int u = 0; u < 8; ++u) at = hop<THROUGH_L1>(at);
    if (at == 1) *sink = at;
    stop_watch(stamps);
}

extern "C" __global__ void hbmeter_probe_chase(unsigned long long first, int warmup, int hops,
                                               unsigned long long* sink, Stamp* stamps) {
    chase<false>(first, warmup, hops, sink, stamps);
}
extern "C" __global__ void hbmeter_probe_chase_l1(unsigned long long first, int warmup, int hops,
                                                  unsigned long long* sink, Stamp* stamps) {
    chase<true>(first, warmup, hops, sink, stamps);
}

// cycles[i]: of the first load of line i, and of `hops` more of the same line together. Lines hold
// their own addresses.
struct LineCycles {
    int first, later;
};

__device__ __forceinline__ long long clock_after(unsigned long long& at) {
    long long now;
    asm volatile("add.u64 %0, %0, 0; mov.u64 %1, %%clock64;" : "+l"(at), "=l"(now)::"memory");
    return now;
}

extern "C" __global__ void hbmeter_probe_lines(unsigned long long first, int count,
                                               int stride_bytes, int hops, LineCycles* cycles) {
    for (int i = 0; i < count; ++i) {
        unsigned long long at = first + (unsigned long long)i * stride_bytes;
        long long start = clock_after(at);
        at = hop<false>(at);
        if (at == 1) return;  // waits for it
        long long middle = clock_after(at);
        for (int h = 0; h < hops; ++h) at = hop<false>(at);
        if (at == 1) return;
        cycles[i] = {(int)(middle - start), (int)(clock_after(at) - middle)};
    }
}

// A ring in shared memory: each word holds the byte address of the next, `words` in all.
extern "C" __global__ void hbmeter_probe_chase_shared(int words, int hops, unsigned* sink,
                                                      Stamp* stamps) {
    extern __shared__ unsigned ring[];
    unsigned first = (unsigned)__cvta_generic_to_shared(ring), at = first;
    for (int i = 0; i < words; ++i) ring[i] = first + (i * 33 + 33) % words * 4;
    start_watch(stamps);
    for (int i = 0; i < hops; i += 8)
#pragma unroll
        for (int u = 0; u < 8; ++u)
            asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at)::"memory");
    if (at == 1) *sink = at;
    stop_watch(stamps);
}

// Brings `vectors` of 16 bytes into L2, or, when they are many, everything else out of it.
extern "C" __global__ void hbmeter_probe_touch(const uint4* from, unsigned long long vectors,
                                               uint4* sink) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < vectors;
         i += (unsigned long long)gridDim.x * blockDim.x) {
        uint4 v = __ldcg(from + i);
        sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
    }
    if (sum.x == 0x12345u && sum.y == 0x678u) *sink = sum;
}
