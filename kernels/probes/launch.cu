// Launches: a kernel that does nothing, one that keeps the GPU busy, one whose blocks take turns.
#include "probe.cuh"

extern "C" __global__ void hbmeter_probe_empty() {}

// One thread waits until `ns` have passed.
extern "C" __global__ void hbmeter_probe_wait(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start)::"memory");
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    while (now - start < ns);
}

// Every block lasts `cycles` of its SM, and stamps when.
extern "C" __global__ void hbmeter_probe_turns(int cycles, Stamp* stamps) {
    start_watch(stamps);
    long long start, now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(start)::"memory");
    do asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
    while (now - start < cycles);
    stop_watch(stamps);
}
