// A probe of how an L2 replaces lines: every block walks one shared buffer round and round, chunk by
// chunk, all by the clock, so that none waits for another; either in step, or spread evenly over
// the buffer. Beside each chunk a block may read or write bytes that nobody touches again.
// A block is THREADS threads; loads and stores bypass L1.
#include "walk.cuh"

constexpr int LOADS = 4, STEP_VECTORS = LOADS * CHUNK_VECTORS;

// `steps` pieces of `pieces`, one every `pace` cycles; `read_beside` and `written_beside` vectors a
// step of each block's own.
extern "C" __global__ void __launch_bounds__(THREADS)
    hbmeter_probe_phases(const uint4* shared, int pieces, int steps, int spread, unsigned pace,
                         const uint4* dead, uint4* out, int read_beside, int written_beside,
                         uint4* sink) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    int at = spread ? (int)((long long)blockIdx.x * pieces / gridDim.x) : 0;
    unsigned begin = clock_now();
    for (int step = 0; step < steps; step++) {
        const uint4* from = shared + (size_t)at * STEP_VECTORS;
#pragma unroll
        for (int i = 0; i < LOADS; i++) add(sum, __ldcg(from + i * THREADS + threadIdx.x));
        size_t mine = (size_t)blockIdx.x * steps + step;
        if (threadIdx.x < read_beside) sum.x ^= __ldcg(dead + mine * read_beside + threadIdx.x).x;
        if (threadIdx.x < written_beside)
            __stcg(out + mine * written_beside + threadIdx.x, make_uint4(step, 1, 2, 3));
        at = at + 1 == pieces ? 0 : at + 1;
        __syncthreads();
        while (clock_now() - begin < pace * (step + 1)) {
        }
    }
    keep(sum, sink);
}
