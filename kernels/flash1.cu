// FlashAttention-1 forward (Algorithm 1 of its paper): schedule flash1.
//
// One thread block for each (batch, head). The outer loop loads K and V of a column block once;
// the inner loop walks the row blocks that see it, and for each loads Q, O, m and l, brings them
// up to date and stores O (normalised, in the inputs' dtype), m and l again. The first visit of a
// row block starts from O = 0, m = −∞, l = 0 without reading them.
//
// Expected: what flash2.cu reaches on as many SMs as there are heads, less what O costs.
// Measured on an H200, fp16, full: 128 heads of n 2048, d 64 23 TFLOP/s; 64 heads of n 4096, d 128,
// which leave 68 of 132 SMs idle, 11.
#include "common.cuh"

constexpr int RM = BR / 16, CN = BC / 16, DM = VALUE_DIM / 16;
constexpr int Q_STRIDE = padded(HEAD_DIM);
constexpr int Q_BYTES = BR * Q_STRIDE * sizeof(Element);
constexpr int K_BYTES = BC * Q_STRIDE * sizeof(Element);
constexpr int V_BYTES = BC * VALUE_DIM * sizeof(Element);
constexpr int P_BYTES = BR * BC * sizeof(float);
constexpr int STATISTIC_BYTES = BR * sizeof(float);
static_assert(Q_BYTES + K_BYTES + V_BYTES + P_BYTES + 2 * STATISTIC_BYTES == SHARED_BYTES,
              "the launcher's shared memory");

// One head's tensors in global memory (Q to l), and the tiles in shared memory.
struct Head {
    const Element *Q, *K, *V;
    Element* O;
    float *M, *L;
};
struct Shared {
    Element *q, *k, *v;
    float *p, *m, *l;
};

__device__ __forceinline__ Shared carve(unsigned char* at) {
    Shared tiles;
    tiles.q = reinterpret_cast<Element*>(at);
    tiles.k = reinterpret_cast<Element*>(at += Q_BYTES);
    tiles.v = reinterpret_cast<Element*>(at += K_BYTES);
    tiles.p = reinterpret_cast<float*>(at += V_BYTES);
    tiles.m = reinterpret_cast<float*>(at += P_BYTES);
    tiles.l = reinterpret_cast<float*>(at + STATISTIC_BYTES);
    return tiles;
}

// Stores O = 0, m = −∞, l = 0 for a row block that no column block touches.
__device__ __forceinline__ void store_nothing_seen(Memory& memory, Head head, int r0, int rows) {
    float o[RM][DM] = {};
    store_output<TENSOR_O, VALUE_DIM>(memory, head.O + (long long)r0 * VALUE_DIM, VALUE_DIM, rows,
                                      VALUE_DIM, o);
    if (threadIdx.x < rows) {
        memory.store<TENSOR_m>(head.M + r0 + threadIdx.x, __float_as_uint(MINUS_INFINITY));
        memory.store<TENSOR_l>(head.L + r0 + threadIdx.x, __float_as_uint(0.0f));
    }
}

// Brings the row block at r0 up to date with the column block at c0, whose K and V are in place.
__device__ __forceinline__ void visit(Memory& memory, Head head, Shared tiles, Mask mask,
                                      float scale, int r0, int rows, int c0, bool first) {
    load_rows<TENSOR_Q, BR, HEAD_DIM>(memory, tiles.q, Q_STRIDE,
                                      head.Q + (long long)r0 * HEAD_DIM, rows);
    Element* out = head.O + (long long)r0 * VALUE_DIM;
    float s[RM][CN] = {}, o[RM][DM] = {}, m[RM], l[RM];
    if (!first) load_output<TENSOR_O, VALUE_DIM>(memory, out, VALUE_DIM, rows, o);
    load_statistic<TENSOR_m, BR>(memory, tiles.m, head.M + r0, first ? 0 : rows, MINUS_INFINITY);
    load_statistic<TENSOR_l, BR>(memory, tiles.l, head.L + r0, first ? 0 : rows, 0.0f);
    __syncthreads();

#pragma unroll
    for (int i = 0; i < RM; ++i) {
        m[i] = tiles.m[ty() + 16 * i];
        l[i] = tiles.l[ty() + 16 * i];
#pragma unroll
        for (int x = 0; x < DM; ++x) o[i][x] *= l[i];
    }
    add_scores<HEAD_DIM>(s, tiles.q, tiles.k, Q_STRIDE);
    scale_and_mask(s, scale, mask, r0, c0);
    online_softmax(s, m, l, o);
    share_weights(tiles.p, s);
    add_weighted_rows<BC, VALUE_DIM>(o, tiles.p, BC, tiles.v, VALUE_DIM);

    normalise(o, l);
    store_output<TENSOR_O, VALUE_DIM>(memory, out, VALUE_DIM, rows, VALUE_DIM, o);
    stage_rows(tiles.m, m);
    stage_rows(tiles.l, l);
    __syncthreads();  // every tile but K and V is free again
    store_statistic<TENSOR_m>(memory, head.M + r0, tiles.m, rows);
    store_statistic<TENSOR_l>(memory, head.L + r0, tiles.l, rows);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
hbmeter_flash1(const Element* Q, const Element* K, const Element* V, Element* O, float* m,
               float* l, int heads, int group, int n_q, int n_kv, int lo_shift, int hi_shift,
               float scale COUNTERS) {
    extern __shared__ __align__(16) unsigned char shared[];
    Shared tiles = carve(shared);
    long long row = (long long)blockIdx.x * n_q, key = (long long)(blockIdx.x / group) * n_kv;
    Head head = {Q + row * HEAD_DIM,  K + key * HEAD_DIM, V + key * VALUE_DIM,
                 O + row * VALUE_DIM, m + row,            l + row};
    Mask mask = {lo_shift, hi_shift, n_kv};
    Memory memory;

    for (int r0 = 0; r0 < n_q && r0 + BR - 1 + hi_shift <= 0; r0 += BR)
        store_nothing_seen(memory, head, r0, min(BR, n_q - r0));

#pragma unroll 1
    for (int c0 = 0; c0 < n_kv; c0 += BC) {
        int first_row = align_down(clip(c0 - hi_shift + 1, n_q), BR);
        int end_row = clip(c0 + BC - lo_shift, n_q);
        if (first_row >= end_row) continue;
        load_rows<TENSOR_K, BC, HEAD_DIM>(memory, tiles.k, Q_STRIDE,
                                          head.K + (long long)c0 * HEAD_DIM, n_kv - c0);
        load_rows<TENSOR_V, BC, VALUE_DIM>(memory, tiles.v, VALUE_DIM,
                                           head.V + (long long)c0 * VALUE_DIM, n_kv - c0);
        Walk<BR> walk(first_row, end_row, c0 / BC);
#pragma unroll 1
        for (int r0 = walk.first(); walk.there(r0); r0 += walk.step())
            visit(memory, head, tiles, mask, scale, r0, min(BR, n_q - r0), c0,
                  c0 == align_down(mask.lo(r0), BC));
    }
    FINISH(memory);
}
