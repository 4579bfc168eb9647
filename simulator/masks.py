"""Attention masks as two clipped affine bounds.

Row ``i`` of the scores may look at columns ``lo(i) <= j < hi(i)`` with
``lo(i) = clip(i + lo_shift, 0, n_kv)`` and ``hi(i) = clip(i + hi_shift, 0, n_kv)``.
Full, causal and sliding-window masks all have this form, so every loop of a
schedule has one form of bound too. Queries and keys are aligned at the end
(the last query sees the last key), as in FlashAttention and PyTorch's
``causal_lower_right``.
"""

from dataclasses import dataclass

import numpy as np

from .errors import InputError

UNBOUNDED = 1 << 40  # a shift beyond any length; sums of a few of them stay inside int64


@dataclass(frozen=True)
class Mask:
    """Which columns each row may see: ``clip(i + lo_shift) <= j < clip(i + hi_shift)``."""

    lo_shift: int
    hi_shift: int
    listed = False  # one interval of keys a row, which moves with the row

    def column_range(self, rows: np.ndarray | int, n_kv: int) -> tuple[np.ndarray, np.ndarray]:
        """First and end column (arrays or ints) that ``rows`` may see; empty when lo >= hi."""
        rows = np.asarray(rows, dtype=np.int64)
        return np.clip(rows + self.lo_shift, 0, n_kv), np.clip(rows + self.hi_shift, 0, n_kv)

    def pairs(self, n_q: int, n_kv: int) -> int:
        """Number of (query, key) pairs that are not masked."""
        return _clipped_sum(self.hi_shift, n_q, n_kv) - _clipped_sum(self.lo_shift, n_q, n_kv)

    def keys_seen(self, n_q: int, n_kv: int) -> int:
        """Keys that some query sees: all but those before every window."""
        first, _ = self.column_range(0, n_kv)
        _, end = self.column_range(n_q - 1, n_kv)
        return int(end - first)

    def dense(self, n_q: int, n_kv: int, row: int = 0, col: int = 0, rows: int | None = None,
              cols: int | None = None) -> np.ndarray:
        """Boolean array [rows, cols] of what is visible, for a tile at (row, col). Rows from n_q
        on are those of further heads, one head after the other."""
        i = (row + np.arange(n_q - row if rows is None else rows)) % n_q
        j = col + np.arange(n_kv - col if cols is None else cols)
        lo, hi = self.column_range(i, n_kv)
        return (j >= lo[:, None]) & (j < hi[:, None])


def _clipped_sum(shift: int, count: int, top: int) -> int:
    """The sum of clip(i + shift, 0, top) over i = 0 … count − 1."""
    first, full = (min(max(bound - shift, 0), count) for bound in (1, top))
    full = max(full, first)  # rows [first, full) are inside, those from full on are at the top
    return (full - first) * (first + full - 1 + 2 * shift) // 2 + (count - full) * top


def parse_mask(text: str, n_q: int, n_kv: int) -> Mask:
    """A Mask from ``full``, ``causal`` or ``window:W`` (causal, each row sees W keys).

    Raises InputError for anything else.
    """
    offset = n_kv - n_q
    if text == "full":
        return Mask(-UNBOUNDED, UNBOUNDED)
    if text == "causal":
        return Mask(-UNBOUNDED, offset + 1)
    kind, _, width = str(text).partition(":")
    if kind == "window" and width.isascii() and width.isdigit() and 0 < int(width) < UNBOUNDED:
        return Mask(offset + 1 - int(width), offset + 1)
    raise InputError(
        f"mask {text!r} is not known; it is full, causal or window:W with W a whole number of keys "
        "from 1, or prefix, documents, longformer, strided, random or blocks with its argument"
    )
