"""When a tile is there that a thread block loads: from L2, from DRAM, or with another's."""

import numpy as np

from ..jit import inlined
from ..tape import Record
from .l2_machine import at_share
from .l2_merge import scattered

# A tile on its way from DRAM, by its start: when it is there. Who asks for it meanwhile finds its
# lines in the L2's tags, and has to wait for them like the first.
UNDER_WAY = np.dtype([("start", np.int64), ("ready", np.float64)])
PLACES = 4096  # for tiles on their way
_SCATTER = 0x9E3779B97F4A7C15  # 2^64 / golden ratio


@inlined
def arrival(batches: int, start: int, time: float, fetched: int, under_way: np.ndarray,
            machine: Record) -> float:
    """When the first bytes of a tile's last batch are there that was asked for at ``time``:
    ``fetched`` sectors of it come from DRAM."""
    ready = time + batches * machine.tile_latency
    if fetched or machine.leaving:
        moved = (fetched + machine.leaving) << machine.sector_shift
        machine.dram_moved += moved
        machine.dram_free = max(machine.dram_free, time) + moved / machine.dram_bytes_per_cycle
        machine.leaving = 0
    if fetched:
        ready = max(ready + batches * _late(start, time, machine),
                    machine.dram_free + machine.tile_latency)
    spread = np.uint64(start) * np.uint64(_SCATTER) >> np.uint64(40)
    place = under_way[spread & np.uint64(PLACES - 1)]
    if place.start == start and place.ready > ready:
        ready = place.ready
    elif fetched:
        place.start, place.ready = start, ready
    return ready


@inlined
def _late(start: int, time: float, machine: Record) -> float:
    """How much later than from L2 a tile comes from DRAM: one share of such tiles or another, as
    chance (its address and the time) has it."""
    return at_share(machine.late, (scattered(start ^ np.int64(time)) + 1) / 2)
