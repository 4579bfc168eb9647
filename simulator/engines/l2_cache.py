"""The L2 cache as data structure: partitions, sets, ways of sectors, write-back.

A line has a home partition. An SM looks in the partition on its own side first; data whose home is
on the other side is fetched through its home, which keeps a copy too, and the near copy then
serves that side. Either copy stays as long as any other line of its set would. A write takes room
as a read does and is dirty at the home.

Where a line goes: consecutive memory fills the sets nearly evenly, one after the other and round
again, by pairs of lines with one home each, in an order of its own within each physical page (2
MiB; of an H200 a page has two lines of every other set or so). The home changes with the parity of
some address bits.

What leaves a set is, of the lines that are clean, the one that was used longest ago (LRU). Dirty
ones are cleaned before it is their turn: before each access a set writes back its oldest dirty way,
if that is the oldest of all its ways, or if more of them are dirty than may be (7 of 16).

Every rule is from microbenchmarks of an H200, none from attention: lines of single sets, found by
group testing, that SMs of both sides then read and wrote at random (recorded/sets; the rules here
say of 99.6% of reads whether and where they hit), DRAM bytes of scans that read and write private
and shared buffers, latencies of atomics.

The cache moves *units* of consecutive lines, one way each, with a bit for each 32-byte sector that
is valid or dirty: 128 bytes (one line) is exact; UNIT_BYTES gives the same counts for tiles that
cover whole units, since all lines of a unit then live and die together, at a 16th of the work
(l2_units.py has the unit of a program).
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..jit import inlined
from .l2_counts import SECTOR_BYTES
from .l2_places import (
    ABOUT,
    BITS_SHIFT,
    DIRTY_LIMIT,
    GRAIN_SHIFT,
    HOME_MASK,
    HOME_SHIFT,
    MISSED,
    PAGE_SHIFT,
    PAIRS,
    SEED,
    STARTS,
    TURN,
    TWIN_SHIFT,
    home_of,
    popcount,
    set_of,
)

if TYPE_CHECKING:
    from ...hwprofiles.schema import L2Cache

WAYS = 16
PAGE_BYTES = 2 << 20  # physical: cudaMalloc's
# Where a profile does not say, an H200's (hwprofiles/h200.yaml).
HOME_BYTES, HOME_BITS = 4096, 0b101011
DIRTY_SHARE = 7 / 16  # of the ways of a set that may be dirty at once
# Of a turn round the sets, how much later at most a page starts than evenly. With it windows of 16
# to 24 pages have lines in a set with a standard deviation of 1.0 (0.4 to 0.9 without; 7 sets of an
# H200: 0.9 to 1.2, recorded/sets), and shared scans a knee as soft as measured.
START_SPREAD = 1 / 45
UNIT_BYTES = 2048
SECTORS_PER_UNIT_MAX = 64

_FIRST_ORDER = np.uint64(0xFEDCBA9876543210)
_EACH_NIBBLE = np.uint64(0x1111111111111111)
_ZERO, _ONE, _FOUR, _NIBBLE = (np.uint64(x) for x in (0, 1, 4, 15))


# Columns of a set, [partition, set, column]: WAYS tags (unit + 1; 0 is empty), the LRU order
# (nibble r is the way of rank r, 0 the most recent), which ways are dirty, a bit each, and from
# SECTORS on a bit for each sector of each way: columns of those that are valid, and as many of
# those that are dirty. (The row behind the sets: l2_places.py.)
ORDER, DIRTY_WAYS, SECTORS = range(WAYS, WAYS + 3)
BITS_MIN = 4  # of a way: those of all ways fill a column then


def empty_cache(size_bytes: int, partitions: int, unit_bytes: int,
                dirty_bytes_max: int | None = None, home_bytes: int | None = None,
                home_bits: int | None = None, seed: int = 0, scale: int = 1,
                sector_bytes: int = SECTOR_BYTES) -> np.ndarray:
    """An empty cache; it has no sets when ``size_bytes`` is smaller than one set.

    What a profile's L2 says of these, or None: most bytes dirty at once, bytes of one home, bits of
    its number that decide. ``seed``: which physical pages; they are ``scale`` times smaller.
    Raises InputError for units, sectors and homes that are no powers of two.
    """
    n_sets = size_bytes // (partitions * unit_bytes * WAYS)
    unit_shift = log2_of("unit", unit_bytes)
    bits = max(1 << unit_shift - log2_of("l2.sector_bytes", sector_bytes), BITS_MIN)
    cache = np.zeros((partitions, n_sets + 1, SECTORS + 2 * WAYS * bits // 64), np.uint64)
    cache[:, :n_sets, ORDER] = _FIRST_ORDER
    about = cache[:, ABOUT]
    about[:, BITS_SHIFT] = log2_of("unit", bits)
    share = DIRTY_SHARE if dirty_bytes_max is None else dirty_bytes_max / size_bytes
    about[:, DIRTY_LIMIT] = max(round(share * WAYS), 1)
    home_shift = log2_of("l2.home_bytes", home_bytes or HOME_BYTES)
    home_bits = home_bits or HOME_BITS
    about[:, HOME_SHIFT] = max(home_shift - unit_shift, 0)
    about[:, HOME_MASK] = home_bits
    page_bytes = PAGE_BYTES // scale
    about[:, PAGE_SHIFT] = log2_of("page", page_bytes) - unit_shift
    grain_shift = max(log2_of("unit", UNIT_BYTES) - unit_shift, 0)
    lowest = home_shift + (home_bits & -home_bits).bit_length() - 1  # address bit of a home
    about[:, TWIN_SHIFT] = max(lowest - unit_shift - grain_shift, 0)
    starts, pairs = n_sets >> grain_shift, page_bytes >> unit_shift + grain_shift + 1
    about[:, GRAIN_SHIFT], about[:, STARTS] = grain_shift, starts
    about[:, TURN] = (pairs << 64) // starts % (1 << 64) if starts else 0
    about[:, MISSED] = round(START_SPREAD * starts)
    about[:, PAIRS] = pairs - 1
    about[:, SEED] = seed << 20
    return cache


def log2_of(name: str, size: int) -> int:
    """The logarithm of a size in bytes. Raises InputError unless it is a power of two."""
    if size & size - 1:
        raise InputError(f"{name} {size} must be a power of two for the L2 reader")
    return size.bit_length() - 1


def cache_of(l2: "L2Cache", unit_bytes: int, seed: int = 0, scale: int = 1) -> np.ndarray:
    """The empty cache of a profile's L2, in pages that are ``scale`` times smaller."""
    return empty_cache(room_of(l2), l2.partitions, unit_bytes, l2.dirty_bytes_max, l2.home_bytes,
                       l2.home_bits, seed, scale, l2.sector_bytes)


