// FlashAttention-2 forward with Hopper's own instructions (sm_90a): schedule flash2.
//
// Moves the bytes that flash2_mma.cu moves, in the same order. What it changes:
// - One thread copies: TMA tensor maps bring whole swizzled tiles, mbarriers say when.
// - wgmma reads Q, K and V from shared memory; the weights stay in registers as operand A. A
//   consumer warpgroup owns 64 rows; registers move from the producer to the consumers.
// - The next scores and these weights times V are computed while the next softmax is prepared, and
//   the warpgroups take turns at starting products, so that softmax falls into products.
// - Persistent: as many thread blocks as the GPU holds share out the row blocks, long ones first.
#include "common.cuh"
#include "hopper.cuh"

constexpr int CONSUMERS = BR / 64;  // warpgroups that compute, of 64 rows each
constexpr int BLOCK_THREADS = 128 * (CONSUMERS + 1);
constexpr int VALUE_WIDTH = chunks(VALUE_DIM) * CHUNK;
constexpr int Q_BYTES = tile_bytes(BR, HEAD_DIM);
constexpr int K_BYTES = tile_bytes(BC, HEAD_DIM);
constexpr int V_BYTES = tile_bytes(BC, VALUE_DIM);
constexpr int QKV_BYTES = Q_STAGES * Q_BYTES + STAGES * (K_BYTES + V_BYTES);
constexpr int BARRIERS = 2 * (Q_STAGES + 2 * STAGES);
static_assert(QKV_BYTES + 8 * BARRIERS + 4 * Q_STAGES <= SHARED_BYTES, "the launcher's memory");

constexpr float LN_2 = 0.693147181f;
constexpr float LARGEST_GROWTH = 8;  // of a row's largest score above m; both in base 2
constexpr float LOWEST = -3.4e38f;   // m before any score: finite, so that −∞ − m stays −∞

typedef float Scores[BC / 8][4];           // accumulators of wgmma, see hopper.cuh
typedef float Output[VALUE_WIDTH / 8][4];
typedef float Rows[2];                     // one number for each row that a thread holds
typedef unsigned Weights[BC / 16][4];      // P as operand A, 16 keys a step

__device__ unsigned next_tile;  // tiles given out beyond the first of each thread block

__device__ __forceinline__ int lane() { return threadIdx.x % 32; }

