// Where blocks are: the SM of each, and SMs of a GPC, which a cluster's blocks share. Blocks stay for
// unequal times, so that later clusters find other SMs together.
#pragma once
#include "walk.cuh"

__device__ __forceinline__ void tell_place(int* sms, unsigned wait) {
    if (threadIdx.x) return;
    sms[blockIdx.x] = sm_of_block();
    unsigned begin = clock_now();
    while (clock_now() - begin < wait * (1 + blockIdx.x * 5 % 8)) {
    }
}

extern "C" __global__ void __launch_bounds__(1024) hbmeter_probe_places(int* sms, unsigned wait) {
    tell_place(sms, wait);
}
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(8, 1, 1) __launch_bounds__(1024)
    hbmeter_probe_clusters(int* sms, unsigned wait) {
    tell_place(sms, wait);
}
#endif
