// What the kernels share: who does what, the two matrix products of attention on registers, the
// online softmax, and O and the row statistics in global memory.
//
// A thread block is 256 threads seen as 16 × 16. Thread (ty, tx) owns rows ty + 16·i of a tile;
// of the scores it owns columns tx + 16·j, of the output runs of neighbouring columns. So the 16
// threads of one row are half a warp, and rows need no block-wide barrier among themselves.
#pragma once
#include "memory.cuh"

__device__ __forceinline__ int ty() { return threadIdx.x / 16; }
__device__ __forceinline__ int tx() { return threadIdx.x % 16; }
__device__ __forceinline__ int clip(int x, int high) { return min(max(x, 0), high); }
__device__ __forceinline__ int align_down(int x, int step) { return x / step * step; }

// Which head of the whole batch, and which block of it, thread block `index` of a grid of
// heads × blocks works on. ORDER (given with -D) is one of the orders of grid_order.py: either the
// blocks or the heads follow each other, these from the first or (longest first) from the last
// block on. Chosen when a kernel runs, it would cost registers.
enum Order { ROW, HEAD, LONGEST };
struct Place { int head, block; };
template <Order order = ORDER>
__device__ __forceinline__ Place place_of(int index, int heads, int blocks) {
    if (order == ROW) return {index / blocks, index % blocks};
    return {index % heads, (order == HEAD ? index : int(gridDim.x) - 1 - index) / heads};
}

// The walk of a block past the blocks of STEP from `begin`, a multiple of it, to `end`. KV_TURN
// (given with -D, see Tiles.kv_turn) is 0 where all walk forward, -1 where all walk backward, N
// where N blocks walk forward and the next N, by their number, backward.
template <int STEP> struct Walk {
    int begin, end;
    bool back;  // known to the compiler unless KV_TURN is a number of blocks
    __device__ __forceinline__ Walk(int begin, int end, int number) : begin(begin), end(end) {
        back = KV_TURN < 0 || (KV_TURN > 0 && number / (KV_TURN > 0 ? KV_TURN : 1) % 2 == 1);
    }
    __device__ __forceinline__ int first() const {
        return back ? align_down(end + STEP - 1, STEP) - STEP : begin;
    }
    __device__ __forceinline__ int step() const { return back ? -STEP : STEP; }
    __device__ __forceinline__ bool there(int at) const { return back ? at >= begin : at < end; }
};