__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned x;
    asm("cvt.rn." PTX_TYPE "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}

__device__ __forceinline__ float exp2_fast(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

// ---- Shared memory and who waits for what -------------------------------------------------------

extern __shared__ __align__(1024) unsigned char memory_of_block[];

// LENGTH buffers for tiles of one tensor, each with a barrier "full" and one "empty". Both sides
// name a tile by its number from the start of the thread block.
template <int LENGTH, int TILE_BYTES, int TILES_AT, int BARRIERS_AT> struct Ring {
    static __device__ __forceinline__ unsigned at(int place) {
        return shared_address(memory_of_block) + place;
    }
    static __device__ __forceinline__ unsigned tile(unsigned number) {
        return at(TILES_AT) + number % LENGTH * TILE_BYTES;
    }
    static __device__ __forceinline__ unsigned full(unsigned number) {
        return at(BARRIERS_AT) + number % LENGTH * 8;
    }
    static __device__ __forceinline__ unsigned empty(unsigned number) {
        return full(number) + 8 * LENGTH;
    }
    static __device__ __forceinline__ void wait_full(unsigned number) {
        wait(full(number), number / LENGTH % 2);
    }
    static __device__ __forceinline__ void wait_empty(unsigned number) {
        wait(empty(number), number / LENGTH % 2 ^ 1);
    }
    // This warp has read the tile.
    static __device__ __forceinline__ void release(unsigned number) {
        __syncwarp();
        if (lane() == 0) arrive(empty(number));
    }
    static __device__ __forceinline__ void init() {
        for (int i = 0; i < LENGTH; ++i) {
            init_barrier(full(i), 1);
            init_barrier(empty(i), 4 * CONSUMERS);
        }
    }
};
typedef Ring<Q_STAGES, Q_BYTES, 0, QKV_BYTES> QRing;
typedef Ring<STAGES, K_BYTES, Q_STAGES * Q_BYTES, QKV_BYTES + 16 * Q_STAGES> KRing;
typedef Ring<STAGES, V_BYTES, Q_STAGES * Q_BYTES + STAGES * K_BYTES,
             QKV_BYTES + 16 * Q_STAGES + 16 * STAGES> VRing;

// Which tile of the grid a Q belongs to.
__device__ __forceinline__ int* index_of(unsigned number) {
    return reinterpret_cast<int*>(memory_of_block + QKV_BYTES + 8 * BARRIERS) + number % Q_STAGES;
}

// What a tile of the grid works on. The last row blocks come first: with a causal mask they see the
// most keys, and the short ones fill the end.
struct Problem {
    int heads, group, n_q, head_fastest;
    Mask mask;
    __device__ __forceinline__ int blocks() const { return (n_q + BR - 1) / BR; }
    __device__ __forceinline__ int tiles() const { return heads * blocks(); }
};
struct Work {
    int head, r0, c0, end;  // columns that some row sees: whole blocks from c0 to end
    Work() = default;
    __device__ __forceinline__ Work(const Problem& p, int index) {
        Place place = place_of(index, p.heads, p.blocks(), p.head_fastest);
        head = place.head, r0 = (p.blocks() - 1 - place.block) * BR;
        c0 = align_down(p.mask.lo(r0), BC), end = p.mask.hi(r0 + BR - 1);
    }
};

// ---- The producer: one thread that copies -------------------------------------------------------

__device__ __forceinline__ void produce(Memory& memory, const Problem& p, const TensorMap& Q,
                                        const TensorMap& K, const TensorMap& V) {
    unsigned query = 0, keys = 0, values = 0;  // numbers of the next tiles
    int tiles = p.tiles(), index = blockIdx.x;
    auto copy_keys = [&](const Work& work, int c) {
        KRing::wait_empty(keys);
        copy_tile<TENSOR_K, BC, HEAD_DIM>(memory, KRing::tile(keys), K, KRing::full(keys),
                                          work.head / p.group, c, p.mask.n_kv);
        ++keys;
    };
    auto copy_values = [&](const Work& work, int c) {
        VRing::wait_empty(values);
        copy_tile<TENSOR_V, BC, VALUE_DIM>(memory, VRing::tile(values), V, VRing::full(values),
                                           work.head / p.group, c, p.mask.n_kv);
        ++values;
    };
    for (;; ++query) {
        Work work(p, index);
        if (index < tiles && work.c0 < work.end) copy_keys(work, work.c0);
        QRing::wait_empty(query);
        *(volatile int*)index_of(query) = index;
        if (index >= tiles) break;
        copy_tile<TENSOR_Q, BR, HEAD_DIM>(memory, QRing::tile(query), Q, QRing::full(query),
                                          work.head, work.r0, p.n_q);
#pragma unroll 1
        for (int c = work.c0; c < work.end; c += BC) {
            if (c + BC < work.end) copy_keys(work, c + BC);
            copy_values(work, c);
        }
        unsigned given = atomicAdd(&next_tile, 1);
        if (given == tiles - 1) next_tile = 0;  // the last of this launch
        index = gridDim.x + given;
    }
    arrive(QRing::full(query));
}

// ---- Consumers: one column block ----------------------------------------------------------------

// S = Q Kᵀ, as one group
__device__ __forceinline__ void start_scores(Scores& s, unsigned q, unsigned k) {
    unsigned long long a = descriptor(q, 16), b = descriptor(k, 16);
#pragma unroll
    for (int column = 0; column < chunks(HEAD_DIM) * CHUNK; column += 16) {
        int chunk = column / CHUNK, inner = column % CHUNK * 2;
        auto at = moved(a, chunk * BR * ROW_BYTES + inner);
        auto bt = moved(b, chunk * BC * ROW_BYTES + inner);
        if (column == 0) Wgmma<BC>::shared<false>(s, at, bt);
        else Wgmma<BC>::shared<true>(s, at, bt);
    }
    commit_products();
}

// O += P V, as one group
__device__ __forceinline__ void start_values(Output& o, const Weights& p, unsigned v) {
    unsigned long long b = descriptor(v, BC * ROW_BYTES);
#pragma unroll
    for (int step = 0; step < BC / 16; ++step)
        Wgmma<VALUE_WIDTH>::registers(o, p[step], moved(b, step * 16 * ROW_BYTES));
    commit_products();
}

// Sets what the mask hides to −∞; `row` and `column` are those of this thread's first score.
__device__ __forceinline__ void hide_masked(Scores& s, const Mask& mask, int row, int column) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int lo = mask.lo(row + 8 * h) - column;
        unsigned seen = max(mask.hi(row + 8 * h) - column - lo, 0);
#pragma unroll
        for (int j = 0; j < BC / 8; ++j)
#pragma unroll
            for (int x = 0; x < 2; ++x)
                if (unsigned(8 * j + x - lo) >= seen) s[j][2 * h + x] = MINUS_INFINITY;
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

// Moves m on to the largest score so far, and l with it, when some score of the warp is so far
// above its row's m that weights would grow large; any m not far below the largest score gives the
// same O and LSE. Then O must be multiplied by `factor` too.
__device__ __forceinline__ bool follow_max(const Scores& s, Rows& m, Rows& l, Rows& factor,
                                           float scale) {
    Rows top;
    bool grew = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float most = fmaxf(s[0][2 * h], s[0][2 * h + 1]);
#pragma unroll
        for (int j = 1; j < BC / 8; ++j) most = fmaxf(most, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
        top[h] = most * scale;
        grew |= top[h] - m[h] > LARGEST_GROWTH;
    }
    grew = __any_sync(0xffffffffu, grew);
    if (grew)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float next = fmaxf(m[h], quad_max(top[h]));
            factor[h] = exp2_fast(m[h] - next);
            m[h] = next;
            l[h] *= factor[h];
        }
    return grew;
}

// Scores -> weights, in place; their sum is added to l.
__device__ __forceinline__ void weigh(Scores& s, const Rows& m, Rows& l, float scale) {
#pragma unroll
    for (int j = 0; j < BC / 8; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
            s[j][x] = exp2_fast(s[j][x] * scale - m[x / 2]);
            l[x / 2] += s[j][x];
        }
}

__device__ __forceinline__ void pack_weights(Weights& p, const Scores& s) {
#pragma unroll
    for (int j = 0; j < BC / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) p[j / 2][j % 2 * 2 + h] = pack(s[j][2 * h], s[j][2 * h + 1]);
}

__device__ __forceinline__ void settle_weights(Weights& p) {
#pragma unroll
    for (int j = 0; j < BC / 16; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) asm volatile("" : "+r"(p[j][x]) :: "memory");
}

__device__ __forceinline__ void scale_rows(Output& o, const Rows& factor) {
#pragma unroll
    for (int j = 0; j < VALUE_WIDTH / 8; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) o[j][x] *= factor[x / 2];
}

// ---- Results ------------------------------------------------------------------------------------

// Thread t of 4 gives x[i] to thread i and gets its x[t]: a 4 × 4 transposition.
__device__ __forceinline__ void transpose_in_quad(unsigned (&x)[4]) {
#pragma unroll
    for (int far = 1; far < 4; far *= 2) {
        bool high = lane() & far;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & far) continue;
            unsigned other = __shfl_xor_sync(0xffffffffu, high ? x[i] : x[i + far], far);
            (high ? x[i] : x[i + far]) = other;
        }
    }
}

