// Split-KV decode on tensor cores (mma.sync m16n8k16, fp16 or bf16 in, fp32 sums; sm_80 and later):
// schedules split_kv and, with PAGED, paged.
//
// A thread block takes BR rows of the query heads of one KV head (all of them, as a rule: decode has
// few) and the keys of one split; a second launch combines the splits. Decode reads every key once
// and computes little with it, so the kernel is built to keep DRAM busy:
// - All query heads of a KV head are rows of one tile: K and V are read once for the group.
// - Every warp streams its own WARP_KEYS keys of each column block through its own STAGES buffers by
//   16-byte cp.async, waits for its own copies only and keeps its own m, l and O. Warps meet once,
//   at the end, where they merge in shared memory. A buffer is refilled as soon as its product is
//   done: while a warp waits, all its stages are on their way.
// - With PAGED the split's page table is read once into shared memory; rows are found through it.
// Measured on an H200 (hbmeter decode --recorded), fp16, one query, 8,192 keys, d 128, one split:
//   sequences × heads     64 × 32/8   32 × 8/8   over PyTorch 2.11's flash   paged, pages of 16
//   TB/s of Q, K, V         4.47        4.48            1.66, 1.69               4.36, 4.23
#include "mma.cuh"
#include "split_combine.cuh"

constexpr int STRIPS = BR / 16;
constexpr int WARPS = BC / WARP_KEYS;
constexpr int BLOCK_THREADS = WARPS * 32;
constexpr int Q_BYTES = BR * HEAD_DIM * sizeof(Element);
constexpr int K_BYTES = WARP_KEYS * HEAD_DIM * sizeof(Element);  // of one warp and stage
constexpr int STAGE_BYTES = K_BYTES + WARP_KEYS * VALUE_DIM * sizeof(Element);
constexpr int WARP_BYTES = STAGES * STAGE_BYTES;
constexpr int MERGE_STRIDE = VALUE_DIM + 8;  // floats; 8 rows of a warp's stores use all banks
constexpr int MERGE_BYTES = WARPS * BR * (MERGE_STRIDE + 2) * sizeof(float);
constexpr int LOOP_BYTES = Q_BYTES + WARPS * WARP_BYTES;
static_assert((LOOP_BYTES > MERGE_BYTES ? LOOP_BYTES : MERGE_BYTES) == SHARED_BYTES,
              "the launcher's memory");
#ifdef PAGED
constexpr int STEP = BC > PAGE ? BC : PAGE;  // where splits may begin: one divides the other
#define PAGED_ARGUMENTS const int *table, int kv_heads,
#else
constexpr int STEP = BC;
#define PAGED_ARGUMENTS
#endif

constexpr float LARGEST_GROWTH = 8;  // of a row's largest score above m; both in base 2

typedef float Scores[STRIPS][WARP_KEYS / 8][4];  // accumulators of m16n8k16: a lane holds rows
typedef float Output[STRIPS][VALUE_DIM / 8][4];  // lane/4 and + 8, columns lane%4·2 and + 1
typedef float Rows[STRIPS][2];                   // one number for each row that a lane holds

// ---- Keys and values from global memory -------------------------------------------------------

// Where the keys of one KV head are: one after the other, or in pages
// [page, KV head, key in the page] that the table of the sequence names.
struct Cache {
    int n_kv;
#ifdef PAGED
    const int* pages;  // in shared memory, of the split that begins at first_key
    int first_key, kv_heads, kv_head;
    __device__ __forceinline__ long long row(int key) const {
        key = min(key, n_kv - 1);
        long long page = pages[(key - first_key) / PAGE];
        return (page * kv_heads + kv_head) * PAGE + key % PAGE;
    }
#else
    long long first_row;
    __device__ __forceinline__ long long row(int key) const { return first_row + key; }
#endif
};

// Starts copying this warp's keys from `key` on; those beyond the last become 0.
template <int TENSOR, int WIDTH>
__device__ __forceinline__ void copy_keys(Memory& memory, unsigned tile, const Element* from,
                                          const Cache& cache, int key) {
    constexpr int VECTORS = WIDTH / VEC;
#pragma unroll
    for (int first = 0; first < WARP_KEYS * VECTORS; first += 32) {
        int at = first + lane(), row = at / VECTORS, vector = at % VECTORS;
        if (WARP_KEYS * VECTORS % 32 == 0 || row < WARP_KEYS)
            memory.copy_async<TENSOR>(tile + Swizzled<WIDTH>::offset(row, vector),
                                      from + cache.row(key + row) * WIDTH + vector * VEC,
                                      key + row < cache.n_kv);
    }
}

