// FlashAttention-2 forward on tensor cores (mma.sync m16n8k16, fp16 or bf16 in, fp32 sums; sm_80
// and later): schedule flash2.
//
// Moves the bytes that flash2.cu moves, in the same order. What it changes:
// - Both products run on tensor cores. A warp owns 16 or 32 rows; 32 halve what it reads of K and V
//   from shared memory, whose bandwidth is the next limit.
// - The weights never leave registers: the layout of S as accumulator is that of P as operand.
// - K and V arrive by cp.async, with two stages a whole column block ahead.
// - Tiles are swizzled instead of padded; ldmatrix reads them without bank conflicts.
// - m follows the largest score lazily: O is rescaled only when weights would pass 2^8. The mask
//   is applied only to column blocks that need it, and a warp skips those it does not see at all.
// - Weights of the next 16 keys are computed between the products of these 16, and what the
//   compiler would hoist out of the loop is kept from it (forget): registers are the scarce
//   resource, and with enough of them it interleaves exp2, loads and products.
// Expected: the tensor cores' rate that mma.sync reaches, less the softmax; at least PyTorch.
// Measured on an H200 beside PyTorch 2.11's FlashAttention-2 in the same run (hbmeter bench
// --recorded): fp16, 16,384 tokens of n 4096, heads × d = 2048, default tiles, TFLOP/s:
//                    d 64 full  causal  d 128 full  causal  d 256 full  causal
//   this kernel            349     317         381     346         324     292
//   over PyTorch          1.18    1.14        1.11    1.15        1.06    1.06
#include "mma.cuh"

constexpr int STRIPS = WARP_ROWS / 16;  // of 16 rows, of one warp
constexpr int BLOCK_THREADS = BR / WARP_ROWS * 32;
constexpr int Q_BYTES = BR * HEAD_DIM * sizeof(Element);
constexpr int K_BYTES = BC * HEAD_DIM * sizeof(Element);
constexpr int STAGE_BYTES = K_BYTES + BC * VALUE_DIM * sizeof(Element);
constexpr int O_BYTES = BR * VALUE_DIM * sizeof(Element);
constexpr int QKV_BYTES = Q_BYTES + STAGES * STAGE_BYTES;
static_assert((O_BYTES > QKV_BYTES ? O_BYTES : QKV_BYTES) == SHARED_BYTES, "the launcher's memory");

constexpr float LARGEST_GROWTH = 8;  // of a row's largest score above m; both in base 2

typedef float Scores[STRIPS][BC / 8][4];         // accumulators of m16n8k16: a lane holds rows
typedef float Output[STRIPS][VALUE_DIM / 8][4];  // lane/4 and + 8, columns lane%4·2 and + 1
typedef float Rows[STRIPS][2];                   // one number for each row that a lane holds


// ---- One column block -------------------------------------------------------------------------

