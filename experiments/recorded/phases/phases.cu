// A probe of how an L2 replaces lines: every block walks one shared buffer round and round, chunk by
// chunk, all by the clock, so that none waits for another; either in step, or spread evenly over
// the buffer. Beside each chunk a block may read or write bytes that nobody touches again.
// A block is 256 threads; loads and stores bypass L1.

constexpr int THREADS = 256, LOADS = 4, CHUNK_VECTORS = THREADS * LOADS;

__device__ __forceinline__ unsigned clock_now() {
    unsigned now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
}

// `steps` chunks of `chunks`, one every `pace` cycles; `read_beside` and `written_beside` vectors a
// step of each block's own.
extern "C" __global__ void hbmeter_probe_phases(const uint4* shared, int chunks, int steps,
                                                int spread, unsigned pace, const uint4* dead,
                                                uint4* out, int read_beside, int written_beside,
                                                uint4* sink) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    int at = spread ? (int)((long long)blockIdx.x * chunks / gridDim.x) : 0;
    unsigned begin = clock_now();
    for (int step = 0; step < steps; step++) {
        const uint4* from = shared + (size_t)at * CHUNK_VECTORS;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            uint4 v = __ldcg(from + i * THREADS + threadIdx.x);
            sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
        }
        size_t mine = (size_t)blockIdx.x * steps + step;
        if (threadIdx.x < read_beside) sum.x ^= __ldcg(dead + mine * read_beside + threadIdx.x).x;
        if (threadIdx.x < written_beside)
            __stcg(out + mine * written_beside + threadIdx.x, make_uint4(step, 1, 2, 3));
        at = at + 1 == chunks ? 0 : at + 1;
        __syncthreads();
        while (clock_now() - begin < pace * (step + 1)) {
        }
    }
    if (sum.x == 0x12345u && sum.y == 0x678u) *sink = sum;  // so that no load is left out
}
