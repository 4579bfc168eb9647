// Standard attention on tensor cores (mma.sync m16n8k16, fp16 or bf16 in, fp32 sums; sm_80 and
// later), S and P in global memory: schedule standard, three launches.
//
// Moves the bytes that standard.cu moves, in the same order. What it changes:
// - Both products run on tensor cores. The 8 warps share out a tile of the result, 64 × 32 each of
//   128 × 128; ldmatrix reads the operands from swizzled tiles.
// - Operands arrive by cp.async, STAGES − 1 steps ahead; results leave through shared memory, in
//   16-byte vectors of whole rows.
// - The softmax takes two vectors a thread and one exp2 an element and pass: memory is its limit.
// Rows of S and P that are no multiple of 16 bytes go element by element, as in standard.cu.
// Expected: 64 heads of n 4096, d 128 move S and P, 2.1 GB each, four times through DRAM: 1.8 ms;
// the products take 1.4 ms at the rate that flash2_mma reaches, little of it under that.
// Measured on an H200, fp16, full: 3.28 ms, 168 TFLOP/s (scores 1.22, softmax 1.23, output 0.82).
// The library form (cuBLAS, PyTorch 2.11's softmax, cuBLAS) takes 4.74 ms in the same run. 8 heads:
// 0.432 ms; standard.cu 2.63 ms.
#include "mma.cuh"

constexpr int WARPS = THREADS / 32;
constexpr int BN = BC < VALUE_DIM ? BC : VALUE_DIM;
constexpr int VALUE_BLOCKS = (VALUE_DIM + BN - 1) / BN;
constexpr int QK_STEP = BK < HEAD_DIM ? BK : HEAD_DIM;
constexpr int QK_STEPS = (HEAD_DIM + QK_STEP - 1) / QK_STEP;
constexpr int QK_STAGES = STAGES < QK_STEPS ? STAGES : QK_STEPS;
constexpr int Q_BYTES = BR * QK_STEP * sizeof(Element), K_BYTES = BC * QK_STEP * sizeof(Element);
constexpr int P_BYTES = BR * BK * sizeof(Element), V_BYTES = BK * BN * sizeof(Element);
constexpr int QK_BYTES = QK_STAGES * (Q_BYTES + K_BYTES), PV_BYTES = STAGES * (P_BYTES + V_BYTES);
constexpr int S_BYTES = BR * BC * sizeof(Element), O_BYTES = BR * BN * sizeof(Element);
static_assert((QK_BYTES > S_BYTES ? QK_BYTES : S_BYTES) == SCORES_SHARED_BYTES &&
              (PV_BYTES > O_BYTES ? PV_BYTES : O_BYTES) == OUTPUT_SHARED_BYTES,
              "the launcher's shared memory");


// ---- Who computes what ------------------------------------------------------------------------

// The largest power of two up to `most`, itself one, that divides x.
constexpr __host__ __device__ int power_of_two(int x, int most) {
    return most > 1 && x % most ? power_of_two(x, most / 2) : most;
}

// A result of ROWS × COLUMNS: DOWN × ACROSS warps, each with STRIPS of 16 rows and N groups of 8
// columns from (row(), column()) on. With few rows or columns some warps only copy.
template <int ROWS, int COLUMNS> struct Share {
    static constexpr int DOWN = power_of_two(ROWS / 16, ROWS > COLUMNS ? 4 : 2);
    static constexpr int ACROSS = power_of_two(COLUMNS / 16, WARPS / DOWN);
    static constexpr int STRIPS = ROWS / 16 / DOWN, N = COLUMNS / 8 / ACROSS;
    static __device__ __forceinline__ bool computes() { return threadIdx.x / 32 < DOWN * ACROSS; }
    static __device__ __forceinline__ int row() { return threadIdx.x / 32 % DOWN * STRIPS * 16; }
    static __device__ __forceinline__ int column() { return threadIdx.x / 32 / DOWN * N * 8; }
};
typedef Share<BR, BC> ScoresShare;
typedef Share<BR, BN> OutputShare;
template <class S> using Sums = float[S::STRIPS][S::N][4];
// Thread blocks on an SM that the registers allow, by the sums of a thread; counters take some.
constexpr __host__ __device__ int resident_blocks(int sums) {
#ifdef COUNT
    return 1;
#else
    return sums > 64 ? 1 : 2;
#endif
}

// ---- Tiles between global and shared memory ---------------------------------------------------

