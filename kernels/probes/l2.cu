// Probes of an L2 cache: the latency of single lines, and scans whose DRAM bytes counters tell.
// No L1: atomics are done in L2, loads and stores are .cg.

constexpr int LINE_VECTORS = 8;  // 16-byte vectors of a 128-byte line

__device__ __forceinline__ unsigned clock_now() {
    unsigned now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
}

// One thread of each block: the fewest cycles over `rounds` of an atomic on each of `count`
// addresses, `stride_words` apart; blocks start at different ones. cycles is [block, address].
extern "C" __global__ void hbmeter_probe_latency(unsigned* base, int count, int stride_words,
                                                 int rounds, unsigned short* cycles, int* smid) {
    __shared__ volatile unsigned arrived;
    if (threadIdx.x) return;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(smid[blockIdx.x]));
    unsigned short* mine = cycles + (size_t)blockIdx.x * count;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < count; i++) {
            int address = (i + blockIdx.x * 61) % count;
            unsigned* word = base + (size_t)address * stride_words;
            unsigned before = clock_now(), value;
            asm volatile("atom.global.add.u32 %0, [%1], 0;" : "=r"(value) : "l"(word) : "memory");
            arrived = value;  // waits for it
            unsigned took = min(clock_now() - before, 65535u);
            if (round == 0 || took < mine[address]) mine[address] = took;
        }
    }
}

struct Slice {
    size_t first, end;  // vectors
};

// What one of `parts` blocks has of `lines` lines: whole lines, the last slices may be short.
__device__ Slice slice_of(size_t lines, unsigned part, unsigned parts) {
    size_t each = (lines + parts - 1) / parts * LINE_VECTORS, all = lines * LINE_VECTORS;
    return {min(each * part, all), min(each * (part + 1), all)};
}

__device__ void read_slice(const uint4* base, Slice slice, uint4& sum) {
    for (size_t i = slice.first + threadIdx.x; i < slice.end; i += blockDim.x) {
        uint4 v = __ldcg(base + i);
        sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
    }
}

__device__ void wait(long long ns) {
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < ns);
}

// Each block writes its slice of `written` once and reads it `rereads` times, then reads its
// slice of `other` (all of it when `shared`) `passes` times, then waits.
extern "C" __global__ void hbmeter_probe_scan(uint4* written, size_t written_lines, int rereads,
                                              const uint4* other, size_t read_lines, int passes,
                                              int shared, long long wait_ns, uint4* sink) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    Slice mine = slice_of(written_lines, blockIdx.x, gridDim.x);
    for (size_t i = mine.first + threadIdx.x; i < mine.end; i += blockDim.x)
        __stcg(written + i, make_uint4(i, 3, 1, 2));
    __syncthreads();
    for (int pass = 0; pass < rereads; pass++) read_slice(written, mine, sum);
    Slice read = shared ? slice_of(read_lines, 0, 1) : slice_of(read_lines, blockIdx.x, gridDim.x);
    for (int pass = 0; pass < passes; pass++) read_slice(other, read, sum);
    if (wait_ns) wait(wait_ns);
    if (sum.x == 0x12345u && sum.y == 0x678u) *sink = sum;  // so that no load is left out
}
