"""Thread blocks in flight: the compiled part of the L2 reader.

A small virtual machine for each slot, an event queue over them, and the way from a tile to the
cache's units. Columns of sector counts: READ and WRITTEN by thread blocks (atomic adds are writes),
FETCHED from DRAM for loads, WRITTEN_BACK to it, and FILLED from it for atomic adds.
"""

import numpy as np

from ..jit import njit
from ..tape import Kind
from .l2_cache import DIRTY, HOME_BYTES, WAYS, add_unit, popcount, read_unit, write_unit
from .l2_counts import FETCHED, FILLED, READ, WRITTEN, WRITTEN_BACK
from .l2_repeat import group_of, next_block
from .walk import END, LET, LOOP, assign, enter_loop, next_trip, region

_LOAD, _STORE, _REDUCE = int(Kind.LOAD), int(Kind.STORE), int(Kind.REDUCE)

# What a phase runs on; latencies and rates in cycles, dram_free the time that DRAM is next idle.
MACHINE = np.dtype(
    [(name, np.float64) for name in ("l2_latency", "hbm_latency", "sm_bytes_per_cycle",
                                     "dram_bytes_per_cycle", "dram_free")]
    + [(name, np.int64) for name in ("unit_bytes", "sector_bytes", "group")]  # query heads a block
)
# The last tile that a side read: nothing changed on that side since, so it is all in place.
LAST_READ = np.dtype(
    [(name, np.int64) for name in ("start", "tile", "sectors")] + [("ready", np.float64)]
)


@njit
def run_phase(tape, phase, tensors, tiles, cycles, heads, head_fastest, sides, variables,
               cache, sectors, machine, plan, stored):
    """Run all thread blocks of a phase: always the slot whose clock is lowest goes on.

    ``plan`` (l2_repeat.py) says how blocks are grouped: ``sectors`` has [group, tensor, count].
    """
    n_slots = variables.shape[0]
    stops = np.zeros_like(variables)
    blocks1 = -(-phase.extent1 // phase.step1)
    per_head = -(-phase.extent0 // phase.step0) * blocks1
    total = per_head * heads
    pcs, head_of = np.full(n_slots, -1, np.int64), np.zeros(n_slots, np.int64)
    groups = np.zeros(n_slots, np.int64)
    sums = np.zeros((sectors.shape[0] + 1, sectors.shape[1], sectors.shape[2]), np.int64)
    last = np.zeros(cache.shape[0], LAST_READ)
    for side in range(len(last)):
        last[side].tile = -1
    machine.dram_free = 0.0
    times, queue = np.zeros(n_slots), np.arange(n_slots)  # a heap of slots by time
    issued, waiting = 0, n_slots
    while waiting and not plan.stop:
        slot = queue[0]
        if pcs[slot] < 0:
            if issued == total:
                waiting -= 1
                queue[0] = queue[waiting]
                _sift_down(queue, waiting, times)
                continue
            issued = next_block(issued, plan, pcs, groups, sectors, sums, stored)
            groups[slot] = group_of(issued, plan)
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
            times[slot], tensors, tiles, cache, sectors[groups[slot]], last, machine)
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
          sectors, last, machine):
    """Run one slot to the end of its next load or store: (next address or -1, its time then)."""
    while pc < end:
        row = tape[pc]
        if row.kind == LOOP:
            pc = enter_loop(tape, pc, variables, stops)
            continue
        if row.kind == END:
            pc = next_trip(tape, pc, variables, stops)
            continue
        if row.kind == LET:
            assign(row, variables)
        time += cycles[pc]
        pc += 1
        if row.kind == _LOAD or row.kind == _STORE or row.kind == _REDUCE:
            time = _move_region(row, variables, head, side, time, tensors, tiles, cache, sectors,
                                last, machine)
            return pc if pc < end else -1, time
    return -1, time


@njit
def _move_region(row, variables, head, side, time, tensors, tiles, cache, sectors,
                 last, machine):
    """Read, write or add to a tile, a run of bytes for each row or one when rows are whole; the
    time when it is done."""
    tensor = tensors[row.tensor]
    r0, c0, rows, cols = region(row, variables, tensors, tiles)
    if rows == 0 or cols == 0:
        return time
    pitch = tensor.cols * tensor.element_bytes
    head //= tensor.group // machine.group
    start = tensor.base_bytes + (head * tensor.rows_kept + r0) * pitch
    start += c0 * tensor.element_bytes
    run_bytes = cols * tensor.element_bytes
    transfer = rows * run_bytes / machine.sm_bytes_per_cycle
    if cols == tensor.cols:
        rows, run_bytes = 1, rows * pitch
    counts, mine = sectors[row.tensor], last[side]
    if row.kind != _LOAD:
        _move_rows(start, rows, run_bytes, pitch, side, row.kind, counts, sectors, tensors, cache,
                   last, machine)
        for other in range(len(last)):
            last[other].tile = -1
        return time + transfer
    if mine.tile == row.tile and mine.start == start:
        counts[READ] += mine.sectors  # the very tile just read: all of it is in place already
        return max(time + machine.l2_latency, mine.ready) + transfer
    read, fetched = counts[READ], counts[FETCHED]
    if tensor.page_rows:
        _load_pages(tensor, start, rows * run_bytes, side, counts, sectors, tensors, cache, last,
                    machine)
    else:
        _move_rows(start, rows, run_bytes, pitch, side, _LOAD, counts, sectors, tensors, cache,
                   last, machine)
    fetched = counts[FETCHED] - fetched
    ready = time + machine.l2_latency
    if fetched:
        machine.dram_free = max(machine.dram_free, time)
        machine.dram_free += fetched * machine.sector_bytes / machine.dram_bytes_per_cycle
        ready = max(time + machine.hbm_latency, machine.dram_free)
    mine.start, mine.sectors, mine.ready = start, counts[READ] - read, ready
    mine.tile = row.tile if _stays(rows, run_bytes, pitch, cache, machine.unit_bytes) else -1
    return ready + transfer


