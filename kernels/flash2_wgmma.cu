// FlashAttention-2 forward with Hopper's own instructions (sm_90a): schedule flash2.
//
// Moves the bytes that flash2_mma.cu moves, in the same order. What it changes:
// - One thread copies: TMA tensor maps bring whole swizzled tiles, mbarriers say when. Rows beyond
//   a head's end arrive as zeros, as the head is a dimension of the map.
// - wgmma reads Q, K and V from shared memory; the weights stay in registers as operand A. A
//   consumer warpgroup owns 64 rows; registers move from the producer to the consumers.
// - A block's scores are started together with the weights of the block before times V, and the
//   warpgroups take turns at starting products, so that the softmax of one falls into the products
//   of another.
// - Persistent: as many thread blocks as the GPU holds fetch row blocks, those with the most keys
//   first; the next Q arrives, in a second buffer, while this one is in use.
// Expected: the tensor cores' rate on large products (about 790 TFLOP/s here) less the softmax that
// no product hides; at least cuDNN, which uses the same instructions.
// Measured on an H200 beside PyTorch 2.11's cuDNN backend in the same run: fp16, 16,384 tokens,
// heads × d = 2048, default tiles, TFLOP/s:
//                    d 64 full  causal  d 128 full  causal  d 256 full  causal
//   n 4096                 511     441         625     563         734     568
//   over cuDNN            1.19    1.14        1.09    1.18        1.25    1.18
//   n 1024                 429     312         567     429         584     424
//   over cuDNN            1.09    0.98        1.09    1.15        1.14    1.09
// Over flash2_mma in one run, n 512 to 4096, full and causal: d 64 1.3–1.6, d 128 1.6–1.9, d 256
// 1.7–2.4.
// Where the rest goes (Nsight Compute, n 4096, d 128, full, one launch at 691 TFLOP/s): the tensor
// cores are busy 78% of the cycles, at 1.64 GHz, where power holds the clock (1.98 GHz without);
// exp2 takes 40% of its unit, 34% of the issue slots are used.
// Tried and slower there: one loop over the blocks of all tiles (−10%), weights forced ahead of the
// wait for the products (−5%), part of exp2 on the FMA units (−3%), 128 × 176 tiles (−1%).
#include "hopper.cuh"

constexpr int CONSUMERS = BR / 64;  // warpgroups that compute, of 64 rows each
constexpr int BLOCK_THREADS = 128 * (CONSUMERS + 1);
constexpr int VALUE_WIDTH = chunks(VALUE_DIM) * CHUNK;
constexpr int Q_BYTES = tile_bytes(BR, HEAD_DIM);
constexpr int K_BYTES = tile_bytes(BC, HEAD_DIM);
constexpr int V_BYTES = tile_bytes(BC, VALUE_DIM);
constexpr int QKV_BYTES = Q_STAGES * Q_BYTES + STAGES * (K_BYTES + V_BYTES);

constexpr float LARGEST_GROWTH = 8;  // of a row's largest score above m; both in base 2

typedef float Scores[BC / 8][4];           // accumulators of wgmma, see hopper.cuh
typedef float Output[VALUE_WIDTH / 8][4];
typedef float Rows[2];                     // one number for each row that a thread holds
typedef unsigned Weights[BC / 16][4];      // P as operand A, 16 keys a step

__device__ unsigned next_tile;  // tiles given out beyond the first of each thread block

// ---- Shared memory and who waits for what -------------------------------------------------------

constexpr int K_AT = Q_STAGES * Q_BYTES, V_AT = K_AT + STAGES * K_BYTES;
constexpr int Q_BARRIERS_AT = QKV_BYTES, K_BARRIERS_AT = Q_BARRIERS_AT + 16 * Q_STAGES;
constexpr int V_BARRIERS_AT = K_BARRIERS_AT + 16 * STAGES, END_AT = V_BARRIERS_AT + 16 * STAGES;
typedef Ring<Q_STAGES, Q_BYTES, 0, Q_BARRIERS_AT, 4 * CONSUMERS> QRing;
typedef Ring<STAGES, K_BYTES, K_AT, K_BARRIERS_AT, 4 * CONSUMERS> KRing;
typedef Ring<STAGES, V_BYTES, V_AT, V_BARRIERS_AT, 4 * CONSUMERS> VRing;
static_assert(END_AT + 4 * Q_STAGES <= SHARED_BYTES, "the launcher's memory");

// Which tile of the grid a Q belongs to.
__device__ __forceinline__ int* index_of(unsigned number) {
    return reinterpret_cast<int*>(shared_memory + END_AT) + number % Q_STAGES;
}

