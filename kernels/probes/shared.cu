// Shared memory: rates of loads, stores and ldmatrix against the distance between lanes.
#include "probe.cuh"

constexpr int UNROLL = 8;
constexpr int STEP_BYTES = 1024;  // between a warp's accesses: a whole number of bank rows

// Where a lane's first access is. It moves with the iteration, and loops are not unrolled, so that
// no load can stand for another one.
__device__ __forceinline__ unsigned place(unsigned base, int lane_bytes, int i) {
    return base + threadIdx.x % 32 * lane_bytes + (i & 3) * 128;
}

__device__ __forceinline__ unsigned shared_base() {
    extern __shared__ uint4 space[];
    return (unsigned)__cvta_generic_to_shared(space);
}

template <int WIDTH> __device__ __forceinline__ unsigned load(unsigned address);
template <> __device__ __forceinline__ unsigned load<4>(unsigned address) {
    unsigned x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}
template <> __device__ __forceinline__ unsigned load<16>(unsigned address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v.x ^ v.y ^ v.z ^ v.w;
}

template <int WIDTH> __device__ __forceinline__ void store(unsigned address, uint4 v);
template <> __device__ __forceinline__ void store<4>(unsigned address, uint4 v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v.x) : "memory");
}
template <> __device__ __forceinline__ void store<16>(unsigned address, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

template <int WIDTH>
__device__ __forceinline__ void read_all(int lane_bytes, int iterations, unsigned* sink,
                                         Stamp* stamps) {
    unsigned base = shared_base(), sum = 0;
    start_watch(stamps);
#pragma unroll 1
    for (int i = 0; i < iterations; ++i) {
        unsigned address = place(base, lane_bytes, i);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sum ^= load<WIDTH>(address + u * STEP_BYTES);
    }
    stop_watch(stamps);
    if (sum == 0x12345u) *sink = sum;
}

template <int WIDTH>
__device__ __forceinline__ void write_all(int lane_bytes, int iterations, Stamp* stamps) {
    unsigned base = shared_base();
    uint4 v = make_uint4(threadIdx.x, 1, 2, 3);
    start_watch(stamps);
#pragma unroll 1
    for (int i = 0; i < iterations; ++i) {
        unsigned address = place(base, lane_bytes, i);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) store<WIDTH>(address + u * STEP_BYTES, v);
    }
    stop_watch(stamps);
}

extern "C" __global__ void hbmeter_probe_load4(int lane_bytes, int iterations, unsigned* sink,
                                               Stamp* stamps) {
    read_all<4>(lane_bytes, iterations, sink, stamps);
}
extern "C" __global__ void hbmeter_probe_load16(int lane_bytes, int iterations, unsigned* sink,
                                                Stamp* stamps) {
    read_all<16>(lane_bytes, iterations, sink, stamps);
}
extern "C" __global__ void hbmeter_probe_store4(int lane_bytes, int iterations, unsigned* sink,
                                                Stamp* stamps) {
    write_all<4>(lane_bytes, iterations, stamps);
}
extern "C" __global__ void hbmeter_probe_store16(int lane_bytes, int iterations, unsigned* sink,
                                                 Stamp* stamps) {
    write_all<16>(lane_bytes, iterations, stamps);
}

// Four matrices of 8 rows of 16 bytes; lane l gives row l, `lane_bytes` after the row before.
extern "C" __global__ void hbmeter_probe_ldmatrix(int lane_bytes, int iterations, unsigned* sink,
                                                  Stamp* stamps) {
    unsigned base = shared_base(), sum = 0;
    start_watch(stamps);
#pragma unroll 1
    for (int i = 0; i < iterations; ++i) {
        unsigned address = place(base, lane_bytes, i);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            unsigned a, b, c, d;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                         : "r"(address + u * STEP_BYTES) : "memory");
            sum ^= a ^ b ^ c ^ d;
        }
    }
    stop_watch(stamps);
    if (sum == 0x12345u) *sink = sum;
}
