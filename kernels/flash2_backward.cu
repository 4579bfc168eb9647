// FlashAttention-2 backward on tensor cores (mma.sync m16n8k16, fp16 or bf16 in, fp32 sums; sm_80
// and later): schedule flash2_backward.
//
// A thread block holds BC keys: K, V and, in registers, dK and dV. BR rows of Q and dO at a time
// pass by (cp.async, with two stages a whole row block ahead) and make
//   S = Q·Kᵀ, P = exp(S − LSE), dP = dO·Vᵀ, dS = P ∘ (dP − D),
//   dV += Pᵀ·dO, dK += dSᵀ·Q, dQ = dS·K.
// - Every product is shared out over the warps by 32 rows of its result, and by columns between
//   warps of the same rows. So P and dS change hands: they go through shared memory, rounded, and
//   ldmatrix reads them as they lie for dQ or transposed for dV and dK.
// - P is computed between the products of dP.
// - dQ belongs to no thread block: red.global adds it in L2, four floats at a time on sm_90.
// - Rows beyond n_q are 0 in Q, dO, LSE and D, which makes their part of every result 0.
// Registers allow 8 warps on an SM: one thread block of 8, or two of 4 where the sums are small.
// Expected: what shared memory feeds. At d 128 a step of 64 × 128 moves 5,120 wavefronts of 128 B
// through it by this source, 5,164 by the counter, for 2,560 products of 16 × 8 × 16.
// Measured on an H200 with the launches around it, beside PyTorch 2.11's FlashAttention-2 backward
// in the same run: fp16, 16,384 tokens of n 4096, heads × d = 2048, default tiles, TFLOP/s of five
// products:              d 64 full  causal  d 128 full  causal
//   this kernel                280     260         300     274
//   over PyTorch              1.09    1.23        1.08    1.14
// At d 128, full, the counters have shared memory busy 71% of the time and the tensor cores 50%:
// two warps a scheduler hide no more.
#include "backward.cuh"
#include "mma.cuh"

constexpr int BLOCK_THREADS = 32 * WARPS;
constexpr int K_BYTES = BC * HEAD_DIM * sizeof(Element), V_BYTES = BC * VALUE_DIM * sizeof(Element);
constexpr int Q_BYTES = BR * HEAD_DIM * sizeof(Element);
constexpr int STAGE_BYTES = Q_BYTES + BR * VALUE_DIM * sizeof(Element);  // Q, then dO
constexpr int SCORES_BYTES = BR * BC * sizeof(Element);
constexpr int STATISTICS_BYTES = 2 * BR * sizeof(float);  // LSE, then D
static_assert(K_BYTES + V_BYTES + STAGES * STAGE_BYTES + 2 * SCORES_BYTES + STATISTICS_BYTES ==
              SHARED_BYTES, "the launcher's memory");

// ---- Who computes what -------------------------------------------------------------------------

// A result of ROWS × COLUMNS: this warp's 32 rows begin at row(), it owns every ACROSS-th group of
// 16 columns, from column() on, GROUPS in all (the last of some warps lies beyond COLUMNS).
template <int ROWS, int COLUMNS> struct Share {
    static constexpr int DOWN = ROWS / 32, ACROSS = WARPS / DOWN;
    static constexpr int STEP = 16 * ACROSS, GROUPS = (COLUMNS + STEP - 1) / STEP;
    static __device__ __forceinline__ int row() { return threadIdx.x / 32 % DOWN * 32; }
    static __device__ __forceinline__ int column() { return threadIdx.x / 32 / DOWN * 16; }
};

typedef Share<BR, BC> ScoresShare;
typedef Share<BC, HEAD_DIM> KeysShare;
typedef Share<BC, VALUE_DIM> ValuesShare;
typedef Share<BR, HEAD_DIM> QueriesShare;

// Accumulators of a share: [16 rows][16 columns][8 columns][lane/4 and + 8, lane%4·2 and + 1]
template <class S> using Sums = float[2][S::GROUPS][2][4];

// c += a · b of this warp's share, DEPTH deep. `a` and `b` are this lane's addresses in the first
// 16 × 16 block of the operands; a transposed A lies as DEPTH × rows, B as columns × DEPTH, a
// transposed B as DEPTH × columns.
template <class S, int DEPTH, int A_WIDTH, bool A_TRANSPOSED, int B_WIDTH, bool B_TRANSPOSED,
          class Meanwhile>
