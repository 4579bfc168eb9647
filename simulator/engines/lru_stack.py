"""The LRU stack of items with sizes: how many bytes were used since an item was used last.

Each use takes the next place in a row of places. An item's stack distance is the bytes that stand
from its place on: bytes of whole blocks of places by a Fenwick tree (sums over powers of two), the
rest one by one. When the row is full, what lives is moved together. A use costs the logarithm of
the items.
"""

from typing import Any

import numpy as np

from ..jit import njit
from ..tape import Record

NEVER = -1  # distance of an item that was not used before
BLOCK = 64  # places that are added up one by one
STACK = np.dtype([(name, np.int64) for name in ("next", "bytes")])


def empty_stack(items: int) -> tuple[np.ndarray, ...]:
    """(STACK record, the place of each item or NEVER, bytes and item at each place, a Fenwick tree
    over the bytes of blocks of places)."""
    places = -(-(items + items // 4 + 4 * BLOCK) // BLOCK) * BLOCK
    stack = np.zeros(1, STACK)[0]
    return (stack, np.full(items, NEVER, np.int32), np.zeros(places, np.int64),
            np.zeros(places, np.int32), np.zeros(places // BLOCK + 1, np.int64))


@njit
def use(item: int, n_bytes: int, stack: Record, last: np.ndarray, weights: np.ndarray,
        owners: np.ndarray, blocks: np.ndarray) -> Any:
    """Use an item of ``n_bytes``: the bytes of all items used since its last use, with its own, or
    NEVER."""
    place = last[item]
    if place >= 0:
        distance = _bytes_from(place, stack, weights, blocks)
        if place == stack.next - 1:
            return distance
        _change(place, -weights[place], stack, weights, blocks)
    else:
        distance = NEVER
    if stack.next == len(weights):
        _move_together(stack, last, weights, owners, blocks)
    owners[stack.next] = item
    last[item] = stack.next
    _change(stack.next, n_bytes, stack, weights, blocks)
    stack.next += 1
    return distance


@njit
def _bytes_from(place: int, stack: Record, weights: np.ndarray, blocks: np.ndarray) -> Any:
    """Bytes that stand at ``place`` and after it."""
    block_end = min((place // BLOCK + 1) * BLOCK, stack.next)
    total = np.int64(0)
    for other in range(place, block_end):
        total += weights[other]
    if block_end == stack.next:
        return total
    before, block = np.int64(0), place // BLOCK + 1  # blocks up to and with the place's own
    while block:
        before += blocks[block]
        block -= block & -block
    return total + stack.bytes - before


@njit
def _change(place: int, n_bytes: int, stack: Record, weights: np.ndarray,
            blocks: np.ndarray) -> None:
    """Add bytes to a place."""
    weights[place] += n_bytes
    stack.bytes += n_bytes
    block = place // BLOCK + 1
    while block < len(blocks):
        blocks[block] += n_bytes
        block += block & -block


@njit
def _move_together(stack: Record, last: np.ndarray, weights: np.ndarray, owners: np.ndarray,
                   blocks: np.ndarray) -> None:
    """Close the gaps that items left behind: order and bytes stay."""
    used, kept = stack.next, 0
    for block in range(len(blocks)):
        blocks[block] = 0
    for place in range(used):
        n_bytes = weights[place]
        if n_bytes:
            weights[place] = 0
            weights[kept] = n_bytes
            owners[kept] = owners[place]
            last[owners[kept]] = kept
            blocks[kept // BLOCK + 1] += n_bytes
            kept += 1
    stack.next = kept
    for block in range(1, len(blocks)):
        above = block + (block & -block)
        if above < len(blocks):
            blocks[above] += blocks[block]
