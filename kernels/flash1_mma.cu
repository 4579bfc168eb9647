// FlashAttention-1 forward (Algorithm 1 of its paper) on tensor cores (mma.sync m16n8k16, fp16 or
// bf16 in, fp32 sums; sm_80 and later): schedule flash1.
//
// Moves the bytes that flash1.cu moves, in the same order: K and V of a column block stay in
// shared memory while the row blocks pass by, and each visit reads and rewrites O, m and l. What it
// changes:
// - Both products run on tensor cores; the weights stay in registers.
// - A warp owns 16 rows of every row block, with buffers of its own for Q and O, and goes through
//   the row blocks at its own pace: the thread block meets only when K and V change.
// - Q arrives by cp.async, with two stages a whole row block ahead. O, m and l arrive under the
//   products of their own visit: a visit has its own maximum and sum, as in the paper, and needs
//   the old ones only at its end.
// Expected: a visit moves 6·d bytes a row (Q, old O, new O) for 4·BC·d FLOP: BC decides. With 256
// columns an SM computes longer than it waits for L2. One thread block a head fills 128 of 132 SMs
// at best, and 16 rows a warp read each K and V fragment for two products only.
// Measured on an H200, fp16, full, 128 heads: n 2048, d 64 0.65 ms, 212 TFLOP/s (flash1.cu: 6.05 ms
// at its best tile); n 4096, d 64 220 TFLOP/s with 256 columns, 146 with 128; d 128 216 with 160,
// 191 with 128.
// O lies in global memory in the inputs' dtype, which is how the paper counts its bytes (its
// authors' own kernel kept O there in fp32 between column blocks, twice the bytes). So each visit
// rounds O, and the roundings add like the steps of a random walk: after V visits the relative
// error of fp16 is 2.1e-4 · √(V/2), beside the 2e-4 of rounding the weights. Measured 6.3e-4 after
// 16, 1.2e-3 after 64; below 1e-3 (bf16 8e-3) up to 40 column blocks, with default tiles n 10k at
// d 64, 7.7k at d 128, 1.9k at d 256.
#include "mma.cuh"

constexpr int WARPS = BR / 16, BLOCK_THREADS = 32 * WARPS;
constexpr int K_BYTES = BC * HEAD_DIM * sizeof(Element), V_BYTES = BC * VALUE_DIM * sizeof(Element);
constexpr int Q_BYTES = 16 * HEAD_DIM * sizeof(Element);  // of one warp and stage
constexpr int O_BYTES = 16 * VALUE_DIM * sizeof(Element);
constexpr int WARP_BYTES = STAGES * Q_BYTES + O_BYTES;
static_assert(K_BYTES + V_BYTES + WARPS * WARP_BYTES == SHARED_BYTES, "the launcher's memory");


typedef float Scores[1][BC / 8][4];      // accumulators of m16n8k16: a lane holds rows lane/4 and
typedef float Output[VALUE_DIM / 8][4];  // + 8, columns lane%4·2 and + 1 of each 8
typedef float Rows[2];                   // one number for each row that a lane holds

// One head's tensors in global memory (Q to L), and this lane's addresses in shared memory.
struct Head {
    const Element *Q, *K, *V;
    Element* O;
    float *M, *L;
};
struct Shared {
    unsigned k, v;             // tiles of the block
    unsigned q, o;             // buffers of this warp
    unsigned k_block, v_block; // this lane's part of the first 16 × 16
};

__device__ __forceinline__ Shared carve(unsigned at) {
    Shared tiles;
    tiles.k = at, tiles.v = at + K_BYTES;
    tiles.q = tiles.v + V_BYTES + threadIdx.x / 32 * WARP_BYTES;
    tiles.o = tiles.q + STAGES * Q_BYTES;
    tiles.k_block = columns_first<HEAD_DIM>(tiles.k);
    tiles.v_block = rows_first<VALUE_DIM>(tiles.v);
    return tiles;
}

// ---- One visit of one warp --------------------------------------------------------------------

// Sets what the mask hides to −∞; `row` and `column` are those of this lane's first score.
__device__ __forceinline__ void hide_masked(Scores& s, Mask mask, int row, int column) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int lo = mask.lo(row + 8 * h) - column, hi = mask.hi(row + 8 * h) - column;
#pragma unroll
        for (int j = 0; j < BC / 8; ++j)
#pragma unroll
            for (int x = 0; x < 2; ++x)
                if (8 * j + x < lo || 8 * j + x >= hi) s[0][j][2 * h + x] = MINUS_INFINITY;
    }
}

// Scores become weights exp(scale · score − m); m and l are the maximum and the sum of this visit.
__device__ __forceinline__ void softmax(Scores& s, Rows& m, Rows& l, float scale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float top = MINUS_INFINITY, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < BC / 8; ++j)
            top = fmaxf(top, fmaxf(s[0][j][2 * h], s[0][j][2 * h + 1]));
        m[h] = quad_max(top) * scale;
        float shift = finite_max(m[h]) * LOG2_E, log2_scale = scale * LOG2_E;
