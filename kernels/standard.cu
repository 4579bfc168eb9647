// Standard attention with S and P in global memory: schedule standard, three launches.
//
// scores:  S = scale · Q Kᵀ, one thread block a tile of BR × BC, in steps of BK along head_dim.
// softmax: P = softmax(S) under the mask, one thread block a row. A row that fits in ROW_BYTES of
//          shared memory is read once, a longer one twice.
// output:  O = P V, one thread block a tile of BR × BN, in steps of BK along the keys.
//
// Expected: the products at flash2.cu's rate, and the softmax waits for memory. Masked scores are
// computed all the same: a causal mask saves nothing.
// Measured on an H200, fp16, 64 heads of n 4096, d 128: 21 TFLOP/s, causal 11; 8 heads 26.
#include "common.cuh"

constexpr int RM = BR / 16, CN = BC / 16;
constexpr int BN = BC < VALUE_DIM ? BC : VALUE_DIM;
constexpr int VALUE_BLOCKS = (VALUE_DIM + BN - 1) / BN;
constexpr int K_STRIDE = padded(BK), S_STRIDE = padded(BC);
constexpr int OPERAND_BYTES = (BR + BC) * K_STRIDE * sizeof(Element);
constexpr int S_BYTES = BR * S_STRIDE * sizeof(Element);
static_assert((OPERAND_BYTES > S_BYTES ? OPERAND_BYTES : S_BYTES) == SCORES_SHARED_BYTES,
              "the launcher's shared memory");
static_assert((BR * K_STRIDE + BK * BN) * sizeof(Element) == OUTPUT_SHARED_BYTES,
              "the launcher's shared memory");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
hbmeter_standard_scores(const Element* Q, const Element* K, Element* S, int heads, int group,
                        int n_q, int n_kv, float scale COUNTERS) {
    extern __shared__ __align__(16) unsigned char shared[];
    Element* q = reinterpret_cast<Element*>(shared);
    Element* k = q + BR * K_STRIDE;
    int column_blocks = (n_kv + BC - 1) / BC;
    Place place = place_of(blockIdx.x, heads, (n_q + BR - 1) / BR * column_blocks);
    int r0 = place.block / column_blocks * BR, c0 = place.block % column_blocks * BC;
    long long row = (long long)place.head * n_q + r0;
    long long key = (long long)(place.head / group) * n_kv + c0;
    Memory memory;

    float s[RM][CN] = {};
#pragma unroll 1
    for (int k0 = 0; k0 < HEAD_DIM; k0 += BK) {
        int depth = min(BK, HEAD_DIM - k0);
        load_tile<TENSOR_Q, BR, BK>(memory, q, K_STRIDE, Q + row * HEAD_DIM + k0, HEAD_DIM,
                                    n_q - r0, depth);
        load_tile<TENSOR_K, BC, BK>(memory, k, K_STRIDE, K + key * HEAD_DIM + k0, HEAD_DIM,
                                    n_kv - c0, depth);
        __syncthreads();
        add_scores<BK>(s, q, k, K_STRIDE);
        __syncthreads();  // the operands are read: the next ones, or S, may take their place
    }
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
        for (int j = 0; j < CN; ++j)
            from_float(q[(ty() + 16 * i) * S_STRIDE + tx() + 16 * j], s[i][j] * scale);
    __syncthreads();
    store_tile<TENSOR_S, BR, BC>(memory, S + row * n_kv + c0, n_kv, q, S_STRIDE, n_q - r0,
                                 n_kv - c0);
    FINISH(memory);
}