// S = Q Kᵀ
__device__ __forceinline__ void compute_scores(Scores& s, unsigned q, unsigned k) {
    forget(q), forget(k);
    memset(s, 0, sizeof(Scores));
#pragma unroll
    for (int column = 0; column < HEAD_DIM; column += 16) {
        Fragment a[STRIPS];
#pragma unroll
        for (int i = 0; i < STRIPS; ++i)
            load_matrices(a[i], Swizzled<HEAD_DIM>::block(q, 16 * i, column));
#pragma unroll
        for (int key = 0; key < BC; key += 16) {
            Fragment b;
            load_matrices(b, Swizzled<HEAD_DIM>::block(k, key, column));
#pragma unroll
            for (int i = 0; i < STRIPS; ++i) {
                mma(s[i][key / 8], a[i], b[0], b[1]);
                mma(s[i][key / 8 + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// Sets what the mask hides to −∞; `row` and `column` are those of this lane's first score.
__device__ __forceinline__ void hide_masked(Scores& s, Mask mask, int row, int column) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int lo = mask.lo(row + 16 * i + 8 * h) - column;
            int hi = mask.hi(row + 16 * i + 8 * h) - column;
#pragma unroll
            for (int j = 0; j < BC / 8; ++j)
#pragma unroll
                for (int x = 0; x < 2; ++x)
                    if (8 * j + x < lo || 8 * j + x >= hi) s[i][j][2 * h + x] = MINUS_INFINITY;
        }
}

// Moves m on to the largest score so far, l and O with it.
__device__ __forceinline__ void rescale(Output& o, Rows& m, Rows& l, const Rows& top) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float next = fmaxf(m[i][h], quad_max(top[i][h]));
            float factor = exp2_fast(m[i][h] - next);
            m[i][h] = next;
            l[i][h] *= factor;
#pragma unroll
            for (int j = 0; j < VALUE_DIM / 8; ++j) {
                o[i][j][2 * h] *= factor;
                o[i][j][2 * h + 1] *= factor;
            }
        }
}

// Rescales only when some score of the warp is so far above its row's m that weights would grow
// large; any m not far below the largest score gives the same O and LSE.
__device__ __forceinline__ void follow_max(const Scores& s, Output& o, Rows& m, Rows& l,
                                           float scale) {
    Rows top;
    bool grew = false;
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
            for (int j = 1; j < BC / 8; ++j)
                most = fmaxf(most, fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
            top[i][h] = most * scale;
            grew |= top[i][h] - m[i][h] > LARGEST_GROWTH;
        }
    if (__any_sync(0xffffffffu, grew)) rescale(o, m, l, top);
}

// Register `x` of strip `i` of the weights of 16 keys as operand A: the left 8 keys of the low and
// the high rows, then the right 8.
__device__ __forceinline__ void compute_weights(Fragment (&p)[STRIPS], const Scores& s,
                                                const Rows& m, Rows& l, float scale, int key,
                                                int i, int x) {
    const float* pair = &s[i][key / 8 + x / 2][x % 2 * 2];
    float low = exp2_fast(pair[0] * scale - m[i][x % 2]);
    float high = exp2_fast(pair[1] * scale - m[i][x % 2]);
    l[i][x % 2] += low + high;
    p[i][x] = pack(low, high);
}

// O += weights · V, 16 keys × 16 columns of V a step. In between, the weights of the next 16 keys
// are computed and the next 16 × 16 of V are loaded.
__device__ __forceinline__ void add_weighted_values(Output& o, const Scores& s, const Rows& m,
                                                    Rows& l, unsigned v, float scale) {
    forget(v);
    constexpr int STEPS = VALUE_DIM / 16, PAIRS = STRIPS * 4;
    Fragment p[2][STRIPS], b[2];
#pragma unroll
    for (int x = 0; x < PAIRS; ++x) compute_weights(p[0], s, m, l, scale, 0, x / 4, x % 4);
    load_transposed(b[0], v);
#pragma unroll
    for (int step = 0; step < BC / 16 * STEPS; ++step) {
        int now = step / STEPS, column = step % STEPS, next = step + 1, key = (now + 1) * 16;
        if (next < BC / 16 * STEPS)
            load_transposed(b[next % 2], Swizzled<VALUE_DIM>::block(v, next / STEPS * 16,
                                                                    next % STEPS * 16));
#pragma unroll
        for (int i = 0; i < STRIPS; ++i) {
            mma(o[i][2 * column], p[now % 2][i], b[step % 2][0], b[step % 2][1]);
            mma(o[i][2 * column + 1], p[now % 2][i], b[step % 2][2], b[step % 2][3]);
        }
#pragma unroll
        for (int x = column * PAIRS / STEPS; x < (column + 1) * PAIRS / STEPS; ++x)
            if (key < BC)
                compute_weights(p[(now + 1) % 2], s, m, l, scale, key, x / 4, x % 4);
    }
}

// What the thread block works on, and this warp's part of it.
struct Work {
    int head, r0, first;  // first row of the block and of the warp
    __device__ __forceinline__ Work(int index, int heads, int n_q) {
        Place place = place_of(index, heads, (n_q + BR - 1) / BR);
        head = place.head, r0 = place.block * BR, first = r0 + threadIdx.x / 32 * WARP_ROWS;
    }
};

// ---- Results ----------------------------------------------------------------------------------

// O / l of this warp's rows -> its own part of shared memory.
__device__ __forceinline__ void stage_output(unsigned char* tile, const Output& o, const Rows& l) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float inverse = l[i][h] > 0.0f ? 1.0f / l[i][h] : 0.0f;
            int row = 16 * i + 8 * h + lane() / 4;
#pragma unroll
            for (int j = 0; j < VALUE_DIM / 8; ++j) {
                unsigned at = Swizzled<VALUE_DIM>::offset(row, j) + lane() % 4 * 4;
                *reinterpret_cast<unsigned*>(tile + at) =
                    pack(o[i][j][2 * h] * inverse, o[i][j][2 * h + 1] * inverse);
            }
        }
}

__device__ __forceinline__ void store_output_rows(Memory& memory, Element* to,
                                                  const unsigned char* tile, int rows) {
    constexpr int VECTORS = VALUE_DIM / VEC;
    for (int at = lane(); at < min(rows, WARP_ROWS) * VECTORS; at += 32) {
        unsigned from = Swizzled<VALUE_DIM>::offset(at / VECTORS, at % VECTORS);
        memory.store<TENSOR_O>(to + at * VEC, *reinterpret_cast<const uint4*>(tile + from));
    }
}

