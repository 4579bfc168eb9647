"""Scans of buffers through the cache model: what the L2 microbenchmarks do on a GPU.

A warp of a block moves its part of one chunk after the other, 16 bytes a thread, and goes on as
soon as that is there: lines that hit take less time than lines that miss. So a block whose slice is
in the cache goes round it faster than the others can push it out, and the knee of private buffers
is soft and late. Lines are the cache's units here, so counts are exact.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..jit import njit
from .heap import sift_down
from .l2_cache import PAGE_BYTES, UNIT_BYTES, cache_of, read_unit, write_unit
from .l2_places import popcount

if TYPE_CHECKING:
    from ...hwprofiles.schema import L2Cache

IN_STEP = (1.0, 1.0, 0.0)
WARP_LINES = 4  # of 128 bytes: 16 bytes a thread


def scan(l2: "L2Cache", sides: Sequence[int] | np.ndarray, *, written_bytes: int = 0,
         rereads: int = 0, read_bytes: int = 0, first_page: int = 0, passes: int = 0,
         shared: bool = False, step_bytes: int = 4096, dirty_before_bytes: int = 0,
         cycles: Sequence[float] = IN_STEP) -> tuple[int, int]:
    """DRAM bytes (read, written back) of a scan; ``l2`` as a profile has it.

    ``sides``: the partition of each block. Every block writes its slice of one buffer, reads that
    ``rereads`` times, then reads its slice of another (all of it when ``shared``; it begins
    ``first_page`` pages behind the first) ``passes`` times. ``cycles``: of a chunk that hits, of
    one that misses, and of DRAM for a sector. The cache is empty before but for
    ``dirty_before_bytes`` that something else wrote; what is dirty at the end stays uncounted.
    """
    sides = np.asarray(sides, np.int64)
    line, sector = l2.line_bytes, l2.sector_bytes
    cache, chunk = cache_of(l2, line), step_bytes // line
    mask = np.uint64((1 << line // sector) - 1)
    before, written = dirty_before_bytes // line, written_bytes // line
    # Of blocks that read the same, the others of a side find each chunk where the first put it.
    readers = np.zeros(len(sides), np.bool_)
    readers[np.unique(sides, return_index=True)[1] if shared else slice(None)] = True
    costs = np.array(cycles, np.float64)
    walks = _walks(len(sides), before, written, rereads, read_bytes // line,
                   first_page * PAGE_BYTES // line, passes, shared)
    others = _walks(len(sides), 0, before, 0, 0, 0, 0, False)
    counts = (_scan(cache, sides, readers, others, chunk, mask, costs)
              + _scan(cache, sides, readers, walks, chunk, mask, costs))
    return int(counts[0]) * sector, int(counts[1]) * sector


def _walks(blocks: int, before: int, written: int, rereads: int, read: int, later: int,
           passes: int, shared: bool) -> np.ndarray:
    """The lines that a block walks over, one walk after the other: [block, walk, (what, first,
    end)]; what: 0 written, 1 read by all, 2 by readers."""
    number = np.arange(blocks)

    def slices(first: int, lines: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
        share = -(-lines // parts)
        at = number % parts * share
        return first + np.minimum(at, lines), first + np.minimum(at + share, lines)

    found = [(0, *slices(before, written, blocks))]
    found += [(1, *slices(before, written, blocks))] * rereads
    found += [(2, *slices(before + written + later, read, 1 if shared else blocks))] * passes
    return np.array([[np.full(blocks, what), first, end] for what, first, end in found]
                    ).transpose(2, 0, 1).copy()


@njit
def _scan(cache: np.ndarray, sides: np.ndarray, readers: np.ndarray, walks: np.ndarray, chunk: int,
          mask: np.uint64, costs: np.ndarray) -> np.ndarray:
    """(Sectors fetched, sectors written back) of all walks; always the warp goes on that is least
    far in time."""
    counts = np.zeros(2, np.int64)
    blocks, rounds = walks.shape[:2]
    warps = max(chunk // WARP_LINES, 1)  # of a block
    lines = chunk // warps
    clock, number = np.zeros(blocks * warps), np.zeros(blocks * warps, np.int64)
    at = np.array([walks[warp // warps, 0, 1] + warp % warps * lines for warp in range(len(clock))])
    queue, dram_free = np.arange(len(clock)), 0.0
    while clock[queue[0]] < np.inf:
        warp = queue[0]
        block = warp // warps
        what, _, end = walks[block, number[warp]]
        stop, fetched = min(at[warp] + lines, end), counts[0]
        for line in range(at[warp], stop):
            if what == 0:
                _write(cache, line, sides[block], mask, counts)
            elif what == 1 or readers[block]:
                _read(cache, line, sides[block], mask, counts)
        fetched = counts[0] - fetched
        dram_free = max(dram_free, clock[warp]) + fetched * costs[2]
        if fetched:
            clock[warp] = max(clock[warp] + costs[1], dram_free)
        elif at[warp] < stop:
            clock[warp] += costs[0]
        at[warp] += chunk
        if at[warp] >= end:
            number[warp] += 1
            # (What is read by others than readers changes nothing: they are done before it.)
            if number[warp] < rounds and (walks[block, number[warp], 0] < 2 or readers[block]):
                at[warp] = walks[block, number[warp], 1] + warp % warps * lines
            else:
                clock[warp] = np.inf
        sift_down(queue, clock, 0)
    return counts


@njit
def _write(cache: np.ndarray, line: int, side: int, mask: np.uint64, counts: np.ndarray) -> None:
    _, near, _, home = write_unit(cache, line, side, mask)
    counts[1] += popcount(near) + popcount(home)


@njit
def _read(cache: np.ndarray, line: int, side: int, mask: np.uint64, counts: np.ndarray) -> None:
    missing, _, near, _, home, _ = read_unit(cache, line, side, mask)
    counts[0] += popcount(missing)
    counts[1] += popcount(near) + popcount(home)


# ---- Walks round a shared buffer ----------------------------------------------------------------


def phases(l2: "L2Cache", sides: Sequence[int] | np.ndarray, *, read_bytes: int, passes: int,
           spread: bool = False, read_beside: int = 0, written_beside: int = 0,
           chunk_bytes: int = 16384, seed: int = 0) -> tuple[int, int]:
    """DRAM bytes (read, written back) of blocks that walk one buffer round and round in chunks, in
    step or ``spread`` evenly over it (kernels/probes/phases.cu).

    Beside each chunk every block reads ``read_beside`` and writes ``written_beside`` bytes that
    nobody touches again (whole UNIT_BYTES).
    """
    cache = cache_of(l2, UNIT_BYTES, seed)
    fetched, written_back = _phases(
        cache, np.asarray(sides, np.int64), read_bytes // chunk_bytes, chunk_bytes // UNIT_BYTES,
        passes, spread, read_beside // UNIT_BYTES, written_beside // UNIT_BYTES,
        np.uint64((1 << UNIT_BYTES // l2.sector_bytes) - 1))
    return fetched * l2.sector_bytes, written_back * l2.sector_bytes


@njit
def _phases(cache: np.ndarray, sides: np.ndarray, chunks: int, chunk: int, passes: int,
            spread: bool, read: int, written: int, mask: np.uint64) -> tuple[Any, Any]:
    """(Sectors fetched, sectors written back); sizes in units."""
    fetched = gone = np.int64(0)
    blocks, steps = len(sides), chunks * passes
    others = 1 << 30  # units: where what is read and written beside begins
    for step in range(steps):
        for block in range(blocks):
            at = ((block * chunks // blocks if spread else 0) + step) % chunks
            beside = others + (block * steps + step) * read - at * chunk - chunk
            for n in range(chunk + read):
                unit = at * chunk + n + (beside if n >= chunk else 0)
                missing, _, near, _, home, _ = read_unit(cache, unit, sides[block], mask)
                fetched += popcount(missing)
                gone += popcount(near) + popcount(home)
            for n in range(written):
                unit = 3 * others + (block * steps + step) * written + n
                _, near, _, home = write_unit(cache, unit, sides[block], mask)
                gone += popcount(near) + popcount(home)
    return fetched, gone

