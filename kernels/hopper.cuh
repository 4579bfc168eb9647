// Hopper's own instructions (sm_90a): barriers in shared memory, TMA copies by tensor map, wgmma.
//
// Tiles in shared memory are chunks of 64 columns (128 bytes) by all rows, with the 128-byte
// swizzle that TMA writes and wgmma reads: every chunk starts at a multiple of 1,024 bytes.
#pragma once
#include "mma.cuh"

constexpr int CHUNK = 64;        // columns
constexpr int ROW_BYTES = 128;   // of a chunk
constexpr int SWIZZLE_ROWS = 8;  // after which the swizzle repeats

struct alignas(64) TensorMap { unsigned char bytes[128]; };  // CUtensorMap

extern __shared__ __align__(1024) unsigned char shared_memory[];

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

// ---- Barriers in shared memory (mbarrier) -------------------------------------------------------

__device__ __forceinline__ void init_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals));
}

// Makes initialised barriers visible to TMA; __syncthreads must follow.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Arrives, and lets the phase last until `bytes` of TMA copies have landed.
__device__ __forceinline__ void arrive_expecting(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(bytes) : "memory");
}

// Waits until the phase of that parity is over.
__device__ __forceinline__ void wait(unsigned barrier, unsigned parity) {
    unsigned over;
#ifdef BOUNDED_WAIT  // a debugging build: trap instead of hanging
    int tries = 0;
#endif
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
#ifdef BOUNDED_WAIT
        if (++tries > BOUNDED_WAIT) asm volatile("trap;");
#endif
    } while (!over);
}

// LENGTH buffers for tiles of one tensor, each with a barrier "full" and one "empty". Producer and
// READERS warps name a tile by its number from the start of the thread block.
template <int LENGTH, int TILE_BYTES, int TILES_AT, int BARRIERS_AT, int READERS> struct Ring {
    static __device__ __forceinline__ unsigned tile(unsigned number) {
        return shared_address(shared_memory + TILES_AT) + number % LENGTH * TILE_BYTES;
    }
    static __device__ __forceinline__ unsigned full(unsigned number) {
        return shared_address(shared_memory + BARRIERS_AT) + number % LENGTH * 8;
    }
    static __device__ __forceinline__ unsigned empty(unsigned number) {
        return full(number) + LENGTH * 8;
    }
    static __device__ __forceinline__ void wait_full(unsigned number) {
        wait(full(number), number / LENGTH % 2);
    }
    static __device__ __forceinline__ void wait_empty(unsigned number) {
        wait(empty(number), number / LENGTH % 2 ^ 1);
    }
    // This warp has read the tile.
    static __device__ __forceinline__ void release(unsigned number) {
        __syncwarp();
        if (lane() == 0) arrive(empty(number));
    }
    static __device__ __forceinline__ void init() {
        for (int i = 0; i < LENGTH; ++i) {
            init_barrier(full(i), 1);
            init_barrier(empty(i), READERS);
        }
    }
};

// ---- Warpgroups -------------------------------------------------------------------------------

template <int REGISTERS> __device__ __forceinline__ void give_back_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS));
}

// Named barriers of two warpgroups: one waits for the other, which goes on.
__device__ __forceinline__ void wait_for_turn(int name) {
    asm volatile("bar.sync %0, 256;" :: "r"(name) : "memory");
}
__device__ __forceinline__ void give_turn(int name) {
    asm volatile("bar.arrive %0, 256;" :: "r"(name) : "memory");
}

// ---- TMA ----------------------------------------------------------------------------------------

// Starts copying ROWS rows × WIDTH columns (in whole chunks) of one head, from row `row` on. What
// lies beyond the head's rows or columns becomes 0. `barrier` must expect tile_bytes().
constexpr __host__ __device__ int chunks(int width) { return (width + CHUNK - 1) / CHUNK; }
constexpr __host__ __device__ int tile_bytes(int rows, int width) {
    return rows * ROW_BYTES * chunks(width);
}
template <int TENSOR, int ROWS, int WIDTH>
__device__ __forceinline__ void copy_tile(Memory& memory, unsigned tile, const TensorMap& map,
                                          unsigned barrier, int head, int row, int rows) {
#ifdef COUNT
    memory.bytes[2 * TENSOR] += min(ROWS, rows - row) * WIDTH * int(sizeof(Element));
#endif
    arrive_expecting(barrier, tile_bytes(ROWS, WIDTH));
#pragma unroll
    for (int chunk = 0; chunk < chunks(WIDTH); ++chunk)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
                     ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                     :: "r"(tile + chunk * ROWS * ROW_BYTES), "l"(&map), "r"(chunk * CHUNK),
                        "r"(row), "r"(head), "r"(barrier) : "memory");
}

// A number that is the same in all threads of a warp, in a form that tells the compiler so.
__device__ __forceinline__ unsigned uniform(unsigned x) { return __shfl_sync(0xffffffffu, x, 0); }

// ---- wgmma --------------------------------------------------------------------------------------
//
// 64 × N fp32 accumulators d[N / 8][4] of a warpgroup: a thread of warp w holds rows 16·w + lane/4
// (d[·][0], d[·][1]) and + 8, columns 8·j + lane%4·2 and + 1.

