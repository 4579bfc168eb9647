// The element type, global memory access that can count its bytes, and tiles in shared memory.
//
// Given with -D: FP32, FP16 or BF16; TENSORS (names of the counters, in order); COUNT to count;
// LOG_BLOCKS to log when thread blocks begin and end, and where.
#pragma once

#if defined(FP16)
#include <cuda_fp16.h>
typedef __half Element;
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ void from_float(__half& to, float x) { to = __float2half_rn(x); }
#elif defined(BF16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 Element;
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_float(__nv_bfloat16& to, float x) {
    to = __float2bfloat16_rn(x);
}
#elif defined(FP32)
typedef float Element;
#else
#error "define FP32, FP16 or BF16"
#endif
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ void from_float(float& to, float x) { to = x; }

enum Tensor { TENSORS, TENSOR_COUNT };

constexpr int THREADS = 256;
constexpr int VEC = 16 / sizeof(Element);  // elements of a 16-byte vector
#define MINUS_INFINITY __int_as_float(0xff800000)

// Elements between rows of a tile in shared memory. An odd number of 16-byte vectors lets threads
// that read the same columns of neighbouring rows use different banks.
constexpr __host__ __device__ int padded(int width) { return width + VEC; }

// ---- Global memory: loads that bypass L1, stores, and (with -DCOUNT) the bytes of both --------

// The unsigned type that one access of BYTES bytes moves.
template <int BYTES> struct WordOf;
template <> struct WordOf<16> { typedef uint4 type; };
template <> struct WordOf<8> { typedef uint2 type; };
template <> struct WordOf<4> { typedef unsigned int type; };
template <> struct WordOf<2> { typedef unsigned short type; };

__device__ __forceinline__ void load_past_l1(uint4& x, const void* p) {
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p) : "memory");
}
__device__ __forceinline__ void load_past_l1(uint2& x, const void* p) {
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(p) : "memory");
}
__device__ __forceinline__ void load_past_l1(unsigned int& x, const void* p) {
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
}
__device__ __forceinline__ void load_past_l1(unsigned short& x, const void* p) {
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(x) : "l"(p) : "memory");
}

#ifdef LOG_BLOCKS
// Of each of the first thread blocks its SM, and when its first thread began and ended (the GPU's
// timer, its lower 32 bits of nanoseconds).
__device__ unsigned block_log[LOG_BLOCKS * 3];
__device__ __forceinline__ void log_time(int what) {
    unsigned sm, now;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now) :: "memory");
    if (threadIdx.x > 0 || blockIdx.x >= LOG_BLOCKS) return;
    block_log[blockIdx.x * 3] = sm;
    block_log[blockIdx.x * 3 + what] = now;
}
#endif

#ifdef COUNT
// The sum over a warp of numbers below 2**53.
__device__ __forceinline__ unsigned long long over_warp(unsigned long long x) {
#if __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ != 900  // where flash2_backward would spill
    unsigned long long high = __reduce_add_sync(0xffffffffu, (unsigned)(x >> 26));
    return (high << 26) + __reduce_add_sync(0xffffffffu, (unsigned)x & ((1u << 26) - 1));
#else
    for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(0xffffffffu, x, far);
    return x;
#endif
}
#endif

// The way to global memory. Built with COUNT, each access adds the bytes it moves to the thread's
// own counters, and finish() adds those to counters[2·tensor + (0 read | 1 written)]. It lives as long
// as the thread block.
struct Memory {
#ifdef COUNT
    unsigned long long bytes[2 * TENSOR_COUNT] = {};
#define COUNTERS , unsigned long long* counters
#define FINISH(memory) (memory).finish(counters)
    __device__ void finish(unsigned long long* counters) {
#pragma unroll
        for (int i = 0; i < 2 * TENSOR_COUNT; ++i) {
            unsigned long long sum = over_warp(bytes[i]);
            if (threadIdx.x % 32 == 0 && sum > 0) atomicAdd(counters + i, sum);
            bytes[i] = 0;
        }
    }
#else
#define COUNTERS
#define FINISH(memory)
#endif
#ifdef LOG_BLOCKS
    __device__ Memory() { log_time(1); }
    __device__ ~Memory() { log_time(2); }
#endif

    template <int TENSOR, class Word> __device__ __forceinline__ Word load(const void* from) {
#ifdef COUNT
        bytes[2 * TENSOR] += sizeof(Word);
#endif
        Word word;
        load_past_l1(word, from);
        return word;
    }

    // Starts copying 16 bytes to shared memory without registers (sm_80 and later); 16 zeros where
    // not `valid`.
    template <int TENSOR>
    __device__ __forceinline__ void copy_async(unsigned to, const void* from, bool valid) {
#ifdef COUNT
        bytes[2 * TENSOR] += valid ? 16 : 0;
#endif
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
    }

    template <int TENSOR, class Word> __device__ __forceinline__ void store(void* to, Word word) {
#ifdef COUNT
        bytes[2 * TENSOR + 1] += sizeof(Word);
#endif
        *reinterpret_cast<Word*>(to) = word;
    }

    // Adds to a float in L2, or to four neighbours, without waiting for it.
    template <int TENSOR> __device__ __forceinline__ void add(float* to, float x) {
#ifdef COUNT
        bytes[2 * TENSOR + 1] += sizeof(float);
#endif
        asm volatile("red.global.add.f32 [%0], %1;" :: "l"(to), "f"(x) : "memory");
    }
    template <int TENSOR> __device__ __forceinline__ void add(float* to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
#ifdef COUNT
        bytes[2 * TENSOR + 1] += 4 * sizeof(float);
#endif
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                     :: "l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
#else
        for (int i = 0; i < 4; ++i) add<TENSOR>(to + i, x[i]);
#endif
    }