constexpr float LOG2_E = 1.44269504f;
__device__ __forceinline__ float exp2_fast(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

// One number of each thread reduced over the block's `warps` warps; `parts` is one float a warp.
template <class Combine>
__device__ __forceinline__ float over_block(float x, float* parts, int warps, Combine combine) {
#pragma unroll
    for (int far = 16; far > 0; far /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, far));
    __syncthreads();  // parts may still be read from the last time
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
    for (int warp = 1; warp < warps; ++warp) x = combine(x, parts[warp]);
    return x;
}
struct Larger {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Plus {
    __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// ---- Products on registers ------------------------------------------------------------------

// s[i][j] += sum over k < DEPTH of q[ty + 16·i][k] · k[tx + 16·j][k]
template <int DEPTH, int RM, int CN>
__device__ __forceinline__ void add_scores(float (&s)[RM][CN], const Element* q, const Element* k,
                                           int stride) {
#pragma unroll 1
    for (int k0 = 0; k0 < DEPTH; k0 += VEC) {
        float a[RM][VEC];
#pragma unroll
        for (int i = 0; i < RM; ++i) read_shared(a[i], q + (ty() + 16 * i) * stride + k0);
#pragma unroll
        for (int j = 0; j < CN; ++j) {
            float b[VEC];
            read_shared(b, k + (tx() + 16 * j) * stride + k0);
#pragma unroll
            for (int x = 0; x < VEC; ++x)
#pragma unroll
                for (int i = 0; i < RM; ++i) s[i][j] += a[i][x] * b[x];
        }
    }
}

// How the 16 threads of a row share WIDTH columns: runs of RUN neighbours (one access each), the
// same run of all threads side by side, PER_THREAD columns in all.
template <int WIDTH> struct Columns {
    static constexpr int PER_THREAD = WIDTH / 16;
    static constexpr int POWER_OF_TWO = PER_THREAD & -PER_THREAD;
    static constexpr int RUN = POWER_OF_TWO < VEC ? POWER_OF_TWO : VEC;
    static constexpr int RUNS = PER_THREAD / RUN;
    static __device__ __forceinline__ int first(int run) { return (run * 16 + tx()) * RUN; }
};

// o[i][·] += sum over c < DEPTH of p[ty + 16·i][c] · v[c][this thread's columns of WIDTH]
template <int DEPTH, int WIDTH, int RM, class P>
__device__ __forceinline__ void add_weighted_rows(float (&o)[RM][WIDTH / 16], const P* p,
                                                  int p_stride, const Element* v, int v_stride) {
    typedef Columns<WIDTH> C;
    constexpr int STEP = 4;
#pragma unroll 1
    for (int c0 = 0; c0 < DEPTH; c0 += STEP) {
        float weights[RM][STEP];
#pragma unroll
        for (int i = 0; i < RM; ++i) {
            P four[STEP];
            typedef typename WordOf<STEP * sizeof(P)>::type Word;
            Word word = *reinterpret_cast<const Word*>(p + (ty() + 16 * i) * p_stride + c0);
            memcpy(four, &word, sizeof(Word));
#pragma unroll
            for (int x = 0; x < STEP; ++x) weights[i][x] = to_float(four[x]);
        }
#pragma unroll
        for (int x = 0; x < STEP; ++x)
#pragma unroll
            for (int run = 0; run < C::RUNS; ++run) {
                float values[C::RUN];
                read_shared(values, v + (c0 + x) * v_stride + C::first(run));
#pragma unroll
                for (int i = 0; i < RM; ++i)
#pragma unroll
                    for (int y = 0; y < C::RUN; ++y)
                        o[i][run * C::RUN + y] += weights[i][x] * values[y];
            }
    }
}

// ---- Softmax --------------------------------------------------------------------------------

// Row i sees columns clip(i + lo_shift, 0, n_kv) <= j < clip(i + hi_shift, 0, n_kv).
struct Mask {
    int lo_shift, hi_shift, n_kv;
    __device__ __forceinline__ int lo(int row) const { return clip(row + lo_shift, n_kv); }
    __device__ __forceinline__ int hi(int row) const { return clip(row + hi_shift, n_kv); }
};

// Scales the scores of the tile at (r0, c0) and sets masked ones to −∞.
template <int RM, int CN>
__device__ __forceinline__ void scale_and_mask(float (&s)[RM][CN], float scale, Mask mask, int r0,
                                               int c0) {
#pragma unroll
    for (int i = 0; i < RM; ++i) {
        int row = r0 + ty() + 16 * i, lo = mask.lo(row), hi = mask.hi(row);
#pragma unroll
        for (int j = 0; j < CN; ++j) {
            int column = c0 + tx() + 16 * j;
            s[i][j] = lo <= column && column < hi ? s[i][j] * scale : MINUS_INFINITY;
        }
    }
}

// The number to subtract before exp: 0 where every score so far is −∞, which keeps NaN out.
__device__ __forceinline__ float finite_max(float m) { return m == MINUS_INFINITY ? 0.0f : m; }

// Max and sum over the 16 threads of a row.
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int far = 8; far > 0; far /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, far));
    return x;
}
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int far = 8; far > 0; far /= 2) x += __shfl_xor_sync(0xffffffffu, x, far);
    return x;
}

