// FlashAttention-2 forward on tensor cores (mma.sync): schedule flash2.
#include "common.cuh"

#ifndef GROWTH
#define GROWTH 8
#endif
#ifndef Q_REGS
#define Q_REGS 0
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif
#ifndef TURNS
#define TURNS 0
#endif
#ifndef PINGPONG
#define PINGPONG 0
#endif
#ifndef EARLY
#define EARLY 0
#endif
#ifndef VBUF
#define VBUF 0
#endif
#ifndef OPAQUE
#define OPAQUE 0
#endif
#ifndef LATE_WAIT
#define LATE_WAIT 0
#endif

constexpr int STRIPS = WARP_ROWS / 16;  // of 16 rows, of one warp
constexpr int BLOCK_THREADS = BR / WARP_ROWS * 32;
constexpr int Q_BYTES = BR * HEAD_DIM * sizeof(Element);
constexpr int K_BYTES = BC * HEAD_DIM * sizeof(Element);
constexpr int STAGE_BYTES = K_BYTES + BC * VALUE_DIM * sizeof(Element);

typedef float Scores[STRIPS][BC / 8][4];         // accumulators of m16n8k16: a lane holds rows
typedef float Output[STRIPS][VALUE_DIM / 8][4];  // lane/4 and + 8, columns lane%4·2 and + 1
typedef float Rows[STRIPS][2];                   // one number for each row that a lane holds
typedef unsigned Fragment[4];                    // 16 × 16 elements: operand A, or two of B

__device__ __forceinline__ int lane() { return threadIdx.x % 32; }

// ---- Instructions -----------------------------------------------------------------------------

#ifdef FP16
#define PTX_TYPE "f16"
#else
#define PTX_TYPE "bf16"
#endif

// c += a · b, 16 × 8 += 16 × 16 · 16 × 8
__device__ __forceinline__ void mma(float (&c)[4], const Fragment& a, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." PTX_TYPE "." PTX_TYPE ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned x;
    asm("cvt.rn." PTX_TYPE "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

__device__ __forceinline__ float exp2_fast(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

// Four 8 × 8 blocks of shared memory; lane i gives the address of row i%8 of block i/8.
__device__ __forceinline__ void load_matrices(Fragment& x, unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address));
}
__device__ __forceinline__ void load_transposed(Fragment& x, unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address));
}

// ---- Swizzled tiles in shared memory ----------------------------------------------------------

// Rows of WIDTH elements without padding. The 16-byte vectors of a row change places (XOR), so
// that the same vector of 8 neighbouring rows covers all banks.
template <int WIDTH> struct Swizzled {
    static constexpr int VECTORS = WIDTH / VEC;
    static constexpr int POWER_OF_TWO = VECTORS & -VECTORS;
    static constexpr int SPAN = POWER_OF_TWO < 8 ? POWER_OF_TWO : 8;  // vectors that change places

    static __device__ __forceinline__ unsigned offset(unsigned row, unsigned vector) {
        return (row * VECTORS + (vector ^ row * SPAN / 8 % SPAN)) * 16;
    }

    // From this lane's address in the 16 × 16 block at (0, 0) to that at (row, column).
    static __device__ __forceinline__ unsigned block(unsigned origin, int row, int column) {
        int vector = column / VEC, inner = vector % SPAN;
        return (origin ^ inner * 16) + (row * VECTORS + vector - inner) * 16;
    }
};

// This lane's row and vector in a 16 × 16 block, for load_matrices: Q as operand A and (transposed)
// V as operand B go down the rows first, K as operand B goes along the columns first.
template <int WIDTH> __device__ __forceinline__ unsigned rows_first(unsigned tile) {
    return tile + Swizzled<WIDTH>::offset(lane() % 16, lane() / 16);
}
template <int WIDTH> __device__ __forceinline__ unsigned columns_first(unsigned tile) {
    return tile + Swizzled<WIDTH>::offset(lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);
}

// Starts copying `rows` valid rows of a tile; the others become 0, which changes no product.
template <int TENSOR, int ROWS, int WIDTH, int BLOCK_THREADS=::BLOCK_THREADS>
__device__ __forceinline__ void copy_rows(Memory& memory, unsigned tile, const Element* from,
                                          int rows) {
    constexpr int VECTORS = WIDTH / VEC, STEP = BLOCK_THREADS / VECTORS;
    unsigned row = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
    if (row >= STEP) return;
    from += threadIdx.x * VEC;
#pragma unroll
    for (int r = 0; r < ROWS; r += STEP)
        if (ROWS % STEP == 0 || row + r < ROWS)
            memory.copy_async<TENSOR>(tile + Swizzled<WIDTH>::offset(row + r, vector),
                                      from + r * WIDTH, int(row) + r < rows);
}