// Starts copying the valid rows × columns of a ROWS × WIDTH tile; the rest becomes 0.
template <int TENSOR, int ROWS, int WIDTH>
__device__ __forceinline__ void copy_tile(Memory& memory, unsigned tile, const Element* from,
                                          int row_stride, int rows, int columns) {
    constexpr int VECTORS = WIDTH / VEC, ALL = ROWS * VECTORS;
    if (row_stride % VEC == 0) {
#pragma unroll
        for (int first = 0; first < ALL; first += THREADS) {
            int at = first + threadIdx.x, row = at / VECTORS, vector = at % VECTORS;
            if (ALL % THREADS == 0 || at < ALL)
                memory.copy_async<TENSOR>(tile + Swizzled<WIDTH>::offset(row, vector),
                                          from + (long long)row * row_stride + vector * VEC,
                                          row < rows && vector * VEC < columns);
        }
    } else
        for (int at = threadIdx.x; at < ROWS * WIDTH; at += THREADS) {
            int row = at / WIDTH, column = at % WIDTH;
            unsigned short x = 0;
            const Element* source = from + (long long)row * row_stride + column;
            if (row < rows && column < columns) x = memory.load<TENSOR, unsigned short>(source);
            unsigned to = tile + Swizzled<WIDTH>::offset(row, column / VEC) + column % VEC * 2;
            asm volatile("st.shared.u16 [%0], %1;" :: "r"(to), "h"(x) : "memory");
        }
}

// This warp's share of a result, scaled and rounded -> a swizzled tile.
template <class S, int WIDTH>
__device__ __forceinline__ void stage_share(unsigned char* tile, const Sums<S>& c, float scale) {
    int row = S::row() + lane() / 4;
#pragma unroll
    for (int j = 0; j < S::N; ++j) {
        unsigned char* to = tile + Swizzled<WIDTH>::offset(row, S::column() / 8 + j)
                            + lane() % 4 * 4;
#pragma unroll
        for (int i = 0; i < S::STRIPS; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)  // 8 rows further on vectors change places as here
                *reinterpret_cast<unsigned*>(to + (16 * i + 8 * h) * WIDTH * sizeof(Element)) =
                    pack(c[i][j][2 * h] * scale, c[i][j][2 * h + 1] * scale);
    }
}

// A swizzled tile -> its valid rows × columns in global memory.
template <int TENSOR, int ROWS, int WIDTH>
__device__ __forceinline__ void store_swizzled(Memory& memory, Element* to, int row_stride,
                                               const unsigned char* tile, int rows, int columns) {
    constexpr int VECTORS = WIDTH / VEC;
    if (row_stride % VEC == 0)
        for (int at = threadIdx.x; at < ROWS * VECTORS; at += THREADS) {
            int row = at / VECTORS, vector = at % VECTORS;
            if (row < rows && vector * VEC < columns)
                memory.store<TENSOR>(
                    to + (long long)row * row_stride + vector * VEC,
                    *reinterpret_cast<const uint4*>(tile + Swizzled<WIDTH>::offset(row, vector)));
        }
    else
        for (int at = threadIdx.x; at < ROWS * WIDTH; at += THREADS) {
            int row = at / WIDTH, column = at % WIDTH;
            unsigned from = Swizzled<WIDTH>::offset(row, column / VEC) + column % VEC * 2;
            if (row < rows && column < columns)
                memory.store<TENSOR>(to + (long long)row * row_stride + column,
                                     *reinterpret_cast<const unsigned short*>(tile + from));
        }
}

// ---- Products -----------------------------------------------------------------------------------

// Calls multiply(buffer) for each step, and copy(step, buffer) BUFFERS − 1 steps before (with one
// buffer, right before). When it returns the buffers are free.
template <int BUFFERS, class Copy, class Multiply>
__device__ __forceinline__ void pipeline(int steps, Copy copy, Multiply multiply) {
    constexpr int AHEAD = BUFFERS - 1;
#pragma unroll
    for (int step = 0; step < AHEAD; ++step) {
        if (step < steps) copy(step, step);
        commit_copies();
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        if (AHEAD == 0) {
            __syncthreads();  // the operands before are read
            copy(step, 0);
            commit_copies();
        }
        wait_for_copies<(AHEAD > 0 ? AHEAD - 1 : 0)>();
        __syncthreads();  // this step's operands are there, those before are read
        if (AHEAD > 0) {
            if (step + AHEAD < steps) copy(step + AHEAD, (step + AHEAD) % BUFFERS);
            commit_copies();
        }
        multiply(step % BUFFERS);
    }
    __syncthreads();
}

