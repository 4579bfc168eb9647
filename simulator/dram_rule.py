"""DRAM bytes of a launch: by a rule, or by the L2 reader (engines/l2.py) where that is asked for.

Every input comes from DRAM once. What a program writes goes there, and what it reads again comes
back, as far as the L2 cannot keep what passes by in between.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .at_scale import at_scale
from .engines import l2
from .grid_order import ROW, Order, heads_in_flight, issue
from .l2_running import running
from .program import Program, Role
from .tape import Kind

if TYPE_CHECKING:
    from ..hwprofiles.schema import Profile
    from .phase_time import Phase

STORES = (Kind.STORE, Kind.REDUCE)
ROUNDS = 3  # of a rate and what is on its way at that rate
# Bytes over the SM boundary: from how many on the L2 reader walks at a scale, as long as that takes
# it a second, and up to how many it counts what has no scale, which takes it a few.
SCALED_FROM, COUNTED_MAX = 1.6e10, 1.25e11


def at_once(compute: Callable[[], dict[str, float]], **asked: Any) -> dict[str, float]:
    """``compute()``: for who keeps no results of what is ``asked``."""
    return compute()


def of_launch(phase: "Phase", resident: int, order: Order) -> dict[int, float]:
    """Bytes of each tensor (by its index) to and from DRAM: by the rule; of a phase that asks to
    ``count_dram``, by the L2 reader where the rule cannot know how closely blocks follow each
    other, and the reader takes a few seconds at most."""
    if not (phase.count_dram and _outgrown(phase, resident, order)):
        return from_dram(phase, resident, order)
    program, gpu = phase.program, phase.gpu
    short, scale = at_scale(replace(program, phases=(phase.phase,)), gpu, resident, order,
                            SCALED_FROM)
    if sum(phase.moved.values()) > COUNTED_MAX * scale:
        return from_dram(phase, resident, order)
    options = {"running": [running(phase, resident)], "scale": scale}
    found = phase.remember(
        lambda: _counted(short, gpu, resident, order, options), gpu=(gpu.l2, gpu.measured),
        program=(program.schedule, program.problem, program.tiles, phase.phase.name),
        resident=resident, order=order, options=options)
    return {index: found[program.tensors[index].name] for index in phase.moved}


def _counted(program: Program, gpu: "Profile", resident: int, order: Order,
             options: dict[str, Any]) -> dict[str, float]:
    """Bytes of each tensor by name, with those that the next call's time writes."""
    count = l2.simulate(program, gpu, blocks_per_sm=resident, order=order, **options)
    left = count.dirty * count.sector_bytes
    return {name: float(sum(count.by_tensor[name].values()) + dirty)
            for name, dirty in zip(count.by_tensor, left, strict=True)}


def _outgrown(phase: "Phase", resident: int, order: Order) -> bool:
    """Whether heads are side by side, and what those in flight load again and again is more than a
    partition of the L2 keeps."""
    problem, heads, blocks = phase.program.problem, phase.heads, phase.per_head
    if issue(order, problem, heads, blocks)[0] == ROW:
        return False
    together = heads_in_flight(order, problem, heads, blocks, phase.gpu.sm_count * resident)
    loaded = sum(phase.program.tensor_bytes(phase.program.tensors[index])
                 for index in phase.bytes_moved((Kind.LOAD,)))
    return loaded * together / heads > phase.gpu.l2.size_bytes / phase.gpu.l2.partitions


