"""Scans of buffers through the cache model: what the L2 microbenchmarks do on a GPU.

Blocks go in step: in turn each moves one chunk, what its threads move at once. Lines are the
cache's units here, so counts are exact.
"""

import numpy as np

from ..jit import njit
from .l2_cache import UNIT_BYTES, cache_of, popcount, read_unit, write_unit


def scan(l2, sides, *, written_bytes=0, rereads=0, read_bytes=0, passes=0, shared=False,
         step_bytes=4096, dirty_before_bytes=0) -> tuple[int, int]:
    """DRAM bytes (read, written back) of a scan; ``l2`` as a profile has it.

    ``sides``: the partition of each block. Every block writes its slice of one buffer, reads that
    ``rereads`` times, then reads its slice of another (all of it when ``shared``) ``passes``
    times. The cache is empty before but for ``dirty_before_bytes`` that something else wrote; what
    is dirty at the end stays uncounted.
    """
    sides = np.asarray(sides, np.int64)
    readers = sides
    if shared:  # in step, the others of a side find each chunk where its first reader put it
        readers = np.unique(sides)
    line, sector = l2.line_bytes, l2.sector_bytes
    cache = cache_of(l2, line)
    whole_line = np.uint64((1 << line // sector) - 1)
    fetched, written_back = _scan(
        cache, sides, readers, step_bytes // line, dirty_before_bytes // line,
        written_bytes // line, rereads, read_bytes // line, passes, shared, whole_line)
    return fetched * sector, written_back * sector


@njit
def _scan(cache, sides, readers, chunk, before, written, rereads, read, passes, shared, mask):
    """(Sectors fetched, sectors written back) of a scan; sizes in lines."""
    fetched = np.int64(0)
    _write_all(cache, sides, chunk, 0, before, mask)
    written_back = _write_all(cache, sides, chunk, before, written, mask)
    for _ in range(rereads):
        more, gone = _read_all(cache, sides, chunk, before, written, False, mask)
        fetched += more
        written_back += gone
    for _ in range(passes):
        more, gone = _read_all(cache, readers, chunk, before + written, read, shared, mask)
        fetched += more
        written_back += gone
    return fetched, written_back


@njit
def _write_all(cache, sides, chunk, first, lines, mask):
    """Every block writes its slice: sectors written back."""
    gone = np.int64(0)
    share = -(-lines // len(sides))
    for start in range(0, share, chunk):
        for block in range(len(sides)):
            stop = min(block * share + min(start + chunk, share), lines)
            for line in range(block * share + start, stop):
                _, near, _, home, _, cleaned = write_unit(cache, first + line, sides[block], mask)
                gone += popcount(near) + popcount(home) + popcount(cleaned)
    return gone


@njit
def _read_all(cache, sides, chunk, first, lines, shared, mask):
    """Every block reads its slice, or all when shared: (sectors fetched, written back)."""
    fetched, gone = np.int64(0), np.int64(0)
    share = lines if shared else -(-lines // len(sides))
    for start in range(0, share, chunk):
        for block in range(len(sides)):
            base = 0 if shared else block * share
            stop = min(base + min(start + chunk, share), lines)
            for line in range(base + start, stop):
                missing, _, near, _, home, _ = read_unit(cache, first + line, sides[block], mask)
                fetched += popcount(missing)
                gone += popcount(near) + popcount(home)
    return fetched, gone


# ---- Walks round a shared buffer ----------------------------------------------------------------


def phases(l2, sides, *, read_bytes, passes, spread=False, read_beside=0, written_beside=0,
           chunk_bytes=16384, seed=0) -> tuple[int, int]:
    """DRAM bytes (read, written back) of blocks that walk one buffer round and round in chunks, in
    step or ``spread`` evenly over it (experiments/recorded/phases/phases.cu).

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
def _phases(cache, sides, chunks, chunk, passes, spread, read, written, mask):
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
                _, near, _, home, _, cleaned = write_unit(cache, unit, sides[block], mask)
                gone += popcount(near) + popcount(home) + popcount(cleaned)
    return fetched, gone
