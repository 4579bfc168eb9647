// A probe of requests that share one: SMs read the same lines, chunk by chunk, each so many cycles
// late. Loads bypass L1; a block is THREADS threads and has an SM to itself.
#include "walk.cuh"

constexpr unsigned BEGIN_NS = 6000;  // from the last arrival to the first chunk: all see it come

__device__ __forceinline__ unsigned timer_now() {
    unsigned now;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now)::"memory");
    return now;
}

// All `active` blocks leave at the same time of the GPU's timer. `sync`: zeros: how many have
// arrived, and (a line further each) when all begin and whether that is known.
__device__ void begin_together(unsigned* sync, int active) {
    __shared__ unsigned start;
    if (threadIdx.x == 0) {
        volatile unsigned* told = sync;
        if (atomicAdd(sync, 1) == active - 1) {
            told[32] = timer_now() + BEGIN_NS;
            __threadfence();
            told[64] = 1;
        }
        while (told[64] == 0) {
        }
        start = told[32];
        while ((int)(timer_now() - start) < 0) {
        }
    }
    __syncthreads();
}

// Blocks on SMs whose `delay` is not negative read a chunk every `pace` cycles, so many cycles
// late: `steps` of them, of `chunks` again and again.
extern "C" __global__ void __launch_bounds__(THREADS)
    hbmeter_probe_merging(const uint4* base, int chunks, int steps, const int* delay, int active,
                          unsigned pace, unsigned* sync, uint4* sink) {
    int late = delay[sm_of_block()], at = 0;
    if (late < 0) return;
    begin_together(sync, active);
    unsigned begin = clock_now() + late;
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (int step = 0; step < steps; step++) {
        while ((int)(clock_now() - begin - pace * step) < 0) {
        }
        add(sum, __ldcg(base + (size_t)at * CHUNK_VECTORS + threadIdx.x));
        at = at + 1 == chunks ? 0 : at + 1;
        __syncthreads();
    }
    keep(sum, sink);
}
