"""The L2 reader: L2 and DRAM traffic of a program with its thread blocks in flight.

Thread blocks are issued in grid order to slots (sm_count × blocks_per_sm) as these fall free. Each
slot has a clock: a tile costs its operations at the GPU's rates, a load its latency and bytes, and
a load that misses waits for DRAM, so that blocks which walk the same K and V fall into step as
they do on hardware. The cache is l2_cache.py's: sectored, set-associative, in as many partitions
as the profile says, starting empty; its state survives phases. Dirty lines left at the end are
reported apart, as the hardware's counters do. Requests of several SMs for one line are not merged.

Rates and latencies are the profile's; none is fitted to attention kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..jit import njit
from ..ops import BY_CODE, Unit
from ..program import Program
from ..tape import Kind
from .l2_cache import (
    DIRTY,
    HOME_BYTES,
    SECTORS_PER_UNIT_MAX,
    UNIT_BYTES,
    WAYS,
    empty_cache,
    popcount,
    read_unit,
    write_unit,
)
from .walk import END, LOOP, enter_loop, extent, next_trip, value

ORDERS = ("row", "head")
# Cycles where a profile has no latencies: the H800's (Luo et al., arXiv 2402.13499).
L2_LATENCY_CYCLES, HBM_LATENCY_CYCLES = 263.0, 479.0
GROUP_SMS = 16  # SMs of a GPC
SM_BYTES_PER_CLOCK = 64.0  # L2 to one SM (NVIDIA A100 whitepaper: 5120 B/clk over 80 slices' ports)

_LOAD, _STORE, _COMPUTE = int(Kind.LOAD), int(Kind.STORE), int(Kind.COMPUTE)
_READ, _FETCHED, _WRITTEN, _WRITTEN_BACK = range(4)  # columns of sector counts
CLOCK = np.dtype([
    (name, np.float64)
    for name in ("l2_latency", "hbm_latency", "sm_bytes_per_cycle", "dram_bytes_per_cycle",
                 "dram_free")
])
LAST_READ = np.dtype(
    [(name, np.int64) for name in ("start", "tile", "sectors")] + [("ready", np.float64)]
)


@dataclass(frozen=True)
class L2Count:
    """Sectors by tensor, [tensor, (read, fetched from DRAM, written, written back)]; a sector
    that several SMs ask for counts once for each."""

    program: Program
    sectors: np.ndarray
    dirty: np.ndarray
    sector_bytes: int
    model: str

    def _bytes(self, column: int) -> int:
        return int(self.sectors[:, column].sum()) * self.sector_bytes

    @property
    def dram_read_bytes(self) -> int:
        """Bytes fetched from DRAM."""
        return self._bytes(_FETCHED)

    @property
    def dram_write_bytes(self) -> int:
        """Bytes written back to DRAM before the end."""
        return self._bytes(_WRITTEN_BACK)

    @property
    def dirty_bytes_at_end(self) -> int:
        """Bytes still dirty in L2 when the last kernel ends."""
        return int(self.dirty.sum()) * self.sector_bytes

    @property
    def sectors_read(self) -> int:
        """Sectors that thread blocks asked for, none merged."""
        return int(self.sectors[:, _READ].sum())

    @property
    def sectors_written(self) -> int:
        """Sectors that thread blocks wrote."""
        return int(self.sectors[:, _WRITTEN].sum())

    @property
    def hit_rate(self) -> float | None:
        """Share of the sectors read that were found in L2; None when nothing was read."""
        return 1 - self.dram_read_bytes / self._bytes(_READ) if self.sectors_read else None

    @property
    def by_tensor(self) -> dict[str, dict[str, int]]:
        """DRAM bytes by tensor, in the program's order."""
        return {
            tensor.name: {
                "read_bytes": int(row[_FETCHED]) * self.sector_bytes,
                "write_bytes": int(row[_WRITTEN_BACK]) * self.sector_bytes,
            }
            for tensor, row in zip(self.program.tensors, self.sectors, strict=True)
        }


def model_text(gpu) -> str:
    """The L2 model of a GPU in a line, for people who read its numbers."""
    parts = "one partition" if gpu.l2.partitions == 1 else f"{gpu.l2.partitions} partitions"
    return (f"{parts}, {WAYS}-way LRU, {gpu.l2.sector_bytes}-byte sectors, event clock; "
            "no request merging")


