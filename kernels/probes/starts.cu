// Starts of kernels: a thread block's first tile, by cp.async and by TMA, and instructions that the
// SM runs for the first time.
#include "probe.cuh"

extern __shared__ __align__(1024) unsigned char tile[];

__device__ __forceinline__ unsigned tile_address() {
    return (unsigned)__cvta_generic_to_shared(tile);
}

constexpr int ROW_BYTES = 128;  // of a tile; each block has rows of its own

extern "C" __global__ void hbmeter_probe_first_copy(const uint4* from, int rows, Stamp* stamps) {
    start_watch(stamps);
    int vectors = rows * ROW_BYTES / 16;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(tile_address() + i * 16),
                     "l"(from + (size_t)blockIdx.x * vectors + i)
                     : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    stop_watch(stamps);
}

struct alignas(64) TensorMap { unsigned char bytes[128]; };  // CUtensorMap

// Boxes of `box_rows` rows; the barrier is made, and waited for, as kernels do.
extern "C" __global__ void hbmeter_probe_first_tma(const __grid_constant__ TensorMap map, int rows,
                                                   int box_rows, Stamp* stamps) {
#if __CUDA_ARCH__ >= 900
    __shared__ __align__(8) unsigned long long landed;
    unsigned barrier = (unsigned)__cvta_generic_to_shared(&landed);
    start_watch(stamps);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(rows * ROW_BYTES)
                     : "memory");
        for (int row = 0; row < rows; row += box_rows)
            asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
                         ".mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                         ::"r"(tile_address() + row * ROW_BYTES), "l"(&map), "r"(0), "r"(row),
                         "r"(blockIdx.x), "r"(barrier)
                         : "memory");
    }
    unsigned over;
    do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; "
                    "selp.u32 %0, 1, 0, p; }"
                    : "=r"(over) : "r"(barrier) : "memory");
    while (!over);
    stop_watch(stamps);
#endif
}

// ---- Instructions: 16 bytes each, one after the other -------------------------------------------

#define FMA(x) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(factor), "f"(addend));
#define FMA_4 FMA(a) FMA(b) FMA(c) FMA(d)
#define FMA_32 FMA_4 FMA_4 FMA_4 FMA_4 FMA_4 FMA_4 FMA_4 FMA_4
#define FMA_256 FMA_32 FMA_32 FMA_32 FMA_32 FMA_32 FMA_32 FMA_32 FMA_32
#define KIB_16 FMA_256 FMA_256 FMA_256 FMA_256

// The same instructions 1 + `before` times; the last time is watched.
#define CODE(NAME, INSTRUCTIONS)                                                                   \
    extern "C" __global__ void hbmeter_probe_##NAME(int before, float factor, float addend,       \
                                                    unsigned* sink, Stamp* stamps) {              \
        float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;                                   \
        _Pragma("unroll 1") for (int time = 0; time <= before; ++time) {                          \
            if (time == before) start_watch(stamps);                                              \
            INSTRUCTIONS                                                                          \
        }                                                                                         \
        stop_watch(stamps);                                                                       \
        if (a + b + c + d == 0.5f) *sink = 1;                                                     \
    }
CODE(code, KIB_16)
CODE(other_code, KIB_16 KIB_16 KIB_16 KIB_16)