// What a tile of the grid works on. In every order the last row blocks come first (with a causal
// mask they see the most keys, and the short ones fill the end), which makes "longest" "head".
struct Problem {
    int heads, group, n_q;
    Mask mask;
    __device__ __forceinline__ int blocks() const { return (n_q + BR - 1) / BR; }
    __device__ __forceinline__ int tiles() const { return heads * blocks(); }
};
struct Work {
    int head, r0, c0, end;  // columns that some row sees: whole blocks from c0 to end
    // Where the walk is that has passed the columns from c0 to c.
    __device__ __forceinline__ int at(int c) const {
        Walk<BC> walk(c0, end, r0 / BR);
        return walk.back ? walk.first() + c0 - c : c;
    }
    Work() = default;
    __device__ __forceinline__ Work(const Problem& p, int index) {
        Place place = place_of<ORDER == ROW ? ROW : HEAD>(index, p.heads, p.blocks());
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
        if (index < tiles && work.c0 < work.end) copy_keys(work, work.at(work.c0));
        QRing::wait_empty(query);
        *(volatile int*)index_of(query) = index;
        if (index >= tiles) break;
        copy_tile<TENSOR_Q, BR, HEAD_DIM>(memory, QRing::tile(query), Q, QRing::full(query),
                                          work.head, work.r0, p.n_q);
#pragma unroll 1
        for (int c = work.c0; c < work.end; c += BC) {
            if (c + BC < work.end) copy_keys(work, work.at(c + BC));
            copy_values(work, work.at(c));
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

__device__ __forceinline__ void scale_rows(Output& o, const Rows& factor) {
#pragma unroll
    for (int j = 0; j < VALUE_WIDTH / 8; ++j)
#pragma unroll
        for (int x = 0; x < 4; ++x) o[j][x] *= factor[x / 2];
}

// ---- Results ------------------------------------------------------------------------------------

// O / l and LSE of this warp's rows, from `first` on. The 4 threads of a row hold 2 columns in 8
// each; they exchange them so that each writes 16 bytes and all write whole sectors.
__device__ __forceinline__ void store_results(Memory& memory, Element* O, float* LSE,
                                              const Work& work, int first, int n_q,
                                              const Output& o, const Rows& m, const Rows& l) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int row = first + 8 * h + lane() / 4;
        long long at = (long long)work.head * n_q + row;
        float sum = quad_sum(l[h]), inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int j = 0; j < VALUE_WIDTH / 8; j += 4) {
            unsigned x[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                x[i] = pack(o[j + i][2 * h] * inverse, o[j + i][2 * h + 1] * inverse);
            transpose_in_quad(x);
            int column = 8 * (j + lane() % 4);
            if (row < n_q && column < VALUE_DIM)
                memory.store<TENSOR_O>(O + at * VALUE_DIM + column,
                                       make_uint4(x[0], x[1], x[2], x[3]));
        }
        float lse = m[h] * LN_2 + logf(sum);  // −∞ where no key was seen
        if (lane() % 4 == 0 && row < n_q)
            memory.store<TENSOR_LSE>(LSE + at, __float_as_uint(lse));
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

    // Waits for the next tile whose rows see any key. False when there is none.
    __device__ __forceinline__ bool take(Work& work) {
        for (;; ++query) {
            QRing::wait_full(query);
            int index = uniform(*(volatile int*)index_of(query));
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

    // The scores of the column block that comes after those from c0 to `c` are there.
    __device__ __forceinline__ void finish_block(Scores& s, const Work& work, int c) {
        settle(s);
        KRing::release(block++);
        if (c + BC >= work.end) QRing::release(query++);
        int first = first_row(work), last = first + 15;
        int at = KV_TURN ? work.at(c) : c;  // chosen here: forward, no instruction differs then
        if (at < p.mask.lo(last) || at + BC > p.mask.hi(first))
            hide_masked(s, p.mask, first + lane() / 4, at + lane() % 4 * 2);
    }
};

// All column blocks of a tile. A block's scores and the weights of the block before times V are
// started together; then the scores become weights. The warpgroups take turns at starting products,
// so that the softmax of one falls into the products of another.
__device__ __forceinline__ void attend(Consumer& me, const Work& work) {
    Scores s;
    Weights p;
    Output o = {};
    Rows m = {LOWEST, LOWEST}, l = {}, factor;
    KRing::wait_full(me.block);
    me.start_block(s);
    wait_for_products<0>();
    me.finish_block(s, work, work.c0);
    follow_max(s, m, l, factor, me.scale);
    weigh(s, m, l, me.scale);
    pack_weights(p, s);
#pragma unroll 1
    for (int c = work.c0 + BC; c < work.end; c += BC) {
        KRing::wait_full(me.block);
        if (CONSUMERS > 1) wait_for_turn(1 + me.group);
        settle(s), settle(o), settle(p);
        me.start_block(s);
        VRing::wait_full(me.block - 1);
        start_products();
        start_values(o, p, VRing::tile(me.block - 1));
        if (CONSUMERS > 1) give_turn(1 + (me.group + 1) % CONSUMERS);
        wait_for_products<1>();
        me.finish_block(s, work, c);
        bool grew = follow_max(s, m, l, factor, me.scale);
        weigh(s, m, l, me.scale);
        wait_for_products<0>();
        settle(s), settle(o), settle(p);
        VRing::release(me.block - 2);
        pack_weights(p, s);
        if (grew) scale_rows(o, factor);
    }
    VRing::wait_full(me.block - 1);
    settle(o), settle(p);
    start_products();
    start_values(o, p, VRing::tile(me.block - 1));
    wait_for_products<0>();
    settle(o);
    VRing::release(me.block - 1);
    store_results(me.memory, me.O, me.LSE, work, me.first_row(work), me.p.n_q, o, m, l);
}

// ---- The kernel ---------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1)
hbmeter_flash2_wgmma(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                     const __grid_constant__ TensorMap V, Element* O, float* LSE, int heads,
                     int group, int n_q, int n_kv, int lo_shift, int hi_shift,
                     float scale COUNTERS) {
    Problem problem = {heads, group, n_q, {lo_shift, hi_shift, n_kv}};
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
        int warpgroup = uniform(threadIdx.x / 128) - 1;
        if (CONSUMERS > 1 && warpgroup == CONSUMERS - 1) give_turn(1);
        Consumer me = {memory, problem, O, LSE, scale / LN_2, warpgroup};
#pragma unroll 1
        for (Work work; me.take(work);) attend(me, work);
    }
    FINISH(memory);
}
