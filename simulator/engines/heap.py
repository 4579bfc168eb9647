"""A heap of numbers by the time that each is due, the lowest number first among equals."""

import numpy as np

from ..jit import borrowing


@borrowing
def sift_down(queue: np.ndarray, times: np.ndarray, at: int) -> None:
    """Put the number at ``at`` of the heap in its place by (time, number)."""
    number = queue[at]
    while True:
        child = 2 * at + 1
        if child >= len(queue):
            break
        if child + 1 < len(queue) and _before(queue[child + 1], queue[child], times):
            child += 1
        if not _before(queue[child], number, times):
            break
        queue[at] = queue[child]
        at = child
    queue[at] = number


@borrowing
def _before(a: int, b: int, times: np.ndarray) -> bool:
    return times[a] < times[b] or (times[a] == times[b] and a < b)
