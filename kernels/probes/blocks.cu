// Starts and ends of thread blocks: each loads a slice into shared memory, as a row block does its
// queries, works for a while, and stores a slice, as it does its output.
#include "probe.cuh"

// Stamps of a block beside those of Stamp: its loads were there, its work was done.
struct Visit {
    long long loaded_cycles, worked_cycles;
};

// Slices are of `load` and `store` vectors of 16 bytes; block b takes slice (first + b) % slices.
extern "C" __global__ void __launch_bounds__(256)
    hbmeter_probe_visit(const uint4* from, uint4* to, unsigned first, unsigned slices, int load,
                        int store, int cycles, Visit* visits, Stamp* stamps) {
    extern __shared__ uint4 tile[];
    start_watch(stamps);
    size_t slice = (first + blockIdx.x) % slices;
    unsigned base = (unsigned)__cvta_generic_to_shared(tile);
    for (int i = threadIdx.x; i < load; i += blockDim.x)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base + i * 16),
                     "l"(from + slice * load + i)
                     : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    long long start, now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(start)::"memory");
    do asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    while (now - start < cycles);
    __syncthreads();
    if (threadIdx.x == 0) visits[blockIdx.x] = {start, now};
    for (int i = threadIdx.x; i < store; i += blockDim.x) to[slice * store + i] = tile[i];
    stop_watch(stamps);
}