// One online step. Scores become exp(score − new max); running max m, running sum l and the
// unscaled output o move on to the new max.
template <int RM, int CN, int DM>
__device__ __forceinline__ void online_softmax(float (&s)[RM][CN], float (&m)[RM], float (&l)[RM],
                                               float (&o)[RM][DM]) {
#pragma unroll
    for (int i = 0; i < RM; ++i) {
        float top = s[i][0], sum = 0.0f;
#pragma unroll
        for (int j = 1; j < CN; ++j) top = fmaxf(top, s[i][j]);
        top = fmaxf(m[i], row_max(top));
#pragma unroll
        for (int j = 0; j < CN; ++j) sum += s[i][j] = expf(s[i][j] - finite_max(top));
        float rescale = expf(m[i] - finite_max(top));
        l[i] = l[i] * rescale + row_sum(sum);
        m[i] = top;
#pragma unroll
        for (int x = 0; x < DM; ++x) o[i][x] *= rescale;
    }
}

// Puts a thread's weights where all threads of its row can read them.
template <int RM, int CN>
__device__ __forceinline__ void share_weights(float* p, const float (&s)[RM][CN]) {
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
        for (int j = 0; j < CN; ++j) p[(ty() + 16 * i) * 16 * CN + tx() + 16 * j] = s[i][j];
    __syncwarp();
}

// ---- Output rows and row statistics -----------------------------------------------------------

// O becomes O / l; rows that saw nothing stay 0.
template <int RM, int DM>
__device__ __forceinline__ void normalise(float (&o)[RM][DM], const float (&l)[RM]) {
#pragma unroll
    for (int i = 0; i < RM; ++i) {
        float inverse = l[i] > 0.0f ? 1.0f / l[i] : 0.0f;
#pragma unroll
        for (int x = 0; x < DM; ++x) o[i][x] *= inverse;
    }
}

// This thread's part of `rows` valid rows of O -> registers; others keep what they hold.
template <int TENSOR, int WIDTH, int RM>
__device__ __forceinline__ void load_output(Memory& memory, const Element* from, int row_stride,
                                            int rows, float (&o)[RM][WIDTH / 16]) {
    typedef Columns<WIDTH> C;
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
        for (int run = 0; run < C::RUNS; ++run) {
            int row = ty() + 16 * i;
            if (row >= rows) continue;
            float values[C::RUN];
            memory.load_floats<TENSOR>(values, from + (long long)row * row_stride + C::first(run));
#pragma unroll
            for (int y = 0; y < C::RUN; ++y) o[i][run * C::RUN + y] = values[y];
        }
}

// Registers -> `rows` valid rows and `columns` valid columns of O. The 16 threads of a row write
// whole sectors.
template <int TENSOR, int WIDTH, int RM>
__device__ __forceinline__ void store_output(Memory& memory, Element* to, int row_stride, int rows,
                                             int columns, const float (&o)[RM][WIDTH / 16]) {
    typedef Columns<WIDTH> C;
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
        for (int run = 0; run < C::RUNS; ++run) {
            int row = ty() + 16 * i, column = C::first(run);
            float values[C::RUN];
#pragma unroll
            for (int y = 0; y < C::RUN; ++y) values[y] = o[i][run * C::RUN + y];
            if (row < rows && column < columns)
                memory.store_floats<TENSOR>(to + (long long)row * row_stride + column, values);
        }
}

// One number a row, held by the 16 threads of the row -> `stage` in shared memory.
template <int RM> __device__ __forceinline__ void stage_rows(float* stage, const float (&x)[RM]) {
#pragma unroll
    for (int i = 0; i < RM; ++i)
        if (tx() == 0) stage[ty() + 16 * i] = x[i];
}

// `stage` in shared memory <-> `rows` neighbouring floats of global memory, one a thread. Rows
// that are not loaded become `otherwise`.
template <int TENSOR, int ROWS>
__device__ __forceinline__ void load_statistic(Memory& memory, float* stage, const float* from,
                                               int rows, float otherwise) {
    if (threadIdx.x >= ROWS) return;
    float x = otherwise;
    if (threadIdx.x < rows)
        x = __uint_as_float(memory.load<TENSOR, unsigned int>(from + threadIdx.x));
    stage[threadIdx.x] = x;
}
template <int TENSOR>
__device__ __forceinline__ void store_statistic(Memory& memory, float* to, const float* stage,
                                                int rows) {
    if (threadIdx.x < rows)
        memory.store<TENSOR>(to + threadIdx.x, __float_as_uint(stage[threadIdx.x]));
}
