// Rates and latencies of what a softmax is made of, outside tensor cores: each thread keeps
// CHAINS chains of one operation, each result the next one's operand.
#include "probe.cuh"

// Of a loop's body. The loop itself takes slots too; a long body does not fit the caches of
// instructions.
constexpr int STEPS = 32, MIXED_STEPS = 4;

enum Operation { FMA, ADD, MULTIPLY, MAX, EXP2, PACK, SHUFFLE };

template <Operation OP> __device__ __forceinline__ void apply(float& x, float a, float b) {
    if (OP == FMA) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(a), "f"(b));
    if (OP == ADD) asm volatile("add.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(a));
    if (OP == MULTIPLY) asm volatile("mul.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(a));
    if (OP == MAX) asm volatile("max.f32 %0, %0, %1;" : "+f"(x) : "f"(a));
    if (OP == EXP2) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    if (OP == PACK)  // two floats to a register of two halves
        asm volatile("{.reg .b32 t; cvt.rn.f16x2.f32 t, %0, %1; mov.b32 %0, t;}"
                     : "+f"(x) : "f"(a));
    if (OP == SHUFFLE)
        asm volatile("{.reg .b32 t; mov.b32 t, %0; shfl.sync.bfly.b32 t, t, 1, 0x1f, 0xffffffff; "
                     "mov.b32 %0, t;}" : "+f"(x));
}

// Each step applies OP to every chain, and after it MIXED fused multiply-adds to each of as many
// other numbers.
template <Operation OP, int CHAINS, int MIXED>
__device__ __forceinline__ void work(int iterations, float a, float b, float* sink, Stamp* stamps) {
    float x[CHAINS], y[MIXED ? MIXED : 1];
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) x[c] = a * (threadIdx.x + c);
#pragma unroll
    for (int m = 0; m < (MIXED ? MIXED : 1); ++m) y[m] = b * (threadIdx.x + m);
    start_watch(stamps);
    for (int i = 0; i < iterations; ++i) {
#pragma unroll
        for (int u = 0; u < (MIXED ? MIXED_STEPS : STEPS); ++u)
#pragma unroll
            for (int c = 0; c < CHAINS; ++c) {
                apply<OP>(x[c], a, b);
#pragma unroll
                for (int m = 0; m < MIXED; ++m) apply<FMA>(y[m], a, b);
            }
    }
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) sum += x[c];
#pragma unroll
    for (int m = 0; m < (MIXED ? MIXED : 1); ++m) sum += y[m];
    stop_watch(stamps);
    if (sum == 123.456f) *sink = sum;
}

#define ENTRY(NAME, OP, CHAINS, MIXED)                                                            \
    extern "C" __global__ void __launch_bounds__(1024)                                            \
        hbmeter_probe_##NAME(int iterations, float a, float b, float* sink, Stamp* stamps) {      \
        work<OP, CHAINS, MIXED>(iterations, a, b, sink, stamps);                                  \
    }

#define RATE_AND_LATENCY(NAME, OP) ENTRY(NAME, OP, 8, 0) ENTRY(NAME##_chain, OP, 1, 0)
RATE_AND_LATENCY(fma, FMA)
RATE_AND_LATENCY(add, ADD)
RATE_AND_LATENCY(multiply, MULTIPLY)
RATE_AND_LATENCY(max, MAX)
RATE_AND_LATENCY(exp2, EXP2)
RATE_AND_LATENCY(pack, PACK)
RATE_AND_LATENCY(shuffle, SHUFFLE)
ENTRY(exp2_fma2, EXP2, 4, 2)
ENTRY(exp2_fma4, EXP2, 4, 4)
ENTRY(exp2_fma6, EXP2, 4, 6)
ENTRY(exp2_fma7, EXP2, 4, 7)
ENTRY(exp2_fma8, EXP2, 4, 8)
ENTRY(exp2_fma12, EXP2, 4, 12)
ENTRY(exp2_fma16, EXP2, 4, 16)
