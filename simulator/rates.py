"""The rates of a GPU that predictions use: measured where its profile has them, else specified.

What ``hbmeter calibrate`` measured is used under its own names; a profile without it falls back to
the datasheet, and to numbers of the same family where the datasheet is silent (named below).
"""

from dataclasses import dataclass

from .execution import WARP, WAVEFRONT_BYTES

# Where a profile has no measurement: those of an H200 (hbmeter calibrate, recorded).
CHAIN_CYCLES = 4.3  # an FMA that waits for the last one
LAUNCH_ALONE_S, LAUNCH_GAP_S = 9.5e-6, 1.3e-6
BLOCK_START_CYCLES = 472.0
L2_BYTES_PER_CLOCK_PER_SM = 40.0  # A100: 5,120 B a clock over 108 SMs is 47; H200: 32 measured
PORT_BYTES_PER_CLOCK = 64.0  # from L2 into one SM
SMEM_CYCLES, L2_CYCLES, DRAM_CYCLES = 29.0, 263.0, 479.0  # H800 (Luo et al., arXiv 2402.13499)
# mma.sync reaches this share of the tensor peak on Hopper (Luo et al., arXiv 2402.13499, 62.9%);
# before it, the peak itself.
HOPPER_MMA_SHARE = 0.629


@dataclass(frozen=True)
class Rates:
    """Of one SM for each clock, or of the whole GPU where so named; latencies in clocks."""

    clock_hz: float
    matmul_flops: float
    exp: float
    instructions: float  # of threads
    wavefronts: float
    gpu_l2_bytes: float
    port_bytes: float
    gpu_dram_bytes: float
    l2_latency: float
    dram_latency: float
    pipeline_latency: float
    chain_latency: float
    block_start: float
    launch_alone_s: float
    launch_gap_s: float

    def boundary_bytes(self, active_sms: int) -> float:
        """Bytes from L2 into each of so many SMs in a clock."""
        return min(self.gpu_l2_bytes / active_sms, self.port_bytes)


def rates(gpu, multiplier: str, dtype: str) -> Rates:
    """Rates of ``gpu`` (a Profile) under kernels that multiply by ``multiplier``."""
    def measured(name: str, otherwise: float) -> float:
        found = gpu.measured.get(name)
        return otherwise if found is None else found.value

    flops = _matmul_flops_per_s(gpu, multiplier, dtype, measured)
    clock = _clock_hz(gpu, multiplier, dtype)
    latency = gpu.latency_cycles
    l2 = gpu.l2.read_bytes_per_clock or L2_BYTES_PER_CLOCK_PER_SM * gpu.sm_count
    return Rates(
        clock, flops / gpu.sm_count / clock, gpu.exp_per_clock_per_sm,
        WARP * gpu.subpartitions_per_sm, gpu.smem.bytes_per_clock_per_sm / WAVEFRONT_BYTES,
        measured("l2_read", l2 * clock) / clock, measured("l2_read_one_sm", PORT_BYTES_PER_CLOCK),
        measured("hbm_read", gpu.hbm_bytes_per_s) / clock,
        measured("l2_latency", latency.l2 or L2_CYCLES),
        measured("hbm_latency", latency.hbm or DRAM_CYCLES),
        measured("smem_latency", latency.smem or SMEM_CYCLES),
        measured("fma_latency", CHAIN_CYCLES), measured("block_start", BLOCK_START_CYCLES),
        measured("launch_alone", LAUNCH_ALONE_S), measured("launch_gap", LAUNCH_GAP_S),
    )


def l2_options(gpu, kernel, dtype: str) -> dict:
    """What the L2 reader's ``simulate`` asks of a kernel, an Execution for each phase."""
    found = rates(gpu, kernel[0].multiplier, dtype)
    return {
        "matmul_flops_per_s": found.matmul_flops * gpu.sm_count * found.clock_hz,
        "prefetch": [execution.prefetch for execution in kernel],
        "younger_pace": [execution.younger_pace for execution in kernel],
    }


def _matmul_flops_per_s(gpu, multiplier: str, dtype: str, measured) -> float:
    if multiplier == "fma" and dtype != "fp64":
        return measured("fp32_fma", gpu.flops.fp32)
    peak = getattr(gpu.flops, dtype) or gpu.flops.fp32
    if multiplier == "fma":
        return peak
    if multiplier == "wgmma":
        return measured(f"wgmma_{dtype}", peak)
    hopper = gpu.compute_capability.startswith("9.")
    return measured(f"mma_{dtype}", peak * (HOPPER_MMA_SHARE if hopper else 1.0))


def _clock_hz(gpu, multiplier: str, dtype: str) -> float:
    """The SM clock under such kernels: as measured with the rate, else the boost clock."""
    names = {"mma_sync": f"mma_{dtype}", "wgmma": f"wgmma_{dtype}", "fma": "fp32_fma"}
    found = gpu.measured.get(names[multiplier])
    return getattr(found, "clock_hz", None) or gpu.boost_clock_hz