__device__ __forceinline__ void add_product(Sums<S>& c, unsigned a, unsigned b,
                                            Meanwhile meanwhile) {
    forget(a), forget(b);
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        Fragment left[2];
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (A_TRANSPOSED) load_transposed(left[i], Swizzled<A_WIDTH>::block(a, k, 16 * i));
            else load_matrices(left[i], Swizzled<A_WIDTH>::block(a, 16 * i, k));
#pragma unroll
        for (int j = 0; j < S::GROUPS; ++j) {
            Fragment right;
            if (B_TRANSPOSED)
                load_transposed(right, Swizzled<B_WIDTH>::block(b, k, S::STEP * j));
            else load_matrices(right, Swizzled<B_WIDTH>::block(b, S::STEP * j, k));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                mma(c[i][j][0], left[i], right[0], right[1]);
                mma(c[i][j][1], left[i], right[2], right[3]);
            }
        }
        meanwhile(k / 16);
    }
}
template <class S, int DEPTH, int A_WIDTH, bool A_TRANSPOSED, int B_WIDTH, bool B_TRANSPOSED>
__device__ __forceinline__ void add_product(Sums<S>& c, unsigned a, unsigned b) {
    add_product<S, DEPTH, A_WIDTH, A_TRANSPOSED, B_WIDTH, B_TRANSPOSED>(c, a, b, [](int) {});
}

// This lane's addresses for add_product: A and B as they lie, A and B transposed.
template <int WIDTH> __device__ __forceinline__ unsigned a_rows(unsigned tile, int row) {
    return rows_first<WIDTH>(tile) + row * WIDTH * sizeof(Element);
}
template <int WIDTH> __device__ __forceinline__ unsigned b_rows(unsigned tile, int row) {
    return columns_first<WIDTH>(tile) + row * WIDTH * sizeof(Element);
}
template <int WIDTH> __device__ __forceinline__ unsigned a_columns(unsigned tile, int column) {
    return Swizzled<WIDTH>::block(columns_first<WIDTH>(tile), 0, column);
}
template <int WIDTH> __device__ __forceinline__ unsigned b_columns(unsigned tile, int column) {
    return Swizzled<WIDTH>::block(rows_first<WIDTH>(tile), 0, column);
}

// ---- P and dS -----------------------------------------------------------------------------------

// Sets what the mask hides to −∞ in the scores whose first is at (row, column).
__device__ __forceinline__ void hide_masked(Sums<ScoresShare>& s, Mask mask, int row, int column) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int lo = mask.lo(row + 16 * i + 8 * h) - column;
            int hi = mask.hi(row + 16 * i + 8 * h) - column;
#pragma unroll
            for (int j = 0; j < ScoresShare::GROUPS; ++j)
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    int at = ScoresShare::STEP * j + x / 2 * 8 + x % 2;
                    if (at < lo || at >= hi) s[i][j][x / 2][2 * h + x % 2] = MINUS_INFINITY;
                }
        }
}

// This lane's first pair of a tile of scores in shared memory.
__device__ __forceinline__ unsigned scores_origin(unsigned tile) {
    int row = ScoresShare::row() + lane() / 4, column = ScoresShare::column();
    return tile + Swizzled<BC>::offset(row, column / VEC) + lane() % 4 * 4;
}

// A lane's scores in pairs of neighbours: pair `t` of ALL.
struct Pair {
    static constexpr int ALL = 2 * ScoresShare::GROUPS * 4;
    int i, j, x, h;  // strip, group, half of the group, row of the strip
    __device__ __forceinline__ Pair(int t)
        : i(t / 4 / ScoresShare::GROUPS), j(t / 4 % ScoresShare::GROUPS), x(t % 4 / 2), h(t % 2) {}
    __device__ __forceinline__ unsigned place(unsigned origin) const {
        return Swizzled<BC>::block(origin, 16 * i + 8 * h, ScoresShare::STEP * j + 8 * x);
    }
};

// What a lane does with its pairs, a part after each of STEPS steps of a product.
template <int STEPS, class Work> __device__ __forceinline__ void do_part(int step, Work work) {
    constexpr int PART = (Pair::ALL + STEPS - 1) / STEPS;
#pragma unroll
    for (int x = 0; x < PART; ++x)
        if (step * PART + x < Pair::ALL) work(Pair(step * PART + x));
}