def room_of(l2: "L2Cache") -> int:
    """Bytes that lines find room in; something else takes the rest of an H200's L2."""
    return int(l2.size_bytes * (l2.room_share or 1))


# ---- One set ------------------------------------------------------------------------------------


@inlined
def _bits_of(cache: np.ndarray, way: int) -> tuple[Any, Any, Any, Any]:
    """Where a way's sectors are: columns of valid and dirty ones, shift, a mask of so many bits."""
    to_bits = cache[0, ABOUT, BITS_SHIFT]
    at = np.uint64(way) << to_bits
    valid: Any = np.int64(at >> np.uint64(6)) + SECTORS
    whole = ~_ZERO >> (np.uint64(64) - (_ONE << to_bits))
    return valid, valid + (cache.shape[2] - SECTORS) // 2, at & np.uint64(63), whole


@inlined
def valid_of(cache: np.ndarray, part: int, index: int, way: int) -> np.uint64:
    """Valid sectors of a way, as bits."""
    valid, _, shift, whole = _bits_of(cache, way)
    return cache[part, index, valid] >> shift & whole


@inlined
def dirty_of(cache: np.ndarray, part: int, index: int, way: int) -> np.uint64:
    """Dirty sectors of a way, as bits."""
    _, dirty, shift, whole = _bits_of(cache, way)
    return cache[part, index, dirty] >> shift & whole