// O += P · V of a step; `p` is this lane's address of operand A, `v` those of each 16 columns.
__device__ __forceinline__ void add_dot(Sums<OutputShare>& o, unsigned p,
                                        const unsigned (&v)[OutputShare::N / 2], unsigned buffer) {
    constexpr int STRIPS = OutputShare::STRIPS;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
        Fragment left[STRIPS];
#pragma unroll
        for (int i = 0; i < STRIPS; ++i)
            load_matrices(left[i], Swizzled<BK>::block(p + buffer, 16 * i, k));
#pragma unroll
        for (int j = 0; j < OutputShare::N / 2; ++j) {
            Fragment right;
            load_transposed(right, Swizzled<BN>::block(v[j] + buffer, k, 0));
#pragma unroll
            for (int i = 0; i < STRIPS; ++i) {
                mma(o[i][2 * j], left[i], right[0], right[1]);
                mma(o[i][2 * j + 1], left[i], right[2], right[3]);
            }
        }
    }
}

extern "C" __global__ void
__launch_bounds__(THREADS, resident_blocks(ScoresShare::STRIPS * ScoresShare::N * 4))
hbmeter_standard_mma_scores(const Element* Q, const Element* K, Element* S, int heads, int group,
                            int n_q, int n_kv, float scale COUNTERS) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned q = __cvta_generic_to_shared(shared), k = q + Q_BYTES;
    int column_blocks = (n_kv + BC - 1) / BC;
    Place place = place_of(blockIdx.x, heads, (n_q + BR - 1) / BR * column_blocks);
    int r0 = place.block / column_blocks * BR, c0 = place.block % column_blocks * BC;
    long long row = (long long)place.head * n_q + r0;
    long long key = (long long)(place.head / group) * n_kv + c0;
    Memory memory;

    Sums<ScoresShare> s = {};
    unsigned left = rows_first<QK_STEP>(q + ScoresShare::row() * QK_STEP * sizeof(Element));
    unsigned right = columns_first<QK_STEP>(k + ScoresShare::column() * QK_STEP * sizeof(Element));
    pipeline<QK_STAGES>(
        QK_STEPS,
        [&](int step, int buffer) {
            int k0 = step * QK_STEP, at = buffer * (Q_BYTES + K_BYTES);
            copy_tile<TENSOR_Q, BR, QK_STEP>(memory, q + at, Q + row * HEAD_DIM + k0, HEAD_DIM,
                                             n_q - r0, HEAD_DIM - k0);
            copy_tile<TENSOR_K, BC, QK_STEP>(memory, k + at, K + key * HEAD_DIM + k0, HEAD_DIM,
                                             n_kv - c0, HEAD_DIM - k0);
        },
        [&](int buffer) {
            unsigned at = buffer * (Q_BYTES + K_BYTES);
            if (ScoresShare::computes()) add_dot_t<QK_STEP>(s, left + at, right + at);
        });
    if (ScoresShare::computes()) stage_share<ScoresShare, BC>(shared, s, scale);
    __syncthreads();
    store_swizzled<TENSOR_S, BR, BC>(memory, S + row * n_kv + c0, n_kv, shared, n_q - r0,
                                     n_kv - c0);
    FINISH(memory);
}

extern "C" __global__ void
__launch_bounds__(THREADS, resident_blocks(OutputShare::STRIPS * OutputShare::N * 4))
hbmeter_standard_mma_output(const Element* P, const Element* V, Element* O, int heads, int group,
                            int n_q, int n_kv COUNTERS) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned p = __cvta_generic_to_shared(shared), v = p + P_BYTES;
    Place place = place_of(blockIdx.x, heads, (n_q + BR - 1) / BR * VALUE_BLOCKS);
    int r0 = place.block / VALUE_BLOCKS * BR, v0 = place.block % VALUE_BLOCKS * BN;
    int width = min(BN, VALUE_DIM - v0);
    long long row = (long long)place.head * n_q + r0;
    long long key = (long long)(place.head / group) * n_kv;
    Memory memory;

    Sums<OutputShare> o = {};
    unsigned left = rows_first<BK>(p + OutputShare::row() * BK * sizeof(Element));
    unsigned right[OutputShare::N / 2], origin = rows_first<BN>(v);
