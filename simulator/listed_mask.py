"""Masks as data: any set of (query, key) pairs that is a union of bands.

A band is a rectangle of the scores, cut by two diagonals: rows [row, row_end) see the columns
``clip(i + lo_shift, col, col_end) <= j < clip(i + hi_shift, col, col_end)``. A document is one
band, a prefix and the causal rest are two, a row of a block matrix is a band for each run of
blocks. Schedules walk the blocks of a tile grid that a mask touches, from a list.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

BAND = np.dtype([(name, np.int64) for name in ("row", "row_end", "col", "col_end", "lo_shift",
                                               "hi_shift")])

STEP = 16  # blocks whose sides are multiples of it are made of those that have it
FINE_MAX = 1 << 27  # of these, to keep


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
        bands = self.bands
        rows, cols = bands["row_end"] - bands["row"], bands["col_end"] - bands["col"]
        before, end = (_clipped_sums(bands[name] + bands["row"] - bands["col"], rows, cols)
                       for name in ("lo_shift", "hi_shift"))
        return int((end - before).sum())

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
        if br % STEP or bc % STEP or self.n_q * self.n_kv > FINE_MAX * STEP * STEP:
            return self._found(br, bc)
        if br not in self._by_rows:  # those of one Br at a time: whoever asks for all goes by it
            self._by_rows.clear()
            self._by_rows[br] = np.ascontiguousarray(_coarser(self._fine, br // STEP).T)
        return np.ascontiguousarray(_coarser(self._by_rows[br], bc // STEP).T)

    @cached_property
    def _fine(self) -> np.ndarray:
        """``touched`` of the smallest blocks that others consist of."""
        return self._found(STEP, STEP)

    @cached_property
    def _by_rows(self) -> dict[int, np.ndarray]:
        """By Br: [smallest block of columns, row block]."""
        return {}

    def _found(self, br: int, bc: int) -> np.ndarray:
        """``touched``, from the bands."""
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
        np.cumsum(edges, axis=1, out=edges)
        found: np.ndarray = edges[:, :-1] > 0
        return found

    @staticmethod
    def _columns(row: np.ndarray, row_end: np.ndarray,
                 bands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and end column that rows [row, row_end) of bands see: the intervals of rows shift
        by one, so their union is one interval."""
        first = np.clip(row + bands["lo_shift"], bands["col"], bands["col_end"])
        end = np.clip(row_end - 1 + bands["hi_shift"], bands["col"], bands["col_end"])
        return first, np.maximum(first, end)


def _clipped_sums(shift: np.ndarray, count: np.ndarray, top: np.ndarray) -> np.ndarray:
    """masks._clipped_sum of each: the sum of clip(i + shift, 0, top) over i = 0 … count − 1."""
    first = np.clip(1 - shift, 0, count)
    full = np.maximum(np.clip(top - shift, 0, count), first)
    sums: np.ndarray = (full - first) * (first + full - 1 + 2 * shift) // 2 + (count - full) * top
    return sums


def _coarser(blocks: np.ndarray, count: int) -> np.ndarray:
    """Whether any of ``count`` blocks that follow each other along the first axis is touched."""
    found = blocks[::count].copy()
    for place in range(1, count):
        others = blocks[place::count]
        found[:len(others)] |= others
    return found
