// Probes of how an L2 replaces lines: one SM alone, SMs that walk a buffer by the clock, and lines
// that survive others. Loads and stores bypass L1.
#include "walk.cuh"

__device__ __forceinline__ unsigned hashed(unsigned x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

enum Kind { ROUND, RANDOM, TO_AND_FRO };

struct Chunk {
    unsigned number;
    bool beside;  // nobody touches it again
};

// Chunk `step`. ROUND: `live` chunks again and again, after every 8 of them `share` of others, from
// `others` on; RANDOM: `share` of 16 are of `hot` chunks, else of `live` behind them.
__device__ Chunk chunk_of(unsigned step, Kind kind, unsigned live, unsigned hot, unsigned others,
                          unsigned share) {
    if (kind == ROUND) {
        unsigned turn = step / (8 + share), rest = step % (8 + share);
        if (rest < 8) return {(8 * turn + rest) % live, false};
        return {others + share * turn + rest - 8, true};
    }
    if (kind == RANDOM) {
        unsigned bits = hashed(step * 2 + 1);
        return {(bits & 15) < share ? (bits >> 4) % hot : hot + (bits >> 4) % live, false};
    }
    unsigned place = step % (2 * live);
    return {place < live ? place : 2 * live - 1 - place, false};
}

// SM `sm` alone: four chunks at a time.
extern "C" __global__ void __launch_bounds__(1024)
    hbmeter_probe_alone(uint4* base, unsigned live, unsigned hot, unsigned others, int kind,
                        unsigned share, int written, unsigned steps, int sm, uint4* sink) {
    if (sm_of_block() != sm) return;
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (unsigned step = threadIdx.x / THREADS; step < steps; step += 4) {
        Chunk chunk = chunk_of(step, (Kind)kind, live, hot, others, share);
        uint4* at = base + (size_t)chunk.number * CHUNK_VECTORS + threadIdx.x % THREADS;
        if (chunk.beside && written)
            __stcg(at, make_uint4(step, 1, 2, 3));
        else
            add(sum, __ldcg(at));
        __syncthreads();
    }
    keep(sum, sink);
}

// As phases.cu's, but each SM begins at its own place (-1: it is idle), and what is read or
// written beside is an SM's own.
extern "C" __global__ void __launch_bounds__(THREADS)
    hbmeter_probe_walks(const uint4* shared, int pieces, int steps, const int* place,
                        unsigned pace, const uint4* dead, uint4* out, int read_beside,
                        int written_beside, uint4* sink) {
    constexpr int LOADS = 4, STEP_VECTORS = LOADS * CHUNK_VECTORS;
    int sm = sm_of_block(), at = place[sm];
    if (at < 0) return;
    uint4 sum = make_uint4(0, 0, 0, 0);
    unsigned begin = clock_now();
    for (int step = 0; step < steps; step++) {
        const uint4* from = shared + (size_t)at * STEP_VECTORS;
#pragma unroll
        for (int i = 0; i < LOADS; i++) add(sum, __ldcg(from + i * THREADS + threadIdx.x));
        size_t mine = (size_t)sm * steps + step;
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

constexpr int LINE_BYTES = 128, SECTOR_BYTES = 32;

__device__ __forceinline__ unsigned load(const char* at) {
    unsigned word;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}

__device__ __forceinline__ void store(char* at, unsigned word) {
    asm volatile("st.global.cg.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}

__device__ __forceinline__ void store_sector(char* at, unsigned word) {
    for (int half = 0; half < SECTOR_BYTES; half += 16)
        asm volatile("st.global.cg.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(at + half), "r"(word)
                     : "memory");
}

// The fewest cycles of an atomic on each target line from SM `sm`: where its home is.
extern "C" __global__ void hbmeter_probe_homes(char* base, const unsigned* targets, int count,
                                               int sm, unsigned short* cycles) {
    if (sm_of_block() != sm || threadIdx.x) return;
    __shared__ volatile unsigned arrived;
    for (int i = 0; i < count; i++) {
        unsigned least = 65535, word;
        for (int round = 0; round < 4; round++) {
            unsigned before = clock_now();
            asm volatile("atom.global.add.u32 %0, [%1], 0;"
                         : "=r"(word)
                         : "l"(base + (size_t)targets[i] * LINE_BYTES)
                         : "memory");
            arrived = word;
            least = min(least, clock_now() - before);
        }
        cycles[i] = least;
    }
}

// SM `sm` reads or writes the first `sectors` sectors of its targets `touches` times, then others,
// lines first, first + 1, …: `many` of them (`twice`: again), with `between` others and the targets
// again before, when that is not 0. Then cycles of a load of each target.
extern "C" __global__ void __launch_bounds__(1024)
    hbmeter_probe_survival(char* base, const unsigned* targets, int count, int touches, int sectors,
                           int written, size_t first, int between, int many, int written_others,
                           int twice, int sm, unsigned short* cycles) {
    if (sm_of_block() != sm) return;
    __shared__ volatile unsigned arrived;
    unsigned sum = 0;
    for (int round = 0; round < (between ? 2 : 1); round++) {
        for (int touch = 0; touch < touches; touch++) {
            for (int i = threadIdx.x; i < count * sectors; i += blockDim.x) {
                char* at = base + (size_t)targets[i / sectors] * LINE_BYTES + i % sectors * SECTOR_BYTES;
                if (written)
                    store(at, i);
                else
                    sum += load(at);
            }
            __syncthreads();
        }
        int from = round ? between : 0, to = between && !round ? between : between + many;
        for (int pass = 0; pass <= twice; pass++) {
            for (int i = from * sectors + threadIdx.x; i < to * sectors; i += blockDim.x) {
                char* at = base + (first + i / sectors) * LINE_BYTES + i % sectors * SECTOR_BYTES;
                if (written_others)
                    store_sector(at, i);
                else
                    sum += load(at);
            }
            __syncthreads();
        }
    }
    if (sum == 0x1234567u) arrived = sum;  // so that no load is left out
    __threadfence();
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 0; i < count; i++) {
        unsigned before = clock_now();
        arrived = load(base + (size_t)targets[i] * LINE_BYTES);
        cycles[i] = min(clock_now() - before, 65535u);
    }
}
