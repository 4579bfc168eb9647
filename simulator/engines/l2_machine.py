"""What the L2 reader's thread blocks run on: an SM's rates and latencies, and where SMs are.

Everything is a profile's, measured by probes (kernels/probes): how long lines and tiles take, how
unequal blocks' paces and GPCs' clocks are. Where a profile lacks one, a tile takes a line's latency
and its bytes, and clocks are equal.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..jit import inlined
from ..tape import Record
from .l2_cache import UNIT_BYTES, log2_of

if TYPE_CHECKING:
    from ...hwprofiles.schema import Profile

# Cycles where a profile has no latencies: the H800's (Luo et al., arXiv 2402.13499).
L2_LATENCY_CYCLES, HBM_LATENCY_CYCLES = 263.0, 479.0
SM_BYTES_PER_CLOCK = 64.0  # from L2, where a profile has no L2 bandwidth: the width of the port
GROUP_SMS = 16  # SMs of a GPC
TENTHS = 11  # 0, 10, … 100%
GPCS_MAX = 64  # those of more share offsets
GOLDEN = (5 ** 0.5 - 1) / 2

# What a phase runs on; latencies and rates in cycles. What changes: dram_free and l2_free, the time
# when DRAM and L2 are next idle, leaving, the sectors written back since DRAM was last asked, and
# dram_moved, bytes that it moved.
MACHINE = np.dtype(
    [(name, np.float64) for name in ("l2_latency", "hbm_latency",  # of lines
                                     "tile_latency", "tile_bytes_per_cycle",  # of tiles from L2
                                     "ahead_cycles",  # that a missing tile costs, loaded ahead
                                     "sm_bytes_per_cycle", "l2_bytes_per_cycle",
                                     "dram_bytes_per_cycle", "l2_free", "dram_free", "dram_moved",
                                     "far_more", "to_coalescer",  # of latencies (l2_merge.py)
                                     "first_starts",  # cycles
                                     "pace_spread", "gpc_pace_spread")]  # of the mean pace
    # What tiles from DRAM take longer, by shares of them; by how much of the mean GPCs' clocks are
    # faster or slower, by shares of DRAM's rate; and each GPC's place between these.
    + [(name, np.float64, (TENTHS,)) for name in ("late", "clock_spread")]
    + [("clock_offsets", np.float64, (GPCS_MAX,))]
    + [(name, np.int64) for name in ("unit_shift", "sector_shift",  # log2 of their bytes
                                     "group", "logged", "leaving",  # query heads a block; events
                                     "scale",  # tiles that a tile stands for (at_scale.py)
                                     "sharing_max")]  # requests in one
)


@inlined
def at_share(tenths: np.ndarray, share: float) -> float:
    """What numbers at TENTHS are at a share in [0, 1), on the line between two of them."""
    at = share * (TENTHS - 1)
    below = np.int64(at)
    return tenths[below] + (at - below) * (tenths[below + 1] - tenths[below])


@inlined
def spread_evenly(number: int) -> float:
    """A number in [-1, 1) for each number, such that those of any few in a row are spread evenly
    (Weyl's sequence of the golden ratio)."""
    return (number + 1) * GOLDEN % 1.0 * 2 - 1


def machine_of(gpu: "Profile", blocks_per_sm: int, unit_bytes: int, group: int, scale: int = 1,
               clock_spread: Sequence[float] | None = None) -> Record:
    """A MACHINE of a GPU with so many thread blocks on an SM, nothing done yet; ``clock_spread``:
    of its GPCs, at TENTHS of DRAM's rate."""
    machine, l2 = np.zeros(1, MACHINE)[0], gpu.l2
    latency, clock = gpu.latency_cycles, gpu.boost_clock_hz
    near = machine["l2_latency"] = _measured(gpu, "l2_latency", latency.l2 or L2_LATENCY_CYCLES)
    far = machine["hbm_latency"] = _measured(gpu, "hbm_latency", latency.hbm or HBM_LATENCY_CYCLES)
    rate = _l2_bytes_per_cycle(gpu)
    machine["sm_bytes_per_cycle"] = rate / blocks_per_sm
    machine["l2_bytes_per_cycle"] = rate * gpu.sm_count
    machine["tile_latency"] = l2.tile_cycles or near
    machine["tile_bytes_per_cycle"] = l2.tile_bytes_per_clock or machine["sm_bytes_per_cycle"]
    late = np.array(l2.dram_late_cycles or far - near)  # of a tile for many, their mean
    machine["late"] = late.mean() + (late - late.mean()) / scale ** 0.5
    machine["ahead_cycles"] = l2.dram_ahead_cycles or 0
    machine["dram_bytes_per_cycle"] = _measured(gpu, "hbm_read", gpu.hbm_bytes_per_s) / clock
    machine["unit_shift"] = log2_of("unit", unit_bytes)
    machine["sector_shift"] = log2_of("l2.sector_bytes", l2.sector_bytes)
    machine["group"], machine["scale"] = group, scale
    machine["sharing_max"] = l2.merged_requests_max or 1
    machine["to_coalescer"] = l2.coalescer_cycles or 0
    machine["first_starts"] = l2.first_starts_cycles or 0
    machine["pace_spread"], machine["gpc_pace_spread"] = pace_spreads(gpu, blocks_per_sm)
    machine["clock_spread"] = clock_spread or 0
    machine["clock_offsets"] = np.resize(
        l2.gpc_clock_offsets or np.arange(1, GPCS_MAX + 1) * GOLDEN % 1.0 * 2 - 1, GPCS_MAX)
    machine["far_more"] = max(
        _measured(gpu, "l2_far_latency", 0) - _measured(gpu, "l2_near_latency", 0), 0)
    return machine


def pace_spreads(gpu: "Profile", blocks_per_sm: int) -> tuple[float, float]:
    """By how much of the mean pace blocks of equal work are faster or slower, so many on an SM:
    those of a GPC, and GPCs."""
    l2 = gpu.l2
    shared = (l2.pace_spread or 0.0, l2.gpc_pace_spread or 0.0)
    if blocks_per_sm > 1 or l2.pace_spread_alone is None:
        return shared
    return l2.pace_spread_alone, l2.gpc_pace_spread_alone or 0.0


def chunk_cycles(gpu: "Profile", chunk_bytes: int,
                 blocks_per_sm: int) -> tuple[float, float, float]:
    """Cycles of a block that reads a chunk and waits for it: when it hits, and when it misses,
    where ``blocks_per_sm`` do so; and of DRAM for a sector (l2_scan.scan)."""
    machine = machine_of(gpu, blocks_per_sm, UNIT_BYTES, 1)
    busy = chunk_bytes / machine["sm_bytes_per_cycle"]
    hit, miss = (max(machine[name] + busy / blocks_per_sm, busy)
                 for name in ("l2_latency", "hbm_latency"))
    return float(hit), float(miss), gpu.l2.sector_bytes / float(machine["dram_bytes_per_cycle"])


def _measured(gpu: "Profile", name: str, otherwise: float) -> float:
    found = gpu.measured.get(name)
    return otherwise if found is None else found.value


def _l2_bytes_per_cycle(gpu: "Profile") -> float:
    """What one SM reads of L2 in a cycle when all do: specified, else measured."""
    specified, measured = gpu.l2.read_bytes_per_clock, gpu.measured.get("l2_read")
    if specified is not None:
        return specified / gpu.sm_count
    if measured is not None:
        return measured.value / gpu.boost_clock_hz / gpu.sm_count
    return SM_BYTES_PER_CLOCK


# ---- Where SMs are ---------------------------------------------------------------------------


def sm_sides(gpu: "Profile", seed: int = 0) -> np.ndarray:
    """The partition of each SM in the order that thread blocks reach them; where the profile has
    none, groups of GROUP_SMS take turns. With another ``seed`` another group comes first, as with
    every launch on an H200."""
    sides = np.arange(gpu.sm_count) // GROUP_SMS % gpu.l2.partitions
    measured = gpu.l2.sm_partitions
    if measured is not None and len(measured) == gpu.sm_count:
        sides = np.array([int(digit) for digit in measured])
    return np.roll(sides, -GROUP_SMS * seed)


def sm_gpcs(gpu: "Profile", seed: int = 0) -> np.ndarray:
    """The GPC of each SM in the same order; where the profile has none, GROUP_SMS each."""
    groups = np.arange(gpu.sm_count) // GROUP_SMS
    measured = gpu.l2.sm_gpcs
    if measured is not None and len(measured) == gpu.sm_count:
        groups = np.array([int(digit) for digit in measured])
    return np.roll(groups, -GROUP_SMS * seed)


def sms_of_grid(gpu: "Profile", blocks: int, seed: int = 0) -> np.ndarray:
    """Which of the SMs above so many blocks reach: all, or where there are fewer blocks than SMs as
    many of each GPC, but for some that come first (l2.first_sms)."""
    first = min(gpu.l2.first_sms or 0, blocks, gpu.sm_count)
    if blocks >= gpu.sm_count:
        return np.arange(gpu.sm_count)
    gpcs = sm_gpcs(gpu, seed)[first:]
    rank = np.array([(gpcs[:at] == gpc).sum() for at, gpc in enumerate(gpcs)])
    taken = np.argsort(rank, kind="stable")[:blocks - first]
    return np.concatenate([np.arange(first), first + np.sort(taken)])
