"""Thread blocks in flight: the compiled part of the L2 reader.

A small virtual machine for each slot, an event queue over them, and the way from a tile to the
cache's units. Of the blocks that share an SM the oldest runs fastest (``paces``), as its warps are
served first; when it ends, the next oldest does.
"""

from typing import Any

import numpy as np

from ..jit import borrowing, inlined, njit
from ..tape import Kind, Record
from .dispatch import place_of
from .l2_arrivals import PLACES, UNDER_WAY, arrival
from .l2_cache import WAYS, add_unit, dirty_of, read_unit, write_unit
from .l2_counts import FETCHED, FILLED, MERGED, READ, WRITTEN, WRITTEN_BACK
from .l2_log import START, STOP, note_after, note_before, note_block
from .l2_merge import begin_drift, merged
from .l2_moves import ONE_PRODUCT
from .l2_places import popcount, sets_of
from .l2_repeat import group_of, next_block
from .soonest import first_times, set_time
from .walk import END, LET, LOOP, assign, enter_loop, next_trip, region

_LOAD, _STORE, _REDUCE = int(Kind.LOAD), int(Kind.STORE), int(Kind.REDUCE)

# A place for a thread block on an SM: where its block stands, when its next access is due, when
# all its work before that is done and the load before it was waited for, and how it drifts from
# others (l2_merge.py).
SLOT = np.dtype([(name, np.int64) for name in ("address", "head", "group")]
                + [(name, np.float64) for name in ("due", "clock", "waited", "lag", "pace")])
# The last tile that a side read: nothing changed on that side since, so it is all in place.
LAST_READ = np.dtype(
    [(name, np.int64) for name in ("start", "tile", "sectors")] + [("ready", np.float64)]
)


@njit
def run_phase(moves: np.ndarray, phase: Record, tensors: np.ndarray, tiles: np.ndarray,
              numbers: np.ndarray, heads: int, order: np.ndarray, sides: np.ndarray,
              gpcs: np.ndarray, requests: np.ndarray, paces: np.ndarray, variables: np.ndarray,
              freed: np.ndarray, slots: Any, cache: np.ndarray, sectors: np.ndarray,
              machine: Record, plan: Record, stored: np.ndarray, log: np.ndarray) -> None:
    """Run all thread blocks of a phase: always the slot whose next access is due first goes on.

    ``moves``, ``requests``, ``log``, ``order``: as l2_moves.py, l2_merge.py, l2_log.py and
    dispatch.place_of have them; ``paces`` [blocks on the SM, age rank]: how much slower than alone;
    ``freed`` [slot, tile, stage]: when buffers of the latest loads are free; ``sectors`` [group,
    tensor, count], grouped as ``plan`` says (l2_repeat.py). The run ends when ``log`` is full.
    """
    n_sms = len(sides)
    last: Any = np.zeros(cache.shape[0], LAST_READ)
    under_way: Any = np.zeros(PLACES, UNDER_WAY)
    last["tile"][:] = -1
    _run_blocks(
        moves, phase, tensors, tiles, numbers, heads, order, sides, gpcs, requests, paces,
        variables, np.zeros_like(variables), freed, slots, cache, sectors,
        np.zeros((sectors.shape[0] + 1, sectors.shape[1], sectors.shape[2]), np.int64), machine,
        plan, stored, last, under_way, np.zeros((n_sms, paces.shape[1]), np.int64),
        np.zeros(n_sms, np.int64), *first_times(len(slots)), log)