#pragma unroll
        for (int j = 0; j < BC / 8; ++j)
#pragma unroll
            for (int x = 2 * h; x < 2 * h + 2; ++x)
                sum += s[0][j][x] = exp2_fast(s[0][j][x] * log2_scale - shift);
        l[h] = quad_sum(sum);
    }
}

// O = weights · V
__device__ __forceinline__ void weigh_values(Output& o, const Scores& s, unsigned v) {
    forget(v);
    memset(o, 0, sizeof(Output));
#pragma unroll
    for (int key = 0; key < BC; key += 16) {
        Fragment p;
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            const float* pair = &s[0][key / 8 + x / 2][x % 2 * 2];
            p[x] = pack(pair[0], pair[1]);
        }
#pragma unroll
        for (int column = 0; column < VALUE_DIM; column += 16) {
            Fragment b;
            load_transposed(b, Swizzled<VALUE_DIM>::block(v, key, column));
            mma(o[column / 8], p, b[0], b[1]);
            mma(o[column / 8 + 1], p, b[2], b[3]);
        }
    }
}

// m and l of this warp's rows, of which `rows` are read: in the first lane of four m, in the second
// l of the rows that they share.
__device__ __forceinline__ void load_statistics(Memory& memory, Rows& x, const Head& head, int row,
                                                int rows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int at = lane() / 4 + 8 * h;
        x[h] = lane() % 4 == 0 ? MINUS_INFINITY : 0.0f;
        if (at < rows && lane() % 4 == 0)
            x[h] = __uint_as_float(memory.load<TENSOR_m, unsigned>(head.M + row + at));
        if (at < rows && lane() % 4 == 1)
            x[h] = __uint_as_float(memory.load<TENSOR_l, unsigned>(head.L + row + at));
    }
}

__device__ __forceinline__ void store_statistics(Memory& memory, const Head& head, int row,
                                                 int rows, const Rows& m, const Rows& l) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int at = lane() / 4 + 8 * h;
        if (at < rows && lane() % 4 == 0)
            memory.store<TENSOR_m>(head.M + row + at, __float_as_uint(m[h]));
        if (at < rows && lane() % 4 == 1)
            memory.store<TENSOR_l>(head.L + row + at, __float_as_uint(l[h]));
    }
}

// O / l of this warp's rows in its buffer -> those of `rows` that are valid.
__device__ __forceinline__ void store_output_rows(Memory& memory, Element* to, unsigned tile,
                                                  int rows) {
    constexpr int VECTORS = VALUE_DIM / VEC;
    for (int at = lane(); at < min(rows, 16) * VECTORS; at += 32) {
        uint4 x;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(tile + Swizzled<VALUE_DIM>::offset(at / VECTORS, at % VECTORS))
                     : "memory");
        memory.store<TENSOR_O>(to + at * VEC, x);
    }
}

// Two neighbours of the old O in shared memory become old · a + (x, y).
__device__ __forceinline__ void merge_pair(unsigned at, bool first, float a, float x, float y) {
    unsigned word = 0;
    if (!first) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
    float old[2];
    Memory::unpack(old, word);
    word = ::pack(old[0] * a + x, old[1] * a + y);
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(at), "r"(word) : "memory");
}

// Brings O, in this warp's buffer, and m and l up to date with the part of this visit; `old` as
// load_statistics left it.
__device__ __forceinline__ void merge(unsigned tile, bool first, const Rows& old, const Output& o,
                                      Rows& m, Rows& l) {
    unsigned origin = tile + Swizzled<VALUE_DIM>::offset(lane() / 4, 0) + lane() % 4 * 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float old_m = __shfl_sync(0xffffffffu, old[h], lane() & ~3);
        float old_l = __shfl_sync(0xffffffffu, old[h], (lane() & ~3) + 1);
        float next = fmaxf(old_m, m[h]), shift = finite_max(next) * LOG2_E;
        float a = old_l * exp2_fast(old_m * LOG2_E - shift);
        float b = exp2_fast(m[h] * LOG2_E - shift);
        m[h] = next;
        l[h] = a + b * l[h];
        float inverse = l[h] > 0.0f ? 1.0f / l[h] : 0.0f;
        a *= inverse, b *= inverse;
#pragma unroll
        for (int j = 0; j < VALUE_DIM / 8; ++j)
            merge_pair(Swizzled<VALUE_DIM>::block(origin, 8 * h, 8 * j), first, a,
                       o[j][2 * h] * b, o[j][2 * h + 1] * b);
    }
}

// Where no row is left nothing is copied, zeros neither: they could land after the next column
// block's first Q. What lies there makes only rows that are not stored.
__device__ __forceinline__ void copy_queries(Memory& memory, const Head& head, unsigned tile,
                                             int row, int rows) {
    if (rows > 0)
        copy_rows<TENSOR_Q, 16, HEAD_DIM, 32>(memory, tile, head.Q + (long long)row * HEAD_DIM,
                                              rows, lane());
    commit_copies();
}