@inlined
def _rank(cache: np.ndarray, part: int, index: int, tag: np.uint64) -> tuple[Any, Any]:
    """The LRU rank of a tag in its set, or -1; and its way."""
    order = cache[part, index, ORDER]
    way: Any = np.int64(order & _NIBBLE)
    if cache[part, index, way] == tag:
        return 0, way
    way = np.int64(-1)
    for other in range(WAYS):  # no early exit: this is a few vector compares
        way = other if cache[part, index, other] == tag else way
    if way < 0:
        return -1, way
    differs = order ^ (np.uint64(way) * _EACH_NIBBLE)  # a zero nibble where the way stands
    zero = (differs - _EACH_NIBBLE) & ~differs & (_EACH_NIBBLE << np.uint64(3))
    return popcount((zero & (~zero + _ONE)) - _ONE) >> 2, way


@inlined
def _use(cache: np.ndarray, part: int, index: int, rank: int) -> None:
    """Make the way of a rank the most recent."""
    if rank > 0:
        order = cache[part, index, ORDER]
        shift = np.uint64(4 * rank)
        way = (order >> shift) & _NIBBLE
        between = order & ((_ONE << shift) - _ONE)
        above = order & ~(((_ONE << shift) << _FOUR) - _ONE) if rank < WAYS - 1 else _ZERO
        cache[part, index, ORDER] = above | between << _FOUR | way


@inlined
def _way_at(cache: np.ndarray, part: int, index: int, rank: int) -> Any:
    return np.int64((cache[part, index, ORDER] >> np.uint64(4 * rank)) & _NIBBLE)


@inlined
def _clean(cache: np.ndarray, part: int, index: int, way: int) -> tuple[np.uint64, np.uint64]:
    """Write a dirty way back: its tag and dirty bits."""
    _, dirty, shift, whole = _bits_of(cache, way)
    bits = cache[part, index, dirty] >> shift & whole
    cache[part, index, dirty] ^= bits << shift
    cache[part, index, DIRTY_WAYS] ^= _ONE << np.uint64(way)
    return cache[part, index, way], bits


@inlined
def _settle(cache: np.ndarray, part: int, index: int) -> tuple[np.uint64, np.uint64]:
    """What a set writes back before an access, as tag and dirty bits: its oldest dirty way, if that
    is the oldest of all or more ways are dirty than may be."""
    dirty = cache[part, index, DIRTY_WAYS]
    if dirty == _ZERO:
        return _ZERO, _ZERO
    rank = WAYS - 1
    if popcount(dirty) > cache[part, ABOUT, DIRTY_LIMIT]:
        while not _has(dirty, _way_at(cache, part, index, rank)):
            rank -= 1
    way = _way_at(cache, part, index, rank)
    if _has(dirty, way):
        return _clean(cache, part, index, way)
    return _ZERO, _ZERO


@inlined
def _has(ways: np.uint64, way: int) -> bool:
    return (ways >> np.uint64(way)) & _ONE != _ZERO