// A tile as an operand. Along the columns (K of the product) chunks follow each other; operand B
// with its N along the columns (transposed) steps from chunk to chunk by `chunk_bytes`. By
// uniform() the compiler derives the descriptors of a product in uniform registers, and where they
// are used: there are too many to keep.
__device__ __forceinline__ unsigned long long descriptor(unsigned tile, int chunk_bytes) {
    constexpr unsigned SWIZZLE_128 = 1u << 30;
    tile = uniform(tile);
    unsigned low = (tile >> 4) | (unsigned)chunk_bytes >> 4 << 16;
    unsigned high = SWIZZLE_ROWS * ROW_BYTES >> 4 | SWIZZLE_128;
    return (unsigned long long)high << 32 | low;
}
// The same operand, `bytes` further on.
__device__ __forceinline__ unsigned long long moved(unsigned long long operand, int bytes) {
    return operand + (bytes >> 4);
}

// Before the first wgmma that reads registers that others wrote.
__device__ __forceinline__ void start_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Keeps the compiler from touching accumulators, or operand A, before this point.
template <int GROUPS> __device__ __forceinline__ void settle(float (&d)[GROUPS][4]) {
#pragma unroll
    for (int j = 0; j < GROUPS; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) asm volatile("" : "+f"(d[j][x]) :: "memory");
}
template <int STEPS> __device__ __forceinline__ void settle(unsigned (&a)[STEPS][4]) {
#pragma unroll
    for (int j = 0; j < STEPS; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) asm volatile("" : "+r"(a[j][x]) :: "memory");
}
// Waits until at most PENDING committed groups are unfinished.
template <int PENDING> __device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// The 4 accumulators of 8 columns, and the names of all N / 2 of them.
#define OUT(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define OUT_16 OUT(0), OUT(1)
#define OUT_32 OUT_16, OUT(2), OUT(3)
#define OUT_48 OUT_32, OUT(4), OUT(5)
#define OUT_64 OUT_48, OUT(6), OUT(7)
#define OUT_80 OUT_64, OUT(8), OUT(9)
#define OUT_96 OUT_80, OUT(10), OUT(11)
#define OUT_112 OUT_96, OUT(12), OUT(13)
#define OUT_128 OUT_112, OUT(14), OUT(15)
#define OUT_144 OUT_128, OUT(16), OUT(17)
#define OUT_160 OUT_144, OUT(18), OUT(19)
#define OUT_176 OUT_160, OUT(20), OUT(21)
#define OUT_192 OUT_176, OUT(22), OUT(23)
#define OUT_208 OUT_192, OUT(24), OUT(25)
#define OUT_224 OUT_208, OUT(26), OUT(27)
#define OUT_240 OUT_224, OUT(28), OUT(29)
#define OUT_256 OUT_240, OUT(30), OUT(31)
#define IN_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define IN_32 IN_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define IN_48 IN_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define IN_64 IN_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define IN_80 IN_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define IN_96 IN_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define IN_112 IN_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define IN_128 IN_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define IN_144 IN_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define IN_160 IN_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define IN_176 IN_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define IN_192 IN_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define IN_208 IN_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define IN_224 IN_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define IN_240 IN_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define IN_256 IN_240 ", %120, %121, %122, %123, %124, %125, %126, %127"

template <int N> struct Wgmma;

// d = a · b or d += a · b: 64 × N, 16 deep. A from shared memory, B as [N][16] (K, whose columns
// are the depth); or A from registers, B as [16][N] (V, whose rows are).
#define WGMMA(N, I0, I1, I2, I3, I4)                                                              \
    template <> struct Wgmma<N> {                                                                 \
        template <bool ADD> static __device__ __forceinline__ void                                \
        shared(float (&d)[N / 8][4], unsigned long long a, unsigned long long b) {                \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #I2 ", 0; "                           \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." PTX_TYPE "." PTX_TYPE  \
                         " {" IN_##N "}, %" #I0 ", %" #I1 ", p, 1, 1, 0, 0; }"                    \
                         : OUT_##N : "l"(a), "l"(b), "n"(int(ADD)));                              \
        }                                                                                         \
        static __device__ __forceinline__ void                                                    \
        registers(float (&d)[N / 8][4], const unsigned (&a)[4], unsigned long long b) {           \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; "                                  \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." PTX_TYPE "." PTX_TYPE  \
                         " {" IN_##N "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4         \
                         ", p, 1, 1, 1; }"                                                        \
                         : OUT_##N : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));         \
        }                                                                                         \
    };
WGMMA(16, 8, 9, 10, 11, 12)
WGMMA(32, 16, 17, 18, 19, 20)
WGMMA(48, 24, 25, 26, 27, 28)
WGMMA(64, 32, 33, 34, 35, 36)
WGMMA(80, 40, 41, 42, 43, 44)
WGMMA(96, 48, 49, 50, 51, 52)
WGMMA(112, 56, 57, 58, 59, 60)
WGMMA(128, 64, 65, 66, 67, 68)
WGMMA(144, 72, 73, 74, 75, 76)
WGMMA(160, 80, 81, 82, 83, 84)
WGMMA(176, 88, 89, 90, 91, 92)
WGMMA(192, 96, 97, 98, 99, 100)
WGMMA(208, 104, 105, 106, 107, 108)
WGMMA(224, 112, 113, 114, 115, 116)
WGMMA(240, 120, 121, 122, 123, 124)
WGMMA(256, 128, 129, 130, 131, 132)

// Thread t of 4 gives x[i] to thread i and gets its x[t]: a 4 × 4 transposition.
__device__ __forceinline__ void transpose_in_quad(unsigned (&x)[4]) {
#pragma unroll
    for (int far = 1; far < 4; far *= 2) {
        bool high = lane() & far;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & far) continue;
            unsigned other = __shfl_xor_sync(0xffffffffu, high ? x[i] : x[i + far], far);
            (high ? x[i] : x[i + far]) = other;
        }
    }
}
