// Rates of wgmma (sm_90a): a warpgroup multiplies 64 rows of A, in shared memory or in registers,
// with N columns of B in shared memory, k of 32 bytes a row at a time.
#include "probe.cuh"

// Every operand row is 128 bytes, in the 128-byte swizzle: 8 rows are 1,024 bytes in a row.
constexpr int ROW_BYTES = 128, GROUP_BYTES = 8 * ROW_BYTES, STEPS = ROW_BYTES / 32, STAGES = 2;

// What wgmma is told of a tile in shared memory (PTX ISA, matrix descriptor); 16-byte units.
__device__ __forceinline__ unsigned long long descriptor(unsigned address) {
    unsigned long long start = (address & 0x3FFFF) >> 4, leading = 1, stride = GROUP_BYTES >> 4;
    return start | leading << 16 | stride << 32 | 1ull << 62;
}
constexpr int STEP_UNITS = 32 >> 4;

// ---- The instruction, by type and N: D of N / 2 floats a thread ---------------------------------

#define R32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R64 \
    R32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define R128 \
    R64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define F8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
    "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define F32(i) F8(i), F8(i + 8), F8(i + 16), F8(i + 24)
#define F64 F32(0), F32(32)
#define F128 F64, F32(64), F32(96)
#define PREDICATE "{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned."

// Operands after D: two descriptors, or four registers of A and a descriptor. NEITHER transposed,
// which only 16-bit types are told.
#define WGMMA(TYPE, N, SHAPE, D, FLOATS, A, B, A4, B4, NEITHER, B_NOT)                             \
    template <> struct Product<TYPE, N> {                                                         \
        static __device__ __forceinline__ void shared(float (&d)[N / 2], unsigned long long a,    \
                                                      unsigned long long b) {                     \
            asm volatile(PREDICATE SHAPE " {" D "}, " A ", " B ", p, 1, 1" NEITHER ";}"             \
                         : FLOATS : "l"(a), "l"(b));                                              \
        }                                                                                         \
        static __device__ __forceinline__ void registers(float (&d)[N / 2],                       \
                                                         const unsigned (&a)[4],                  \
                                                         unsigned long long b) {                  \
            asm volatile(PREDICATE SHAPE " {" D "}, {" A4 "}, " B4 ", p, 1, 1" B_NOT ";}"           \
                         : FLOATS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));          \
        }                                                                                         \
    };
#define WGMMA64(TYPE, SHAPE, NEITHER, B_NOT)                                                      \
    WGMMA(TYPE, 64, "m64n64" SHAPE, R32, F32(0), "%32", "%33", "%32, %33, %34, %35", "%36",       \
          NEITHER, B_NOT)
#define WGMMA128(TYPE, SHAPE, NEITHER, B_NOT)                                                     \
    WGMMA(TYPE, 128, "m64n128" SHAPE, R64, F64, "%64", "%65", "%64, %65, %66, %67", "%68",        \
          NEITHER, B_NOT)
#define WGMMA256(TYPE, SHAPE, NEITHER, B_NOT)                                                     \
    WGMMA(TYPE, 256, "m64n256" SHAPE, R128, F128, "%128", "%129", "%128, %129, %130, %131",       \
          "%132", NEITHER, B_NOT)

enum Type { FP16, BF16, TF32, FP8 };
template <Type T, int N> struct Product;
WGMMA64(FP16, "k16.f32.f16.f16", ", 0, 0", ", 0")
WGMMA128(FP16, "k16.f32.f16.f16", ", 0, 0", ", 0")
WGMMA256(FP16, "k16.f32.f16.f16", ", 0, 0", ", 0")
WGMMA64(BF16, "k16.f32.bf16.bf16", ", 0, 0", ", 0")
WGMMA128(BF16, "k16.f32.bf16.bf16", ", 0, 0", ", 0")
WGMMA256(BF16, "k16.f32.bf16.bf16", ", 0, 0", ", 0")
WGMMA256(TF32, "k8.f32.tf32.tf32", "", "")
WGMMA256(FP8, "k32.f32.e4m3.e4m3", "", "")

template <Type T> __device__ __forceinline__ unsigned random_operand(unsigned seed) {
    if (T == FP16) return random_bits(seed, 0x83FF83FFu, 0x38003800u);
    if (T == BF16) return random_bits(seed, 0x807F807Fu, 0x3F003F00u);
    if (T == TF32) return random_bits(seed, 0x807FFFFFu, 0x3F000000u);
    return random_bits(seed, 0x87878787u, 0x30303030u);
}

// ---- The loop -----------------------------------------------------------------------------------

// All warpgroups multiply the same tiles. An iteration is the STEPS products of each of STAGES
// tiles, twice.
template <Type T, int N, bool A_IN_REGISTERS>
__device__ __forceinline__ void work(int iterations, float* sink, Stamp* stamps) {
    extern __shared__ __align__(1024) unsigned tiles[];
    constexpr int A_BYTES = 64 * ROW_BYTES, B_BYTES = N * ROW_BYTES;
    for (int i = threadIdx.x; i < STAGES * (A_BYTES + B_BYTES) / 4; i += blockDim.x)
        tiles[i] = random_operand<T>(i);
    unsigned registers[STEPS][4];
#pragma unroll
    for (int i = 0; i < STEPS * 4; ++i)
        registers[i / 4][i % 4] = random_operand<T>(threadIdx.x * 64 + i);
    unsigned base = (unsigned)__cvta_generic_to_shared(tiles);
    unsigned long long b = descriptor(base), a = descriptor(base + STAGES * B_BYTES);
    float d[N / 2] = {};
    asm volatile("fence.proxy.async;" ::: "memory");
    start_watch(stamps);
    for (int i = 0; i < iterations; ++i) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll 1
        for (int twice = 0; twice < 2; ++twice)
#pragma unroll
            for (int step = 0; step < STAGES * STEPS; ++step) {
                int stage = step / STEPS, k = step % STEPS;
                unsigned long long here = b + stage * (B_BYTES >> 4) + k * STEP_UNITS;
                if (A_IN_REGISTERS)
                    Product<T, N>::registers(d, registers[k], here);
                else
                    Product<T, N>::shared(d, a + stage * (A_BYTES >> 4) + k * STEP_UNITS, here);
            }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    stop_watch(stamps);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sum += d[i];
    if (sum == 123.456f) *sink = sum;
}

#define ENTRY(NAME, T, N, THREADS, WHERE, A_IN_REGISTERS)                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                         \
        hbmeter_probe_wgmma_##NAME##_n##N##_##WHERE(int iterations, float* sink, Stamp* stamps) { \
        work<T, N, A_IN_REGISTERS>(iterations, sink, stamps);                                     \
    }
#define ENTRIES(NAME, T, N, THREADS)                                                              \
    ENTRY(NAME, T, N, THREADS, shared, false)                                                     \
    ENTRY(NAME, T, N, THREADS, registers, true)
ENTRIES(fp16, FP16, 64, 512)
ENTRIES(fp16, FP16, 128, 512)
ENTRIES(fp16, FP16, 256, 256)
ENTRIES(bf16, BF16, 64, 512)
ENTRIES(bf16, BF16, 128, 512)
ENTRIES(bf16, BF16, 256, 256)
ENTRY(tf32, TF32, 256, 256, shared, false)
ENTRY(fp8, FP8, 256, 256, shared, false)