__device__ __forceinline__ void share_pair(unsigned to, float low, float high) {
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(to), "r"(pack(low, high)) : "memory");
}

// One number for each row that a lane holds.
typedef float Rows[2][2];
__device__ __forceinline__ void read_rows(Rows& x, const float* from) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            x[i][h] = from[ScoresShare::row() + lane() / 4 + 16 * i + 8 * h];
}

// Where the tiles lie in shared memory; Q and dO of the row block at hand.
struct Tiles {
    unsigned k, v, q, d_out, p, ds;
    const float *lse, *d;
};

// P = exp(Q·Kᵀ/√d − LSE), rounded also in shared memory, and dP = dO·Vᵀ.
__device__ __forceinline__ void compute_scores(Sums<ScoresShare>& s, Sums<ScoresShare>& dp,
                                               const Tiles& at, Mask mask, int r0, int c0,
                                               float log2_scale) {
    memset(s, 0, sizeof(s)), memset(dp, 0, sizeof(dp));
    int row = ScoresShare::row(), column = ScoresShare::column();
    add_product<ScoresShare, HEAD_DIM, HEAD_DIM, false, HEAD_DIM, false>(
        s, a_rows<HEAD_DIM>(at.q, row), b_rows<HEAD_DIM>(at.k, column));
    if (c0 < mask.lo(r0 + BR - 1) || c0 + BC > mask.hi(r0))
        hide_masked(s, mask, r0 + row + lane() / 4, c0 + column + lane() % 4 * 2);
    Rows lse;
    read_rows(lse, at.lse);
    unsigned origin = scores_origin(at.p);
    add_product<ScoresShare, VALUE_DIM, VALUE_DIM, false, VALUE_DIM, false>(
        dp, a_rows<VALUE_DIM>(at.d_out, row), b_rows<VALUE_DIM>(at.v, column), [&](int step) {
            do_part<VALUE_DIM / 16>(step, [&](Pair pair) {
                float* p = &s[pair.i][pair.j][pair.x][2 * pair.h];
                p[0] = exp2_fast(p[0] * log2_scale - lse[pair.i][pair.h]);
                p[1] = exp2_fast(p[1] * log2_scale - lse[pair.i][pair.h]);
                share_pair(pair.place(origin), p[0], p[1]);
            });
        });
}

// dS = P ∘ (dP − D), rounded, to shared memory.
__device__ __forceinline__ void share_score_gradients(const Sums<ScoresShare>& p,
                                                      const Sums<ScoresShare>& dp,
                                                      const Tiles& at) {
    Rows d;
    read_rows(d, at.d);
    unsigned origin = scores_origin(at.ds);
    do_part<1>(0, [&](Pair pair) {
        const float* left = &p[pair.i][pair.j][pair.x][2 * pair.h];
        const float* right = &dp[pair.i][pair.j][pair.x][2 * pair.h];
        float shift = d[pair.i][pair.h];
        share_pair(pair.place(origin), left[0] * (right[0] - shift), left[1] * (right[1] - shift));
    });
}

// ---- Results ------------------------------------------------------------------------------------

// Adds this warp's share of `rows` valid rows to fp32 rows in L2, 16 bytes at a time: of two
// neighbouring lanes one takes what both hold of the left 8 columns, the other of the right 8.
template <int TENSOR, class S, int WIDTH>
__device__ __forceinline__ void add_rows(Memory& memory, float* to, const Sums<S>& c, int rows,
                                         float scale) {
    bool odd = lane() % 2;
    int row = S::row() + lane() / 4, column = S::column() + lane() % 4 / 2 * 4 + odd * 8;
    to += row * WIDTH + column;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < S::GROUPS; ++j) {
            if (WIDTH % S::STEP && column + S::STEP * j >= WIDTH) continue;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float *left = &c[i][j][0][2 * h], *right = &c[i][j][1][2 * h];
                float quad[4];
#pragma unroll
                for (int x = 0; x < 2; ++x) {
                    float given = __shfl_xor_sync(0xffffffffu, odd ? left[x] : right[x], 1);
                    quad[x] = (odd ? given : left[x]) * scale;
                    quad[2 + x] = (odd ? right[x] : given) * scale;
                }
                if (row + 16 * i + 8 * h < rows)
                    memory.add<TENSOR>(to + (16 * i + 8 * h) * WIDTH + S::STEP * j, quad);
            }
        }
}

