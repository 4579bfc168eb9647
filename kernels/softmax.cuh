// Softmax of rows of scores in global memory, a thread block a row: what the softmax_*.cu share.
//
// Rows whose length VEC divides go in vectors, others element by element. A thread has up to
// BC / THREADS scores on their way at once. Exponentials are powers of two (ex2), of numbers that
// the largest score keeps at or below 1.
#pragma once
#include "common.cuh"

constexpr int MOST_LOADS = 8;  // of a thread, on their way

template <class Combine> __device__ __forceinline__ float over_row(float x, Combine combine) {
    __shared__ float parts[THREADS / 32];
    return over_block(x, parts, THREADS / 32, combine);
}

// A row of n scores of which lo <= column < hi are seen, in accesses of W elements.
template <int W> struct Row {
    typedef typename WordOf<W * sizeof(Element)>::type Word;
    static constexpr int STEP = THREADS * W;
    static constexpr int LOADS = BC < STEP ? 1 : BC / STEP > MOST_LOADS ? MOST_LOADS : BC / STEP;
    const Element* S;
    Element* P;
    int n, lo, hi;

    // Calls use(column, x, word) for this thread's parts of the row in global memory: W scores
    // from that column on, as floats (those not seen −∞) and as they came.
    template <class Use> __device__ __forceinline__ void load(Memory& memory, Use use) const {
#pragma unroll 1
        for (int first = threadIdx.x * W; first < n; first += LOADS * STEP) {
            Word words[LOADS];
#pragma unroll
            for (int i = 0; i < LOADS; ++i)
                if (first + i * STEP < n)
                    words[i] = memory.load<TENSOR_S, Word>(S + first + i * STEP);
#pragma unroll
            for (int i = 0; i < LOADS; ++i)
                if (first + i * STEP < n) hand_on(first + i * STEP, words[i], use);
        }
    }

    // The same of the row in shared memory, where this thread put its parts.
    template <class Use> __device__ __forceinline__ void get(const Element* kept, Use use) const {
        for (int column = threadIdx.x * W; column < n; column += STEP)
            hand_on(column, *reinterpret_cast<const Word*>(kept + column), use);
    }
    __device__ __forceinline__ void put(Element* kept, int column, const Word& word) const {
        *reinterpret_cast<Word*>(kept + column) = word;
    }

    // P = exp(x − top) · inverse, W columns.
    __device__ __forceinline__ void store(Memory& memory, int column, float (&x)[W], float top,
                                          float inverse) const {
        float shift = top * LOG2_E;
#pragma unroll
        for (int y = 0; y < W; ++y) x[y] = exp2_fast(x[y] * LOG2_E - shift) * inverse;
        memory.store_floats<TENSOR_P>(P + column, x);
    }

    template <class Use>
    __device__ __forceinline__ void hand_on(int column, const Word& word, Use use) const {
        float x[W];
        Memory::unpack(x, word);
        if (column < lo || column + W > hi)
#pragma unroll
            for (int y = 0; y < W; ++y)
                if (column + y < lo || column + y >= hi) x[y] = MINUS_INFINITY;
        use(column, x, word);
    }
};

template <int W> __device__ __forceinline__ float largest(const float (&x)[W]) {
    float top = x[0];
#pragma unroll
    for (int y = 1; y < W; ++y) top = fmaxf(top, x[y]);
    return top;
}

// The sum of exp(x − top)
template <int W>
__device__ __forceinline__ float sum_of_exponentials(const float (&x)[W], float top) {
    float sum = 0.0f, shift = top * LOG2_E;
#pragma unroll
    for (int y = 0; y < W; ++y) sum += exp2_fast(x[y] * LOG2_E - shift);
    return sum;
}

// A thread's largest score m and the sum l of its exp(score − m), as scores come.
struct Online {
    float m = MINUS_INFINITY, l = 0.0f;
    template <int W> __device__ __forceinline__ void add(const float (&x)[W]) {
        float top = fmaxf(m, largest(x)), shift = finite_max(top);
        l = l * exp2_fast((m - shift) * LOG2_E) + sum_of_exponentials(x, shift);
        m = top;
    }
    // Makes them those of the whole row, m finite. Every thread of the block calls this.
    __device__ __forceinline__ void merge() {
        float top = finite_max(over_row(m, Larger()));
        l = over_row(l * exp2_fast((m - top) * LOG2_E), Plus());
        m = top;
    }
};

// Of the sum of a row's exponentials; 0 where the row sees nothing.
__device__ __forceinline__ float inverse_of(float l) { return l > 0.0f ? 1.0f / l : 0.0f; }

// Calls run(row) with the row of this thread block.
template <class Run>
__device__ __forceinline__ void with_row(const Element* S, Element* P, int heads, int n_q, int n_kv,
                                         int lo_shift, int hi_shift, Run run) {
    Place place = place_of(blockIdx.x, heads, n_q);
    long long at = ((long long)place.head * n_q + place.block) * n_kv;
    Mask mask = {lo_shift, hi_shift, n_kv};
    int lo = mask.lo(place.block), hi = mask.hi(place.block);
    if (n_kv % VEC == 0) run(Row<VEC>{S + at, P + at, n_kv, lo, hi});
    else run(Row<1>{S + at, P + at, n_kv, lo, hi});
}
