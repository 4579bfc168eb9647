// A probe of how alike thread blocks are: each walks a stream tile by tile, with loads ahead, tensor
// cores working as long on each tile and a barrier around it, as a row block does under its keys;
// when each began and how long it took says how far apart blocks of equal work get.
#include "places.cuh"
#include "probe.cuh"

constexpr int TILE_VECTORS = 1024, PRODUCTS = 8;  // 16 KiB a tile; m16n8k16 a warp and round

__device__ __forceinline__ void fetch(uint4* to, const uint4* from) {
    for (int i = threadIdx.x; i < TILE_VECTORS; i += blockDim.x)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         (unsigned)__cvta_generic_to_shared(to + i)),
                     "l"(from + i)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Block b walks stream b % streams of `tiles` tiles, PRODUCTS * `rounds` products a warp for each.
extern "C" __global__ void __launch_bounds__(128)
    hbmeter_probe_pace(const uint4* base, int streams, int tiles, int rounds, float* sink,
                       Stamp* stamps) {
    extern __shared__ uint4 stage[];
    const uint4* from = base + (size_t)(blockIdx.x % streams) * tiles * TILE_VECTORS;
    float c[PRODUCTS][4] = {};
    unsigned a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {5, threadIdx.x};
    start_watch(stamps);
    fetch(stage, from);
    for (int tile = 0; tile < tiles; tile++) {
        if (tile + 1 < tiles) {
            fetch(stage + (tile + 1 & 1) * TILE_VECTORS, from + (size_t)(tile + 1) * TILE_VECTORS);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        a[1] ^= stage[(tile & 1) * TILE_VECTORS + threadIdx.x].x;
        for (int round = 0; round < rounds; round++)
#pragma unroll
            for (int i = 0; i < PRODUCTS; i++) multiply(c[i], a, b);
        __syncthreads();
    }
    stop_watch(stamps);
    float sum = 0;
    for (int i = 0; i < PRODUCTS; i++) sum += c[i][0] + c[i][3];
    if (sum == 12345.f) *sink = sum;  // so that nothing is left out
}