// This warp's share, scaled and rounded -> a swizzled tile in shared memory.
template <class S, int WIDTH>
__device__ __forceinline__ void stage_rows(unsigned tile, const Sums<S>& c, float scale) {
    int column = S::column();
    unsigned origin = tile + Swizzled<WIDTH>::offset(S::row() + lane() / 4, 0) + lane() % 4 * 4;
    origin = Swizzled<WIDTH>::block(origin, 0, column);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < S::GROUPS; ++j) {
            if (WIDTH % S::STEP && column + S::STEP * j >= WIDTH) continue;
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const float* pair = &c[i][j][x / 2][x % 2 * 2];
                unsigned to = Swizzled<WIDTH>::block(origin, 16 * i + x % 2 * 8,
                                                     S::STEP * j + x / 2 * 8);
                share_pair(to, pair[0] * scale, pair[1] * scale);
            }
        }
}

template <int TENSOR, int WIDTH>
__device__ __forceinline__ void store_rows(Memory& memory, Element* to, const unsigned char* tile,
                                           int rows) {
    constexpr int VECTORS = WIDTH / VEC;
    for (int at = threadIdx.x; at < min(rows, BC) * VECTORS; at += BLOCK_THREADS) {
        unsigned from = Swizzled<WIDTH>::offset(at / VECTORS, at % VECTORS);
        memory.store<TENSOR>(to + at * VEC, *reinterpret_cast<const uint4*>(tile + from));
    }
}

// dQ's part of this thread block -> the sums in L2.
__device__ __forceinline__ void add_query_gradient(Memory& memory, float* sums, const Tiles& at,
                                                   int rows) {
    Sums<QueriesShare> dq = {};
    add_product<QueriesShare, BC, BC, false, HEAD_DIM, true>(
        dq, a_rows<BC>(at.ds, QueriesShare::row()),
        b_columns<HEAD_DIM>(at.k, QueriesShare::column()));
    add_rows<TENSOR_dQ_acc, QueriesShare, HEAD_DIM>(memory, sums, dq, rows, 1.0f);
}

// dK and dV of `keys` valid keys: stored, or added to those of other heads.
__device__ __forceinline__ void put_key_gradients(Memory& memory, Gradient* dK, Gradient* dV,
                                                  unsigned char* shared, const Tiles& at,
                                                  const Sums<KeysShare>& dk,
                                                  const Sums<ValuesShare>& dv, int keys,
                                                  float scale) {
#if GROUPED
    add_rows<TENSOR_dK_acc, KeysShare, HEAD_DIM>(memory, dK, dk, keys, scale);
    add_rows<TENSOR_dV_acc, ValuesShare, VALUE_DIM>(memory, dV, dv, keys, 1.0f);
#else
    wait_for_all_copies();  // K and V are read: dK and dV may take their place
    stage_rows<KeysShare, HEAD_DIM>(at.k, dk, scale);
    stage_rows<ValuesShare, VALUE_DIM>(at.v, dv, 1.0f);
    __syncthreads();
    store_rows<TENSOR_dK, HEAD_DIM>(memory, dK, shared, keys);
    store_rows<TENSOR_dV, VALUE_DIM>(memory, dV, shared + K_BYTES, keys);
#endif
}

// ---- The kernel ---------------------------------------------------------------------------------

