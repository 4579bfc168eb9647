// FlashAttention-2 forward: schedule flash2.
//
// One thread block for each (batch, head, row block of BR queries). Q is loaded once; K and V of
// the column blocks that the mask lets the row block see are walked from left to right, with the
// softmax kept online in registers (m, l and the unscaled O). O and LSE = m + log l are stored
// once. K's place in shared memory is taken by the weights once the scores are done.
//
// Expected: some 60% of what the FMAs' share of the instructions allows (below); S and P never
// leave the SM.
// Measured on an H200 with fp32, 16 heads of n 4096, 64 × 64 tiles: 30.8 TFLOP/s at d 128, 26.9 at
// d 64. What the instructions allow: of the 5,456 (3,152) that a thread issues for a column block
// in sm_90 machine code, the products' loops as often as they run, 4,096 (2,048) are their FFMA,
// so that one instruction a cycle leaves 75% (65%) of the FP32 peak of 66.9 TFLOP/s: 50.2 (43.5).
// The kernel reaches 61% (62%) of that; 128 × 128 tiles allow 55.7 at d 128 and reach 33.8.
#include "common.cuh"

constexpr int RM = BR / 16, CN = BC / 16, DM = VALUE_DIM / 16;
constexpr int Q_STRIDE = padded(HEAD_DIM);
constexpr int Q_BYTES = BR * Q_STRIDE * sizeof(Element);
constexpr int K_BYTES = BC * Q_STRIDE * sizeof(Element);
constexpr int P_BYTES = BR * BC * sizeof(float);
constexpr int KP_BYTES = K_BYTES > P_BYTES ? K_BYTES : P_BYTES;
constexpr int V_BYTES = BC * VALUE_DIM * sizeof(Element);
static_assert(Q_BYTES + KP_BYTES + V_BYTES == SHARED_BYTES, "the launcher's shared memory");

// Scores, softmax and weighted sum for the column block at c0, whose K and V are in place.
__device__ __forceinline__ void step(float (&o)[RM][DM], float (&m)[RM], float (&l)[RM],
                                     const Element* q, Element* k, const Element* v, float scale,
                                     Mask mask, int r0, int c0) {
    float s[RM][CN] = {};
    add_scores<HEAD_DIM>(s, q, k, Q_STRIDE);
    __syncthreads();  // K is read: the weights may take its place
    scale_and_mask(s, scale, mask, r0, c0);
    online_softmax(s, m, l, o);
    float* p = reinterpret_cast<float*>(k);
    share_weights(p, s);
    add_weighted_rows<BC, VALUE_DIM>(o, p, BC, v, VALUE_DIM);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
hbmeter_flash2(const Element* Q, const Element* K, const Element* V, Element* O, float* LSE,
               int heads, int group, int n_q, int n_kv, int lo_shift, int hi_shift,
               float scale COUNTERS) {
    extern __shared__ __align__(16) unsigned char shared[];
    Element* q = reinterpret_cast<Element*>(shared);
    Element* k = reinterpret_cast<Element*>(shared + Q_BYTES);
    Element* v = reinterpret_cast<Element*>(shared + Q_BYTES + KP_BYTES);

    Place place = place_of(blockIdx.x, heads, (n_q + BR - 1) / BR);
    int r0 = place.block * BR, rows = min(BR, n_q - r0);
    long long first_row = (long long)place.head * n_q + r0;
    long long first_key = (long long)(place.head / group) * n_kv;
    Mask mask = {lo_shift, hi_shift, n_kv};
    Memory memory;

    load_rows<TENSOR_Q, BR, HEAD_DIM>(memory, q, Q_STRIDE, Q + first_row * HEAD_DIM, rows);
    float o[RM][DM] = {}, m[RM], l[RM] = {};
#pragma unroll
    for (int i = 0; i < RM; ++i) m[i] = MINUS_INFINITY;

    Walk<BC> walk(align_down(mask.lo(r0), BC), mask.hi(r0 + BR - 1), place.block);
#pragma unroll 1
    for (int c0 = walk.first(); walk.there(c0); c0 += walk.step()) {
        long long key = first_key + c0;
        load_rows<TENSOR_K, BC, HEAD_DIM>(memory, k, Q_STRIDE, K + key * HEAD_DIM, n_kv - c0);
        load_rows<TENSOR_V, BC, VALUE_DIM>(memory, v, VALUE_DIM, V + key * VALUE_DIM, n_kv - c0);
        __syncthreads();
        step(o, m, l, q, k, v, scale, mask, r0, c0);
        __syncthreads();  // the weights and V are read: the next tiles may take their place
    }

    normalise(o, l);
    store_output<TENSOR_O, VALUE_DIM>(memory, O + first_row * VALUE_DIM, VALUE_DIM, rows, VALUE_DIM,
                                      o);
#pragma unroll
    for (int i = 0; i < RM; ++i) m[i] += logf(l[i]);  // −∞ where no key was seen
    float* stage = reinterpret_cast<float*>(k);
    stage_rows(stage, m);
    __syncthreads();
    store_statistic<TENSOR_LSE>(memory, LSE + first_row, stage, rows);
    FINISH(memory);
}