__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
}

// ---- One column block -------------------------------------------------------------------------

__device__ __forceinline__ void load_queries(Fragment (&a)[STRIPS], unsigned q, int column) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
        load_matrices(a[i], Swizzled<HEAD_DIM>::block(q, 16 * i, column));
}

__device__ __forceinline__ void compute_scores(Scores& s, unsigned q, unsigned k
#if Q_REGS
, const Fragment (&queries)[HEAD_DIM/16][STRIPS]
#endif
) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int j = 0; j < BC / 8; ++j)
#pragma unroll
            for (int x = 0; x < 4; ++x) s[i][j][x] = 0.0f;
#pragma unroll
    for (int column = 0; column < HEAD_DIM; column += 16) {
#if Q_REGS
        const Fragment (&a)[STRIPS] = queries[column / 16];
#else
        Fragment a[STRIPS];
        load_queries(a, q, column);
#endif
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

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Moves l and O on to the new m.
__device__ __forceinline__ void rescale(Output& o, Rows& m, Rows& l, const Rows& top, float scale) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float next = fmaxf(m[i][h], quad_max(top[i][h]));
            float factor = exp2_fast((m[i][h] - finite_max(next)) * scale);
            m[i][h] = next;
            l[i][h] *= factor;
#pragma unroll
            for (int j = 0; j < VALUE_DIM / 8; ++j) {
                o[i][j][2 * h] *= factor;
                o[i][j][2 * h + 1] *= factor;
            }
        }
}

__device__ __forceinline__ void follow_max(const Scores& s, Output& o, Rows& m, Rows& l,
                                           float scale) {
    Rows top;
    bool grew = false;
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            top[i][h] = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
            for (int j = 1; j < BC / 8; ++j)
                top[i][h] = fmaxf(top[i][h], fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
            grew |= (top[i][h] - m[i][h]) * scale > float(GROWTH);
        }
#if GROWTH >= 0
    if (__any_sync(0xffffffffu, grew))
#endif
    rescale(o, m, l, top, scale);
}

// Register x of strip i of the weights of 16 keys as operand A: two neighbouring keys.
__device__ __forceinline__ void compute_pair(Fragment (&p)[STRIPS], const Scores& s,
                                             const Rows& offset, Rows& l, float scale, int key,
                                             int i, int x) {
    const float* pair = &s[i][key / 8 + x / 2][x % 2 * 2];
    float low = exp2_fast(pair[0] * scale - offset[i][x % 2]);
    float high = exp2_fast(pair[1] * scale - offset[i][x % 2]);
    l[i][x % 2] += low + high;
    p[i][x] = pack(low, high);
}
__device__ __forceinline__ void compute_weights(Fragment (&p)[STRIPS], const Scores& s,
                                                const Rows& offset, Rows& l, float scale, int key) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int x = 0; x < 4; ++x) compute_pair(p, s, offset, l, scale, key, i, x);
}

#if VBUF
typedef Fragment Values[2];
#define B(x) b[(x) % 2]
#else
typedef Fragment Values[1];
#define B(x) b[0]
#endif
__device__ __forceinline__ void add_values(Output& o, const Fragment (&p)[STRIPS], Values& b, unsigned v,
                                           int key) {
#pragma unroll
    for (int column = 0; column < VALUE_DIM; column += 16) {
        int step = key / 16 * (VALUE_DIM / 16) + column / 16;
#if VBUF
        int next = step + 1, next_key = next / (VALUE_DIM / 16) * 16;
        if (next_key < BC)
            load_transposed(B(next), Swizzled<VALUE_DIM>::block(v, next_key, next % (VALUE_DIM / 16) * 16));
#else
        load_transposed(b[0], Swizzled<VALUE_DIM>::block(v, key, column));
#endif
#pragma unroll
        for (int i = 0; i < STRIPS; ++i) {
            mma(o[i][column / 8], p[i], B(step)[0], B(step)[1]);
            mma(o[i][column / 8 + 1], p[i], B(step)[2], B(step)[3]);
        }
    }
}

__device__ __forceinline__ void add_weighted_values(Output& o, const Scores& s, const Rows& m,
                                                    Rows& l, unsigned v, float scale) {
    Rows offset;
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) offset[i][h] = finite_max(m[i][h]) * scale;
    Values b;
#if OPAQUE
    asm volatile("" : "+r"(v));
#endif
#if VBUF
    load_transposed(b[0], Swizzled<VALUE_DIM>::block(v, 0, 0));
#endif
#if AHEAD == 2
    Fragment p[2][STRIPS];
    compute_weights(p[0], s, offset, l, scale, 0);
    constexpr int STEPS = VALUE_DIM / 16, PAIRS = STRIPS * 4;
