"""Which of some numbers is due first, the lowest among equals: a tree of winners, without branches
that a processor would have to guess.
"""

import numpy as np

from ..jit import inlined, njit


@njit
def first_times(count: int) -> tuple[np.ndarray, np.ndarray]:
    """A tree over the numbers below ``count``, all due at 0: (``times``, ``soonest``) of its nodes,
    of which 1 is the root; what is never due is at infinity."""
    leaves = 1
    while leaves < count:
        leaves *= 2
    times, soonest = np.full(2 * leaves, np.inf), np.zeros(2 * leaves, np.int64)
    for number in range(leaves):
        soonest[leaves + number] = number
    for number in range(count):
        set_time(times, soonest, number, 0.0)
    return times, soonest


@inlined
def set_time(times: np.ndarray, soonest: np.ndarray, number: int, time: float) -> None:
    """``number`` is due at ``time`` from now on."""
    node, first = number + len(times) // 2, number
    times[node] = time
    while node > 1:
        other_time, other = times[node ^ 1], soonest[node ^ 1]
        sooner = (other_time < time) | ((other_time == time) & (other < first))
        time = other_time if sooner else time
        first = other if sooner else first
        node >>= 1
        times[node], soonest[node] = time, first
