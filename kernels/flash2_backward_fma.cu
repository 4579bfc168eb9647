// FlashAttention-2 backward in fp32 arithmetic: schedule flash2_backward, on 16 × 16 threads.
//
// A thread block holds BC keys: K and V in shared memory, dK and dV in registers. BR rows of Q and
// dO at a time pass by, and
//   S = Q·Kᵀ, P = exp(S − LSE), dP = dO·Vᵀ, dS = P ∘ (dP − D),
//   dV += Pᵀ·dO, dK += dSᵀ·Q, dQ = dS·K.
// Thread (ty, tx) computes rows ty + 16·i and columns tx + 16·j of S and dP; P and dS go through
// shared memory, transposed for dV and dK, as they are for dQ. red.global adds dQ in L2. Rows
// beyond n_q are 0 in Q, dO, LSE and D, which makes their part of every result 0.
// Expected: below the rate of fp32 FMAs by what shared memory cannot feed; no tensor cores.
#include "backward.cuh"

constexpr int RM = BR / 16, CM = BC / 16;  // rows and keys of one thread
constexpr int Q_STRIDE = padded(HEAD_DIM), V_STRIDE = padded(VALUE_DIM);
constexpr int SCORES_STRIDE = BC + 4, TRANSPOSED_STRIDE = BR + 4;
constexpr int ELEMENTS = (BR + BC) * (Q_STRIDE + V_STRIDE);
constexpr int FLOATS = BR * SCORES_STRIDE + BC * TRANSPOSED_STRIDE + 2 * BR;
static_assert(ELEMENTS * sizeof(Element) + FLOATS * sizeof(float) == SHARED_BYTES,
              "the launcher's memory");

// P = exp(S/√d − LSE) where the mask lets the row see the column, else 0.
__device__ __forceinline__ void exponentiate(float (&s)[RM][CM], const float* lse, float log2_scale,
                                             Mask mask, int r0, int c0) {
#pragma unroll
    for (int i = 0; i < RM; ++i) {
        int row = ty() + 16 * i, lo = mask.lo(r0 + row), hi = mask.hi(r0 + row);
#pragma unroll
        for (int j = 0; j < CM; ++j) {
            int column = c0 + tx() + 16 * j;
            float p = exp2f(s[i][j] * log2_scale - lse[row]);
            s[i][j] = lo <= column && column < hi ? p : 0.0f;
        }
    }
}

__device__ __forceinline__ void share(float* to, int row_stride, int column_stride,
                                      const float (&x)[RM][CM]) {
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
        for (int j = 0; j < CM; ++j)
            to[(ty() + 16 * i) * row_stride + (tx() + 16 * j) * column_stride] = x[i][j];
}

// Adds this thread's part of `rows` valid rows to fp32 rows in L2.
template <int TENSOR, int WIDTH, int ROWS>
__device__ __forceinline__ void add_rows(Memory& memory, float* to, int rows,
                                         const float (&x)[ROWS][WIDTH / 16], float scale) {
    typedef Columns<WIDTH> C;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        int row = ty() + 16 * i;
        if (row >= rows) continue;
#pragma unroll
        for (int run = 0; run < C::RUNS; ++run)
#pragma unroll
            for (int y = 0; y < C::RUN; ++y)
                memory.add<TENSOR>(to + row * WIDTH + C::first(run) + y,
                                   x[i][run * C::RUN + y] * scale);
    }
}