#pragma unroll
    for (int step = 0; step < BC / 16 * STEPS; ++step) {
        int key = step / STEPS * 16, column = step % STEPS;
        if ((step + 1) / STEPS * 16 < BC)
            load_transposed(b[(step + 1) % 2], Swizzled<VALUE_DIM>::block(v, (step + 1) / STEPS * 16, (step + 1) % STEPS * 16));
#pragma unroll
        for (int i = 0; i < STRIPS; ++i) {
            mma(o[i][column * 2], p[key / 16 % 2][i], b[step % 2][0], b[step % 2][1]);
            mma(o[i][column * 2 + 1], p[key / 16 % 2][i], b[step % 2][2], b[step % 2][3]);
        }
        if (key + 16 < BC)
#pragma unroll
            for (int pair = column * PAIRS / STEPS; pair < (column + 1) * PAIRS / STEPS; ++pair)
                compute_pair(p[(key / 16 + 1) % 2], s, offset, l, scale, key + 16, pair / 4, pair % 4);
    }
#elif AHEAD
    Fragment p[2][STRIPS];
    compute_weights(p[0], s, offset, l, scale, 0);
#pragma unroll
    for (int key = 0; key < BC; key += 16) {
        if (key + 16 < BC) compute_weights(p[(key / 16 + 1) % 2], s, offset, l, scale, key + 16);
        add_values(o, p[key / 16 % 2], b, v, key);
    }
#else
    Fragment p[BC / 16][STRIPS];
#pragma unroll
    for (int key = 0; key < BC; key += 16) compute_weights(p[key / 16], s, offset, l, scale, key);
#pragma unroll
    for (int key = 0; key < BC; key += 16) add_values(o, p[key / 16], b, v, key);
#endif
}

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
                                          float scale, int rows) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int row = 16 * i + 8 * h + lane() / 4;
            float lse = m[i][h] * scale + logf(l[i][h]);  // −∞ where no key was seen
            if (lane() % 4 == 0 && row < rows)
                memory.store<TENSOR_LSE>(to + row, __float_as_uint(lse));
        }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, MIN_BLOCKS)