// Softmax of one row of n scores of which lo <= column < hi are visible, in accesses of W
// elements. `kept` holds the row between the passes, or is null when it does not fit; each thread
// reads back only what it put there.
template <int W>
__device__ __forceinline__ void softmax_row(Memory& memory, const Element* S, Element* P,
                                            Element* kept, float* parts, int n, int lo, int hi) {
    typedef typename WordOf<W * sizeof(Element)>::type Word;
    float m = MINUS_INFINITY, l = 0.0f, x[W];
#pragma unroll 1
    for (int c = threadIdx.x * W; c < n; c += THREADS * W) {
        Word word = memory.load<TENSOR_S, Word>(S + c);
        if (kept) *reinterpret_cast<Word*>(kept + c) = word;
        Memory::unpack(x, word);
        float top = m, sum = 0.0f;
#pragma unroll
        for (int y = 0; y < W; ++y) {
            if (c + y < lo || c + y >= hi) x[y] = MINUS_INFINITY;
            top = fmaxf(top, x[y]);
        }
#pragma unroll
        for (int y = 0; y < W; ++y) sum += expf(x[y] - finite_max(top));
        l = l * expf(m - finite_max(top)) + sum;
        m = top;
    }
    float top = finite_max(over_block(m, parts, THREADS / 32, Larger()));
    l = over_block(l * expf(m - top), parts, THREADS / 32, Plus());
    float inverse = l > 0.0f ? 1.0f / l : 0.0f;
#pragma unroll 1
    for (int c = threadIdx.x * W; c < n; c += THREADS * W) {
        Word word = kept ? *reinterpret_cast<const Word*>(kept + c)
                         : memory.load<TENSOR_S, Word>(S + c);
        Memory::unpack(x, word);
#pragma unroll
        for (int y = 0; y < W; ++y)
            x[y] = lo <= c + y && c + y < hi ? expf(x[y] - top) * inverse : 0.0f;
        memory.store<TENSOR_P>(P + c, Memory::pack<Word>(x));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
hbmeter_standard_softmax(const Element* S, Element* P, int heads, int n_q, int n_kv, int lo_shift,
                         int hi_shift COUNTERS) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float parts[THREADS / 32];
    bool fits = n_kv * (long long)sizeof(Element) <= ROW_BYTES;
    Element* kept = fits ? reinterpret_cast<Element*>(shared) : nullptr;
    Place place = place_of(blockIdx.x, heads, n_q);
    long long row = ((long long)place.head * n_q + place.block) * n_kv;
    Mask mask = {lo_shift, hi_shift, n_kv};
    int lo = mask.lo(place.block), hi = mask.hi(place.block);
    Memory memory;
    if (n_kv % VEC == 0)
        softmax_row<VEC>(memory, S + row, P + row, kept, parts, n_kv, lo, hi);
    else
        softmax_row<1>(memory, S + row, P + row, kept, parts, n_kv, lo, hi);
    FINISH(memory);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
hbmeter_standard_output(const Element* P, const Element* V, Element* O, int heads, int group,
                        int n_q, int n_kv COUNTERS) {
    extern __shared__ __align__(16) unsigned char shared[];
    Element* p = reinterpret_cast<Element*>(shared);
    Element* v = p + BR * K_STRIDE;
    Place place = place_of(blockIdx.x, heads, (n_q + BR - 1) / BR * VALUE_BLOCKS);
    int r0 = place.block / VALUE_BLOCKS * BR, v0 = place.block % VALUE_BLOCKS * BN;
    int width = min(BN, VALUE_DIM - v0);
    long long row = (long long)place.head * n_q + r0;
    long long key = (long long)(place.head / group) * n_kv;
    Memory memory;

    float o[RM][BN / 16] = {};
#pragma unroll 1
    for (int k0 = 0; k0 < n_kv; k0 += BK) {
        load_tile<TENSOR_P, BR, BK>(memory, p, K_STRIDE, P + row * n_kv + k0, n_kv, n_q - r0,
                                    n_kv - k0);
        load_tile<TENSOR_V, BK, BN>(memory, v, BN, V + (key + k0) * VALUE_DIM + v0, VALUE_DIM,
                                    n_kv - k0, width);
        __syncthreads();
        add_weighted_rows<BK, BN>(o, p, K_STRIDE, v, BN);
        __syncthreads();  // the operands are read: the next ones may take their place
    }
    store_output<TENSOR_O, BN>(memory, O + row * VALUE_DIM + v0, VALUE_DIM, n_q - r0, width, o);
    FINISH(memory);
}
