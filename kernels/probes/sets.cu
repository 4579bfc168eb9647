// Probes of single sets of an L2: which lines share one, found by what pushes a line out, and what is
// there when SMs touch a set's lines in a known order. Loads and stores bypass L1.
#include "places.cuh"

constexpr int LINE_BYTES = 128;
constexpr unsigned NO_LINE = 0xffffffffu, WRITES = 0x80000000u;

__device__ __forceinline__ char* line_at(char* base, unsigned line) {
    return base + (size_t)line * LINE_BYTES;
}

__device__ __forceinline__ unsigned load(const char* at) {
    unsigned word;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}

__device__ __forceinline__ void write_line(char* at, unsigned word) {
    for (int i = 0; i < LINE_BYTES; i += 16)
        asm volatile("st.global.cg.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(at + i), "r"(word)
                     : "memory");
    __threadfence();
}

__device__ __forceinline__ unsigned short as_short(unsigned cycles) {
    return min(cycles, 65535u);
}

// SM `sm`, test by test: loads a target, then the lines x to y but those from z to w of a list, then
// times the target again: late when they pushed it out. A test is {x, y, z, w}.
extern "C" __global__ void __launch_bounds__(1024)
    hbmeter_probe_evictions(char* base, unsigned target, const unsigned* lines,
                            const uint4* tests, int count, int sm, unsigned short* cycles) {
    if (sm_of_block() != sm) return;
    __shared__ volatile unsigned arrived[1024];
    const char* mine = line_at(base, target);
    for (int number = 0; number < count; number++) {
        uint4 test = tests[number];
        if (threadIdx.x == 0) arrived[0] = load(mine);
        __syncthreads();
        unsigned sum = 0;
        for (unsigned i = test.x + threadIdx.x; i < test.y; i += blockDim.x)
            if (i < test.z || i >= test.w) sum += load(line_at(base, lines[i]));
        arrived[threadIdx.x] = sum;  // waits for them
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned before = clock_now();
            arrived[1] = load(mine);
            cycles[number] = as_short(clock_now() - before);
        }
        __syncthreads();
    }
}

// Each SM with a slot does its touches by the clock: {cycles from the beginning, line}, with WRITES
// those that write, up to NO_LINE; all of `slots` begin together. cycles is [slot, touch].
extern "C" __global__ void hbmeter_probe_touches(char* base, const int* slot_of_sm,
                                                 const uint2* touches, int per_slot, int slots,
                                                 unsigned* arrived_sms, unsigned short* cycles) {
    extern __shared__ uint2 mine[];
    unsigned short* took = (unsigned short*)(mine + per_slot);
    __shared__ volatile unsigned arrived;
    int slot = slot_of_sm[sm_of_block()], number = 0;
    if (slot < 0) return;
    for (int i = threadIdx.x; i < per_slot; i += blockDim.x)
        mine[i] = touches[slot * per_slot + i];
    __syncthreads();
    if (threadIdx.x) return;
    atomicAdd(arrived_sms, 1);
    while (*(volatile unsigned*)arrived_sms < slots) {
    }
    unsigned begin = clock_now();
    for (; number < per_slot && mine[number].y != NO_LINE; number++) {
        uint2 touch = mine[number];
        char* at = line_at(base, touch.y & ~WRITES);
        while (clock_now() - begin < touch.x) {
        }
        unsigned before = clock_now();
        if (touch.y & WRITES)
            write_line(at, number);
        else
            arrived = load(at);
        took[number] = as_short(clock_now() - before);
    }
    for (int i = 0; i < number; i++) cycles[slot * per_slot + i] = took[i];
}