// dK or dV of `rows` valid keys: stored, or added to those of other heads.
template <int TENSOR, int WIDTH>
__device__ __forceinline__ void put_gradient(Memory& memory, Gradient* to, int rows,
                                             float (&x)[CM][WIDTH / 16], float scale) {
#if GROUPED
    add_rows<TENSOR, WIDTH>(memory, to, rows, x, scale);
#else
#pragma unroll
    for (int i = 0; i < CM; ++i)
#pragma unroll
        for (int y = 0; y < WIDTH / 16; ++y) x[i][y] *= scale;
    store_output<TENSOR, WIDTH>(memory, to, WIDTH, rows, WIDTH, x);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
hbmeter_flash2_backward_fma(const Element* Q, const Element* K, const Element* V,
                            const Element* dO, const float* LSE, const float* D, float* dQ,
                            Gradient* dK, Gradient* dV, int heads, int group, int n_q, int n_kv,
                            int lo_shift, int hi_shift, float scale COUNTERS) {
    extern __shared__ __align__(16) unsigned char shared[];
    Element* k = reinterpret_cast<Element*>(shared);
    Element *v = k + BC * Q_STRIDE, *q = v + BC * V_STRIDE, *d_out = q + BR * Q_STRIDE;
    float* scores = reinterpret_cast<float*>(d_out + BR * V_STRIDE);
    float* transposed = scores + BR * SCORES_STRIDE;
    float *lse = transposed + BC * TRANSPOSED_STRIDE, *d = lse + BR;
    Place place = place_of(blockIdx.x, heads, (n_kv + BC - 1) / BC);
    Mask mask = {lo_shift, hi_shift, n_kv};
    Memory memory;

    int c0 = place.block * BC;
    long long first_key = (long long)(place.head / group) * n_kv + c0;
    long long first_row = (long long)place.head * n_q;
    load_rows<TENSOR_K, BC, HEAD_DIM>(memory, k, Q_STRIDE, K + first_key * HEAD_DIM, n_kv - c0);
    load_rows<TENSOR_V, BC, VALUE_DIM>(memory, v, V_STRIDE, V + first_key * VALUE_DIM, n_kv - c0);
    float dk[CM][HEAD_DIM / 16] = {}, dv[CM][VALUE_DIM / 16] = {};
    Walk<BR> walk(align_down(max(c0 + 1 - hi_shift, 0), BR), clip(c0 + BC - lo_shift, n_q),
                  place.block);
#pragma unroll 1
    for (int r0 = walk.first(); walk.there(r0); r0 += walk.step()) {
        long long row = first_row + r0;
        float statistic = load_row_statistic(memory, LSE + row, D + row, n_q - r0);
        __syncthreads();  // the last row block is used up
        if (threadIdx.x < 2 * BR) lse[threadIdx.x] = statistic;
        load_rows<TENSOR_Q, BR, HEAD_DIM>(memory, q, Q_STRIDE, Q + row * HEAD_DIM, n_q - r0);
        load_rows<TENSOR_dO, BR, VALUE_DIM>(memory, d_out, V_STRIDE, dO + row * VALUE_DIM,
                                            n_q - r0);
        FINISH(memory);
        __syncthreads();
        float p[RM][CM] = {}, ds[RM][CM] = {};
        add_scores<HEAD_DIM>(p, q, k, Q_STRIDE);
        exponentiate(p, lse, scale * LOG2_E, mask, r0, c0);
        share(transposed, 1, TRANSPOSED_STRIDE, p);
        add_scores<VALUE_DIM>(ds, d_out, v, V_STRIDE);
#pragma unroll
        for (int i = 0; i < RM; ++i)
#pragma unroll
            for (int j = 0; j < CM; ++j) ds[i][j] = p[i][j] * (ds[i][j] - d[ty() + 16 * i]);
        share(scores, SCORES_STRIDE, 1, ds);
        __syncthreads();
        add_weighted_rows<BR, VALUE_DIM>(dv, transposed, TRANSPOSED_STRIDE, d_out, V_STRIDE);
        float dq[RM][HEAD_DIM / 16] = {};
        add_weighted_rows<BC, HEAD_DIM>(dq, scores, SCORES_STRIDE, k, Q_STRIDE);
        add_rows<TENSOR_dQ_acc, HEAD_DIM>(memory, dQ + row * HEAD_DIM, n_q - r0, dq, 1.0f);
        FINISH(memory);
        __syncthreads();  // Pᵀ is used up: dSᵀ takes its place
        share(transposed, 1, TRANSPOSED_STRIDE, ds);
        __syncthreads();
        add_weighted_rows<BR, HEAD_DIM>(dk, transposed, TRANSPOSED_STRIDE, q, Q_STRIDE);
    }
    put_gradient<TENSOR_KV_GRADIENT(dK), HEAD_DIM>(memory, dK + first_key * HEAD_DIM, n_kv - c0, dk,
                                                   scale);
    put_gradient<TENSOR_KV_GRADIENT(dV), VALUE_DIM>(memory, dV + first_key * VALUE_DIM, n_kv - c0,
                                                    dv, 1.0f);
    FINISH(memory);
}
