// Kernels that need so many registers, for the runtime to say how many blocks share an SM.

// LIVE numbers are all read before the first of them is written.
template <int LIVE> __device__ __forceinline__ void hold(const float* from, float* to) {
    float x[LIVE];
#pragma unroll
    for (int i = 0; i < LIVE; ++i)
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(x[i]) : "l"(from + i * 32 + threadIdx.x));
    __syncthreads();
#pragma unroll
    for (int i = 0; i < LIVE; ++i)
        asm volatile("st.global.f32 [%1], %0;" ::"f"(x[i]), "l"(to + i * 32 + threadIdx.x));
}

// At most REGISTERS, of which some hold addresses; what does not fit is spilled, and nothing runs.
#define HOLD(REGISTERS)                                                                          \
    extern "C" __global__ void __maxnreg__(REGISTERS)                                            \
        hbmeter_probe_hold##REGISTERS(const float* from, float* to) {                            \
        hold<REGISTERS>(from, to);                                                               \
    }
HOLD(24) HOLD(33) HOLD(40) HOLD(47) HOLD(56) HOLD(63) HOLD(65) HOLD(72) HOLD(90) HOLD(96) HOLD(111)
HOLD(128) HOLD(129) HOLD(144) HOLD(168) HOLD(185) HOLD(200) HOLD(232) HOLD(255)
