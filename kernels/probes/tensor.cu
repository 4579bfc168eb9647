// Rates of mma.sync: operands in registers, and B read from shared memory with ldmatrix.
#include "probe.cuh"

enum Type { FP16, BF16, TF32, FP8 };

// D += A · B on m16n8, k of 32 bytes a row; A has 4 registers, B 2, D 4 floats.
template <Type T>
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
#define MMA(SHAPE)                                                                               \
    asm volatile("mma.sync.aligned." SHAPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%0, %1, %2, %3};"                                                             \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (T == FP16) MMA("m16n8k16.row.col.f32.f16.f16");
    if (T == BF16) MMA("m16n8k16.row.col.f32.bf16.bf16");
    if (T == TF32) MMA("m16n8k8.row.col.f32.tf32.tf32");
#if __CUDA_ARCH__ >= 890
    if (T == FP8) MMA("m16n8k32.row.col.f32.e4m3.e4m3");
#endif
}

template <Type T> __device__ __forceinline__ unsigned random_operand(unsigned seed) {
    if (T == FP16) return random_bits(seed, 0x83FF83FFu, 0x38003800u);
    if (T == BF16) return random_bits(seed, 0x807F807Fu, 0x3F003F00u);
    if (T == TF32) return random_bits(seed, 0x807FFFFFu, 0x3F000000u);
    return random_bits(seed, 0x87878787u, 0x30303030u);
}

// CHAINS × CHAINS accumulators, all from the same CHAINS operands on either side.
template <Type T, int CHAINS>
__device__ __forceinline__ void from_registers(int iterations, float* sink, Stamp* stamps) {
    unsigned a[CHAINS][4], b[CHAINS][2];
    float d[CHAINS][CHAINS][4] = {};
#pragma unroll
    for (int c = 0; c < CHAINS; ++c) {
#pragma unroll
        for (int r = 0; r < 4; ++r) a[c][r] = random_operand<T>(threadIdx.x * 64 + c * 4 + r);
#pragma unroll
        for (int r = 0; r < 2; ++r) b[c][r] = random_operand<T>(threadIdx.x * 96 + c * 2 + r);
    }
    start_watch(stamps);
#pragma unroll 2
    for (int i = 0; i < iterations; ++i)
#pragma unroll
        for (int c = 0; c < CHAINS; ++c)
#pragma unroll
            for (int e = 0; e < CHAINS; ++e) mma<T>(d[c][e], a[c], b[e][0], b[e][1]);
    stop_watch(stamps);
    float sum = 0.0f;
    for (int c = 0; c < CHAINS; ++c)
        for (int e = 0; e < CHAINS; ++e) sum += d[c][e][0] + d[c][e][1] + d[c][e][2] + d[c][e][3];
    if (sum == 123.456f) *sink = sum;
}

// A warp's product of ROWS rows in registers with a tile of 64 rows and 64 halves in shared memory,
// swizzled so that ldmatrix meets no bank twice: one ldmatrix.x4 for each ROWS / 8 products.
constexpr int TILE_BYTES = 64 * 128;

template <int ROWS>
__device__ __forceinline__ void from_shared(int iterations, float* sink, Stamp* stamps) {
    __shared__ unsigned tiles[2 * TILE_BYTES / 4];
    for (int i = threadIdx.x; i < 2 * TILE_BYTES / 4; i += blockDim.x)
        tiles[i] = random_operand<FP16>(i);
    unsigned a[ROWS / 16][4];
    float d[ROWS / 16][8][4] = {};
#pragma unroll
    for (int r = 0; r < ROWS / 16; ++r)
#pragma unroll
        for (int x = 0; x < 4; ++x) a[r][x] = random_operand<FP16>(threadIdx.x * 64 + r * 4 + x);
    int lane = threadIdx.x % 32, row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
    unsigned base = (unsigned)__cvta_generic_to_shared(tiles) + row * 128;
    start_watch(stamps);
#pragma unroll 1  // so that no load can stand for another one
    for (int i = 0; i < iterations; ++i) {
        unsigned tile = base + (i & 1) * TILE_BYTES;
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                unsigned b[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                             : "r"(tile + n * 16 * 128 + (((2 * k + half) ^ (row % 8)) * 16))
                             : "memory");
#pragma unroll
                for (int r = 0; r < ROWS / 16; ++r) {
                    mma<FP16>(d[r][2 * n], a[r], b[0], b[1]);
                    mma<FP16>(d[r][2 * n + 1], a[r], b[2], b[3]);
                }
            }
    }
    stop_watch(stamps);
    float sum = 0.0f;
    for (int r = 0; r < ROWS / 16; ++r)
        for (int n = 0; n < 8; ++n) sum += d[r][n][0] + d[r][n][1] + d[r][n][2] + d[r][n][3];
    if (sum == 123.456f) *sink = sum;
}

#define FROM_REGISTERS(NAME, TYPE, THREADS)                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                        \
        hbmeter_probe_mma_##NAME(int iterations, float* sink, Stamp* stamps) {                   \
        from_registers<TYPE, 4>(iterations, sink, stamps);                                       \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(32)                                             \
        hbmeter_probe_mma_##NAME##_chain(int iterations, float* sink, Stamp* stamps) {           \
        from_registers<TYPE, 1>(iterations, sink, stamps);                                       \
    }
FROM_REGISTERS(fp16, FP16, 512)
FROM_REGISTERS(bf16, BF16, 512)
FROM_REGISTERS(tf32, TF32, 512)
#if __CUDA_ARCH__ >= 890
FROM_REGISTERS(fp8, FP8, 256)
#endif

#define FROM_SHARED(ROWS)                                                                        \
    extern "C" __global__ void __launch_bounds__(256)                                            \
        hbmeter_probe_mma_rows##ROWS(int iterations, float* sink, Stamp* stamps) {               \
        from_shared<ROWS>(iterations, sink, stamps);                                             \
    }
FROM_SHARED(16)
FROM_SHARED(32)
FROM_SHARED(64)
