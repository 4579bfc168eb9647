"""Thread blocks to SMs: in grid order, to whichever SM has room first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..grid_order import LISTED, LONGEST, ROW, SECTIONS
from ..jit import borrowing, njit
from .heap import sift_down

DONE = 1e-9  # work of a block that is as good as none
Pace = float | Sequence[float]  # of blocks that share an SM: by_age
DRAWS, DRAWN = 4, 1 << 16  # of chance, and about as many blocks in all of them
FIRST_TURN, EVERY_TURN = 84, 106  # blocks before a cluster's second turn, and each later; H200


@njit
def place_of(index: int, heads: int, blocks: int, order: np.ndarray) -> tuple[int, int]:
    """(Head, block of it) of thread block ``index`` of a grid of heads × blocks; ``order`` as
    grid_order.issue has it."""
    number = order[0]
    if number == LISTED:
        index = order[1 + index]
    if number in (LISTED, ROW):
        return index // blocks, index % blocks
    first, longest = 0, number == LONGEST
    if number >= SECTIONS:
        together, longest = (number - SECTIONS) // 2, (number - SECTIONS) % 2 == 1
        first = index // (together * blocks) * together
        index -= first * blocks
        heads = min(together, heads - first)
    block = index // heads
    return first + index % heads, blocks - 1 - block if longest else block


def places(blocks: int, sms: int, most: int, first: int = 0) -> np.ndarray:
    """The SM of each of the blocks that an empty GPU takes at once, ``most`` on an SM; SMs are
    numbered in the order in which they get their first.

    All get one, then all a second. On an H200 (recorded/launches) the ``first`` SMs are a cluster
    whose turns come early, and of a last round that is not full that cluster and one SM of each
    pair get a block, while these are enough. With 0 one SM follows the other.
    """
    whole, rest = divmod(min(blocks, sms * most), sms)
    others = np.arange(first, sms)
    if not first:
        return np.tile(others, whole + 1)[:whole * sms + rest]
    found = list(np.tile(others, whole))
    for turn in range(whole):
        at = FIRST_TURN + (turn - 1) * EVERY_TURN if turn else 0
        found[at:at] = range(first)
    if rest - first <= len(others) // 2:
        others = others[::2]
    return np.array([*found, *range(min(rest, first)), *others[:max(rest - first, 0)]], np.int64)


def makespan(weights: np.ndarray, heads: int, order: np.ndarray, sm_count: int,
             residence: np.ndarray, begin: float = 0.0, load: float = 0.0, pace: Pace = 1.0,
             first: int = 0, spread: float = 0.0, parts: int = 1,
             together: bool = False) -> float:
    """Cycles until the last thread block ends; ``order`` as in place_of, ``first`` as in places.

    ``weights`` is each block's work over the mean, for one head; ``residence[m − 1]`` the cycles
    of a block of mean work while m share its SM alike. The first blocks go where ``places`` says;
    a block that ends makes room for the next in grid order. A block works from
    ``begin`` + ``load`` cycles after there is room for it on and leaves the units to others until
    then; what an SM's blocks load comes in one after the other, of those that start at once all
    ``together`` where it says so. Of m that work each goes on at
    its ``pace`` (by_age); together they do m / residence[m − 1]. No two take quite as long: each
    takes up to ``spread`` of its work more or less, by chance. Who ends first gets the next block,
    so chance decides who shares an SM in the end: the mean of a few draws. Blocks that have one of
    an SM's ``parts`` (of its subpartitions) share that only, and leave it to the next.
    """
    blocks, most = len(weights) * heads, len(residence)
    at_once, ages = places(blocks, sm_count, most, first), by_age(pace, most)
    if parts > 1:
        at_once = _parts_of(at_once, sm_count, parts)
        residence, ages = residence[parts - 1::parts].copy(), ages[::parts].copy()
        sm_count *= parts
    draws = min(max(DRAWN // blocks, 1), DRAWS) if spread else 1
    own = 1 + spread * np.random.default_rng(0).uniform(-1, 1, (draws, blocks))
    return float(np.mean([_makespan(weights, heads, order, sm_count, residence, float(begin),
                                    float(load), ages, at_once, one, together) for one in own]))


def _parts_of(at_once: np.ndarray, sms: int, parts: int) -> np.ndarray:
    """Of each of the first blocks its part, all SMs' parts numbered: an SM's blocks get its parts
    in turn."""
    found, turns = np.zeros_like(at_once), np.zeros(sms, np.int64)
    for block, sm in enumerate(at_once):
        found[block] = sm * parts + turns[sm] % parts
        turns[sm] += 1
    return found


def by_age(pace: Pace, blocks: int) -> np.ndarray:
    """Speeds of so many blocks of an SM over the oldest's, the oldest first: ``pace`` is that of
    each over the next older one's, or has them all; more go on as the last two do."""
    if isinstance(pace, float | int):
        return np.array([pace ** age for age in range(blocks)], float)
    last = pace[-1] / pace[-2]
    more = [pace[-1] * last ** age for age in range(1, blocks - len(pace) + 1)]
    return np.array([*pace, *more][:blocks], float)


