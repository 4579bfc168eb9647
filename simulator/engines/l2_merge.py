"""Requests that share one: SMs of a GPC that ask for the same line close in time.

Between a GPC and the L2 stands a coalescer. A request that finds another for the same line on its
way joins it, up to a number of them, and the answer goes to all: L2 sees one request. The first is
on its way for its latency less what it spends between SM and coalescer, so that hits take company
for some 90 cycles, misses for hundreds (measured: two SMs that read the same lines one so many
cycles after the other, and 2 to 132 that read in step).

How close blocks are in time is a matter of cycles. On a GPU the first blocks start one after the
other, and none works quite as fast as the next, nor does a GPC: each block has a start (that counts
only here) and a pace of its own, each GPC one too, fixed by their numbers, as far apart as the
profile says (walks over tiles on tensor cores, measured). A block that waits for what others wait
for is in step with them again.
"""

from typing import Any

import numpy as np

from ..jit import inlined
from ..tape import Record
from .l2_machine import GPCS_MAX, at_share, spread_evenly

# A tile that an SM of a GPC asked for: when its first request left, how many share it, and how much
# of it came from DRAM.
REQUEST = np.dtype([("tile", np.int64), ("start", np.int64), ("sharing", np.int64),
                    ("time", np.float64), ("missed", np.float64)])
REMEMBERED = 8  # requests of a GPC
ALL = 1 - 1e-9  # of DRAM's rate, nearly


def remembered_requests(gpcs: int) -> np.ndarray:
    """Room for the latest requests, [GPC, request]; none is there."""
    requests = np.zeros((gpcs, REMEMBERED), REQUEST)
    requests["tile"], requests["time"] = -1, -np.inf
    return requests


@inlined
def scattered(number: Any) -> float:
    """A fixed number in [-1, 1) for each number, that says nothing of its neighbours' (splitmix64).
    """
    x = (np.uint64(number) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((x ^ (x >> np.uint64(31))) >> np.uint64(11)) / 2.0 ** 52 - 1.0


@inlined
def begin_drift(slot: Record, issued: int, slots: int, gpc: int, machine: Record) -> None:
    """A block that is issued as number ``issued`` begins on a slot of ``slots``, on an SM of
    ``gpc``."""
    if issued < slots:
        slot.lag = (scattered(-issued - 2) + 1) * machine.first_starts / 2
    busy = machine.dram_moved / machine.dram_bytes_per_cycle / max(slot.due, 1.0)
    apart = at_share(machine.clock_spread, min(busy, ALL))
    slot.pace = (1 + machine.pace_spread * scattered(issued)
                 + machine.gpc_pace_spread * spread_evenly(gpc)
                 + apart * machine.clock_offsets[gpc % GPCS_MAX])


@inlined
def merged(requests: np.ndarray, row: Record, start: int, slot: Record, asked: int, missed: int,
           waits: bool, machine: Record) -> Any:
    """Of the ``asked`` sectors of a tile that a slot's block loads now, ``missed`` of them from
    DRAM, those that join a request of the GPC (``requests``). ``waits``: the block waits for what
    is missed, here or on its way to others."""
    if machine.sharing_max < 2 or asked == 0:
        return 0
    time = slot.due * machine.scale + slot.lag
    if waits:
        slot.lag = 0.0
    found, oldest, least = -1, 0, np.inf
    for i in range(REMEMBERED):
        request = requests[i]
        if request.time < requests[oldest].time:
            oldest = i
        if (request.tile == row.tile and request.start == start
                and request.sharing < machine.sharing_max and abs(time - request.time) < least):
            found, least = i, abs(time - request.time)
    share = _under_way(requests[found].missed, least, machine) if found >= 0 else 0.0
    if share > 0:
        requests[found].sharing += 1
        return min(np.int64(share * asked), asked - missed)  # what it fetches itself L2 is asked
    mine = requests[oldest]
    mine.tile, mine.start, mine.sharing = row.tile, start, 1
    mine.time, mine.missed = time, missed / asked
    return 0


@inlined
def _under_way(missed: float, after: float, machine: Record) -> float:
    """The share of a tile's requests that are under way ``after`` so many cycles; of what missed,
    half has a far home."""
    share = 0.0
    if after < machine.l2_latency - machine.to_coalescer:
        share = 1 - missed
    wait = machine.hbm_latency - machine.to_coalescer
    if after < wait - machine.far_more / 2:
        share += missed / 2
    if after < wait + machine.far_more / 2:
        share += missed / 2
    return share
