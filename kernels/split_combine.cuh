// The second launch of split-KV decode: brings the splits of each row together.
#pragma once
#include "mma.cuh"

constexpr int COMBINE_THREADS = 128, COMBINE_ROWS = 16;  // of a thread block

__device__ __forceinline__ uint2 pack_four(float4 x) {
    return make_uint2(pack(x.x, x.y), pack(x.z, x.w));
}

// This lane's columns of a row, four neighbours in each run of 128, added up over splits.
struct Sum {
    static constexpr int RUNS = (VALUE_DIM + 127) / 128;
    float4 x[RUNS] = {};

    static __device__ __forceinline__ int column(int run) { return run * 128 + lane() * 4; }
    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (int run = 0; run < RUNS; ++run)
            x[run].x *= factor, x[run].y *= factor, x[run].z *= factor, x[run].w *= factor;
    }
    __device__ __forceinline__ void add(Memory& memory, const float* part, float weight) {
#pragma unroll
        for (int run = 0; run < RUNS; ++run) {
            if (column(run) >= VALUE_DIM) continue;
            uint4 word = memory.load<TENSOR_O_part, uint4>(part + column(run));
            x[run].x += weight * __uint_as_float(word.x);
            x[run].y += weight * __uint_as_float(word.y);
            x[run].z += weight * __uint_as_float(word.z);
            x[run].w += weight * __uint_as_float(word.w);
        }
    }
    __device__ __forceinline__ void store(Memory& memory, Element* to) const {
#pragma unroll
        for (int run = 0; run < RUNS; ++run)
            if (column(run) < VALUE_DIM)
                memory.store<TENSOR_O>(to + column(run), pack_four(x[run]));
    }
};

// Max and sum over a warp.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, far));
    return x;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) x += __shfl_xor_sync(0xffffffffu, x, far);
    return x;
}

// One row by one warp: O = Σ weight · part / Σ weight, weight = exp(LSE − max), 32 splits a step.
__device__ __forceinline__ void combine_row(Memory& memory, const float* O_part,
                                            const float* LSE_part, Element* O, int splits) {
    Sum sum;
    float m = MINUS_INFINITY, l = 0;  // l of this lane's splits
#pragma unroll 1
    for (int first = 0; first < splits; first += 32) {
        int count = min(splits - first, 32);
        float lse = MINUS_INFINITY;
        if (lane() < count)
            lse = __uint_as_float(
                memory.load<TENSOR_LSE_part, unsigned int>(LSE_part + first + lane()));
        float top = fmaxf(m, warp_max(lse));
        float factor = __expf(m - finite_max(top)), weight = __expf(lse - finite_max(top));
        m = top;
        l = l * factor + weight;
        sum.scale(factor);
#pragma unroll 8
        for (int split = 0; split < count; ++split)
            sum.add(memory, O_part + (first + split) * VALUE_DIM,
                    __shfl_sync(0xffffffffu, weight, split));
    }
    l = warp_sum(l);
    sum.scale(l > 0.0f ? 1.0f / l : 0.0f);
    sum.store(memory, O);
}

extern "C" __global__ void __launch_bounds__(COMBINE_THREADS, 1)
hbmeter_split_kv_combine(const float* O_part, const float* LSE_part, Element* O, int heads,
                         int n_rows, int splits COUNTERS) {
    int blocks = (n_rows + COMBINE_ROWS - 1) / COMBINE_ROWS;
    Place place = place_of(blockIdx.x, heads, blocks);
    int r0 = place.block * COMBINE_ROWS, end = min(r0 + COMBINE_ROWS, n_rows);
    Memory memory;
#pragma unroll 1
    for (int r = r0 + threadIdx.x / 32; r < end; r += COMBINE_THREADS / 32) {
        long long row = (long long)place.head * n_rows + r;
        combine_row(memory, O_part + row * splits * VALUE_DIM, LSE_part + row * splits,
                    O + row * VALUE_DIM, splits);
    }
    FINISH(memory);
}