@njit
def _makespan(weights: np.ndarray, heads: int, order: np.ndarray, sm_count: int,
              residence: np.ndarray, begin: Any, load: Any, ages: np.ndarray,
              at_once: np.ndarray, own: np.ndarray, together: bool) -> float:
    per_head, most = len(weights), len(residence)
    total, speeds = per_head * heads, _speeds(residence, ages)
    left = np.zeros((sm_count, most))  # work of each resident in mean blocks, the oldest first
    ready = np.zeros((sm_count, most))  # when each begins to work
    arrived = np.zeros(sm_count)  # the last of an SM's first loads
    residents, clock = np.zeros(sm_count, np.int64), np.zeros(sm_count)
    for issued in range(len(at_once)):
        sm = at_once[issued]
        block = place_of(issued, heads, per_head, order)[1]
        left[sm, residents[sm]] = weights[block] * own[issued]
        arrived[sm] = max(begin, arrived[sm]) + load
        ready[sm, 0 if together else residents[sm]:residents[sm] + 1] = arrived[sm]
        residents[sm] += 1
    issued = len(at_once)
    times, queue = np.full(sm_count, np.inf), np.arange(sm_count)
    top: Any = np.int64(0)
    for sm in range(sm_count):
        times[sm] = _next_event(left[sm], ready[sm], residents[sm], speeds, 0.0)
    _heapify(queue, times)
    last = 0.0
    while times[queue[0]] < np.inf:
        sm = queue[0]
        now = times[sm]
        kept = _work(left[sm], ready[sm], residents[sm], speeds, clock[sm], now)
        clock[sm] = now
        if kept < residents[sm]:
            last = now
        while kept < most and issued < total:
            block = place_of(issued, heads, per_head, order)[1]
            left[sm, kept] = weights[block] * own[issued]
            arrived[sm] = max(now + begin, arrived[sm]) + load
            ready[sm, kept] = arrived[sm]
            kept += 1
            issued += 1
        residents[sm] = kept
        times[sm] = _next_event(left[sm], ready[sm], kept, speeds, now)
        sift_down(queue, times, top)
    return last


@njit
def _speeds(residence: np.ndarray, ages: np.ndarray) -> np.ndarray:
    """[m, k] mean blocks a cycle of the k-th oldest of m that work."""
    most = len(residence)
    speeds = np.zeros((most + 1, most))
    for m in range(1, most + 1):
        shares = 0.0
        for k in range(m):
            shares += ages[k]
        for k in range(m):
            speeds[m, k] = m / residence[m - 1] * ages[k] / shares
    return speeds


@borrowing
def _working(ready: np.ndarray, residents: int, now: float) -> int:
    """How many of an SM's residents have begun."""
    count = 0
    for slot in range(residents):
        count += ready[slot] <= now
    return count


@borrowing
def _work(left: np.ndarray, ready: np.ndarray, residents: int, speeds: np.ndarray, before: float,
          now: float) -> int:
    """Moves an SM on from ``before`` to ``now``; how many of its residents stay, the oldest
    first. None begins in between."""
    kept, working, together = 0, 0, _working(ready, residents, before)
    for slot in range(residents):
        rest = left[slot]
        if ready[slot] <= before:
            rest -= (now - before) * speeds[together, working]
            working += 1
        if rest > DONE:
            left[kept], ready[kept] = rest, ready[slot]
            kept += 1
    return kept


@borrowing
def _next_event(left: np.ndarray, ready: np.ndarray, residents: int, speeds: np.ndarray,
                now: float) -> float:
    """When the first of an SM's residents ends or begins."""
    soonest, working, together = np.inf, 0, _working(ready, residents, now)
    for slot in range(residents):
        if ready[slot] > now:
            soonest = min(soonest, ready[slot])
            continue
        soonest = min(soonest, now + max(left[slot], DONE) / speeds[together, working])
        working += 1
    return soonest


@borrowing
def _heapify(queue: np.ndarray, times: np.ndarray) -> None:
    for at in range(len(queue) // 2 - 1, -1, -1):
        sift_down(queue, times, at)