template <int WIDTH>
__device__ __forceinline__ void copy_queries(Memory& memory, unsigned tile, const Element* from,
                                             int rows) {
    constexpr int VECTORS = WIDTH / VEC;
    for (int at = threadIdx.x; at < BR * VECTORS; at += BLOCK_THREADS)
        memory.copy_async<TENSOR_Q>(tile + Swizzled<WIDTH>::offset(at / VECTORS, at % VECTORS),
                                    from + at * VEC, at / VECTORS < rows);
}

// ---- One column block of a warp ---------------------------------------------------------------

// S = Q Kᵀ
__device__ __forceinline__ void compute_scores(Scores& s, unsigned q, unsigned k) {
    memset(s, 0, sizeof(Scores));
#pragma unroll
    for (int column = 0; column < HEAD_DIM; column += 16) {
        Fragment a[STRIPS];
#pragma unroll
        for (int i = 0; i < STRIPS; ++i)
            load_matrices(a[i], Swizzled<HEAD_DIM>::block(q, 16 * i, column));
#pragma unroll
        for (int key = 0; key < WARP_KEYS; key += 16) {
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

// Sets what the mask hides to −∞. Row r of the tile is the query r % n_q of its head.
__device__ __forceinline__ void hide_masked(Scores& s, Mask mask, int n_q, int row, int column) {
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int query = (row + 16 * i + 8 * h) % n_q;
            int lo = mask.lo(query) - column, hi = mask.hi(query) - column;
#pragma unroll
            for (int j = 0; j < WARP_KEYS / 8; ++j)
#pragma unroll
                for (int x = 0; x < 2; ++x)
                    if (8 * j + x < lo || 8 * j + x >= hi) s[i][j][2 * h + x] = MINUS_INFINITY;
        }
}

// Moves m on to the largest score so far, l and O with it, when weights would else grow large.
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
            for (int j = 1; j < WARP_KEYS / 8; ++j)
                most = fmaxf(most, fmaxf(s[i][j][2 * h], s[i][j][2 * h + 1]));
            top[i][h] = most * scale;
            grew |= top[i][h] - m[i][h] > LARGEST_GROWTH;
        }
    if (!__any_sync(0xffffffffu, grew)) return;
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

// The weights of 16 keys as operand A: the left 8 keys of the low and the high rows, then the
// right 8.
__device__ __forceinline__ void compute_weights(Fragment& p, const Scores& s, const Rows& m,
                                                Rows& l, float scale, int key, int i) {
#pragma unroll
    for (int x = 0; x < 4; ++x) {
        const float* pair = &s[i][key / 8 + x / 2][x % 2 * 2];
        float low = exp2_fast(pair[0] * scale - m[i][x % 2]);
        float high = exp2_fast(pair[1] * scale - m[i][x % 2]);
        l[i][x % 2] += low + high;
        p[x] = pack(low, high);
    }
}

// O += weights · V
__device__ __forceinline__ void add_weighted_values(Output& o, const Scores& s, const Rows& m,
                                                    Rows& l, unsigned v, float scale) {
#pragma unroll
    for (int key = 0; key < WARP_KEYS; key += 16) {
        Fragment p[STRIPS];
#pragma unroll
        for (int i = 0; i < STRIPS; ++i) compute_weights(p[i], s, m, l, scale, key, i);
#pragma unroll
        for (int column = 0; column < VALUE_DIM; column += 16) {
            Fragment b;
            load_transposed(b, Swizzled<VALUE_DIM>::block(v, key, column));
#pragma unroll
            for (int i = 0; i < STRIPS; ++i) {
                mma(o[i][column / 8], p[i], b[0], b[1]);
                mma(o[i][column / 8 + 1], p[i], b[2], b[3]);
            }
        }
    }
}

// ---- Results ----------------------------------------------------------------------------------

// The warps of a block: their parts of O (scaled to one m and divided by the whole l) and the m
// and l of each, in shared memory.
struct Merge {
    float* o;
    float* m;
    float* l;
    __device__ __forceinline__ explicit Merge(unsigned char* shared)
        : o(reinterpret_cast<float*>(shared)), m(o + WARPS * BR * MERGE_STRIDE),
          l(m + WARPS * BR) {}

    // The largest m of a row over the warps.
    __device__ __forceinline__ float top(int row) const {
        float x = m[row];
#pragma unroll
        for (int warp = 1; warp < WARPS; ++warp) x = fmaxf(x, m[warp * BR + row]);
        return x;
    }
    // The whole l of a row, for the largest m.
    __device__ __forceinline__ float sum(int row, float top) const {
        float x = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp)
            x += l[warp * BR + row] * exp2_fast(m[warp * BR + row] - top);
        return x;
    }
    __device__ __forceinline__ float4 output(int row, int column) const {
        float4 x = {};
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) {
            const float* from = o + (warp * BR + row) * MERGE_STRIDE + column;
            float4 y = *reinterpret_cast<const float4*>(from);
            x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
        }
        return x;
    }
};