// LSE of this warp's rows, from `first` on; `inverse` is what O is to be multiplied by.
__device__ __forceinline__ void store_lse(Memory& memory, float* LSE, const Work& work, int first,
                                          int n_q, const Rows& m, const Rows& l, Rows& inverse) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = quad_sum(l[h]), lse = m[h] * LN_2 + logf(sum);  // −∞ where no key was seen
        inverse[h] = sum > 0.0f ? 1.0f / sum : 0.0f;
        int row = first + 8 * h + lane() / 4;
        if (lane() % 4 == 0 && row < n_q)
            memory.store<TENSOR_LSE>(LSE + (long long)work.head * n_q + row,
                                     __float_as_uint(lse));
    }
}

// O of this warp's rows. The 4 threads of a row hold 2 columns in 8 each; they exchange them so
// that each writes 16 bytes and all write whole sectors.
__device__ __forceinline__ void store_output(Memory& memory, Element* O, const Work& work,
                                             int first, int n_q, const Output& o) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int row = first + 8 * h + lane() / 4;
        Element* to = O + ((long long)work.head * n_q + row) * VALUE_DIM + lane() % 4 * 8;
#pragma unroll
        for (int j = 0; j < VALUE_WIDTH / 8; j += 4) {
            unsigned x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = pack(o[j + i][2 * h], o[j + i][2 * h + 1]);
            transpose_in_quad(x);
            if (row < n_q && 8 * (j + lane() % 4) < VALUE_DIM)
                memory.store<TENSOR_O>(to + 8 * j, make_uint4(x[0], x[1], x[2], x[3]));
        }
    }
}