@borrowing
def _run_blocks(moves: np.ndarray, phase: Record, tensors: np.ndarray, tiles: np.ndarray,
                numbers: np.ndarray, heads: int, order: np.ndarray, sides: np.ndarray,
                gpcs: np.ndarray, requests: np.ndarray, paces: np.ndarray, variables: np.ndarray,
                stops: np.ndarray, freed: np.ndarray, slots: Any, cache: np.ndarray,
                sectors: np.ndarray, sums: np.ndarray, machine: Record, plan: Record,
                stored: np.ndarray, last: Any, under_way: np.ndarray, ages: np.ndarray,
                present: np.ndarray, times: np.ndarray, soonest: np.ndarray,
                log: np.ndarray) -> None:
    """run_phase with room for all that it keeps: ``stops`` of loops, ``sums`` of sectors
    (l2_repeat.py), the ``last`` tile of each side, tiles ``under_way`` (l2_arrivals.py), ``ages``:
    the slots of an SM, the oldest first, ``present`` of them, and when slots are due (soonest.py).
    It makes no arrays, so that nobody counts references to them."""
    n_slots, n_sms = len(slots), len(sides)
    machine.dram_free = machine.l2_free = 0.0
    issued: Any = np.int64(0)  # (with a literal Numba compiles next_block twice)
    while times[1] < np.inf and not plan.stop and (machine.logged < len(log) or not len(log)):
        number = soonest[1]
        slot, sm = slots[number], number % n_sms
        if slot.address < 0:
            left = _leave(ages[sm], present, sm, number)
            if left and len(log):
                note_block(log, machine, number, slot, variables[number], STOP)
            if issued == plan.total:
                set_time(times, soonest, number, np.inf)
                continue
            issued = next_block(issued, plan, slots.address, slots.group, sectors, sums, stored)
            slot.group = group_of(issued, plan)
            _begin(slot, variables[number], freed[number], phase, issued, heads, order)
            begin_drift(slot, issued, n_slots, gpcs[sm], machine)
            issued += 1
            ages[sm, present[sm]] = number
            present[sm] += 1
            if len(log) > machine.logged:
                note_block(log, machine, number, slot, variables[number], START)
        else:
            row, counts = moves[slot.address], sectors[slot.group]
            if len(log):
                note_before(log, machine, number, slot, row, variables[number], tensors, tiles,
                            counts)
            pace = _pace_of(slot, paces, present[sm], ages[sm], number)
            ready, end = _move_region(row, variables[number], slot, sides[sm], requests[gpcs[sm]],
                                      freed[number], pace, tensors, tiles, cache, counts, last,
                                      under_way, machine)
            if len(log):
                note_after(log, machine, row, counts, ready, end)
            slot.address += 1
        _go_on(moves, numbers, variables[number], stops[number], slot, freed[number],
               _pace_of(slot, paces, present[sm], ages[sm], number))
        set_time(times, soonest, number, slot.due)