def simulate(program: Program, gpu, *, blocks_per_sm: int | Sequence[int], order: str = "row",
             matmul_flops_per_s: float | None = None, cold_phases: bool = False, unit_bytes: int = UNIT_BYTES) -> L2Count:
    """Run a program's thread blocks on ``gpu`` (a Profile), its L2 empty at the start.

    ``blocks_per_sm`` is one number or one for each phase; ``order`` the grid index that runs
    fastest: "row" (block axes, last one first) or "head"; ``matmul_flops_per_s`` the rate of the
    units that a kernel uses, when that is not the dtype's peak. ``cold_phases`` empties the cache before each phase, as a profiler does that flushes it before
    each kernel: what is dirty then leaves uncounted. ``unit_bytes`` is what the cache moves at a time: the profile's line size is exact.
    Raises InputError for an unknown order, or units that the reader cannot hold.
    """
    if order not in ORDERS:
        raise InputError(f"order {order!r} is not known; it is row or head")
    l2 = gpu.l2
    if unit_bytes % l2.sector_bytes or unit_bytes // l2.sector_bytes > SECTORS_PER_UNIT_MAX:
        raise InputError(f"{gpu.name}: l2.sector_bytes {l2.sector_bytes} must divide the L2 "
                         f"reader's unit of {unit_bytes} B in at most {SECTORS_PER_UNIT_MAX}")
    shape = (l2.size_bytes, l2.partitions, unit_bytes, l2.dirty_bytes_max)
    cache = empty_cache(*shape)
    if cache.shape[1] < 1:
        raise InputError(f"{gpu.name}: an L2 of {l2.size_bytes:,} B is smaller than one set")
    sectors = np.zeros((len(program.tensors), 4), np.int64)
    cycles = instruction_cycles(program, gpu, matmul_flops_per_s)
    sides = sm_sides(gpu)
    residents = np.broadcast_to(blocks_per_sm, len(program.phases))
    for phase, resident in zip(program.phase_records, residents, strict=True):
        if cold_phases:
            cache = empty_cache(*shape)
        blocks = -(-phase["extent0"] // phase["step0"]) * -(-phase["extent1"] // phase["step1"])
        slots = int(min(gpu.sm_count * resident, blocks * program.problem.head_count))
        clock = _clock(gpu, resident)
        _run_phase(program.tape, phase, program.tensor_records, program.tile_records,
                   cycles * resident, program.problem.head_count, order == "head", sides,
                   np.zeros((slots, len(program.vars)), np.int64), cache, sectors, clock,
                   unit_bytes, l2.sector_bytes)
    dirty = _dirty(cache, program.tensor_records, unit_bytes)
    return L2Count(program, sectors, dirty, l2.sector_bytes, model_text(gpu))


def instruction_cycles(program: Program, gpu, matmul_flops_per_s: float | None) -> np.ndarray:
    """Cycles of each instruction when it has an SM to itself: 0 but for computes, whose whole
    tiles run at the GPU's rate for their unit."""
    per_sm_clock = gpu.sm_count * gpu.boost_clock_hz
    matmul = (matmul_flops_per_s or getattr(gpu.flops, program.problem.dtype)
              or gpu.flops.fp32)
    rates = {Unit.MATMUL: matmul / per_sm_clock, Unit.EXP: gpu.exp_per_clock_per_sm,
             Unit.ALU: gpu.flops.fp32 / 2 / per_sm_clock}
    cycles = np.zeros(len(program.tape))
    for address in np.flatnonzero(program.tape["kind"] == Kind.COMPUTE):
        row = program.tape[address]
        op = BY_CODE[row["op"]]
        if op.unit == Unit.NONE:
            continue
        first, out = program.tile_table[row["a"]], program.tile_table[row["out"]]
        work = first.rows * first.cols * op.flops_per_element
        if op.unit == Unit.MATMUL:
            work *= out.cols
        cycles[address] = work / rates[op.unit]
    return cycles


def sm_sides(gpu) -> np.ndarray:
    """The partition of each SM in the order that thread blocks reach them; where the profile has
    none, groups of GROUP_SMS take turns."""
    measured = gpu.l2.sm_partitions
    if measured is not None and len(measured) == gpu.sm_count:
        return np.array([int(digit) for digit in measured])
    return np.arange(gpu.sm_count) // GROUP_SMS % gpu.l2.partitions


def _clock(gpu, blocks_per_sm: int):
    clock = np.zeros(1, CLOCK)[0]
    clock["l2_latency"] = gpu.latency_cycles.l2 or L2_LATENCY_CYCLES
    clock["hbm_latency"] = gpu.latency_cycles.hbm or HBM_LATENCY_CYCLES
    clock["sm_bytes_per_cycle"] = SM_BYTES_PER_CLOCK / blocks_per_sm
    clock["dram_bytes_per_cycle"] = gpu.hbm_bytes_per_s / gpu.boost_clock_hz
    return clock


@njit
def _run_phase(tape, phase, tensors, tiles, cycles, heads, head_fastest, sides, variables,
               cache, sectors, clock, unit_bytes, sector_bytes):
    """Run all thread blocks of a phase: always the slot whose clock is lowest goes on."""
    n_slots = variables.shape[0]
    stops = np.zeros_like(variables)
    blocks1 = -(-phase.extent1 // phase.step1)
    per_head = -(-phase.extent0 // phase.step0) * blocks1
    total = per_head * heads
    pcs, head_of = np.full(n_slots, -1, np.int64), np.zeros(n_slots, np.int64)
    last = np.zeros(cache.shape[0], LAST_READ)
    for side in range(len(last)):
        last[side].tile = -1
    clock.dram_free = 0.0
    times, queue = np.zeros(n_slots), np.arange(n_slots)  # a heap of slots by time
    issued, waiting = 0, n_slots
    while waiting:
        slot = queue[0]
        if pcs[slot] < 0:
            if issued == total:
                waiting -= 1
                queue[0] = queue[waiting]
                _sift_down(queue, waiting, times)
                continue
            head = issued % heads if head_fastest else issued // per_head
            block = issued // heads if head_fastest else issued % per_head
            head_of[slot] = head
            variables[slot, 0] = block // blocks1 * phase.step0
            variables[slot, 1] = block % blocks1 * phase.step1
            pcs[slot] = phase.first
            issued += 1
        side = sides[slot % len(sides)]
        pcs[slot], times[slot] = _step(
            tape, pcs[slot], phase.end, cycles, variables[slot], stops[slot], head_of[slot], side,
            times[slot], tensors, tiles, cache, sectors, last, clock, unit_bytes, sector_bytes)
        _sift_down(queue, waiting, times)


@njit
def _sift_down(queue, size, times):
    """Put the heap's first slot in its place by (time, slot)."""
    slot, at = queue[0], 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(queue[child + 1], queue[child], times):
            child += 1
        if not _before(queue[child], slot, times):
            break
        queue[at] = queue[child]
        at = child
    queue[at] = slot


@njit
def _before(a, b, times):
    return times[a] < times[b] or (times[a] == times[b] and a < b)


@njit
def _step(tape, pc, end, cycles, variables, stops, head, side, time, tensors, tiles, cache,
          sectors, last, clock, unit_bytes, sector_bytes):
    """Run one slot to the end of its next load or store: (next address or -1, its time then)."""
    while pc < end:
        row = tape[pc]
        if row.kind == LOOP:
            pc = enter_loop(tape, pc, variables, stops)
            continue
        if row.kind == END:
            pc = next_trip(tape, pc, variables, stops)
            continue
        time += cycles[pc]
        pc += 1
        if row.kind == _LOAD or row.kind == _STORE:
            time = _move_region(row, variables, head, side, time, tensors, tiles, cache, sectors,
                                last, clock, unit_bytes, sector_bytes)
            return pc if pc < end else -1, time
    return -1, time


@njit
def _move_region(row, variables, head, side, time, tensors, tiles, cache, sectors, last, clock,
                 unit_bytes, sector_bytes):
    """Read or write a tile, a run of bytes for each row or one when rows are whole; the time
    when it is done."""
    tensor, tile = tensors[row.tensor], tiles[row.tile]
    r0, c0 = value(variables, row.row_var), value(variables, row.col_var)
    rows = extent(r0, tile.rows, tensor.rows)
    cols = extent(c0, tile.cols, tensor.cols)
    if rows == 0 or cols == 0:
        return time
    pitch = tensor.cols * tensor.element_bytes
    start = tensor.base_bytes + (head // tensor.group * tensor.rows + r0) * pitch
    start += c0 * tensor.element_bytes
    run_bytes = cols * tensor.element_bytes
    transfer = rows * run_bytes / clock.sm_bytes_per_cycle
    if cols == tensor.cols:
        rows, run_bytes = 1, rows * pitch
    counts, mine = sectors[row.tensor], last[side]
    if row.kind == _STORE:
        _move_rows(start, rows, run_bytes, pitch, side, True, counts, sectors, tensors, cache,
                   last, unit_bytes, sector_bytes)
        for other in range(len(last)):
            last[other].tile = -1
        return time + transfer
    if mine.tile == row.tile and mine.start == start:
        counts[_READ] += mine.sectors  # the very tile just read: all of it is in place already
        return max(time + clock.l2_latency, mine.ready) + transfer
    read, fetched = counts[_READ], counts[_FETCHED]
    _move_rows(start, rows, run_bytes, pitch, side, False, counts, sectors, tensors, cache, last,
               unit_bytes, sector_bytes)
    fetched = counts[_FETCHED] - fetched
    ready = time + clock.l2_latency
    if fetched:
        clock.dram_free = max(clock.dram_free, time)
        clock.dram_free += fetched * sector_bytes / clock.dram_bytes_per_cycle
        ready = max(time + clock.hbm_latency, clock.dram_free)
    mine.start, mine.sectors, mine.ready = start, counts[_READ] - read, ready
    mine.tile = row.tile if _stays(rows, run_bytes, pitch, cache, unit_bytes) else -1
    return ready + transfer


@njit
def _stays(rows, run_bytes, pitch, cache, unit_bytes):
    """Whether a tile's units all find room in the sets they map to (half of the ways)."""
    n_sets, ways = cache.shape[1], WAYS // 2
    units_per_row = run_bytes // unit_bytes + 2
    if rows == 1 or pitch <= unit_bytes:
        return (rows - 1) * pitch // unit_bytes + units_per_row <= n_sets
    a, b = pitch // unit_bytes, n_sets
    while b:
        a, b = b, a % b
    return (units_per_row < a and rows <= n_sets // a * ways) or rows * units_per_row <= ways


@njit
def _bits(first, last):
    """Bits first … last of a uint64."""
    width = np.uint64(63 - (last - first))
    return (~np.uint64(0) >> width) << np.uint64(first)


@njit
def _move_rows(start, rows, run_bytes, pitch, side, write, counts, sectors, tensors, cache, last,
               unit_bytes, sector_bytes):
    """Read (from one side) or write ``rows`` runs of bytes, ``pitch`` apart. Runs that share a
    unit are moved together."""
    per_unit = unit_bytes // sector_bytes
    unit, mask = np.int64(-1), np.uint64(0)
    for number in range(rows):
        first = (start + number * pitch) // sector_bytes
        end = (start + number * pitch + run_bytes - 1) // sector_bytes + 1
        counts[_WRITTEN if write else _READ] += end - first
        while first < end:
            here = first // per_unit
            stop = min(end, (here + 1) * per_unit)
            if here != unit:
                if unit >= 0:
                    _move_unit(unit, mask, side, write, counts, sectors, tensors, cache, last,
                               unit_bytes)
                unit, mask = here, np.uint64(0)
            mask |= _bits(first - here * per_unit, stop - 1 - here * per_unit)
            first = stop
    _move_unit(unit, mask, side, write, counts, sectors, tensors, cache, last, unit_bytes)


@njit
def _move_unit(unit, mask, side, write, counts, sectors, tensors, cache, last, unit_bytes):
    """Read or write some sectors of a unit; count what DRAM gives and takes."""
    if write:
        near_tag, near_dirty, far_tag, far_dirty, clean_tag, cleaned = write_unit(
            cache, unit, side, mask, HOME_BYTES // unit_bytes)
        _write_back(near_tag, near_dirty, unit, sectors, tensors, cache, unit_bytes)
        _write_back(far_tag, far_dirty, unit, sectors, tensors, cache, unit_bytes)
        _write_back(clean_tag, cleaned, unit, sectors, tensors, cache, unit_bytes)
        return
    fetched, near_tag, near_dirty, far_tag, far_dirty, changed = read_unit(
        cache, unit, side, mask, HOME_BYTES // unit_bytes)
    if fetched:
        counts[_FETCHED] += popcount(fetched)
    _write_back(near_tag, near_dirty, unit, sectors, tensors, cache, unit_bytes)
    if changed:
        _write_back(far_tag, far_dirty, unit, sectors, tensors, cache, unit_bytes)
        for other in range(len(last)):
            if other != side:
                last[other].tile = -1


@njit
def _write_back(tag, dirty, unit, sectors, tensors, cache, unit_bytes):
    """Count the dirty sectors that fell out of ``unit``'s set."""
    if dirty:
        n_sets = cache.shape[1]
        address = ((np.int64(tag) - 1) * n_sets + unit % n_sets) * unit_bytes
        sectors[_tensor_at(address, tensors), _WRITTEN_BACK] += popcount(dirty)


@njit
def _tensor_at(address, tensors):
    """The tensor that a unit's address belongs to."""
    index = len(tensors) - 1
    while tensors[index].base_bytes > address:
        index -= 1
    return index


@njit
def _dirty(cache, tensors, unit_bytes):
    """Dirty sectors by tensor."""
    dirty = np.zeros(len(tensors), np.int64)
    n_sets = cache.shape[1]
    for part in range(cache.shape[0]):
        for index in range(n_sets):
            for way in range(WAYS):
                bits = cache[part, index, DIRTY + way]
                if bits:
                    row = np.int64(cache[part, index, way]) - 1
                    dirty[_tensor_at((row * n_sets + index) * unit_bytes, tensors)] += popcount(bits)
    return dirty
