"""A fast set-associative LRU cache of lines and their sectors, read by runs of consecutive lines.

Tiles are runs of lines, and lines that follow each other fall in sets that follow each other, with
one tag: a whole run is looked up at once, way by way, as vectors over its sets. A set is kept in
order of recency (way 0 is the most recent), so that no time stamps are needed: looking a run up
carries its line down the ways, each way taking what stood above it, until all sets have found
theirs. A word is a tag and the bits of the sectors that are valid. The loops over sets have no
branches and write with and/or: that is what compilers turn into vector instructions.

It is the plain cache of the benchmarks (one partition, no copies, no write-back), held beside other
simulators by ``hbmeter bench --peers``.
"""

from typing import Any

import numpy as np

from ..errors import InputError
from ..jit import njit

WAYS = 16
SECTORS = 4
_ALL = np.uint32((1 << SECTORS) - 1)
_ONES, _NONE = np.uint32(0xFFFFFFFF), np.uint32(0)
# Consecutive lines, and the bits of the sectors that are read of each.
RUN = np.dtype([("first", np.int64), ("lines", np.int64), ("sectors", np.int64)])
LANES = 128  # sets that stand side by side, way by way, and are looked up at once
TAGS_MAX = 1 << (32 - SECTORS)


class LineCache:
    """An empty cache of ``n_sets`` sets of WAYS lines; line number modulo sets is the set."""

    def __init__(self, n_sets: int) -> None:
        if n_sets < 1:
            raise InputError(f"a cache of {n_sets} sets holds nothing; it must be 1 or more")
        self.n_sets = n_sets
        self.words = np.zeros(-(-n_sets // LANES) * WAYS * LANES, np.uint32)  # [set/L][way][L]
        self._carry = np.zeros(LANES, np.uint32)

    def read(self, runs: np.ndarray) -> int:
        """Read runs of lines (RUN records), one after the other: the sectors that hit.

        Raises InputError for lines whose tag does not fit a word, and for no or unknown sectors.
        """
        if not len(runs):
            return 0
        end = (TAGS_MAX - 1) * self.n_sets
        if runs["first"].min() < 0 or (runs["first"] + runs["lines"]).max() > end:
            raise InputError(f"lines must be from 0 to {end:,} in this cache")
        if runs["sectors"].min() < 1 or runs["sectors"].max() > _ALL:
            raise InputError(f"sectors must be bits from 1 to {_ALL}")
        return _read_runs(runs, self.words, self.n_sets, self._carry)


@njit
def _read_runs(runs: np.ndarray, words: np.ndarray, n_sets: int, carry: np.ndarray) -> Any:
    """Sectors that hit; runs are cut where the sets begin anew and after LANES sets."""
    hits = np.int64(0)
    for run in range(len(runs)):
        line, end = runs[run].first, runs[run].first + runs[run].lines
        tag, index = line // n_sets + 1, line % n_sets
        while line < end:
            lane = index % LANES
            count = min(end - line, n_sets - index, LANES - lane)
            word = np.uint32(tag << SECTORS | runs[run].sectors)
            at = (index - lane) * WAYS + lane
            found, goes_on = _top_way(word, words, at, count, carry)
            hits += found
            way = 1
            while goes_on and way < WAYS:
                found, goes_on = _pass_way(word, words, at, way * LANES, count, carry)
                hits += found
                way += 1
            line += count
            index += count
            if index == n_sets:
                tag, index = tag + 1, 0
    return hits


# Below, places are counted in uint64: Numba then leaves out the check for negative indices.


@njit
def _top_way(word: Any, words: np.ndarray, at: Any, count: int,
             carry: np.ndarray) -> tuple[Any, bool]:
    """The word comes to stand in the first way of ``count`` sets: (sectors that hit, whether any
    set carries another word on; an empty way, or the line itself, ends that)."""
    still, hits, at = _NONE, _NONE, np.uint64(at)
    for number in range(count):
        i = np.uint64(number)
        old = words[at + i]
        match = _same_tag(old, word)
        words[at + i] = word | (old & match)
        carry[i] = old & ~match
        still = np.uint32(still | (old & ~match))
        hits = np.uint32(hits + _sectors(old & match & word & _ALL))
    return np.int64(hits), still != _NONE


@njit
def _pass_way(word: Any, words: np.ndarray, at: Any, below: Any, count: int,
              carry: np.ndarray) -> tuple[Any, bool]:
    """One way more, ``below`` places after the first: what a set carries comes to stand here, and
    it carries on what stood here unless that is the line. Results as _top_way's."""
    still, hits, at, below = _NONE, _NONE, np.uint64(at), np.uint64(at + below)
    for number in range(count):
        i = np.uint64(number)
        old, carried = words[below + i], carry[i]
        active = _ONES if carried != _NONE else _NONE
        match = np.uint32(_same_tag(old, word) & active)
        words[below + i] = carried | (old & ~active)
        words[at + i] |= old & match
        carry[i] = old & active & ~match
        still = np.uint32(still | (old & active & ~match))
        hits = np.uint32(hits + _sectors(old & match & word & _ALL))
    return np.int64(hits), still != _NONE


@njit
def _same_tag(a: Any, b: Any) -> Any:
    """All bits where two words have one tag, else none."""
    return _ONES if np.uint32(a ^ b) <= _ALL else _NONE


@njit
def _sectors(word: Any) -> Any:
    """How many of a word's bits of sectors are set."""
    pairs = np.uint32((word & np.uint32(5)) + ((word >> np.uint32(1)) & np.uint32(5)))
    return np.uint32((pairs & np.uint32(3)) + (pairs >> np.uint32(2)))