@njit
def _load_pages(tensor, start, n_bytes, side, counts, sectors, tensors, cache, last, machine):
    """Read whole rows that lie in pages: ``start`` is where they would be without."""
    page_bytes = tensor.page_rows * tensor.cols * tensor.element_bytes
    first, end = start - tensor.base_bytes, start - tensor.base_bytes + n_bytes
    while first < end:
        page = first // page_bytes
        stop = min(end, (page + 1) * page_bytes)
        place = tensor.base_bytes + page * tensor.page_stride % tensor.pages * page_bytes
        _move_rows(place + first - page * page_bytes, 1, stop - first, page_bytes, side, _LOAD,
                   counts, sectors, tensors, cache, last, machine)
        first = stop


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
def _move_rows(start, rows, run_bytes, pitch, side, kind, counts, sectors, tensors, cache, last,
               machine):
    """Read (from one side), write or add to ``rows`` runs of bytes, ``pitch`` apart. Runs that
    share a unit are moved together."""
    sector_bytes = machine.sector_bytes
    per_unit = machine.unit_bytes // sector_bytes
    unit, mask = np.int64(-1), np.uint64(0)
    for number in range(rows):
        first = (start + number * pitch) // sector_bytes
        end = (start + number * pitch + run_bytes - 1) // sector_bytes + 1
        counts[READ if kind == _LOAD else WRITTEN] += end - first
        while first < end:
            here = first // per_unit
            stop = min(end, (here + 1) * per_unit)
            if here != unit:
                if unit >= 0:
                    _move_unit(unit, mask, side, kind, counts, sectors, tensors, cache, last,
                               machine)
                unit, mask = here, np.uint64(0)
            mask |= _bits(first - here * per_unit, stop - 1 - here * per_unit)
            first = stop
    _move_unit(unit, mask, side, kind, counts, sectors, tensors, cache, last, machine)


@njit
def _move_unit(unit, mask, side, kind, counts, sectors, tensors, cache, last, machine):
    """Read, write or add to some sectors of a unit; count what DRAM gives and takes."""
    unit_bytes = machine.unit_bytes
    if kind == _REDUCE:
        filled, tag, dirty, clean_tag, cleaned = add_unit(cache, unit, mask,
                                                          HOME_BYTES // unit_bytes)
        counts[FILLED] += popcount(filled)
        _write_back(tag, dirty, unit, sectors, tensors, cache, unit_bytes)
        _write_back(clean_tag, cleaned, unit, sectors, tensors, cache, unit_bytes)
        return
    if kind == _STORE:
        near_tag, near_dirty, far_tag, far_dirty, clean_tag, cleaned = write_unit(
            cache, unit, side, mask, HOME_BYTES // unit_bytes)
        _write_back(near_tag, near_dirty, unit, sectors, tensors, cache, unit_bytes)
        _write_back(far_tag, far_dirty, unit, sectors, tensors, cache, unit_bytes)
        _write_back(clean_tag, cleaned, unit, sectors, tensors, cache, unit_bytes)
        return
    fetched, near_tag, near_dirty, far_tag, far_dirty, changed = read_unit(
        cache, unit, side, mask, HOME_BYTES // unit_bytes)
    if fetched:
        counts[FETCHED] += popcount(fetched)
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
        sectors[_tensor_at(address, tensors), WRITTEN_BACK] += popcount(dirty)


@njit
def _tensor_at(address, tensors):
    """The tensor that a unit's address belongs to."""
    index = len(tensors) - 1
    while tensors[index].base_bytes > address:
        index -= 1
    return index


@njit
def dirty_sectors(cache, tensors, unit_bytes):
    """Dirty sectors by tensor."""
    dirty = np.zeros(len(tensors), np.int64)
    n_sets = cache.shape[1]
    for part in range(cache.shape[0]):
        for index in range(n_sets):
            for way in range(WAYS):
                bits = cache[part, index, DIRTY + way]
                if bits:
                    row = np.int64(cache[part, index, way]) - 1
                    tensor = _tensor_at((row * n_sets + index) * unit_bytes, tensors)
                    dirty[tensor] += popcount(bits)
    return dirty
