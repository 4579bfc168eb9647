// How long a tile takes to arrive that a thread block loads into shared memory and waits for.
#include "probe.cuh"
#include "walk.cuh"

// Each `every`-th block, so that they are of many GPCs, loads `loads` slices of `vectors` 16-byte
// vectors one after the other, `cycles` apart: number b of them slice (b * loads + i) % slices of
// `from`. What each took goes to waits[b][i].
extern "C" __global__ void __launch_bounds__(THREADS)
    hbmeter_probe_arrive(const uint4* from, unsigned slices, int vectors, int loads, int cycles,
                         int every, unsigned* waits) {
    if (blockIdx.x % every) return;
    extern __shared__ uint4 tile[];
    unsigned base = (unsigned)__cvta_generic_to_shared(tile);
    for (int load = 0; load < loads; load++) {
        size_t slice = ((size_t)(blockIdx.x / every) * loads + load) % slices;
        const uint4* mine = from + slice * vectors;
        __syncthreads();
        unsigned start = clock_now();
        for (int i = threadIdx.x; i < vectors; i += THREADS)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base + i * 16),
                         "l"(mine + i)
                         : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        unsigned taken = clock_now() - start;
        if (threadIdx.x == 0) waits[(size_t)(blockIdx.x / every) * loads + load] = taken;
        while (clock_now() - start < (unsigned)cycles);
    }
}
