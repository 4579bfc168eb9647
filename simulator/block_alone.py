"""What a thread block takes with an SM to itself: what of its work it sees, one thing after the
other, and what runs under something else.

``demands`` are cycles [instruction, unit (units.py)] of one execution by a thread block, and
``latencies`` those of each tensor's first byte, by its index.
"""

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from . import queueing
from .ops import BY_CODE
from .tape import Kind
from .units import ALU, MATMUL, SMEM

if TYPE_CHECKING:
    from .phase_time import Phase


def by_itself(phase: "Phase", seen: np.ndarray, delay: float, demands: np.ndarray) -> float:
    """Cycles of the mean group of warps, which sees ``seen`` [unit] and waits ``delay``.

    What a warp interleaves are two streams of work that queue for its units; all else follows in
    turn.
    """
    woven = _interleaved(phase, demands - under_others(phase, demands))
    return float((seen - woven).sum()) + queueing.alone(woven, delay, 2)


def hidden(phase: "Phase", demands: np.ndarray) -> np.ndarray:
    """[block, unit] cycles that a warp by itself does not see: it reads the operands of the next
    products from shared memory under these, or these run under the reads."""
    cycles: np.ndarray = phase.counts @ under_others(phase, demands)
    return cycles


def exposed_loads(phase: "Phase", seen: np.ndarray, demands: np.ndarray,
                  latencies: dict[int, float]) -> np.ndarray:
    """[block] cycles of waiting for loads beyond what runs meanwhile: nothing, one of a trip's two
    products, or whole trips, under which all its loads are on their way at once. Where nothing
    runs, but loads are sent at once, the slowest of a trip counts."""
    loads = np.flatnonzero(phase.tape["kind"] == Kind.LOAD)
    waits, how, rate = np.zeros(len(phase.counts)), phase.how, phase.rates
    if not len(loads):
        return waits
    trips, meanwhile = phase.trips(), np.zeros(len(phase.counts))
    if how.prefetch == "trip":
        meanwhile = seen.sum(axis=1) / trips
    elif how.prefetch == "product":
        products = demands[:, [MATMUL, SMEM]].max(axis=1) * (demands[:, MATMUL] > 0)
        meanwhile = phase.counts @ products / phase.groups / trips / 2
    elif how.loads_at_once:
        arrivals = np.array([latencies[int(tensor)] for tensor in phase.tape[loads]["tensor"]])
        inside = phase.counts[:, loads].max(axis=0) > 1  # the loop; the rest comes before it
        slowest: np.ndarray = arrivals.max() + (trips - 1) * arrivals[inside].max(initial=0.0)
        return slowest
    elif how.trips_ahead > 1:
        waits += rate.l2_latency
    for address in loads:
        size = phase.bytes_of(phase.tape[address])
        arrival = latencies[int(phase.tape[address]["tensor"])]
        if how.prefetch != "none":
            arrival += rate.block_load_cycles(size / how.multicast) - rate.l2_latency
        if how.in_flight_bytes:
            arrival *= ceil(size / how.in_flight_bytes)
        late = phase.counts[:, address] * np.maximum(arrival / how.trips_ahead - meanwhile, 0)
        waits = np.maximum(waits, late) if how.prefetch == "trip" else waits + late
    return waits


def under_others(phase: "Phase", demands: np.ndarray) -> np.ndarray:
    """[instruction, unit] cycles of one execution that run under its other unit."""
    shorter = np.zeros_like(demands)
    if phase.how.operands_ahead:
        both = demands[:, [MATMUL, SMEM]]
        rows = np.arange(len(demands))
        shorter[rows, np.where(both[:, 0] < both[:, 1], MATMUL, SMEM)] = both.min(axis=1)
    return shorter


def _interleaved(phase: "Phase", demands: np.ndarray) -> np.ndarray:
    """[unit] cycles of the mean group in products of weights, and in the weights between them."""
    shares = np.zeros(len(demands))
    for address, row in enumerate(phase.tape):
        if row["kind"] == Kind.COMPUTE and phase.how.interleaved:
            name = BY_CODE[row["op"]].name
            if name in ("dot", "dot_add"):
                shares[address] = 1.0
            elif name in ("exp_minus", "row_sum", "copy"):
                wide = phase.program.tile_table[row["a"]].cols > 1  # no statistics of rows
                shares[address] = phase.how.interleaved * wide
    cycles: np.ndarray = phase.counts.mean(axis=0) @ (demands * shares[:, None]) / phase.groups
    cycles[ALU] /= 2  # as far as the issue does not show it
    return cycles
