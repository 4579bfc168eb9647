// What surrounds the main launch of the backward kernels: D = rowsum(dO ∘ O), sums that start at 0,
// and sums that are scaled and rounded. One thread block for each row or column block, as the
// schedule has it. Given with -D: GROUPED, when several query heads add to one dK and dV.
#pragma once
#include "common.cuh"

template <int TENSOR>
__device__ __forceinline__ void zero_floats(Memory& memory, float* to, int count) {
    for (int at = threadIdx.x * 4; at < count; at += THREADS * 4)
        memory.store<TENSOR>(to + at, make_uint4(0, 0, 0, 0));
}

// Scales and rounds `count` sums, a multiple of 16. A thread takes 16 bytes of them at a time: with
// more, a warp's load would fetch every sector twice.
template <int SUMS, int TENSOR>
__device__ __forceinline__ void convert(Memory& memory, Element* to, const float* from, int count,
                                        float scale) {
#pragma unroll 4
    for (int at = threadIdx.x * 4; at < count; at += THREADS * 4) {
        uint4 word = memory.load<SUMS, uint4>(from + at);
        float sums[4];
        memcpy(sums, &word, sizeof(sums));
#pragma unroll
        for (int x = 0; x < 4; ++x) sums[x] *= scale;
        memory.store_floats<TENSOR>(to + at, sums);
    }
}

// One number of the LSE and D of `rows` valid rows of a row block, for the thread that asks: the
// first BR have LSE in base 2 (0 where a row saw nothing: all its scores are −∞), the next BR have
// D, and all others 0.
__device__ __forceinline__ float load_row_statistic(Memory& memory, const float* LSE,
                                                    const float* D, int rows) {
    int row = threadIdx.x % BR;
    if (threadIdx.x >= 2 * BR || row >= rows) return 0.0f;
    if (threadIdx.x >= BR) return __uint_as_float(memory.load<TENSOR_D, unsigned int>(D + row));
    float lse = __uint_as_float(memory.load<TENSOR_LSE, unsigned int>(LSE + row));
    return lse == MINUS_INFINITY ? 0.0f : lse * LOG2_E;
}

// D = rowsum(dO ∘ O), LANES lanes a row; dQ = 0.
extern "C" __global__ void __launch_bounds__(THREADS)
hbmeter_backward_preprocess(const Element* O, const Element* dO, float* D, float* dQ, int heads,
                            int n_q COUNTERS) {
    constexpr int VECTORS = VALUE_DIM / VEC;
    constexpr int LANES = VECTORS > 16 ? 32 : VECTORS > 8 ? 16 : VECTORS > 4 ? 8 : 4;
    Place place = place_of(blockIdx.x, heads, (n_q + BR - 1) / BR);
    int r0 = place.block * BR, rows = min(BR, n_q - r0), lane = threadIdx.x % LANES;
    long long first = (long long)place.head * n_q + r0;
    Memory memory;
    for (int start = 0; start < rows; start += THREADS / LANES) {
        int row = start + threadIdx.x / LANES;
        float sum = 0.0f;
        if (row < rows)
            for (int vector = lane; vector < VECTORS; vector += LANES) {
                float o[VEC], d_out[VEC];
                long long at = (first + row) * VALUE_DIM + vector * VEC;
                memory.load_floats<TENSOR_O>(o, O + at);
                memory.load_floats<TENSOR_dO>(d_out, dO + at);
                for (int x = 0; x < VEC; ++x) sum += o[x] * d_out[x];
            }
#pragma unroll
        for (int far = LANES / 2; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, far);
        if (row < rows && lane == 0) memory.store<TENSOR_D>(D + first + row, __float_as_uint(sum));
    }
    zero_floats<TENSOR_dQ_acc>(memory, dQ + first * HEAD_DIM, rows * HEAD_DIM);
    FINISH(memory);
}

extern "C" __global__ void __launch_bounds__(THREADS)
hbmeter_backward_convert_q(const float* sums, Element* dQ, int heads, int n_q,
                           float scale COUNTERS) {
    Place place = place_of(blockIdx.x, heads, (n_q + BR - 1) / BR);
    int r0 = place.block * BR;
    long long first = ((long long)place.head * n_q + r0) * HEAD_DIM;
    Memory memory;
    convert<TENSOR_dQ_acc, TENSOR_dQ>(memory, dQ + first, sums + first,
                                      min(BR, n_q - r0) * HEAD_DIM, scale);
    FINISH(memory);
}

#if GROUPED
typedef float Gradient;  // what a thread block's dK and dV go to
#define TENSOR_KV_GRADIENT(name) TENSOR_##name##_acc

extern "C" __global__ void __launch_bounds__(THREADS)
hbmeter_backward_zero_kv(float* dK, float* dV, int heads, int group, int n_kv COUNTERS) {
    Place place = place_of(blockIdx.x, heads / group, (n_kv + BC - 1) / BC);
    int c0 = place.block * BC, rows = min(BC, n_kv - c0);
    long long first = (long long)place.head * n_kv + c0;
    Memory memory;
    zero_floats<TENSOR_dK_acc>(memory, dK + first * HEAD_DIM, rows * HEAD_DIM);
    zero_floats<TENSOR_dV_acc>(memory, dV + first * VALUE_DIM, rows * VALUE_DIM);
    FINISH(memory);
}

extern "C" __global__ void __launch_bounds__(THREADS)
hbmeter_backward_convert_kv(const float* dK_sums, const float* dV_sums, Element* dK, Element* dV,
                            int heads, int group, int n_kv COUNTERS) {
    Place place = place_of(blockIdx.x, heads / group, (n_kv + BC - 1) / BC);
    int c0 = place.block * BC, rows = min(BC, n_kv - c0);
    long long first = (long long)place.head * n_kv + c0;
    Memory memory;
    convert<TENSOR_dK_acc, TENSOR_dK>(memory, dK + first * HEAD_DIM, dK_sums + first * HEAD_DIM,
                                      rows * HEAD_DIM, 1.0f);
    convert<TENSOR_dV_acc, TENSOR_dV>(memory, dV + first * VALUE_DIM,
                                      dV_sums + first * VALUE_DIM, rows * VALUE_DIM, 1.0f);
    FINISH(memory);
}
#else
typedef Element Gradient;
#define TENSOR_KV_GRADIENT(name) TENSOR_##name
#endif