// This warp's rows from `row` on, of which `rows` are valid, with the column block at c0; `next` is
// the row of the visit to come, `buffer` where in the buffers its Q is not.
__device__ __forceinline__ void visit(Memory& memory, const Head& head, const Shared& tiles,
                                      Mask mask, float scale, int row, int rows, int c0, int next,
                                      int n_q, bool first, unsigned buffer) {
    Element* out = head.O + (long long)row * VALUE_DIM;
    Rows old, m, l;
    if (STAGES == 1) copy_queries(memory, head, tiles.q, row, rows);
    if (!first)
        copy_rows<TENSOR_O, 16, VALUE_DIM, 32>(memory, tiles.o, out, rows, lane());
    commit_copies();
    if (STAGES == 2) copy_queries(memory, head, tiles.q + Q_BYTES - buffer, next, n_q - next);
    load_statistics(memory, old, head, row, first ? 0 : rows);

    wait_for_copies<STAGES>();  // for Q
    Scores s = {};
    Output o;
    add_dot_t<HEAD_DIM>(s, rows_first<HEAD_DIM>(tiles.q + buffer), tiles.k_block);
    if (c0 < mask.lo(row + 15) || c0 + BC > mask.hi(row))
        hide_masked(s, mask, row + lane() / 4, c0 + lane() % 4 * 2);
    softmax(s, m, l, scale);
    weigh_values(o, s, tiles.v_block);

    wait_for_copies<STAGES - 1>();  // for O
    merge(tiles.o, first, old, o, m, l);
    __syncwarp();
    store_output_rows(memory, out, tiles.o, rows);
    store_statistics(memory, head, row, rows, m, l);
    __syncwarp();  // the buffers of Q and O are free
}

// Stores O = 0, m = −∞, l = 0 for this warp's rows of a row block that no column block touches.
__device__ __forceinline__ void store_nothing_seen(Memory& memory, const Head& head, int row,
                                                   int rows) {
    Element* out = head.O + (long long)row * VALUE_DIM;
    for (int at = lane(); at < min(rows, 16) * (VALUE_DIM / VEC); at += 32)
        memory.store<TENSOR_O>(out + at * VEC, make_uint4(0, 0, 0, 0));
    store_statistics(memory, head, row, rows, {MINUS_INFINITY, MINUS_INFINITY}, {});
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
hbmeter_flash1_mma(const Element* Q, const Element* K, const Element* V, Element* O, float* m,
                   float* l, int heads, int group, int n_q, int n_kv, int lo_shift, int hi_shift,
                   float scale COUNTERS) {
    extern __shared__ __align__(128) unsigned char shared[];
    Shared tiles = carve(__cvta_generic_to_shared(shared));
    long long row = (long long)blockIdx.x * n_q, key = (long long)(blockIdx.x / group) * n_kv;
    Head head = {Q + row * HEAD_DIM,  K + key * HEAD_DIM, V + key * VALUE_DIM,
                 O + row * VALUE_DIM, m + row,            l + row};
    Mask mask = {lo_shift, hi_shift, n_kv};
    int first_of_warp = threadIdx.x / 32 * 16;
    Memory memory;

    for (int r0 = 0; r0 < n_q && r0 + BR - 1 + hi_shift <= 0; r0 += BR)
        store_nothing_seen(memory, head, r0 + first_of_warp, n_q - r0 - first_of_warp);

#pragma unroll 1
    for (int c0 = 0; c0 < n_kv; c0 += BC) {
        int first_row = align_down(clip(c0 - hi_shift + 1, n_q), BR);
        int end_row = clip(c0 + BC - lo_shift, n_q);
        if (first_row >= end_row) continue;
        __syncthreads();  // K and V are read
        copy_rows<TENSOR_K, BC, HEAD_DIM, BLOCK_THREADS>(
            memory, tiles.k, head.K + (long long)c0 * HEAD_DIM, n_kv - c0);
        copy_rows<TENSOR_V, BC, VALUE_DIM, BLOCK_THREADS>(
            memory, tiles.v, head.V + (long long)c0 * VALUE_DIM, n_kv - c0);
        commit_copies();
        unsigned buffer = 0;
        Walk<BR> walk(first_row, end_row, c0 / BC);
        int first = walk.first() + first_of_warp;
        if (STAGES == 2) copy_queries(memory, head, tiles.q, first, n_q - first);
        wait_for_copies<STAGES - 1>();
        __syncthreads();
#pragma unroll 1
        for (int r0 = walk.first(); walk.there(r0); r0 += walk.step()) {
            int at = r0 + first_of_warp;
            int next = walk.there(r0 + walk.step()) ? at + walk.step() : n_q;
            visit(memory, head, tiles, mask, scale, at, n_q - at, c0, next, n_q,
                  c0 == align_down(mask.lo(r0), BC), buffer);
            FINISH(memory);
            if (STAGES == 2) buffer = Q_BYTES - buffer;
        }
    }
    FINISH(memory);
}
