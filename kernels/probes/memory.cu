// Rates of L2 and device memory: every thread moves `count` vectors of 16 bytes, its block's
// threads side by side, through a region that it begins anew when it is through. No L1: loads are
// .cg.
#include "probe.cuh"

constexpr int UNROLL = 8;  // accesses in flight a thread

// A block's region begins at block · region_step and has `size`; its thread t begins at
// block · offset + t of it and moves on by `stride`, all counted in accesses: below 2³¹.
typedef unsigned Count;

struct Walk {
    Count base, at, size, stride;
    __device__ Walk(Count size, Count region_step, Count offset, Count stride)
        : base(blockIdx.x * region_step), at((blockIdx.x * offset + threadIdx.x) % size),
          size(size), stride(stride) {}
    __device__ Count next() {
        Count found = base + at;
        at += stride;
        if (at >= size) at -= size;
        return found;
    }
};
#define PATH Count size, Count region_step, Count offset, Count stride
#define PATH_VALUES size, region_step, offset, stride

// IN_STEP: no warp issues its next loads before all of its block have issued these, so that what
// is being read again and again is the whole region, not what a scheduler's favourites read.
template <bool IN_STEP>
__device__ __forceinline__ void read(const uint4* from, Walk walk, int count, uint4* sink,
                                     Stamp* stamps) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    start_watch(stamps);
    for (int i = 0; i < count; i += UNROLL) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = __ldcg(from + walk.next());
        if (IN_STEP) __syncthreads();
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            sum.x ^= v[u].x, sum.y ^= v[u].y, sum.z ^= v[u].z, sum.w ^= v[u].w;
    }
    stop_watch(stamps);
    if (sum.x == 0x12345u && sum.y == 0x678u) *sink = sum;
}

extern "C" __global__ void hbmeter_probe_read(const uint4* from, PATH, int count, uint4* sink,
                                              Stamp* stamps) {
    read<false>(from, Walk(PATH_VALUES), count, sink, stamps);
}
extern "C" __global__ void __launch_bounds__(1024, 1)  // registers for all that is in flight
    hbmeter_probe_read_in_step(const uint4* from, PATH, int count, uint4* sink, Stamp* stamps) {
    read<true>(from, Walk(PATH_VALUES), count, sink, stamps);
}

extern "C" __global__ void hbmeter_probe_write(uint4* to, PATH, int count, Stamp* stamps) {
    Walk walk(PATH_VALUES);
    start_watch(stamps);
    for (int i = 0; i < count; i += UNROLL)
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) to[walk.next()] = make_uint4(i, u, 1, 2);
    stop_watch(stamps);
}

extern "C" __global__ void hbmeter_probe_copy(const uint4* from, uint4* to, PATH, int count,
                                              Stamp* stamps) {
    Walk source(PATH_VALUES), target(PATH_VALUES);
    start_watch(stamps);
    for (int i = 0; i < count; i += UNROLL) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) v[u] = __ldcg(from + source.next());
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) to[target.next()] = v[u];
    }
    stop_watch(stamps);
}

// Adds to floats, one red a thread and step: a warp's 32 fill a line; PATH counts floats.
extern "C" __global__ void hbmeter_probe_add_floats(float* to, PATH, int count, Stamp* stamps) {
    Walk walk(PATH_VALUES);
    start_watch(stamps);
    for (int i = 0; i < count; i += UNROLL)
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to + walk.next()), "f"(1.0f)
                         : "memory");
    stop_watch(stamps);
}

// Block b loads tiles b, b + gridDim.x, … of `vectors` 16-byte vectors into shared memory, two at a
// time: when one is there the next takes its place, as tiles of K and V do.
extern "C" __global__ void __launch_bounds__(256)
    hbmeter_probe_read_tiles(const uint4* from, int vectors, int count, uint4* sink,
                             Stamp* stamps) {
    extern __shared__ uint4 tiles[];
    auto fetch = [&](int number) {
        uint4* tile = tiles + number % 2 * vectors;
        const uint4* mine = from + ((size_t)number * gridDim.x + blockIdx.x) * vectors;
        for (int i = threadIdx.x; i < vectors && number < count; i += blockDim.x)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                             (unsigned)__cvta_generic_to_shared(tile + i)),
                         "l"(mine + i)
                         : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    unsigned sum = 0;
    start_watch(stamps);
    fetch(0), fetch(1);
    for (int number = 0; number < count; ++number) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        sum ^= tiles[number % 2 * vectors + threadIdx.x % vectors].x;
        __syncthreads();
        fetch(number + 2);
    }
    stop_watch(stamps);
    if (sum == 0x12345u) *sink = tiles[0];
}