def from_dram(phase: "Phase", resident: int, order: Order) -> dict[int, float]:
    """Bytes of each tensor (by its index) to and from DRAM.

    Between two reads of a byte pass, of the heads in flight: all of what is read again, and one
    pass's share of the rest. Blocks of a head that are in flight together walk it together; but
    of a grid of row blocks by column blocks, all row blocks pass between two reads of a column
    block's tensor, and the row block's is read again at once.
    """
    program, heads_of_grid, blocks = phase.program, phase.heads, phase.per_head
    reads, writes = phase.bytes_moved((Kind.LOAD,)), phase.bytes_moved(STORES)
    sizes = {index: program.tensor_bytes(program.tensors[index]) for index in {*reads, *writes}}
    slots = phase.gpu.sm_count * resident
    heads = heads_in_flight(order, program.problem, heads_of_grid, blocks, slots)
    walkers = max(min(slots / heads, blocks), 1)
    again = {index for index in reads if reads[index] > sizes[index]}
    passes = max((reads[index] / sizes[index] for index in again), default=1)
    between = sum(size / (1 if index in again else passes) for index, size in sizes.items())
    kept = phase.gpu.l2.size_bytes / (phase.gpu.l2.partitions if blocks > 1 else 1)
    missed = lost(between * heads / heads_of_grid, kept)
    left = lost(sum(map(program.tensor_bytes, program.tensors)), kept)
    of_columns, found = _of_column_blocks(phase), {}
    for index, size in sizes.items():
        once = 0.0
        if index in reads:
            share = 1.0 if program.tensors[index].role == Role.INPUT else left
            once += share * min(size, reads[index])
        if index in writes:
            once += left * size
        turns = reads.get(index, 0) / size
        if of_columns:
            turns = turns if index in of_columns else 0
        else:
            turns /= walkers
        found[index] = once + missed * size * max(turns - 1, 0)
    return found


def lost(passing_bytes: float, kept_bytes: float) -> float:
    """The share of bytes that the L2 no longer has when so many passed by: none up to those that
    it keeps for SMs of all partitions, all from twice as many on (least recently used)."""
    return min(max(passing_bytes / kept_bytes - 1, 0.0), 1.0)


def written_share(phase: "Phase", found: dict[int, float]) -> float:
    """Of the bytes of ``from_dram``, those of tensors that the launch only writes."""
    read = phase.bytes_moved((Kind.LOAD,))
    written = sum(size for index, size in found.items() if index not in read)
    return written / max(sum(found.values()), 1)


def _of_column_blocks(phase: "Phase") -> set[int]:
    """Tensors that column blocks load, of a grid that has row blocks and column blocks."""
    if len(phase.phase.axes) < 2:
        return set()
    loads = phase.tape[phase.tape["kind"] == Kind.LOAD]
    return {int(row["tensor"]) for row in loads
            if row["row_var"] != 0 and 1 in (row["row_var"], row["col_var"])}


def added_beyond(phase: "Phase", from_dram: dict[int, float]) -> np.ndarray:
    """[block] cycles that adds are slower where the L2 must fetch first what they add to: an
    SM's share of the GPU's rate. No warp waits for them, but there is no more of it."""
    cycles, rate = np.zeros(len(phase.counts)), phase.rates
    beyond = phase.gpu.measured.get("hbm_add")
    if beyond is None:
        return cycles
    for address in np.flatnonzero(phase.tape["kind"] == Kind.REDUCE):
        row = phase.tape[address]
        tensor, size = int(row["tensor"]), phase.bytes_of(row)
        missed = min(from_dram[tensor] / 2 / phase.moved[tensor], 1)  # fetched and written
        slower = (phase.sharing * rate.clock_hz / beyond.value
                  - 1 / rate.boundary_bytes(phase.sharing, Kind.REDUCE))
        cycles += phase.counts[:, address] * missed * size * max(slower, 0)
    return cycles


def rate_in_flight(phase: "Phase", resident: int, work: float, dram_bytes: float) -> float:
    """Bytes a cycle of DRAM: no more than come while so many are on their way (measured). Of blocks
    that load trips ahead that is all of their buffers but what they work on, ``work`` cycles in
    all."""
    found, rate, how = phase.gpu.measured.get("hbm_read_in_flight"), phase.dram_rate, phase.how
    loaded = sum(phase.bytes_moved((Kind.LOAD,)).values())
    if found is None or found.curve is None or how.prefetch != "trip" or not dram_bytes:
        return rate
    a_trip = loaded / phase.blocks / float(phase.trips().mean()) / how.multicast
    ahead = phase.active * resident * a_trip * min(dram_bytes / loaded, 1)
    at, rates_there = zip((0, 0), *found.curve, strict=True)
    for _ in range(ROUNDS):
        in_use = min(work * rate / dram_bytes, 1)
        there = np.interp(ahead * (how.trips_ahead + 1 - in_use), at, rates_there)
        rate = min(phase.dram_rate, float(there) / phase.rates.clock_hz)
    return rate
