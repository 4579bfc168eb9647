__device__ __forceinline__ unsigned smid() { unsigned t; asm volatile("mov.u32 %0, %%smid;" : "=r"(t)); return t; }
__device__ __forceinline__ unsigned now() { unsigned t; asm volatile("mov.u32 %0, %%clock;" : "=r"(t) :: "memory"); return t; }
__device__ __forceinline__ unsigned timer() { unsigned t; asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(t) :: "memory"); return t; }
// Blocks on SMs with delay >= 0 read the same 4 KiB chunks, one every `pace` cycles, each so many cycles late.
extern "C" __global__ void hbmeter_probe_merging(const uint4* base, int chunks, int steps, const int* delay, int active, unsigned pace, unsigned* sync, uint4* sink) {
    int late = delay[smid()];
    if (late < 0) return;
    __shared__ unsigned start;
    if (threadIdx.x == 0) {
        volatile unsigned* v = sync;
        if (atomicAdd(sync, 1) == active - 1) { v[32] = timer() + 6000; __threadfence(); v[64] = 1; }
        while (v[64] == 0) {}
        start = v[32];
        while ((int)(timer() - start) < 0) {}
    }
    __syncthreads();
    unsigned begin = now() + late;
    uint4 sum = make_uint4(0, 0, 0, 0);
    int at = 0;
    for (int step = 0; step < steps; step++) {
        while ((int)(now() - begin - pace * step) < 0) {}
        uint4 v = __ldcg(base + (size_t)at * 256 + threadIdx.x);
        sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
        at = at + 1 == chunks ? 0 : at + 1;
        __syncthreads();
    }
    if (sum.x == 0x12345u && sum.y == 0x678u) *sink = sum;
}