@inlined
def _begin(slot: Record, variables: np.ndarray, freed: np.ndarray, phase: Record, issued: int,
           heads: int, order: np.ndarray) -> None:
    """Put the thread block that is issued as number ``issued`` into a slot that is free."""
    blocks1 = -(-phase.extent1 // phase.step1)
    slot.head, block = place_of(issued, heads, -(-phase.extent0 // phase.step0) * blocks1, order)
    variables[0], variables[1] = block // blocks1 * phase.step0, block % blocks1 * phase.step1
    freed[:] = -1.0
    slot.address, slot.clock, slot.waited = 0, slot.due, slot.due


@inlined
def _pace_of(slot: Record, paces: np.ndarray, present: int, ages: np.ndarray, number: int) -> float:
    """How much slower than alone a slot's block works now, by its own pace and its age rank among
    those ``present`` on its SM."""
    rank = 0
    while ages[rank] != number:
        rank += 1
    return slot.pace * paces[present, rank]


@inlined
def _leave(ages: np.ndarray, present: np.ndarray, sm: int, number: int) -> bool:
    """Take a slot whose block has ended off its SM: whether it was there."""
    for rank in range(present[sm]):
        if ages[rank] == number:
            for later in range(rank + 1, present[sm]):
                ages[later - 1] = ages[later]
            present[sm] -= 1
            return True
    return False


@inlined
def _go_on(moves: np.ndarray, numbers: np.ndarray, variables: np.ndarray, stops: np.ndarray,
           slot: Record, freed: np.ndarray, pace: float) -> None:
    """Bring a slot to its next access, or (address -1) the end of its block, and set when it is
    due; what is in front of it is computed by then, or on the way."""
    address = slot.address
    while address < len(moves):
        row = moves[address]
        slot.clock += row.work * pace
        if row.kind == LOOP:
            address = enter_loop(moves, address, variables, stops)
        elif row.kind == END:
            address = next_trip(moves, address, variables, stops)
        elif row.kind == LET:
            assign(row, variables, numbers)
            address += 1
        else:
            if row.ahead == 0:
                slot.due = max(slot.due, slot.clock)
            elif row.ahead == ONE_PRODUCT:
                slot.due = max(slot.due, slot.waited)
            else:
                slot.due = max(slot.due, freed[row.tile, row.ahead - 1])
            slot.address = address
            return
    slot.address, slot.due = -1, max(slot.due, slot.clock)


@borrowing
def _move_region(row: Record, variables: np.ndarray, slot: Record, side: int, requests: np.ndarray,
                 freed: np.ndarray, pace: float, tensors: np.ndarray, tiles: np.ndarray,
                 cache: np.ndarray, sectors: np.ndarray, last: Any, under_way: np.ndarray,
                 machine: Record) -> tuple[float, float]:
    """Read, write or add to a tile, a run of bytes for each row or one when rows are whole; sets
    the slot's clock to when it is done. Returns when its first bytes and its last are there."""
    tensor = tensors[row.tensor]
    r0, c0, rows, cols = region(row, variables, tensors, tiles)
    if rows == 0 or cols == 0:
        return slot.due, slot.due
    pitch = tensor.cols * tensor.element_bytes
    head = slot.head // (tensor.group // machine.group)
    start = tensor.base_bytes + (head * tensor.rows_kept + r0) * pitch
    start += c0 * tensor.element_bytes
    run_bytes = cols * tensor.element_bytes
    size = rows * run_bytes
    if cols == tensor.cols:
        rows, run_bytes = 1, rows * pitch
    if row.kind != _LOAD:
        _move_rows(start, rows, run_bytes, pitch, side, row.kind, sectors[row.tensor], sectors,
                   tensors, cache, last, machine)
        last["tile"][:] = -1
        begin = max(slot.clock, slot.due)
        slot.clock = begin + size / machine.sm_bytes_per_cycle
        return begin, slot.clock
    counts = sectors[row.tensor]
    asked, missed = counts[READ], counts[FETCHED]
    ready = _load(row, start, rows, run_bytes, pitch, side, slot.due, tensors, cache, sectors, last,
                  under_way, machine)
    asked, missed = counts[READ] - asked, counts[FETCHED] - missed
    transfer = size / machine.tile_bytes_per_cycle
    waits = ready > slot.due + row.batches * machine.tile_latency and (
        row.ahead == 0 or (row.ahead == ONE_PRODUCT and ready + transfer > slot.clock))
    counts[MERGED] += merged(requests, row, start, slot, asked, missed, waits, machine)
    machine.l2_free = max(machine.l2_free, slot.due) + size / machine.l2_bytes_per_cycle
    ready = max(ready, machine.l2_free)
    slot.clock = max(slot.clock, ready + transfer)
    if row.ahead and missed:
        slot.clock += machine.ahead_cycles * pace * missed / asked
    for stage in range(row.ahead - 1, 0, -1):
        freed[row.tile, stage] = freed[row.tile, stage - 1]
    if row.ahead == ONE_PRODUCT:
        slot.waited = slot.clock
    if row.ahead > 0:
        freed[row.tile, 0] = slot.clock + row.held * pace
    return ready, ready + transfer


@inlined
def _load(row: Record, start: int, rows: int, run_bytes: int, pitch: int, side: int, time: float,
          tensors: np.ndarray, cache: np.ndarray, sectors: np.ndarray, last: np.ndarray,
          under_way: np.ndarray, machine: Record) -> float:
    """Read a tile from one side at ``time``: when its first bytes are there."""
    tensor, counts, mine = tensors[row.tensor], sectors[row.tensor], last[side]
    if mine.tile == row.tile and mine.start == start:
        counts[READ] += mine.sectors  # the very tile just read: all of it is in place already
        return max(time + row.batches * machine.tile_latency, mine.ready)
    read, fetched = counts[READ], counts[FETCHED]
    if tensor.page_rows:
        _load_pages(tensor, start, rows * run_bytes, side, counts, sectors, tensors, cache, last,
                    machine)
    else:
        _move_rows(start, rows, run_bytes, pitch, side, _LOAD, counts, sectors, tensors, cache,
                   last, machine)
    fetched = counts[FETCHED] - fetched
    ready = arrival(row.batches, start, time, fetched, under_way, machine)
    mine.start, mine.sectors, mine.ready = start, counts[READ] - read, ready
    mine.tile = row.tile if _stays(rows, run_bytes, pitch, cache, 1 << machine.unit_shift) else -1
    return ready


@borrowing
def _load_pages(tensor: Record, start: int, n_bytes: int, side: int, counts: np.ndarray,
                sectors: np.ndarray, tensors: np.ndarray, cache: np.ndarray, last: np.ndarray,
                machine: Record) -> None:
    """Read whole rows that lie in pages: ``start`` is where they would be without."""
    page_bytes = tensor.page_rows * tensor.cols * tensor.element_bytes
    first, end = start - tensor.base_bytes, start - tensor.base_bytes + n_bytes
    rows: Any = np.int64(1)  # (with a literal Numba compiles _move_rows once more)
    while first < end:
        page = first // page_bytes
        stop = min(end, (page + 1) * page_bytes)
        place = tensor.base_bytes + page * tensor.page_stride % tensor.pages * page_bytes
        _move_rows(place + first - page * page_bytes, rows, stop - first, page_bytes, side, _LOAD,
                   counts, sectors, tensors, cache, last, machine)
        first = stop


@inlined
def _stays(rows: int, run_bytes: int, pitch: int, cache: np.ndarray, unit_bytes: int) -> bool:
    """Whether a tile's units all find room in the sets they map to (half of the ways)."""
    n_sets, ways = sets_of(cache), WAYS // 2
    units_per_row = run_bytes // unit_bytes + 2
    if rows == 1 or pitch <= unit_bytes:
        return (rows - 1) * pitch // unit_bytes + units_per_row <= n_sets
    a, b = pitch // unit_bytes, n_sets
    while b:
        a, b = b, a % b
    return (units_per_row < a and rows <= n_sets // a * ways) or rows * units_per_row <= ways


@inlined
def _bits(first: int, last: int) -> np.uint64:
    """Bits first … last of a uint64."""
    width = np.uint64(63 - (last - first))
    return (~np.uint64(0) >> width) << np.uint64(first)


@borrowing
def _move_rows(start: int, rows: int, run_bytes: int, pitch: int, side: int, kind: int,
               counts: np.ndarray, sectors: np.ndarray, tensors: np.ndarray, cache: np.ndarray,
               last: np.ndarray, machine: Record) -> None:
    """Read (from one side), write or add to ``rows`` runs of bytes, ``pitch`` apart. Runs that
    share a unit are moved together."""
    to_sector, to_unit = machine.sector_shift, machine.unit_shift - machine.sector_shift
    unit, mask = np.int64(-1), np.uint64(0)
    for number in range(rows):
        first = (start + number * pitch) >> to_sector
        end = ((start + number * pitch + run_bytes - 1) >> to_sector) + 1
        counts[READ if kind == _LOAD else WRITTEN] += end - first
        while first < end:
            here = first >> to_unit
            stop = min(end, (here + 1) << to_unit)
            if here != unit:
                if unit >= 0:
                    _move_unit(unit, mask, side, kind, counts, sectors, tensors, cache, last,
                               machine)
                unit, mask = here, np.uint64(0)
            mask |= _bits(first - (here << to_unit), stop - 1 - (here << to_unit))
            first = stop
    _move_unit(unit, mask, side, kind, counts, sectors, tensors, cache, last, machine)


@inlined
def _move_unit(unit: Any, mask: np.uint64, side: int, kind: int, counts: np.ndarray,
               sectors: np.ndarray, tensors: np.ndarray, cache: np.ndarray, last: np.ndarray,
               machine: Record) -> None:
    """Read, write or add to some sectors of a unit; count what DRAM gives and takes."""
    if kind == _REDUCE:
        filled, tag, dirty, other_tag, other_dirty = add_unit(cache, unit, mask)
        counts[FILLED] += popcount(filled)
        _write_back(tag, dirty, sectors, tensors, machine)
        _write_back(other_tag, other_dirty, sectors, tensors, machine)
        return
    if kind == _STORE:
        near_tag, near_dirty, home_tag, home_dirty = write_unit(cache, unit, side, mask)
        _write_back(near_tag, near_dirty, sectors, tensors, machine)
        _write_back(home_tag, home_dirty, sectors, tensors, machine)
        return
    fetched, near_tag, near_dirty, far_tag, far_dirty, changed = read_unit(
        cache, unit, side, mask)
    if fetched:
        counts[FETCHED] += popcount(fetched)
    _write_back(near_tag, near_dirty, sectors, tensors, machine)
    _write_back(far_tag, far_dirty, sectors, tensors, machine)
    if changed:
        for other in range(len(last)):
            if other != side:
                last[other].tile = -1


@inlined
def _write_back(tag: np.uint64, dirty: np.uint64, sectors: np.ndarray, tensors: np.ndarray,
                machine: Record) -> None:
    """Count dirty sectors of a unit (its tag: number + 1) that go to DRAM."""
    if dirty:
        tensor = _tensor_at((np.int64(tag) - 1) << machine.unit_shift, tensors)
        sectors[tensor, WRITTEN_BACK] += popcount(dirty)
        machine.leaving += popcount(dirty)


@inlined
def _tensor_at(address: Any, tensors: np.ndarray) -> int:
    """The tensor that a unit's address belongs to."""
    index = len(tensors) - 1
    while tensors[index].base_bytes > address:
        index -= 1
    return index


@njit
def dirty_sectors(cache: np.ndarray, tensors: np.ndarray, unit_bytes: int) -> np.ndarray:
    """Dirty sectors by tensor."""
    dirty = np.zeros(len(tensors), np.int64)
    for part in range(cache.shape[0]):
        for index in range(sets_of(cache)):
            for way in range(WAYS):
                bits = dirty_of(cache, part, index, way)
                if bits:
                    tag = np.int64(cache[part, index, way])
                    dirty[_tensor_at((tag - 1) * unit_bytes, tensors)] += popcount(bits)
    return dirty


@njit
def write_before(cache: np.ndarray, first: int, units: int, sides: np.ndarray,
                 whole: np.uint64) -> None:
    """Fill a cache with ``units`` units, from ``first`` on, that something else wrote; ``whole``
    has a bit for each sector of a unit."""
    for number in range(units):
        write_unit(cache, first + number, sides[number % len(sides)], whole)