@inlined
def _hold(cache: np.ndarray, part: int, index: int, rank: int, way: int, tag: np.uint64,
          mask: np.uint64) -> tuple[int, np.uint64, np.uint64]:
    """Make sectors valid at ``rank`` (-1: of the oldest way that was clean, for a new tag): (way,
    what the set writes back before: tag and dirty bits)."""
    dirty = cache[part, index, DIRTY_WAYS]
    written_tag, written = _settle(cache, part, index)
    if rank < 0:
        rank, way = WAYS - 1, _way_at(cache, part, index, WAYS - 1)
        while _has(dirty, way) and rank > 0:
            rank -= 1
            way = _way_at(cache, part, index, rank)
        if _has(dirty, way):  # all were dirty: the oldest has just been written back
            rank, way = WAYS - 1, _way_at(cache, part, index, WAYS - 1)
        valid, _, shift, whole = _bits_of(cache, way)
        cache[part, index, way] = tag
        cache[part, index, valid] &= ~(whole << shift)
    valid, _, shift, _ = _bits_of(cache, way)
    cache[part, index, valid] |= mask << shift
    _use(cache, part, index, rank)
    return way, written_tag, written


# ---- Reads and writes ---------------------------------------------------------------------------


@inlined
def read_unit(cache: np.ndarray, unit: int, side: int, need: np.uint64
              ) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, bool]:
    """Read the sectors ``need`` (bits) of a unit from one side.

    Returns (sectors fetched from DRAM as bits, what the near partition writes back as tag and
    dirty bits, the same for the home partition, whether the home partition has sectors that it did
    not have).
    """
    index, tag = set_of(cache, unit), np.uint64(unit + 1)
    rank, way = _rank(cache, side, index, tag)
    missing = need & ~valid_of(cache, side, index, way) if rank >= 0 else need
    if missing == _ZERO:
        near_tag, near_dirty = _settle(cache, side, index)
        _use(cache, side, index, rank)
        return _ZERO, near_tag, near_dirty, _ZERO, _ZERO, False
    home = home_of(cache, unit)
    far_tag, far_dirty, changed = _ZERO, _ZERO, False
    fetched = missing
    if home != side:
        place, there = _rank(cache, home, index, tag)
        if place >= 0:
            fetched = missing & ~valid_of(cache, home, index, there)
        changed = fetched != _ZERO
        _, far_tag, far_dirty = _hold(cache, home, index, place, there, tag, missing)
    _, near_tag, near_dirty = _hold(cache, side, index, rank, way, tag, need)
    return fetched, near_tag, near_dirty, far_tag, far_dirty, changed


@inlined
def write_unit(cache: np.ndarray, unit: int, side: int, mask: np.uint64
               ) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Write whole sectors ``mask`` (bits) of a unit from one side.

    Takes room as a read does, and leaves the sectors dirty at the home. Returns what is written
    back, as tag and dirty bits: by the near partition, and by the home.
    """
    index, tag = set_of(cache, unit), np.uint64(unit + 1)
    home = home_of(cache, unit)
    near_tag, near_dirty = _ZERO, _ZERO
    for other in range(cache.shape[0]):
        if other != home:
            rank, way = _rank(cache, other, index, tag)
            if other == side:
                _, near_tag, near_dirty = _hold(cache, other, index, rank, way, tag, mask)
            elif rank >= 0:
                valid, _, shift, _ = _bits_of(cache, way)
                cache[other, index, valid] &= ~(mask << shift)
    rank, way = _rank(cache, home, index, tag)
    way, home_tag, home_dirty = _hold(cache, home, index, rank, way, tag, mask)
    cache[home, index, DIRTY_WAYS] |= _ONE << np.uint64(way)
    _, dirty, shift, _ = _bits_of(cache, way)
    cache[home, index, dirty] |= mask << shift
    return near_tag, near_dirty, home_tag, home_dirty


@inlined
def add_unit(cache: np.ndarray, unit: int,
             mask: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64, np.uint64]:
    """Add to whole sectors ``mask`` (bits) of a unit: the home reads them, then writes the sums.

    Returns (sectors fetched from DRAM as bits, what is written back as tag and dirty bits: before
    the read, and before the write).
    """
    home = home_of(cache, unit)
    fetched, tag, dirty, _, _, _ = read_unit(cache, unit, home, mask)
    _, _, other_tag, other_dirty = write_unit(cache, unit, home, mask)
    return fetched, tag, dirty, other_tag, other_dirty
