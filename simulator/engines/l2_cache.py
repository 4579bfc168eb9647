"""The L2 cache as data structure: partitions, sets, ways of sectors, write-back.

A line has a home partition. An SM looks in the partition on its own side first; data whose home is
on the other side is fetched through its home, which keeps a copy too, and the near copy then
serves that side. Each set is an LRU list, most recent first; the home copy that a far access
leaves behind enters FAR_DEPTH places below the top, because near copies take its later hits. A
write takes room as a read does and is dirty at the home; when more of a set is dirty than may be,
the least recent of it is written back and stays. Addresses are spread evenly over sets and homes.
Every rule is from microbenchmarks of an H200 (DRAM bytes of scans that read and write private and
shared buffers of 4 to 128 MiB), none from attention.

The cache moves *units* of consecutive lines, one way each, with a bit for each 32-byte sector that
is valid or dirty: 128 bytes (one line) is exact; UNIT_BYTES gives the same counts for tiles that
cover whole units, since all lines of a unit then live and die together, at a 16th of the work.
"""

import numpy as np

from ..jit import njit

WAYS = 16
FAR_DEPTH = 2  # of 16; private-data knee of an H200 (hbmeter's L2 microbenchmark)
HOME_BYTES = 4096  # of one home; latency of atomics against address, H200
DIRTY_SHARE = 28 / 60  # of the cache that may be dirty at once, where a profile does not say; H200
UNIT_BYTES = 2048
SECTORS_PER_UNIT_MAX = 64

_FIRST_ORDER = np.uint64(0xFEDCBA9876543210)
_EACH_NIBBLE = np.uint64(0x1111111111111111)
_ZERO, _ONE, _FOUR, _NIBBLE = (np.uint64(x) for x in (0, 1, 4, 15))


# Columns of a set, [partition, set, column]: WAYS tags (unit row + 1; 0 is empty), WAYS masks of
# valid sectors, WAYS masks of dirty ones, the LRU order (nibble r is the way of rank r, 0 the most
# recent), and how many ways may be dirty. (One array: Numba counts references for each array of a
# tuple at each call.)
VALID, DIRTY, ORDER = WAYS, 2 * WAYS, 3 * WAYS
DIRTY_LIMIT = ORDER + 1


def empty_cache(size_bytes: int, partitions: int, unit_bytes: int,
                dirty_bytes_max: int | None = None) -> np.ndarray:
    """An empty cache; it has no sets when ``size_bytes`` is smaller than one set.

    ``dirty_bytes_max`` (DIRTY_SHARE of the cache where None) is spread evenly over the sets.
    """
    n_sets = size_bytes // (partitions * unit_bytes * WAYS)
    cache = np.zeros((partitions, n_sets, DIRTY_LIMIT + 1), np.uint64)
    cache[:, :, ORDER] = _FIRST_ORDER
    share = DIRTY_SHARE if dirty_bytes_max is None else dirty_bytes_max / size_bytes
    cache[:, :, DIRTY_LIMIT] = np.diff((np.arange(n_sets + 1) * share * WAYS).astype(np.int64))
    return cache


