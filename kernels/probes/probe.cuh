// What the probes of rates share: when a block began and ended, and numbers to work on.
//
// Every entry point takes `stamps` last: five 64-bit words a block, as Stamp has them. Results go
// to `sink` under a condition that never holds, so that no work can be left out.
#pragma once

struct Stamp {
    long long start_cycles, stop_cycles;  // of the SM's own clock
    unsigned long long start_ns, stop_ns;  // of the GPU's timer, the same for all SMs
    long long sm;
};

// Both clocks are read before either is stored: a store may have to wait its turn.
__device__ __forceinline__ void read_clocks(long long& cycles, unsigned long long& ns) {
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
}

__device__ __forceinline__ void start_watch(Stamp* stamps) {
    __syncthreads();
    if (threadIdx.x) return;
    long long cycles;
    unsigned long long ns;
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    read_clocks(cycles, ns);
    stamps[blockIdx.x].start_cycles = cycles;
    stamps[blockIdx.x].start_ns = ns;
    stamps[blockIdx.x].sm = sm;
}

__device__ __forceinline__ void stop_watch(Stamp* stamps) {
    __syncthreads();
    if (threadIdx.x) return;
    long long cycles;
    unsigned long long ns;
    read_clocks(cycles, ns);
    stamps[blockIdx.x].stop_cycles = cycles;
    stamps[blockIdx.x].stop_ns = ns;
}

// Random bits where `keep` has ones, and those of `set`, which choose the exponent: tensor cores
// take more power, and so a lower clock, on random numbers than on zeros.
__device__ __forceinline__ unsigned random_bits(unsigned seed, unsigned keep, unsigned set) {
    unsigned x = seed * 0x9E3779B9u + 0x7F4A7C15u;
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return ((x ^ (x >> 16)) & keep) | set;
}
