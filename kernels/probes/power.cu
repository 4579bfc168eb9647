// Reads of device memory beside another kernel, to see what its clock loses by them.
#include "probe.cuh"

constexpr int UNROLL = 8;  // loads in flight a thread

extern "C" __global__ void hbmeter_probe_fill(uint4* to, unsigned vectors) {
    unsigned stride = gridDim.x * blockDim.x;
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < vectors; at += stride) {
        uint4 v;
        v.x = random_bits(4 * at, ~0u, 0u), v.y = random_bits(4 * at + 1, ~0u, 0u);
        v.z = random_bits(4 * at + 2, ~0u, 0u), v.w = random_bits(4 * at + 3, ~0u, 0u);
        to[at] = v;
    }
}

// The grid's threads side by side read `vectors` again and again, `count` loads each.
extern "C" __global__ void hbmeter_probe_stream(const uint4* from, unsigned vectors, int count,
                                                uint4* sink, Stamp* stamps) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    uint4 sum = make_uint4(0, 0, 0, 0);
    start_watch(stamps);
    for (int i = 0; i < count; i += UNROLL) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            v[u] = __ldcg(from + at);
            at += stride;
            if (at >= vectors) at -= vectors;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            sum.x ^= v[u].x, sum.y ^= v[u].y, sum.z ^= v[u].z, sum.w ^= v[u].w;
    }
    stop_watch(stamps);
    if (sum.x == 0x12345u && sum.y == 0x678u) *sink = sum;
}