@njit
def popcount(bits):
    """Bits set in a uint64."""
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + (
        (bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit
def _rank(cache, part, index, tag):
    """The LRU rank of a tag in its set, or -1; and its way."""
    order = cache[part, index, ORDER]
    way = np.int64(order & _NIBBLE)
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


@njit
def _move(cache, part, index, rank, depth):
    """Bring the way of a rank up to ``depth``, the ranks between one down."""
    if rank <= depth:
        return
    order = cache[part, index, ORDER]
    from_shift, to_shift = np.uint64(4 * rank), np.uint64(4 * depth)
    way = (order >> from_shift) & _NIBBLE
    below = order & ((_ONE << to_shift) - _ONE)
    between = order & ((_ONE << from_shift) - _ONE) & ~((_ONE << to_shift) - _ONE)
    above = order & ~(((_ONE << from_shift) << _FOUR) - _ONE) if rank < WAYS - 1 else _ZERO
    cache[part, index, ORDER] = above | between << _FOUR | way << to_shift | below


@njit
def _insert(cache, part, index, tag, valid, dirty, depth):
    """Put a new tag in the place of the least recent: (its tag, the dirty bits that leave)."""
    way = np.int64(cache[part, index, ORDER] >> np.uint64(4 * (WAYS - 1)))
    _move(cache, part, index, WAYS - 1, depth)
    victim, leaving = cache[part, index, way], cache[part, index, DIRTY + way]
    cache[part, index, way] = tag
    cache[part, index, VALID + way] = valid
    cache[part, index, DIRTY + way] = dirty
    return victim, leaving


@njit
def read_unit(cache, unit, side, need, units_per_home):
    """Read the sectors ``need`` (bits) of a unit from one side.

    Returns (sectors fetched from DRAM as bits, tag and dirty bits that leave the near partition,
    the same for the home partition, whether the home partition changed).
    """
    partitions, n_sets = cache.shape[0], cache.shape[1]
    row, index = unit // n_sets, unit % n_sets
    tag = np.uint64(row + 1)
    rank, way = _rank(cache, side, index, tag)
    missing = need & ~cache[side, index, VALID + way] if rank >= 0 else need
    if missing == _ZERO:
        _move(cache, side, index, rank, 0)
        return _ZERO, _ZERO, _ZERO, _ZERO, _ZERO, False
    home = (row + index // units_per_home) % partitions
    far_tag, far_dirty, changed = _ZERO, _ZERO, False
    fetched = missing
    if home != side:
        fetched, far_tag, far_dirty, changed = _read_home(cache, home, index, tag, missing)
    if rank >= 0:
        cache[side, index, VALID + way] |= need
        _move(cache, side, index, rank, 0)
        return fetched, _ZERO, _ZERO, far_tag, far_dirty, changed
    near_tag, near_dirty = _insert(cache, side, index, tag, need, _ZERO, 0)
    return fetched, near_tag, near_dirty, far_tag, far_dirty, changed


@njit
def _read_home(cache, home, index, tag, need):
    """A far read at the home: (sectors it must fetch, what leaves, whether the set changed)."""
    rank, way = _rank(cache, home, index, tag)
    if rank < 0:
        victim, leaving = _insert(cache, home, index, tag, need, _ZERO, FAR_DEPTH)
        return need, victim, leaving, True
    missing = need & ~cache[home, index, VALID + way]
    changed = rank > FAR_DEPTH or missing != _ZERO
    if changed:
        cache[home, index, VALID + way] |= need
        _move(cache, home, index, rank, FAR_DEPTH)
    return missing, _ZERO, _ZERO, changed


@njit
def write_unit(cache, unit, side, mask, units_per_home):
    """Write whole sectors ``mask`` (bits) of a unit from one side.

    Takes room as a read does, and leaves the sectors dirty at the home. Returns (tag and dirty
    bits that leave the near partition, the same for the home, dirty sectors of this set that are
    written back but stay: tag and bits).
    """
    partitions, n_sets = cache.shape[0], cache.shape[1]
    row, index = unit // n_sets, unit % n_sets
    tag = np.uint64(row + 1)
    home = (row + index // units_per_home) % partitions
    near_tag, near_dirty = _ZERO, _ZERO
    for other in range(partitions):
        if other != home:
            rank, way = _rank(cache, other, index, tag)
            if other == side:
                near_tag, near_dirty = _hold(cache, other, index, rank, way, tag, mask, 0)
            elif rank >= 0:
                cache[other, index, VALID + way] &= ~mask
    rank, way = _rank(cache, home, index, tag)
    depth = 0 if home == side else FAR_DEPTH
    home_tag, home_dirty = _hold(cache, home, index, rank, way, tag, mask, depth)
    if rank < 0:
        way = np.int64((cache[home, index, ORDER] >> np.uint64(4 * depth)) & _NIBBLE)
    cache[home, index, DIRTY + way] |= mask
    clean_tag, clean = _clean_oldest(cache, home, index)
    return near_tag, near_dirty, home_tag, home_dirty, clean_tag, clean


@njit
def add_unit(cache, unit, mask, units_per_home):
    """Add to whole sectors ``mask`` (bits) of a unit: the home reads them, then writes the sums.

    Returns (sectors fetched from DRAM as bits, tag and dirty bits that leave the home, dirty
    sectors of this set that are written back but stay: tag and bits).
    """
    partitions, n_sets = cache.shape[0], cache.shape[1]
    home = (unit // n_sets + unit % n_sets // units_per_home) % partitions
    fetched, tag, dirty, _, _, _ = read_unit(cache, unit, home, mask, units_per_home)
    _, _, _, _, clean_tag, clean = write_unit(cache, unit, home, mask, units_per_home)
    return fetched, tag, dirty, clean_tag, clean


@njit
def _hold(cache, part, index, rank, way, tag, mask, depth):
    """Make sectors valid at ``rank`` (-1: a new way); tag and dirty bits of what leaves."""
    if rank < 0:
        return _insert(cache, part, index, tag, mask, _ZERO, depth)
    cache[part, index, VALID + way] |= mask
    _move(cache, part, index, rank, depth)
    return _ZERO, _ZERO


@njit
def _clean_oldest(cache, part, index):
    """Write back the least recent dirty way when a set has more of them than it may."""
    dirty_ways, oldest = _ZERO, np.int64(-1)
    order = cache[part, index, ORDER]
    for _ in range(WAYS):
        way = np.int64(order & _NIBBLE)
        if cache[part, index, DIRTY + way]:
            dirty_ways += _ONE
            oldest = way
        order >>= _FOUR
    if dirty_ways <= cache[part, index, DIRTY_LIMIT]:
        return _ZERO, _ZERO
    bits = cache[part, index, DIRTY + oldest]
    cache[part, index, DIRTY + oldest] = _ZERO
    return cache[part, index, oldest], bits
