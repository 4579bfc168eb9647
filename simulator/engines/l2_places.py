"""Where a unit of the L2 cache goes: its set, the same in each partition, and its home partition.

The rules are l2_cache.py's, which makes the cache.
"""

from typing import Any

import numpy as np

from ..jit import borrowing, inlined

# The row behind the sets is about the whole partition: how many ways of a set may be dirty, log2 of
# the units of a home, which bits of a home's number count, log2 of the units of a page and of a
# grain (what goes to consecutive sets at once, UNIT_BYTES), the bit of a grain's number in which a
# pair differs, in how many places a page may start, by what part of a turn through them (in
# 2**-64) the next page starts later, by how many places it may miss that, the pairs of a page less
# one, what is added to a page's number (other memory), and log2 of the bits of a way. Then the page
# that was looked up last: its number + 1, its first set (in grains), by which bits its pairs change
# places, and a number that says where its homes are.
# (One array: Numba counts references for each array of a tuple at each call.)
ABOUT = -1
(DIRTY_LIMIT, HOME_SHIFT, HOME_MASK, PAGE_SHIFT, GRAIN_SHIFT, TWIN_SHIFT, STARTS, TURN, MISSED,
 PAIRS, SEED, BITS_SHIFT, PAGE, PAGE_START, PAGE_ORDER, PAGE_HOMES) = range(16)

_ONE, _TWO = np.uint64(1), np.uint64(2)


@inlined
def popcount(bits: np.uint64) -> np.int64:
    """Bits set in a uint64."""
    bits = bits - ((bits >> np.uint64(1)) & np.uint64(0x5555555555555555))
    bits = (bits & np.uint64(0x3333333333333333)) + (
        (bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inlined
def sets_of(cache: np.ndarray) -> int:
    """The sets of a partition."""
    return cache.shape[1] - 1


@inlined
def _scatter(page: np.uint64) -> np.uint64:
    """A fixed number for each page that says nothing of its neighbours' (splitmix64)."""
    x = (np.uint64(page) + _ONE) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(31))


@inlined
def _order_of(page: np.uint64, pairs: np.uint64) -> np.uint64:
    """By which bits the pairs of a page change places (a power of two of them, less one): the same
    part of a page goes to other sets in the next, to each half in two pages and to each quarter in
    four."""
    half = (page ^ _scatter(page >> _ONE)) & _ONE
    quarter = ((page >> _ONE) ^ _scatter(page >> _TWO)) & _ONE
    return (_scatter(page) & (pairs >> _TWO)) | ((half << _ONE | quarter) * (pairs + _ONE >> _TWO))


@borrowing
def _look_up(cache: np.ndarray, page: np.uint64) -> None:
    """Keep what is the same for all units of a page."""
    about = cache[0, ABOUT]
    about[PAGE] = page + _ONE
    page += about[SEED]
    chance = _scatter(page)
    turn = page * about[TURN] >> np.uint64(32)
    start = turn * about[STARTS] + np.uint64(1 << 31) >> np.uint64(32)
    about[PAGE_START] = start + (
        (chance >> np.uint64(32)) * (about[MISSED] + _ONE) >> np.uint64(32))
    about[PAGE_ORDER] = _order_of(page, about[PAIRS])
    about[PAGE_HOMES] = chance


@inlined
def set_of(cache: np.ndarray, unit: int) -> Any:
    """The set that a unit goes to, the same in each partition."""
    to_page, grains = cache[0, ABOUT, PAGE_SHIFT], cache[0, ABOUT, GRAIN_SHIFT]
    page = np.uint64(unit) >> to_page
    if cache[0, ABOUT, PAGE] != page + _ONE:
        _look_up(cache, page)
    inside = np.uint64(unit) - (page << to_page)
    part = inside >> grains
    twin = cache[0, ABOUT, TWIN_SHIFT]
    pair = (part >> twin + _ONE << twin) | (part & ((_ONE << twin) - _ONE))
    pair ^= cache[0, ABOUT, PAGE_ORDER]
    pair += cache[0, ABOUT, PAGE_START]
    index: Any = np.int64((pair << grains) | inside - (part << grains))
    n_sets = sets_of(cache)
    index = index - n_sets if index >= n_sets else index
    return index if index < n_sets else index % n_sets


@inlined
def home_of(cache: np.ndarray, unit: int) -> Any:
    """The home partition of a unit."""
    partitions = cache.shape[0]
    if partitions == 1:
        return 0
    chunk = np.uint64(unit) >> cache[0, ABOUT, HOME_SHIFT]
    page = np.uint64(unit) >> cache[0, ABOUT, PAGE_SHIFT]
    if cache[0, ABOUT, PAGE] != page + _ONE:
        _look_up(cache, page)
    homes = cache[0, ABOUT, PAGE_HOMES]
    if partitions > 2:  # no such GPU is known: any fixed even spread
        return np.int64((homes + chunk) % np.uint64(partitions))
    return popcount((chunk & cache[0, ABOUT, HOME_MASK]) ^ (homes & _ONE)) & 1
