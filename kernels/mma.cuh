// What the tensor-core kernels share (sm_80 and later, fp16 or bf16): m16n8k16 products with their
// operands from swizzled tiles in shared memory, and reductions over the lanes of a row.
#pragma once
#include "common.cuh"

constexpr float LN_2 = 0.693147181f;
constexpr float LOWEST = -3.4e38f;  // m before any score: finite, so that −∞ − m stays −∞

typedef unsigned Fragment[4];  // 16 × 16 elements: operand A, or two of B

__device__ __forceinline__ int lane() { return threadIdx.x % 32; }

// ---- Instructions -----------------------------------------------------------------------------

#ifdef FP16
#define PTX_TYPE "f16"
#else
#define PTX_TYPE "bf16"
#endif

// c += a · b, 16 × 8 += 16 × 16 · 16 × 8
__device__ __forceinline__ void mma(float (&c)[4], const Fragment& a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." PTX_TYPE "." PTX_TYPE ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned x;
    asm("cvt.rn." PTX_TYPE "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

// Four 8 × 8 blocks of shared memory; lane i gives the address of row i%8 of block i/8.
__device__ __forceinline__ void load_matrices(Fragment& x, unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address));
}
__device__ __forceinline__ void load_transposed(Fragment& x, unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address));
}

// Lets the compiler keep nothing that it derived from x: computing that again costs less than the
// registers do.
template <class T> __device__ __forceinline__ void forget(T& x) { asm volatile("" : "+r"(x)); }

// ---- Swizzled tiles in shared memory ----------------------------------------------------------

// Rows of WIDTH elements without padding. The 16-byte vectors of a row change places (XOR), so
// that the same vector of 8 neighbouring rows covers all banks.
template <int WIDTH> struct Swizzled {
    static constexpr int VECTORS = WIDTH / VEC;
    static constexpr int POWER_OF_TWO = VECTORS & -VECTORS;
    static constexpr int SPAN = POWER_OF_TWO < 8 ? POWER_OF_TWO : 8;  // vectors that change places

    static __device__ __forceinline__ unsigned offset(unsigned row, unsigned vector) {
        return (row * VECTORS + (vector ^ row * SPAN / 8 % SPAN)) * 16;
    }

    // From this lane's address in the 16 × 16 block at (0, 0) to that at (row, column).
    static __device__ __forceinline__ unsigned block(unsigned origin, int row, int column) {
        int vector = column / VEC, inner = vector % SPAN;
        return (origin ^ inner * 16) + (row * VECTORS + vector - inner) * 16;
    }
};

// This lane's row and vector in a 16 × 16 block, for load_matrices: Q as operand A and (transposed)
// V as operand B go down the rows first, K as operand B goes along the columns first.
template <int WIDTH> __device__ __forceinline__ unsigned rows_first(unsigned tile) {
    return tile + Swizzled<WIDTH>::offset(lane() % 16, lane() / 16);
}
template <int WIDTH> __device__ __forceinline__ unsigned columns_first(unsigned tile) {
    return tile + Swizzled<WIDTH>::offset(lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
}

// ---- Tiles from global memory ------------------------------------------------------------------

// Starts copying `rows` valid rows of a tile; the others become 0, which changes no product. A
// block does it, or a warp (of 32 threads, by its lanes).
template <int TENSOR, int ROWS, int WIDTH, int BLOCK_THREADS>
__device__ __forceinline__ void copy_rows(Memory& memory, unsigned tile, const Element* from,
                                          int rows, unsigned thread = threadIdx.x) {
    constexpr int VECTORS = WIDTH / VEC, STEP = BLOCK_THREADS / VECTORS;
    forget(thread);
    unsigned row = thread / VECTORS, vector = thread % VECTORS;
    if (row >= STEP) return;
    from += thread * VEC;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP)
        if (ROWS % STEP == 0 || row + r < ROWS)
            memory.copy_async<TENSOR>(tile + Swizzled<WIDTH>::offset(row + r, vector),
                                      from + r * WIDTH, int(row) + r < rows);
}

// Makes a group of what this thread began to copy since the last one.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all but the last PENDING groups of copies of this warp are there.
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
    __syncwarp();
}

// Until all copies of this thread block are there.
__device__ __forceinline__ void wait_for_all_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

// ---- Products of tiles -------------------------------------------------------------------------

// c += A · Bᵀ of tiles that are WIDTH wide; `a` and `b` are this lane's addresses in their first
// blocks (rows_first, columns_first).
template <int WIDTH, int STRIPS, int N>
__device__ __forceinline__ void add_dot_t(float (&c)[STRIPS][N][4], unsigned a, unsigned b) {
    forget(a), forget(b);
#pragma unroll
    for (int k = 0; k < WIDTH; k += 16) {
        Fragment left[STRIPS];
#pragma unroll
        for (int i = 0; i < STRIPS; ++i)
            load_matrices(left[i], Swizzled<WIDTH>::block(a, 16 * i, k));
#pragma unroll
        for (int j = 0; j < N / 2; ++j) {
            Fragment right;
            load_matrices(right, Swizzled<WIDTH>::block(b, 16 * j, k));
#pragma unroll
            for (int i = 0; i < STRIPS; ++i) {
                mma(c[i][2 * j], left[i], right[0], right[1]);
                mma(c[i][2 * j + 1], left[i], right[2], right[3]);
            }
        }
    }
}

// ---- Rows of an accumulator: four lanes share one ----------------------------------------------

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
