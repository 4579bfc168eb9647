"""A plain L2 reader: DRAM bytes of a program with its thread blocks in flight.

What it models: one partition, 128-byte lines, 16 ways, exact LRU, lines spread evenly over sets;
thread blocks issued in grid order to sm_count × blocks_per_sm slots, each slot moving one tile at
a time in turn; write-back, lines written in full are not fetched first; state survives phases; the
cache starts empty. Dirty lines left at the end are reported apart, as the hardware's counters do.
What it leaves out: partitions with copies, request merging, sectors, time.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..jit import njit
from ..program import Program
from ..tape import Kind
from .walk import END, LOOP, enter_loop, extent, next_trip, value

MODEL = "single partition, 128-byte lines, 16-way LRU, blocks in step; no request merging"
WAYS = 16
MAX_LINES = 1 << 31
ORDERS = ("row", "head")

_LOAD, _STORE = int(Kind.LOAD), int(Kind.STORE)
LAST_READ = np.dtype([(name, np.int64) for name in ("start", "tile", "lines", "sectors")])
_HITS, _MISSES, _WRITTEN_BACK, _SECTORS_READ, _SECTORS_WRITTEN = range(5)


@dataclass(frozen=True)
class L2Count:
    """Line counts by tensor, [tensor, (hits, misses, written back, sectors read, written)]."""

    program: Program
    lines: np.ndarray
    dirty_lines: np.ndarray
    line_bytes: int

    @property
    def dram_read_bytes(self) -> int:
        """Bytes fetched from DRAM."""
        return int(self.lines[:, _MISSES].sum()) * self.line_bytes

    @property
    def dram_write_bytes(self) -> int:
        """Bytes written back to DRAM before the end."""
        return int(self.lines[:, _WRITTEN_BACK].sum()) * self.line_bytes

    @property
    def dirty_bytes_at_end(self) -> int:
        """Bytes still dirty in L2 when the last kernel ends."""
        return int(self.dirty_lines.sum()) * self.line_bytes

    @property
    def sectors_read(self) -> int:
        """32-byte sectors that thread blocks asked for, none merged."""
        return int(self.lines[:, _SECTORS_READ].sum())

    @property
    def sectors_written(self) -> int:
        """32-byte sectors that thread blocks wrote."""
        return int(self.lines[:, _SECTORS_WRITTEN].sum())

    @property
    def hit_rate(self) -> float | None:
        """Share of line reads found in L2; None when nothing was read."""
        hits, misses = (int(self.lines[:, i].sum()) for i in (_HITS, _MISSES))
        return hits / (hits + misses) if hits + misses else None

    @property
    def by_tensor(self) -> dict[str, dict[str, int]]:
        """DRAM bytes by tensor, in the program's order."""
        return {
            tensor.name: {
                "read_bytes": int(row[_MISSES]) * self.line_bytes,
                "write_bytes": int(row[_WRITTEN_BACK]) * self.line_bytes,
            }
            for tensor, row in zip(self.program.tensors, self.lines, strict=True)
        }


def simulate(program: Program, *, size_bytes: int, line_bytes: int, sector_bytes: int,
             slots: int, order: str = "row") -> L2Count:
    """Run a program's thread blocks, ``slots`` at a time, against an L2 of ``size_bytes``.

    ``order`` is the grid index that runs fastest: "row" (block axes, last one first) or "head".
    Raises InputError for an unknown order, or a cache without a full set.
    """
    if order not in ORDERS:
        raise InputError(f"order {order!r} is not known; it is row or head")
    if program.footprint_bytes // line_bytes >= MAX_LINES:
        raise InputError(f"{program.footprint_bytes:,} B of tensors are more than the L2 reader's "
                         f"{MAX_LINES * line_bytes:,}")
    n_sets = size_bytes // (line_bytes * WAYS)
    if n_sets < 1:
        raise InputError(f"L2 size {size_bytes} B is less than one set of {WAYS} lines")
    tags = np.zeros((n_sets, WAYS), np.uint32)  # (line // n_sets + 1) · 2 + dirty; 0 is empty
    lines = np.zeros((len(program.tensors), 5), np.int64)
    n_slots = max(1, min(slots, max(p.blocks_per_head for p in program.phases)
                         * program.problem.head_count))
    for phase in program.phase_records:
        _run_phase(program.tape, phase, program.tensor_records, program.tile_records,
                   program.problem.head_count, order == "head", n_slots, len(program.vars),
                   tags, lines, line_bytes, sector_bytes)
    dirty = _dirty_lines(tags, program.tensor_records, line_bytes)
    return L2Count(program, lines, dirty, line_bytes)