hbmeter_flash2_mma(const Element* Q, const Element* K, const Element* V, Element* O, float* LSE,
                   int heads, int group, int n_q, int n_kv, int lo_shift, int hi_shift,
                   int head_fastest, float scale COUNTERS) {
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned q = __cvta_generic_to_shared(shared), k = q + Q_BYTES, v = k + K_BYTES;

    Place place = place_of(blockIdx.x, heads, (n_q + BR - 1) / BR, head_fastest);
    int r0 = place.block * BR, warp_row = threadIdx.x / 32 * WARP_ROWS;
    long long first_row = (long long)place.head * n_q + r0;
    K += (long long)(place.head / group) * n_kv * HEAD_DIM;
    V += (long long)(place.head / group) * n_kv * VALUE_DIM;
    Mask mask = {lo_shift, hi_shift, n_kv};
    Memory memory;

    int c0 = align_down(mask.lo(r0), BC), end = mask.hi(r0 + BR - 1);
    auto copy_keys = [&](int c, unsigned to) {
        copy_rows<TENSOR_K, BC, HEAD_DIM>(memory, to, K + (long long)c * HEAD_DIM, n_kv - c);
    };
    auto copy_values = [&](int c, unsigned to) {
        copy_rows<TENSOR_V, BC, VALUE_DIM>(memory, to, V + (long long)c * VALUE_DIM, n_kv - c);
    };
    copy_rows<TENSOR_Q, BR, HEAD_DIM>(memory, q, Q + first_row * HEAD_DIM, n_q - r0);
    if (c0 < end) copy_keys(c0, k);
    if (STAGES == 2 && !TURNS && c0 < end) copy_values(c0, v);

    Output o = {};
    Rows m, l = {};
#pragma unroll
    for (int i = 0; i < STRIPS; ++i) m[i][0] = m[i][1] = MINUS_INFINITY;
    float scale2 = scale * 1.44269504f;
    unsigned q_block = rows_first<HEAD_DIM>(q + warp_row * HEAD_DIM * sizeof(Element));
    unsigned k_block = columns_first<HEAD_DIM>(k), v_block = rows_first<VALUE_DIM>(v);
    unsigned buffer = 0;
    int first = r0 + warp_row, last = first + WARP_ROWS - 1;
#if Q_REGS
    Fragment queries[HEAD_DIM / 16][STRIPS];
    wait_for_copies();
#pragma unroll
    for (int column = 0; column < HEAD_DIM; column += 16)
        load_queries(queries[column / 16], q_block, column);
#define QUERIES , queries
#else
#define QUERIES
#endif

#if TURNS
    constexpr int COPIERS = BLOCK_THREADS >> PINGPONG;
    int group = PINGPONG ? threadIdx.x / 128 : 0;
    Fragment p[BC / 16][STRIPS];
    bool pending = false;
    auto add_pending = [&](unsigned v) {
        Values b;
        asm volatile("" : "+r"(v));
#if VBUF
        load_transposed(b[0], Swizzled<VALUE_DIM>::block(v, 0, 0));
#endif
#pragma unroll
        for (int key = 0; key < BC; key += 16) add_values(o, p[key / 16], b, v, key);
    };
    auto copy_next = [&]() {
        if (group != 0) return;
        copy_rows<TENSOR_V, BC, VALUE_DIM, COPIERS>(memory, v + buffer, V + (long long)c0 * VALUE_DIM, n_kv - c0);
        if (c0 + BC < end)
            copy_rows<TENSOR_K, BC, HEAD_DIM, COPIERS>(memory, k + STAGE_BYTES - buffer, K + (long long)(c0 + BC) * HEAD_DIM, n_kv - c0 - BC);
    };
#if PINGPONG
    wait_for_copies();
    if (group == 1) asm volatile("bar.arrive 1, 256;" ::: "memory");
#endif
#pragma unroll 1
    for (; c0 < end; c0 += BC) {
#if PINGPONG
        asm volatile("cp.async.wait_all;" ::: "memory");
        asm volatile("bar.sync %0, 256;" :: "r"(1 + group) : "memory");
#else
        wait_for_copies();
#endif
        if (EARLY) copy_next();
        bool seen = c0 < mask.hi(last) && c0 + BC > mask.lo(first);
        Scores s;
        asm volatile("" : "+r"(q_block), "+r"(k_block));
        if (pending) add_pending(v_block + STAGE_BYTES - buffer);
        if (seen) compute_scores(s, q_block, k_block + buffer QUERIES);
#if PINGPONG
        if (group == 0 || c0 + BC < end) asm volatile("bar.arrive %0, 256;" :: "r"(2 - group) : "memory");
#endif
        if (!EARLY) copy_next();
        if (seen) {
            if (c0 < mask.lo(last) || c0 + BC > mask.hi(first))
                hide_masked(s, mask, first + lane() / 4, c0 + lane() % 4 * 2);
            follow_max(s, o, m, l, scale2);
            Rows offset;
#pragma unroll
            for (int i = 0; i < STRIPS; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) offset[i][h] = finite_max(m[i][h]) * scale2;
#pragma unroll
            for (int key = 0; key < BC; key += 16) compute_weights(p[key / 16], s, offset, l, scale2, key);
        }
        pending = seen;
        buffer = STAGE_BYTES - buffer;
    }
    wait_for_copies();
    if (pending) add_pending(v_block + STAGE_BYTES - buffer);
#else
#pragma unroll 1
    for (; c0 < end; c0 += BC) {
        wait_for_copies();
        if (STAGES == 1) copy_values(c0, v);
        else if (c0 + BC < end) {
            copy_keys(c0 + BC, k + STAGE_BYTES - buffer);
            copy_values(c0 + BC, v + STAGE_BYTES - buffer);
        }
        bool seen = c0 < mask.hi(last) && c0 + BC > mask.lo(first);
        Scores s;
#if OPAQUE
        asm volatile("" : "+r"(q_block), "+r"(k_block));
#endif
        if (seen) compute_scores(s, q_block, k_block + buffer QUERIES);
        if (STAGES == 1 && !LATE_WAIT) {
            wait_for_copies();
            if (c0 + BC < end) copy_keys(c0 + BC, k);
        }
        if (seen) {
            if (c0 < mask.lo(last) || c0 + BC > mask.hi(first))
                hide_masked(s, mask, first + lane() / 4, c0 + lane() % 4 * 2);
            follow_max(s, o, m, l, scale2);
        }
        if (STAGES == 1 && LATE_WAIT) {
            wait_for_copies();
            if (c0 + BC < end) copy_keys(c0 + BC, k);
        }
        if (seen) add_weighted_values(o, s, m, l, v_block + buffer, scale2);
        if (STAGES == 2) buffer = STAGE_BYTES - buffer;
    }

#endif

    wait_for_copies();  // Q, K and V are read: O may take their place
    unsigned char* tile = shared + warp_row * VALUE_DIM * sizeof(Element);
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) l[i][h] = quad_sum(l[i][h]);
    stage_output(tile, o, l);
    __syncwarp();
    int rows = n_q - first;
    store_output_rows(memory, O + (first_row + warp_row) * VALUE_DIM, tile, rows);
    store_lse(memory, LSE + first_row + warp_row, m, l, scale, rows);
    FINISH(memory);
}