// Brings m, l and O of all warps together; all threads may read `merge` afterwards.
__device__ __forceinline__ void merge_warps(const Merge& merge, const Output& o, const Rows& m,
                                            const Rows& l) {
    int first = threadIdx.x / 32 * BR;  // this warp's rows
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = quad_sum(l[i][h]);
            int row = 16 * i + 8 * h + lane() / 4;
            if (lane() % 4 == 0) merge.m[first + row] = m[i][h], merge.l[first + row] = sum;
        }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < STRIPS; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int row = 16 * i + 8 * h + lane() / 4;
            float top = merge.top(row), sum = merge.sum(row, top);
            float factor = sum > 0.0f ? exp2_fast(m[i][h] - top) / sum : 0.0f;
            float* to = merge.o + (first + row) * MERGE_STRIDE + lane() % 4 * 2;
#pragma unroll
            for (int j = 0; j < VALUE_DIM / 8; ++j)
                *reinterpret_cast<float2*>(to + 8 * j) =
                    make_float2(o[i][j][2 * h] * factor, o[i][j][2 * h + 1] * factor);
        }
    __syncthreads();
}

// O of `rows` rows from `first` on.
__device__ __forceinline__ void store_output(Memory& memory, const Merge& merge, Element* O,
                                             long long first, int rows) {
    constexpr int PER_ROW = VALUE_DIM / 4;
    for (int at = threadIdx.x; at < rows * PER_ROW; at += BLOCK_THREADS) {
        float4 x = merge.output(at / PER_ROW, at % PER_ROW * 4);
        memory.store<TENSOR_O>(O + first * VALUE_DIM + at * 4, pack_four(x));
    }
}

// A split's part of O and the logsumexp of its rows: [row, split, column] and [row, split].
__device__ __forceinline__ void store_part(Memory& memory, const Merge& merge, float* O_part,
                                           float* LSE_part, long long first, int rows, int split,
                                           int splits) {
    constexpr int PER_ROW = VALUE_DIM / 4;
    for (int at = threadIdx.x; at < rows * PER_ROW; at += BLOCK_THREADS) {
        int row = at / PER_ROW, column = at % PER_ROW * 4;
        float4 x = merge.output(row, column);
        memory.store<TENSOR_O_part>(
            O_part + ((first + row) * splits + split) * VALUE_DIM + column,
            *reinterpret_cast<const uint4*>(&x));
    }
    for (int row = threadIdx.x; row < rows; row += BLOCK_THREADS) {
        float top = merge.top(row);
        float lse = top * LN_2 + logf(merge.sum(row, top));  // −∞ where no key was seen
        memory.store<TENSOR_LSE_part>(LSE_part + (first + row) * splits + split,
                                      __float_as_uint(lse));
    }
}

// ---- The kernels ------------------------------------------------------------------------------