// Rows of this warp that see no key: zeros and −∞.
__device__ __forceinline__ void store_nothing(Memory& memory, Element* O, float* LSE,
                                              const Work& work, int first, int n_q) {
    constexpr int VECTORS = VALUE_DIM / VEC;
    long long at = (long long)work.head * n_q + first;
    int rows = min(n_q - first, 16);
#pragma unroll 1
    for (int i = lane(); i < rows * VECTORS; i += 32)
        memory.store<TENSOR_O>(O + at * VALUE_DIM + i * VEC, make_uint4(0, 0, 0, 0));
    if (lane() < rows) memory.store<TENSOR_LSE>(LSE + at + lane(), __float_as_uint(MINUS_INFINITY));
}

// ---- A consumer warpgroup -----------------------------------------------------------------------

struct Consumer {
    Memory& memory;
    const Problem& p;
    Element* O;
    float* LSE;
    float scale;      // of scores in base 2
    int group;        // of this warpgroup, from 0
    unsigned query;   // number of the Q in use
    unsigned block;   // number of the K whose scores come next; that V comes one later

    // This warp's first row of a tile; a thread's first row is lane / 4 further.
    __device__ __forceinline__ int first_row(const Work& work) const {
        return work.r0 + (int(threadIdx.x) / 32 - 4) * 16;
    }

    // Waits for the next tile that sees any key. False when there is none.
    __device__ __forceinline__ bool take(Work& work) {
        for (;; ++query) {
            QRing::wait_full(query);
            // The compiler shall know that all threads read the same.
            int index = __shfl_sync(0xffffffffu, *(volatile int*)index_of(query), 0);
            if (index >= p.tiles()) return false;
            work = Work(p, index);
            if (work.c0 < work.end) return true;
            QRing::release(query);
            store_nothing(memory, O, LSE, work, first_row(work), p.n_q);
        }
    }

    __device__ __forceinline__ void start_block(Scores& s) {
        start_products();
        start_scores(s, QRing::tile(query) + group * 64 * ROW_BYTES, KRing::tile(block));
    }

    // The scores of the column block at `c` are there.
    __device__ __forceinline__ void finish_block(Scores& s, const Work& work, int c) {
        settle(s);
        KRing::release(block++);
        if (c + BC >= work.end) QRing::release(query++);
        int first = first_row(work), last = first + 15;
        if (c < p.mask.lo(last) || c + BC > p.mask.hi(first))
            hide_masked(s, p.mask, first + lane() / 4, c + lane() % 4 * 2);
    }