    // W neighbouring elements as floats, in one access.
    template <int TENSOR, int W>
    __device__ __forceinline__ void load_floats(float (&out)[W], const Element* from) {
        typedef typename WordOf<W * sizeof(Element)>::type Word;
        Word word = load<TENSOR, Word>(from);
        unpack(out, word);
    }

    template <int TENSOR, int W>
    __device__ __forceinline__ void store_floats(Element* to, const float (&in)[W]) {
        typedef typename WordOf<W * sizeof(Element)>::type Word;
        store<TENSOR, Word>(to, pack<Word>(in));
    }

    template <int W, class Word>
    static __device__ __forceinline__ void unpack(float (&out)[W], const Word& word) {
        Element elements[W];
        memcpy(elements, &word, sizeof(Word));
#pragma unroll
        for (int x = 0; x < W; ++x) out[x] = to_float(elements[x]);
    }

    template <class Word, int W> static __device__ __forceinline__ Word pack(const float (&in)[W]) {
        Element elements[W];
#pragma unroll
        for (int x = 0; x < W; ++x) from_float(elements[x], in[x]);
        Word word;
        memcpy(&word, elements, sizeof(Word));
        return word;
    }
};

// ---- Tiles: global memory <-> shared memory, clipped to the tensor's real extent --------------

// Copies rows × columns elements (the valid part of a ROWS × COLUMNS tile) in accesses of W
// elements, and fills the rest with zeros, which change no product. Four loads are in flight
// before the first is used.
template <int TENSOR, int ROWS, int COLUMNS, int W>
__device__ __forceinline__ void load_tile_by(Memory& memory, Element* tile, int stride,
                                             const Element* from, long long row_stride, int rows,
                                             int columns) {
    typedef typename WordOf<W * sizeof(Element)>::type Word;
    constexpr int PER_ROW = COLUMNS / W, ALL = ROWS * PER_ROW, BATCH = 4;
    for (int first = threadIdx.x; first < ALL; first += BATCH * THREADS) {
        Word words[BATCH];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            int at = first + b * THREADS, row = at / PER_ROW, column = at % PER_ROW * W;
            words[b] = Word{};
            if (row < min(rows, ROWS) && column < columns)
                words[b] = memory.load<TENSOR, Word>(from + row * row_stride + column);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            int at = first + b * THREADS, row = at / PER_ROW, column = at % PER_ROW * W;
            if (at < ALL) *reinterpret_cast<Word*>(tile + row * stride + column) = words[b];
        }
    }
}

// Rows of 16-byte multiples go as 16-byte vectors, others element by element.
template <int TENSOR, int ROWS, int COLUMNS>
__device__ __forceinline__ void load_tile(Memory& memory, Element* tile, int stride,
                                          const Element* from, long long row_stride, int rows,
                                          int columns) {
    if (row_stride % VEC == 0)
        load_tile_by<TENSOR, ROWS, COLUMNS, VEC>(memory, tile, stride, from, row_stride, rows,
                                                 columns);
    else
        load_tile_by<TENSOR, ROWS, COLUMNS, 1>(memory, tile, stride, from, row_stride, rows,
                                                 columns);
}

// The other way: shared memory -> the valid part of a tile in global memory.
template <int TENSOR, int ROWS, int COLUMNS, int W>
__device__ __forceinline__ void store_tile_by(Memory& memory, Element* to, long long row_stride,
                                              const Element* tile, int stride, int rows,
                                              int columns) {
    typedef typename WordOf<W * sizeof(Element)>::type Word;
    for (int at = threadIdx.x; at < ROWS * (COLUMNS / W); at += THREADS) {
        int row = at / (COLUMNS / W), column = at % (COLUMNS / W) * W;
        if (row < rows && column < columns)
            memory.store<TENSOR>(to + row * row_stride + column,
                                 *reinterpret_cast<const Word*>(tile + row * stride + column));
    }
}

template <int TENSOR, int ROWS, int COLUMNS>
__device__ __forceinline__ void store_tile(Memory& memory, Element* to, long long row_stride,
                                           const Element* tile, int stride, int rows,
                                           int columns) {
    if (row_stride % VEC == 0)
        store_tile_by<TENSOR, ROWS, COLUMNS, VEC>(memory, to, row_stride, tile, stride, rows,
                                                  columns);
    else
        store_tile_by<TENSOR, ROWS, COLUMNS, 1>(memory, to, row_stride, tile, stride, rows,
                                                columns);
}

// Whole rows of WIDTH elements: always vectors.
template <int TENSOR, int ROWS, int WIDTH>
__device__ __forceinline__ void load_rows(Memory& memory, Element* tile, int stride,
                                          const Element* from, int rows) {
    load_tile_by<TENSOR, ROWS, WIDTH, VEC>(memory, tile, stride, from, WIDTH, rows, WIDTH);
}

// W neighbouring elements of shared memory as floats, in one access.
template <int W> __device__ __forceinline__ void read_shared(float (&out)[W], const Element* from) {
    typedef typename WordOf<W * sizeof(Element)>::type Word;
    Memory::unpack(out, *reinterpret_cast<const Word*>(from));
}
