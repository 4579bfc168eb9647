// Probes of how an L2 replaces lines: one SM alone (mix), SMs that walk a buffer (walk), lines that survive
// others (survive). Loads and stores bypass L1.
__device__ __forceinline__ unsigned smid() { unsigned t; asm volatile("mov.u32 %0, %%smid;" : "=r"(t)); return t; }
__device__ __forceinline__ unsigned now() { unsigned t; asm volatile("mov.u32 %0, %%clock;" : "=r"(t) :: "memory"); return t; }
__device__ __forceinline__ unsigned hash(unsigned x) { x ^= x >> 16; x *= 0x7feb352du; x ^= x >> 15; x *= 0x846ca68bu; x ^= x >> 16; return x; }
// One SM: chunks of 4 KiB, four at a time. mode 0: `live` chunks round and round, after every 8 of them `dead` chunks
// that nobody touches again (read, or written when `write`); 1: random, a share `dead`/16 of `hot` chunks, else of `live` ones behind; 2: to and fro.
extern "C" __global__ void hbmeter_probe_alone(uint4* base, unsigned live, unsigned hot, unsigned dead_first, int mode, unsigned dead, int write, unsigned steps, int sm, uint4* sink) {
    if (smid() != sm) return;
    uint4 sum = make_uint4(0, 0, 0, 0);
    unsigned lane = threadIdx.x & 255;
    for (unsigned s = threadIdx.x >> 8; s < steps; s += 4) {
        unsigned chunk; int store = 0;
        if (mode == 0) {
            unsigned q = s / (8 + dead), r = s % (8 + dead);
            if (r < 8) chunk = (8 * q + r) % live; else { chunk = dead_first + dead * q + r - 8; store = write; }
        } else if (mode == 1) {
            unsigned h = hash(s * 2 + 1);
            chunk = (h & 15) < dead ? (h >> 4) % hot : hot + (h >> 4) % live;
        } else {
            unsigned r = s % (2 * live); chunk = r < live ? r : 2 * live - 1 - r;
        }
        uint4* p = base + (size_t)chunk * 256 + lane;
        if (store) __stcg(p, make_uint4(s, 1, 2, 3));
        else { uint4 v = __ldcg(p); sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w; }
        __syncthreads();
    }
    if (sum.x == 0x12345u && sum.y == 0x678u) *sink = sum;
}
// As phases.cu, but each SM's place on the walk is given (chunk), -1: idle. `late`: cycles.
extern "C" __global__ void hbmeter_probe_walks(const uint4* shared, int chunks, int steps, const int* place, unsigned pace, const uint4* dead, uint4* out, int read_beside, int written_beside, uint4* sink) {
    int sm = smid(), at = place[sm];
    if (at < 0) return;
    uint4 sum = make_uint4(0, 0, 0, 0);
    unsigned begin = now();
    for (int step = 0; step < steps; step++) {
        const uint4* from = shared + (size_t)at * 1024;
#pragma unroll
        for (int i = 0; i < 4; i++) { uint4 v = __ldcg(from + i * 256 + threadIdx.x); sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w; }
        size_t mine = (size_t)sm * steps + step;
        if (threadIdx.x < read_beside) sum.x ^= __ldcg(dead + mine * read_beside + threadIdx.x).x;
        if (threadIdx.x < written_beside) __stcg(out + mine * written_beside + threadIdx.x, make_uint4(step, 1, 2, 3));
        at = at + 1 == chunks ? 0 : at + 1;
        __syncthreads();
        while (now() - begin < pace * (step + 1)) {}
    }
    if (sum.x == 0x12345u && sum.y == 0x678u) *sink = sum;
}
__device__ __forceinline__ unsigned load(const char* p) { unsigned v; asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
// How many of `targets` (lines) stay when `n` other lines are read or written once by the same SM.
// what: 0 read targets, 1 write them; stream: 0 read, 1 written; middle: so many lines read, then targets touched again.
extern "C" __global__ void hbmeter_probe_survival(char* base, const unsigned* targets, int nt, int touches, int sectors, int write_targets, size_t first, int middle, int n, int write_stream, int twice, int sm, unsigned short* cycles) {
    if (smid() != sm) return;
    __shared__ volatile unsigned got;
    unsigned s = 0;
    for (int round = 0; round < (middle ? 2 : 1); round++) {
        for (int k = 0; k < touches; k++) {
            for (int i = threadIdx.x; i < nt * sectors; i += blockDim.x) {
                char* p = base + (size_t)targets[i / sectors] * 128 + i % sectors * 32;
                if (write_targets) asm volatile("st.global.cg.u32 [%0], %1;" :: "l"(p), "r"(i) : "memory"); else s += load(p);
            }
            __syncthreads();
        }
        int from = middle && round ? middle : 0, to = middle && !round ? middle : middle + n;
        for (int t = 0; t <= twice; t++) {
            for (int i = from * sectors + threadIdx.x; i < to * sectors; i += blockDim.x) {
                char* p = base + (first + i / sectors) * 128 + i % sectors * 32;
                if (write_stream) asm volatile("st.global.cg.v4.u32 [%0], {%1, %1, %1, %1};" :: "l"(p), "r"(i) : "memory"); else s += load(p);
                if (write_stream) asm volatile("st.global.cg.v4.u32 [%0], {%1, %1, %1, %1};" :: "l"(p + 16), "r"(i) : "memory");
            }
            __syncthreads();
        }
    }
    if (s == 0x1234567u) got = s;
    __threadfence();
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 0; i < nt; i++) {
        unsigned t = now(); got = load(base + (size_t)targets[i] * 128); t = now() - t;
        cycles[i] = t > 65535 ? 65535 : t;
    }
}
