"""Masks as data: any set of (query, key) pairs that is a union of bands.

A band is a rectangle of the scores, cut by two diagonals: rows [row, row_end) see the columns
``clip(i + lo_shift, col, col_end) <= j < clip(i + hi_shift, col, col_end)``. A document is one
band, a prefix and the causal rest are two, a row of a block matrix is a band for each run of
blocks. Schedules walk the blocks of a tile grid that a mask touches, from a list.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .masks import Mask

BAND = np.dtype([(name, np.int64) for name in ("row", "row_end", "col", "col_end", "lo_shift",
                                               "hi_shift")])


@dataclass(frozen=True, eq=False)
class ListedMask:
    """Which columns each row may see: a union of ``bands`` (BAND records) that share no pair.

    In a band lo_shift < hi_shift; bands lie inside n_q × n_kv.
    """

    bands: np.ndarray
    n_q: int
    n_kv: int
    listed = True

    @cached_property
    def total(self) -> int:
        """Pairs that are not masked."""
        return sum(
            Mask(int(lo + row - col), int(hi + row - col)).pairs(int(row_end - row),
                                                                 int(col_end - col))
            for row, row_end, col, col_end, lo, hi in self.bands.tolist()
        )

    def pairs(self, n_q: int, n_kv: int) -> int:
        """As Mask.pairs, of the lengths that it was made for."""
        return self.total

    def keys_seen(self, n_q: int, n_kv: int) -> int:
        """Keys that some query sees."""
        first, end = self._columns(self.bands["row"], self.bands["row_end"], self.bands)
        edges = np.zeros(n_kv + 1, np.int64)
        np.add.at(edges, first, 1)
        np.add.at(edges, end, -1)
        return int((edges.cumsum() > 0).sum())

    def dense(self, n_q: int, n_kv: int, row: int = 0, col: int = 0, rows: int | None = None,
              cols: int | None = None) -> np.ndarray:
        """As Mask.dense: boolean array [rows, cols] of a tile at (row, col)."""
        i = ((row + np.arange(n_q - row if rows is None else rows)) % n_q)[:, None]
        j = col + np.arange(n_kv - col if cols is None else cols)
        found = np.zeros((len(i), len(j)), np.bool_)
        near = (self.bands["row"] <= i.max()) & (self.bands["row_end"] > i.min())
        near &= (self.bands["col"] <= j[-1]) & (self.bands["col_end"] > j[0])
        for first, end, col_first, col_end, lo, hi in self.bands[near].tolist():
            inside = (i >= first) & (i < end) & (j >= col_first) & (j < col_end)
            found |= inside & (j >= i + lo) & (j < i + hi)
        return found

    def touched(self, br: int, bc: int) -> np.ndarray:
        """[row block, column block]: whether a Br × Bc block holds a pair that is not masked."""
        bands, shape = self.bands, (-(-self.n_q // br), -(-self.n_kv // bc))
        first = bands["row"] // br
        blocks = (bands["row_end"] - 1) // br - first + 1
        band = np.repeat(np.arange(len(bands)), blocks)
        block = np.arange(len(band)) - np.repeat(blocks.cumsum() - blocks, blocks) + first[band]
        row = np.maximum(bands["row"][band], block * br)
        row_end = np.minimum(bands["row_end"][band], (block + 1) * br)
        low, high = self._columns(row, row_end, bands[band])
        edges = np.zeros((shape[0], shape[1] + 1), np.int32)
        some = high > low
        np.add.at(edges, (block[some], low[some] // bc), 1)
        np.add.at(edges, (block[some], -(-high[some] // bc)), -1)
        return edges.cumsum(axis=1)[:, :-1] > 0

    @staticmethod
    def _columns(row: np.ndarray, row_end: np.ndarray,
                 bands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and end column that rows [row, row_end) of bands see: the intervals of rows shift
        by one, so their union is one interval."""
        first = np.clip(row + bands["lo_shift"], bands["col"], bands["col_end"])
        end = np.clip(row_end - 1 + bands["hi_shift"], bands["col"], bands["col_end"])
        return first, np.maximum(first, end)