    // The tile's last weights are there: LSE goes out, m and l start again, and O is to be
    // multiplied by `factor`.
    __device__ __forceinline__ void end_rows(const Work& work, Rows& m, Rows& l, Rows& factor) {
        store_lse(memory, LSE, work, first_row(work), p.n_q, m, l, factor);
        m[0] = m[1] = LOWEST, l[0] = l[1] = 0;
    }

    __device__ __forceinline__ void end_output(const Work& work, Output& o) {
        store_output(memory, O, work, first_row(work), p.n_q, o);
        memset(o, 0, sizeof(Output));
    }
};

// The column blocks of all tiles, one after the other. While the weights of one block are computed,
// those of the block before are multiplied by V; the scores of the block after, be it the next
// tile's first, are started as soon as the weights are there. The warpgroups take turns at starting
// products, so that the softmax of one falls into the products of another.
__device__ __forceinline__ void consume(Consumer& me) {
    Work work;
    if (!me.take(work)) return;
    Scores s;
    Weights p;
    Output o = {};
    Rows m = {LOWEST, LOWEST}, l = {}, factor, growth;
    int c = work.c0;
    KRing::wait_full(me.block);
    me.start_block(s);
    wait_for_products<0>();
    me.finish_block(s, work, c);
    follow_max(s, m, l, growth, me.scale);
    weigh(s, m, l, me.scale);
    pack_weights(p, s);
#pragma unroll 1
    for (;;) {
        Work next = work;
        bool ends = (c += BC) >= work.end;
        if (ends) {
            me.end_rows(work, m, l, factor);
            if (!me.take(next)) break;
            c = next.c0;
        }
        KRing::wait_full(me.block);
        if (CONSUMERS > 1) wait_for_turn(1 + me.group);
        settle(s), settle(o), settle_weights(p);
        me.start_block(s);
        VRing::wait_full(me.block - 1);
        start_products();
        start_values(o, p, VRing::tile(me.block - 1));
        if (CONSUMERS > 1) give_turn(1 + (me.group + 1) % CONSUMERS);
        wait_for_products<1>();
        me.finish_block(s, next, c);
        bool grew = follow_max(s, m, l, growth, me.scale);
        if (!ends) factor[0] = growth[0], factor[1] = growth[1];
        weigh(s, m, l, me.scale);
        wait_for_products<0>();
        settle(s), settle(o), settle_weights(p);
        VRing::release(me.block - 2);
        pack_weights(p, s);
        if (ends || grew) scale_rows(o, factor);
        if (ends) me.end_output(work, o);
        work = next;
    }
    VRing::wait_full(me.block - 1);
    settle(o), settle_weights(p);
    start_products();
    start_values(o, p, VRing::tile(me.block - 1));
    wait_for_products<0>();
    settle(o);
    scale_rows(o, factor);
    me.end_output(work, o);
}

// ---- The kernel ---------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
hbmeter_flash2_wgmma(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                     const __grid_constant__ TensorMap V, Element* O, float* LSE, int heads,
                     int group, int n_q, int n_kv, int lo_shift, int hi_shift, int head_fastest,
                     float scale COUNTERS) {
    Problem problem = {heads, group, n_q, head_fastest, {lo_shift, hi_shift, n_kv}};
    Memory memory;
    if (threadIdx.x == 0) {
        QRing::init(), KRing::init(), VRing::init();
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        if (CONSUMERS > 1) give_back_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) produce(memory, problem, Q, K, V);
        __syncwarp();
    } else {
        if (CONSUMERS > 1) take_registers<CONSUMER_REGISTERS>();
        int warpgroup = threadIdx.x / 128 - 1;
        if (CONSUMERS > 1 && warpgroup == CONSUMERS - 1) give_turn(1);
        Consumer me = {memory, problem, O, LSE, scale / LN_2, warpgroup};
        consume(me);
    }
    FINISH(memory);
}