@njit
def _run_phase(tape, phase, tensors, tiles, heads, head_fastest, n_slots, n_vars, tags, lines,
               line_bytes, sector_bytes):
    blocks0 = -(-phase.extent0 // phase.step0)
    blocks1 = -(-phase.extent1 // phase.step1)
    total = blocks0 * blocks1 * heads
    pcs = np.full(n_slots, -1, np.int64)
    head_of = np.zeros(n_slots, np.int64)
    variables = np.zeros((n_slots, n_vars), np.int64)
    stops = np.zeros((n_slots, n_vars), np.int64)
    last = np.zeros(1, LAST_READ)[0]
    last.tile = -1
    issued, running = 0, True
    while running:
        running = False
        for slot in range(n_slots):
            if pcs[slot] < 0:
                if issued == total:
                    continue
                if head_fastest:
                    head, block = issued % heads, issued // heads
                else:
                    head, block = issued // (blocks0 * blocks1), issued % (blocks0 * blocks1)
                head_of[slot] = head
                variables[slot, 0] = block // blocks1 * phase.step0
                variables[slot, 1] = block % blocks1 * phase.step1
                pcs[slot] = phase.first
                issued += 1
            running = True
            pcs[slot] = _step(tape, pcs[slot], phase.end, variables[slot], stops[slot],
                              head_of[slot], tensors, tiles, tags, lines, last, line_bytes,
                              sector_bytes)


@njit
def _step(tape, pc, end, variables, stops, head, tensors, tiles, tags, lines, last,
          line_bytes, sector_bytes):
    """Run one slot to the end of its next load or store; the next address, or -1 when done."""
    while pc < end:
        row = tape[pc]
        if row.kind == LOOP:
            pc = enter_loop(tape, pc, variables, stops)
            continue
        if row.kind == END:
            pc = next_trip(tape, pc, variables, stops)
            continue
        pc += 1
        if row.kind == _LOAD or row.kind == _STORE:
            _move_region(row, variables, head, tensors, tiles, tags, lines, last, line_bytes,
                         sector_bytes)
            return pc if pc < end else -1
    return -1


@njit
def _move_region(row, variables, head, tensors, tiles, tags, lines, last, line_bytes,
                 sector_bytes):
    """Read or write a tile: a run of bytes for each row, or one when rows are whole."""
    tensor, tile = tensors[row.tensor], tiles[row.tile]
    r0, c0 = value(variables, row.row_var), value(variables, row.col_var)
    rows = extent(r0, tile.rows, tensor.rows)
    cols = extent(c0, tile.cols, tensor.cols)
    if rows == 0 or cols == 0:
        return
    pitch = tensor.cols * tensor.element_bytes
    start = tensor.base_bytes + (head // tensor.group * tensor.rows + r0) * pitch
    start += c0 * tensor.element_bytes
    run_bytes = cols * tensor.element_bytes
    if cols == tensor.cols:
        rows, run_bytes = 1, rows * pitch
    write = row.kind == _STORE
    counts = lines[row.tensor]
    if not write and last.start == start and last.tile == row.tile and _stays(
            rows, run_bytes, pitch, tags, line_bytes):
        counts[_HITS] += last.lines  # the very tile just read: every line is in place already
        counts[_SECTORS_READ] += last.sectors
        return
    hits, misses, sectors = counts[_HITS], counts[_MISSES], counts[_SECTORS_READ]
    for number in range(rows):
        _move_run(start + number * pitch, run_bytes, write, counts, lines, tensors, tags,
                  line_bytes, sector_bytes)
    last.start, last.tile = start, -1 if write else row.tile
    last.lines = counts[_HITS] - hits + counts[_MISSES] - misses
    last.sectors = counts[_SECTORS_READ] - sectors


@njit
def _stays(rows, run_bytes, pitch, tags, line_bytes):
    """Whether a tile's lines all find room in the sets they map to."""
    n_sets, ways = tags.shape
    lines_per_row = run_bytes // line_bytes + 2
    if rows == 1:
        return lines_per_row <= n_sets
    a, b = pitch // line_bytes, n_sets
    while b:
        a, b = b, a % b
    return lines_per_row < a and rows <= n_sets // a * ways or rows * lines_per_row <= ways


@njit
def _move_run(start, run_bytes, write, counts, lines, tensors, tags, line_bytes, sector_bytes):
    """Read or write consecutive bytes."""
    end = start + run_bytes
    sectors = (end - 1) // sector_bytes - start // sector_bytes + 1
    counts[_SECTORS_WRITTEN if write else _SECTORS_READ] += sectors
    n_sets = np.uint32(tags.shape[0])
    first, last = np.uint32(start // line_bytes), np.uint32((end - 1) // line_bytes)
    set_index, tag = first % n_sets, (first // n_sets + np.uint32(1)) << np.uint32(1)
    for line in range(first, last + 1):
        found, victim = _touch(tags, set_index, tag, write)
        if found:
            if not write:
                counts[_HITS] += 1
        else:
            partial = line * line_bytes < start or (line + 1) * line_bytes > end
            if not write or partial:
                counts[_MISSES] += 1
            if victim & np.uint32(1):
                address = _line_at(victim, set_index, n_sets) * line_bytes
                lines[_tensor_at(address, tensors), _WRITTEN_BACK] += 1
        set_index += np.uint32(1)
        if set_index == n_sets:
            set_index, tag = np.uint32(0), tag + np.uint32(2)


@njit
def _line_at(content, set_index, n_sets):
    """The line that a way's content stands for."""
    return (np.int64(content >> np.uint32(1)) - 1) * n_sets + set_index


@njit
def _touch(tags, set_index, tag, write):
    """Bring ``tag`` to the most recent way of its set: (found, the evicted way's content)."""
    one = np.uint32(1)
    dirty = one if write else np.uint32(0)
    carried = tags[set_index, 0]
    if carried | one == tag | one:
        tags[set_index, 0] = carried | dirty
        return True, np.uint32(0)
    for way in range(1, tags.shape[1]):
        here = tags[set_index, way]
        tags[set_index, way] = carried
        if here | one == tag | one:
            tags[set_index, 0] = here | dirty
            return True, np.uint32(0)
        carried = here
    tags[set_index, 0] = tag | dirty
    return False, carried


@njit
def _tensor_at(address, tensors):
    """The tensor that a byte address (the start of a line) belongs to."""
    index = len(tensors) - 1
    while tensors[index].base_bytes > address:
        index -= 1
    return index


@njit
def _dirty_lines(tags, tensors, line_bytes):
    dirty = np.zeros(len(tensors), np.int64)
    n_sets = tags.shape[0]
    for set_index in range(n_sets):
        for way in range(tags.shape[1]):
            content = tags[set_index, way]
            if content & np.uint32(1):
                address = _line_at(content, set_index, n_sets) * line_bytes
                dirty[_tensor_at(address, tensors)] += 1
    return dirty
