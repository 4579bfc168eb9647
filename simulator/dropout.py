"""Which weights dropout keeps: numbers drawn by head, row and column, alike when asked again.

As the counter-based generators of kernels do, so that a backward pass need not have kept them. The
hash is splitmix64's; kernels use Philox. What matters here is that it is known and looks random.
"""

import numpy as np

from .problem import Attention

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def kept(problem: Attention, row: int, col: int, rows: int, cols: int) -> np.ndarray:
    """Whether weights [row:+rows, col:+cols] stay, as [batch, heads, rows, cols] booleans."""
    head, i, j = np.ogrid[:problem.head_count, row:row + rows, col:col + cols]
    place = ((head * problem.seq + i) * problem.kv_seq + j).astype(np.uint64)
    drawn = _splitmix(place) >> np.uint64(11)  # 53 bits
    stay = drawn >= np.uint64(round(problem.dropout * (1 << 53)))
    return stay.reshape(problem.batch, problem.heads, *stay.shape[1:])


def scaling(problem: Attention) -> np.ndarray:
    """0 or 1 / (1 − p) for each weight, [batch, heads, seq, kv_seq]."""
    return kept(problem, 0, 0, problem.seq, problem.kv_seq) / (1 - problem.dropout)


def _splitmix(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = (x + np.uint64(1)) * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