// What the thread block works on: a head, and keys from c0 on.
struct Work {
    int head, c0;
    __device__ __forceinline__ Work(int index, int heads, int n_kv) {
        Place place = place_of(index, heads, (n_kv + BC - 1) / BC);
        head = place.head, c0 = place.block * BC;
    }
};

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
hbmeter_flash2_backward(const Element* Q, const Element* K, const Element* V, const Element* dO,
                        const float* LSE, const float* D, float* dQ, Gradient* dK, Gradient* dV,
                        int heads, int group, int n_q, int n_kv, int lo_shift, int hi_shift,
                        float scale COUNTERS) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned k = __cvta_generic_to_shared(shared), v = k + K_BYTES, q = v + V_BYTES;
    unsigned p = q + STAGES * STAGE_BYTES;
    float* statistics = reinterpret_cast<float*>(shared + SHARED_BYTES - STATISTICS_BYTES);
    Tiles at = {k, v, q, q + Q_BYTES, p, p + SCORES_BYTES, statistics, statistics + BR};
    Work work(blockIdx.x, heads, n_kv);
    Mask mask = {lo_shift, hi_shift, n_kv};
    Memory memory;

    auto first_key = [&] { return (long long)(work.head / group) * n_kv + work.c0; };
    auto row_of = [&](int r0) { return (long long)work.head * n_q + r0; };
    int c0 = work.c0;
    copy_rows<TENSOR_K, BC, HEAD_DIM, BLOCK_THREADS>(memory, k, K + first_key() * HEAD_DIM,
                                                     n_kv - c0);
    copy_rows<TENSOR_V, BC, VALUE_DIM, BLOCK_THREADS>(memory, v, V + first_key() * VALUE_DIM,
                                                      n_kv - c0);
    auto copy_row_block = [&](int r0, unsigned to) {
        copy_rows<TENSOR_Q, BR, HEAD_DIM, BLOCK_THREADS>(
            memory, to, Q + row_of(r0) * HEAD_DIM, n_q - r0);
        copy_rows<TENSOR_dO, BR, VALUE_DIM, BLOCK_THREADS>(
            memory, to + Q_BYTES, dO + row_of(r0) * VALUE_DIM, n_q - r0);
    };
    auto load_statistic = [&](int r0) {
        return load_row_statistic(memory, LSE + row_of(r0), D + row_of(r0), n_q - r0);
    };
    Walk<BR> walk(align_down(max(c0 + 1 - hi_shift, 0), BR), clip(c0 + BC - lo_shift, n_q),
                  c0 / BC);
    int r0 = walk.first();
    float statistic = 0.0f;  // of the next row block: one number a thread
    if (walk.there(r0)) {
        copy_row_block(r0, q);
        statistic = load_statistic(r0);
    }
    FINISH(memory);  // so that counters take no registers while the products run

    Sums<KeysShare> dk = {};
    Sums<ValuesShare> dv = {};
#pragma unroll 1
    for (; walk.there(r0); r0 += walk.step()) {
        if (threadIdx.x < 2 * BR) statistics[threadIdx.x] = statistic;
        wait_for_all_copies();
        if (walk.there(r0 + walk.step())) {
            if (STAGES == 2) copy_row_block(r0 + walk.step(), 2 * q + STAGE_BYTES - at.q);
            statistic = load_statistic(r0 + walk.step());
        }
        FINISH(memory);
#if __CUDA_ARCH__ < 1000
        forget(c0), forget(r0);  // what is derived from them would spill
#endif
        {
            Sums<ScoresShare> s, dp;
            compute_scores(s, dp, at, mask, r0, c0, scale * LOG2_E);
            share_score_gradients(s, dp, at);
        }
        __syncthreads();
        add_product<ValuesShare, BR, BC, true, VALUE_DIM, true>(
            dv, a_columns<BC>(at.p, ValuesShare::row()),
            b_columns<VALUE_DIM>(at.d_out, ValuesShare::column()));
        add_query_gradient(memory, dQ + row_of(r0) * HEAD_DIM, at, n_q - r0);
        FINISH(memory);
        add_product<KeysShare, BR, BC, true, HEAD_DIM, true>(
            dk, a_columns<BC>(at.ds, KeysShare::row()),
            b_columns<HEAD_DIM>(at.q, KeysShare::column()));
        if (STAGES == 1 && walk.there(r0 + walk.step())) {
            __syncthreads();  // Q and dO are read
            copy_row_block(r0 + walk.step(), q);
            FINISH(memory);
        }
        if (STAGES == 2) at.q = 2 * q + STAGE_BYTES - at.q, at.d_out = at.q + Q_BYTES;
    }

    int index = blockIdx.x;
    forget(index);  // nothing of this is kept over the loop
    work = Work(index, heads, n_kv);
    put_key_gradients(memory, dK + first_key() * HEAD_DIM, dV + first_key() * VALUE_DIM, shared, at,
                      dk, dv, n_kv - work.c0, scale);
    FINISH(memory);
}
