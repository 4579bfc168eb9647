"""The rates of a GPU that predictions use: measured where its profile has them, else specified.

What ``hbmeter calibrate`` measured is used under its own names; a profile without it falls back to
the datasheet, and to numbers of the same family where the datasheet is silent (named below).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .execution import WARP, WAVEFRONT_BYTES
from .tape import Kind
from .units import BOUNDARY, EXP, ISSUE, MATMUL, SMEM, UNITS

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile

# Where a profile has no measurement: those of an H200 (hbmeter calibrate, recorded).
CHAIN_CYCLES = 4.3  # an FMA that waits for the last one
LAUNCH_ALONE_S, LAUNCH_GAP_S = 9.5e-6, 1.3e-6
BLOCK_START_CYCLES, TMA_START_CYCLES, BLOCKS_STARTED_PER_S = 472.0, 436.0, 1.65e9
L2_BYTES_PER_CLOCK_PER_SM = 40.0  # A100: 5,120 B a clock over 108 SMs is 47; H200: 32 measured
L2_WRITTEN, L2_ADDED = 18.0, 14.0  # bytes a clock for each SM, all at once; H200
BLOCK_STORE_BYTES_PER_CLOCK = 29.5  # of blocks that end at once, each SM
BLOCK_LOADS = ((8192.0, 716.0), (98304.0, 3383.0))  # bytes, cycles from L2
PORT_BYTES_PER_CLOCK = 64.0  # from L2 into one SM
SMEM_CYCLES, L2_CYCLES, DRAM_CYCLES = 29.0, 263.0, 479.0  # H800 (Luo et al., arXiv 2402.13499)
# Names of `measured`: a load of tensor cores whose clock beside DRAM reads was measured, just after
# a rest and sustained; and watts, of that load and of what draws power in an SM, by unit. (wgmma's
# include the shared memory that it reads.)
LOADS = {"mma_sync": "mma_fp16", "wgmma": "wgmma_fp16"}
READING, SUSTAINED = "_clock_reading", "_clock_sustained"
LOAD_WATTS = {"mma_sync": "mma_fp16_from_smem_watts", "wgmma": "wgmma_fp16_watts"}
_OTHERS = {ISSUE: "fma_watts", EXP: "exp2_watts", BOUNDARY: "l2_read_watts"}
WATTS = {"mma_sync": {MATMUL: "mma_fp16_watts", SMEM: "smem_read_watts", **_OTHERS},
         "wgmma": {MATMUL: "wgmma_fp16_watts", **_OTHERS}}
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
    gpu_l2_together: float
    gpu_l2_written: float
    gpu_l2_added: float
    port_bytes: tuple[tuple[float, float], ...]  # (SMs that load, bytes into each)
    block_store_bytes: float
    block_loads: tuple[tuple[float, float], ...]  # (bytes, cycles)
    gpu_dram_bytes: tuple[float, float, float]  # read, half read and half written, written
    l2_latency: float
    dram_latency: float
    pipeline_latency: float
    chain_latency: float
    block_start: float
    tma_start: float
    blocks_started: float  # thread blocks in a clock, by the whole GPU
    launch_alone_s: float
    launch_gap_s: float

    def dram_bytes(self, written: float) -> float:
        """Bytes of DRAM in a clock, when such a share of them is written."""
        return float(np.interp(written, (0.0, 0.5, 1.0), self.gpu_dram_bytes))

    def block_load_cycles(self, size: float) -> float:
        """Cycles until so many bytes are there that a thread block loads from L2, when all SMs'
        blocks begin at once."""
        sizes, cycles = np.array(self.block_loads).T
        slope = (cycles[1] - cycles[0]) / (sizes[1] - sizes[0])
        below = min(size - sizes[0], 0.0) * slope  # the first two points' line
        return float(np.interp(size, sizes, cycles) + below)

    def boundary_bytes(self, active_sms: float, kind: int = Kind.LOAD,
                       together: bool = False) -> float:
        """Bytes between L2 and each of so many SMs in a clock: loaded (the same ones by several SMs
        at the same time: ``together``), stored, or added there."""
        loaded = self.gpu_l2_together if together else self.gpu_l2_bytes
        whole = {Kind.LOAD: loaded, Kind.STORE: self.gpu_l2_written,
                 Kind.REDUCE: self.gpu_l2_added}[Kind(kind)]
        sms, ports = zip(*self.port_bytes, strict=True)
        port = np.interp(active_sms, sms, ports) if active_sms <= sms[-1] else max(ports)
        return min(whole / active_sms, float(port))


def rates(gpu: "Profile", multiplier: str, dtype: str, busy: float = 1.0, load: float = 1.0,
          dram_bytes_per_s: float = 0.0, sustained: bool = False) -> Rates:
    """Rates of ``gpu`` (a Profile) under kernels that keep ``multiplier`` ``busy`` for so much of
    the time, draw the power of such a ``load`` (power_load), and move so many bytes to and from
    DRAM: in the first milliseconds after a rest, or when that is ``sustained`` for longer."""
    def measured(name: str, otherwise: float) -> float:
        found = gpu.measured.get(name)
        return otherwise if found is None else found.value

    flops = _matmul_flops_per_s(gpu, multiplier, dtype, measured)
    full = _clock_hz(gpu, multiplier, dtype)
    clock = min(_clock_while(gpu, multiplier, busy, full),
                _clock_beside_dram(gpu, multiplier, load, dram_bytes_per_s))
    if sustained:
        clock = min(clock, _clock_sustained(gpu, multiplier, load, dram_bytes_per_s))
    latency = gpu.latency_cycles
    l2 = gpu.l2.read_bytes_per_clock or L2_BYTES_PER_CLOCK_PER_SM * gpu.sm_count
    return Rates(
        clock, flops / gpu.sm_count / full, gpu.exp_per_clock_per_sm,
        WARP * gpu.subpartitions_per_sm, gpu.smem.bytes_per_clock_per_sm / WAVEFRONT_BYTES,
        measured("l2_read", l2 * clock) / clock,
        measured("l2_read_together", measured("l2_read", l2 * clock)) / clock,
        measured("l2_write", L2_WRITTEN * gpu.sm_count * clock) / clock,
        measured("l2_add", L2_ADDED * gpu.sm_count * clock) / clock,
        _ports(gpu),
        measured("block_store", BLOCK_STORE_BYTES_PER_CLOCK), _block_loads(gpu),
        (measured("hbm_read", gpu.hbm_bytes_per_s) / clock,
         measured("hbm_copy_kernel", gpu.hbm_bytes_per_s) / clock,
         measured("hbm_write", gpu.hbm_bytes_per_s) / clock),
        measured("l2_latency", latency.l2 or L2_CYCLES),
        measured("hbm_latency", latency.hbm or DRAM_CYCLES),
        measured("smem_latency", latency.smem or SMEM_CYCLES),
        measured("fma_latency", CHAIN_CYCLES), measured("block_start", BLOCK_START_CYCLES),
        measured("tma_start", TMA_START_CYCLES),
        measured("blocks_started", BLOCKS_STARTED_PER_S) / clock,
        measured("launch_alone", LAUNCH_ALONE_S), measured("launch_gap", LAUNCH_GAP_S),
    )


def _matmul_flops_per_s(gpu: "Profile", multiplier: str, dtype: str,
                        measured: Callable[[str, float], float]) -> float:
    if multiplier == "fma" and dtype != "fp64":
        return measured("fp32_fma", gpu.flops.fp32)
    peak = getattr(gpu.flops, dtype) or gpu.flops.fp32
    if multiplier == "fma":
        return peak
    if multiplier == "wgmma":
        return measured(f"wgmma_{dtype}", peak)
    hopper = gpu.compute_capability.startswith("9.")
    return measured(f"mma_{dtype}", peak * (HOPPER_MMA_SHARE if hopper else 1.0))


def _ports(gpu: "Profile") -> tuple[tuple[float, float], ...]:
    """(SMs, bytes from L2 into each in a clock) for fewer SMs than the GPU has."""
    found = gpu.measured.get("l2_read_one_sm")
    if found is None:
        return ((1.0, PORT_BYTES_PER_CLOCK),)
    curve = getattr(found, "curve", None) or ()
    return tuple(pair for pair in curve if pair[0] < gpu.sm_count) or ((1.0, found.value),)


def _block_loads(gpu: "Profile") -> tuple[tuple[float, float], ...]:
    found = getattr(gpu.measured.get("block_load_l2"), "curve", None)
    return tuple((size, size / rate) for size, rate in found) if found else BLOCK_LOADS


def _clock_while(gpu: "Profile", multiplier: str, busy: float, full: float) -> float:
    """The clock that the GPU keeps while so much of its tensor cores works; ``full`` when all do,
    and where a profile does not say."""
    found = gpu.measured.get({"mma_sync": "mma_fp16_clock", "wgmma": "wgmma_fp16_clock"}.get(
        multiplier, ""))
    curve = [pair for pair in getattr(found, "curve", None) or () if pair[0] < gpu.sm_count]
    none = (0, gpu.boost_clock_hz if curve else full)
    sms, clocks = zip(none, *curve, (gpu.sm_count, full), strict=True)
    return float(np.interp(busy * gpu.sm_count, sms, clocks))


def _clock_beside_dram(gpu: "Profile", multiplier: str, load: float,
                       dram_bytes_per_s: float) -> float:
    """The clock that DRAM traffic leaves to tensor cores: what it takes of the power, they lack.

    Measured beside one load, whose power is 1; that of SMs goes with load · clock³ (measured on
    parts of the SMs and with less at work: experiments/recorded/power)."""
    found = gpu.measured.get(LOADS.get(multiplier, "") + READING)
    curve = getattr(found, "curve", None)
    if not (curve and dram_bytes_per_s and load):
        return gpu.boost_clock_hz
    read, clocks = zip(*curve, strict=True)
    full = float(np.interp(dram_bytes_per_s, read, clocks))
    return full / float(np.cbrt(load))


def _clock_sustained(gpu: "Profile", multiplier: str, load: float,
                     dram_bytes_per_s: float) -> float:
    """The same under sustained load, with and without DRAM traffic: for some time after a rest a
    GPU may draw more power than for longer."""
    found = gpu.measured.get(LOADS.get(multiplier, "") + SUSTAINED)
    if found is None or not load:
        return gpu.boost_clock_hz
    read, clocks = zip((0.0, found.value), *(found.curve or ()), strict=True)
    return float(np.interp(dram_bytes_per_s, read, clocks)) / float(np.cbrt(load))


def first_clock_s(gpu: "Profile") -> float | None:
    """For how long after a rest a GPU keeps the clock of the first milliseconds; None where a
    profile does not say."""
    found = gpu.measured.get("first_clock")
    return None if found is None else found.value


def power_load(gpu: "Profile", multiplier: str, shares: np.ndarray,
               dram_bytes_per_s: float) -> float:
    """The power of SMs whose units (units.py) work for such ``shares`` of the time, at the same
    clock over that of the load whose clock beside DRAM was measured; as a profile without watts has
    it, the share of the busiest unit. What the L2 hands on from DRAM that clock has seen."""
    names = WATTS.get(multiplier, {})
    watts = {unit: _watts_per_hz3(gpu, name) for unit, name in names.items()}
    load, l2 = _watts_per_hz3(gpu, LOAD_WATTS.get(multiplier, "")), gpu.measured.get("l2_read")
    if load is None or l2 is None or None in watts.values():
        return float(min(shares[:BOUNDARY].max(), 1.0))
    each = np.array([watts.get(unit) or 0.0 for unit in range(len(UNITS))])
    own = np.minimum(shares, 1.0)
    own[BOUNDARY] = max(own[BOUNDARY] - dram_bytes_per_s / l2.value, 0.0)
    return float(each @ own) / load


def _watts_per_hz3(gpu: "Profile", name: str) -> float | None:
    """Of a load, over those of SMs that have nothing to do; None where it was not measured."""
    found, idle = gpu.measured.get(name), gpu.measured.get("idle_watts")
    if not (found and idle and found.clock_hz):
        return None
    return (found.value - idle.value) / found.clock_hz ** 3


def _clock_hz(gpu: "Profile", multiplier: str, dtype: str) -> float:
    """The SM clock under such kernels: as measured with the rate, else the boost clock."""
    names = {"mma_sync": f"mma_{dtype}", "wgmma": f"wgmma_{dtype}", "fma": "fp32_fma"}
    found = gpu.measured.get(names[multiplier])
    return getattr(found, "clock_hz", None) or gpu.boost_clock_hz