#pragma unroll
    for (int j = 0; j < OutputShare::N / 2; ++j)
        right[j] = Swizzled<BN>::block(origin, 0, OutputShare::column() + 16 * j);
    pipeline<STAGES>(
        (n_kv + BK - 1) / BK,
        [&](int step, int buffer) {
            int k0 = step * BK, at = buffer * (P_BYTES + V_BYTES);
            copy_tile<TENSOR_P, BR, BK>(memory, p + at, P + row * n_kv + k0, n_kv, n_q - r0,
                                        n_kv - k0);
            copy_tile<TENSOR_V, BK, BN>(memory, v + at, V + (key + k0) * VALUE_DIM + v0, VALUE_DIM,
                                        n_kv - k0, width);
            FINISH(memory);  // so that counters take no registers while the products run
        },
        [&](int buffer) {
            if (OutputShare::computes()) add_dot(o, left, right, buffer * (P_BYTES + V_BYTES));
        });
    if (OutputShare::computes()) stage_share<OutputShare, BN>(shared, o, 1.0f);
    __syncthreads();
    store_swizzled<TENSOR_O, BR, BN>(memory, O + row * VALUE_DIM + v0, VALUE_DIM, shared,
                                     n_q - r0, width);
    FINISH(memory);
}

// ---- Softmax ------------------------------------------------------------------------------------

// One row of n scores, of which lo <= column < hi are visible, in accesses of W elements. `kept`
// holds it in shared memory, or is null when it does not fit; each thread reads there only what it
// put there itself.
template <int W> struct ScoresRow {
    typedef typename WordOf<W * sizeof(Element)>::type Word;
    const Element* S;
    Element* kept;
    int n, lo, hi;

    __device__ __forceinline__ void keep(Memory& memory) {
        for (int c = threadIdx.x * W; c < n; c += blockDim.x * W)
            if constexpr (W == VEC)
                memory.copy_async<TENSOR_S>(__cvta_generic_to_shared(kept + c), S + c, true);
            else *reinterpret_cast<Word*>(kept + c) = memory.load<TENSOR_S, Word>(S + c);
        commit_copies();
        wait_for_copies<0>();
    }

    // W scores from column c on; hidden ones are −∞.
    __device__ __forceinline__ void read(Memory& memory, float (&x)[W], int c) const {
        Memory::unpack(x, kept ? *reinterpret_cast<const Word*>(kept + c)
                               : memory.load<TENSOR_S, Word>(S + c));
        if (c >= lo && c + W <= hi) return;
#pragma unroll
        for (int y = 0; y < W; ++y)
            if (c + y < lo || c + y >= hi) x[y] = MINUS_INFINITY;
    }
};

template <int W>
__device__ __forceinline__ void softmax_row(Memory& memory, ScoresRow<W> row, Element* P,
                                            float* parts) {
    float m = MINUS_INFINITY, l = 0.0f, x[W];
    if (row.kept) row.keep(memory);
    for (int c = threadIdx.x * W; c < row.n; c += blockDim.x * W) {
        row.read(memory, x, c);
        float top = m, sum = 0.0f;
#pragma unroll
        for (int y = 0; y < W; ++y) top = fmaxf(top, x[y]);
        float shift = finite_max(top) * LOG2_E;
#pragma unroll
        for (int y = 0; y < W; ++y) sum += exp2_fast(x[y] * LOG2_E - shift);
        l = l * exp2_fast(m * LOG2_E - shift) + sum;
        m = top;
    }
    float top = over_block(m, parts, blockDim.x / 32, Larger());
    float shift = finite_max(top) * LOG2_E;
    l *= exp2_fast(m * LOG2_E - shift);
    l = over_block(l, parts, blockDim.x / 32, Plus());
    float inverse = l > 0.0f ? 1.0f / l : 0.0f;
    for (int c = threadIdx.x * W; c < row.n; c += blockDim.x * W) {
        row.read(memory, x, c);
#pragma unroll
        for (int y = 0; y < W; ++y) x[y] = exp2_fast(x[y] * LOG2_E - shift) * inverse;
        memory.store_floats<TENSOR_P>(P + c, x);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
hbmeter_standard_mma_softmax(const Element* S, Element* P, int heads, int n_q, int n_kv,
                             int lo_shift, int hi_shift COUNTERS) {
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float parts[WARPS];
    bool fits = n_kv * (long long)sizeof(Element) <= ROW_BYTES;
    Element* kept = fits ? reinterpret_cast<Element*>(shared) : nullptr;
    Place place = place_of(blockIdx.x, heads, n_q);
    long long at = ((long long)place.head * n_q + place.block) * n_kv;
    Mask mask = {lo_shift, hi_shift, n_kv};
    int lo = mask.lo(place.block), hi = mask.hi(place.block);
    Memory memory;
    if (n_kv % VEC == 0)
        softmax_row(memory, ScoresRow<VEC>{S + at, kept, n_kv, lo, hi}, P + at, parts);
    else softmax_row(memory, ScoresRow<1>{S + at, kept, n_kv, lo, hi}, P + at, parts);
    FINISH(memory);
}