// `heads` counts KV heads over the batch; each has `n_rows` rows, n_q of every query head in turn.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
hbmeter_split_kv(const Element* Q, const Element* K, const Element* V, PAGED_ARGUMENTS Element* O,
                 float* O_part, float* LSE_part, int heads, int n_rows, int n_q, int n_kv,
                 int lo_shift, int hi_shift, float scale, int splits, int split_keys COUNTERS) {
    extern __shared__ __align__(128) unsigned char shared[];
    Place place = place_of(blockIdx.x, heads, (n_rows + BR - 1) / BR * splits);
    int head = place.head, split = place.block % splits, r0 = place.block / splits * BR;
    Mask mask = {lo_shift, hi_shift, n_kv};
    int begin = align_down(mask.lo(0), STEP) + split * split_keys;
    int end = min(begin + split_keys, mask.hi(n_q - 1)), rows = min(BR, n_rows - r0);
    Memory memory;

    long long row = (long long)head * n_rows + r0;
    unsigned q = __cvta_generic_to_shared(shared);
    copy_queries<HEAD_DIM>(memory, q, Q + row * HEAD_DIM, rows);
    commit_copies();
#ifdef PAGED
    int* pages = reinterpret_cast<int*>(shared + SHARED_BYTES);
    const int* entries = table + (long long)(head / kv_heads) * ((n_kv + PAGE - 1) / PAGE);
    for (int at = threadIdx.x; at < (end - begin + PAGE - 1) / PAGE; at += BLOCK_THREADS)
        pages[at] = memory.load<TENSOR_table, unsigned>(entries + begin / PAGE + at);
    __syncthreads();
    Cache cache = {n_kv, pages, begin, kv_heads, head % kv_heads};
#else
    Cache cache = {n_kv, (long long)head * n_kv};
#endif

    Walk<BC> walk(begin, end, r0 / BR);
    int warp = threadIdx.x / 32, key = walk.first() + warp * WARP_KEYS;
    if (walk.back && key >= end) key -= BC;  // the last column block has nothing for this warp
    unsigned buffer = q + Q_BYTES + warp * WARP_BYTES, buffers_end = buffer + WARP_BYTES;
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        int ahead = key + stage * walk.step();
        if (walk.there(ahead)) copy_keys<TENSOR_K, HEAD_DIM>(
            memory, buffer + stage * STAGE_BYTES, K, cache, ahead);
        commit_copies();
        if (walk.there(ahead)) copy_keys<TENSOR_V, VALUE_DIM>(
            memory, buffer + stage * STAGE_BYTES + K_BYTES, V, cache, ahead);
        commit_copies();
    }
    wait_for_copies<2 * STAGES>();
    __syncthreads();  // Q of all threads

    Output o = {};
    Rows m, l = {};
#pragma unroll
    for (int i = 0; i < STRIPS; ++i) m[i][0] = m[i][1] = LOWEST;
    float log2_scale = scale / LN_2;
    unsigned q_block = rows_first<HEAD_DIM>(q);
#pragma unroll 1
    for (; walk.there(key); key += walk.step()) {
        int ahead = key + STAGES * walk.step();
        Scores s;
        wait_for_copies<2 * STAGES - 1>();
        compute_scores(s, q_block, columns_first<HEAD_DIM>(buffer));
        __syncwarp();
        if (walk.there(ahead))
            copy_keys<TENSOR_K, HEAD_DIM>(memory, buffer, K, cache, ahead);
        commit_copies();
        if (key < mask.lo(n_q - 1) || key + WARP_KEYS > mask.hi(0))
            hide_masked(s, mask, n_q, r0 + lane() / 4, key + lane() % 4 * 2);
        follow_max(s, o, m, l, log2_scale);
        wait_for_copies<2 * STAGES - 1>();
        add_weighted_values(o, s, m, l, rows_first<VALUE_DIM>(buffer + K_BYTES), log2_scale);
        __syncwarp();
        if (walk.there(ahead))
            copy_keys<TENSOR_V, VALUE_DIM>(memory, buffer + K_BYTES, V, cache, ahead);
        commit_copies();
        FINISH(memory);
        buffer += STAGE_BYTES;
        if (buffer == buffers_end) buffer -= WARP_BYTES;
    }

    __syncthreads();  // Q, K and V are read: the merge may take their place
    Merge merge(shared);
    merge_warps(merge, o, m, l);
    if (splits == 1) store_output(memory, merge, O, row, rows);
    else store_part(memory, merge, O_part, LSE_part, row, rows, split, splits);
    FINISH(memory);
}