__device__ __forceinline__ void store_lse(Memory& memory, float* to, const Rows& m, const Rows& l,
                                          int rows) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int row = 16 * i + 8 * h + lane() / 4;
            float lse = m[i][h] * LN_2 + logf(l[i][h]);  // −∞ where no key was seen
            if (lane() % 4 == 0 && row < rows)
                memory.store<TENSOR_LSE>(to + row, __float_as_uint(lse));
        }
}

__device__ __forceinline__ void store_results(Memory& memory, Element* O, float* LSE,
                                              unsigned char* shared, const Work& work, int n_q,
                                              const Output& o, const Rows& m, Rows& l) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) l[i][h] = quad_sum(l[i][h]);
    unsigned char* tile = shared + (work.first - work.r0) * VALUE_DIM * sizeof(Element);
    long long row = (long long)work.head * n_q + work.first;
    stage_output(tile, o, l);
    __syncwarp();
    store_output_rows(memory, O + row * VALUE_DIM, tile, n_q - work.first);
    store_lse(memory, LSE + row, m, l, n_q - work.first);
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
hbmeter_flash2_mma(const Element* Q, const Element* K, const Element* V, Element* O, float* LSE,
                   int heads, int group, int n_q, int n_kv, int lo_shift, int hi_shift,
                   float scale COUNTERS) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned q = __cvta_generic_to_shared(shared), k = q + Q_BYTES, v = k + K_BYTES;
    Work work(blockIdx.x, heads, n_q);
    Mask mask = {lo_shift, hi_shift, n_kv};
    Memory memory;

    long long first_key = (long long)(work.head / group) * n_kv;
    auto copy_keys = [&](int c, unsigned to) {
        copy_rows<TENSOR_K, BC, HEAD_DIM, BLOCK_THREADS>(
            memory, to, K + (first_key + c) * HEAD_DIM, n_kv - c);
    };
    auto copy_values = [&](int c, unsigned to) {
        copy_rows<TENSOR_V, BC, VALUE_DIM, BLOCK_THREADS>(
            memory, to, V + (first_key + c) * VALUE_DIM, n_kv - c);
    };
    Walk<BC> walk(align_down(mask.lo(work.r0), BC), mask.hi(work.r0 + BR - 1), work.r0 / BR);
    int c0 = walk.first(), step = walk.step();
    auto there = [&](int c) { return walk.there(c); };
    copy_rows<TENSOR_Q, BR, HEAD_DIM, BLOCK_THREADS>(
        memory, q, Q + ((long long)work.head * n_q + work.r0) * HEAD_DIM, n_q - work.r0);
    if (there(c0)) copy_keys(c0, k);
    if (STAGES == 2 && there(c0)) copy_values(c0, v);

    Output o = {};
    Rows m, l = {};
#pragma unroll
    for (int i = 0; i < STRIPS; ++i) m[i][0] = m[i][1] = LOWEST;
    float log2_scale = scale / LN_2;
    int first = work.first, warp_row = first - work.r0;
    unsigned q_block = rows_first<HEAD_DIM>(q + warp_row * HEAD_DIM * sizeof(Element));
    unsigned k_block = columns_first<HEAD_DIM>(k), v_block = rows_first<VALUE_DIM>(v), buffer = 0;
#pragma unroll 1
    for (; there(c0); c0 += step) {
        wait_for_all_copies();
        if (STAGES == 1) copy_values(c0, v);
        else if (there(c0 + step)) {
            copy_keys(c0 + step, k + STAGE_BYTES - buffer);
            copy_values(c0 + step, v + STAGE_BYTES - buffer);
        }
        FINISH(memory);  // so that counters take no registers while the products run
        forget(first);
        int last = first + WARP_ROWS - 1;
        bool seen = c0 < mask.hi(last) && c0 + BC > mask.lo(first);
        Scores s;
        if (seen) compute_scores(s, q_block, k_block + buffer);
        if (STAGES == 1) {
            wait_for_all_copies();
            if (there(c0 + step)) copy_keys(c0 + step, k);
            FINISH(memory);
        }
        if (seen) {
            if (c0 < mask.lo(last) || c0 + BC > mask.hi(first))
                hide_masked(s, mask, first + lane() / 4, c0 + lane() % 4 * 2);
            follow_max(s, o, m, l, log2_scale);
            add_weighted_values(o, s, m, l, v_block + buffer, log2_scale);
        }
        if (STAGES == 2) buffer = STAGE_BYTES - buffer;
    }

    wait_for_all_copies();  // Q, K and V are read: O may take their place
    int index = blockIdx.x;
    forget(index);
    work = Work(index, heads, n_q);
    store_results(memory, O, LSE, shared, work, n_q, o, m, l);
    FINISH(memory);
}
