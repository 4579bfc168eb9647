"""Closed forms of decode: bytes over the SM boundary of split_kv, paged and mla_decode.

Read off flash-decoding (Dao, Haziza, Massa, Sizov 2023), which prints no count, and stated apart
from the tile programs. A thread block is a (KV head, row block, split): it reads its rows of Q, all
keys and values of its split, and, of a paged cache, the table's entries of these. With more than
one split it writes its part of O and a logsumexp for each row, in the statistics' dtype, and a
second phase reads both once.
"""

from math import lcm

from .problem import Attention
from .theory import Bytes, closed_form
from .tiles import Tiles

TABLE_ENTRY_BYTES = 4


@closed_form
def split_kv(problem: Attention, tiles: Tiles) -> Bytes:
    """K and V once for each row block of the rows of a KV head, Q once for each split."""
    return _Decode(problem, tiles, tiles.bc).bytes_by_tensor()


@closed_form
def paged(problem: Attention, tiles: Tiles) -> Bytes:
    """As split_kv, and ⌈keys/page⌉ entries of the table for each row block of each KV head."""
    decode = _Decode(problem, tiles, lcm(tiles.bc, tiles.page))
    pages = -(-problem.kv_seq // tiles.page) - decode.first // tiles.page
    entries = problem.batch * problem.kv_heads * decode.row_blocks * pages
    return decode.bytes_by_tensor() | {"table": (entries * TABLE_ENTRY_BYTES, 0)}


@closed_form
def mla_decode(problem: Attention, tiles: Tiles) -> Bytes:
    """As split_kv without V: the values are columns of the keys."""
    found = _Decode(problem, tiles, tiles.bc).bytes_by_tensor()
    del found["V"]
    return found


class _Decode:
    """The keys that are walked, and into how many splits of whole steps they are cut.

    Every row block walks the keys that some query sees: from the first that query 0 sees, rounded
    down to a step, to the last that the last query sees, which is the last of all.
    """

    def __init__(self, problem: Attention, tiles: Tiles, step: int) -> None:
        self.problem = problem
        self.first = 0
        if problem.mask.startswith("window:"):
            width = int(problem.mask.removeprefix("window:"))
            oldest = problem.kv_seq - problem.seq - width + 1
            self.first = min(max(oldest, 0), problem.kv_seq) // step * step
        self.keys = problem.kv_seq - self.first
        steps = -(-self.keys // step)
        self.splits = -(-steps // -(-steps // tiles.splits))
        self.row_blocks = -(-problem.group * problem.seq // tiles.br)

    def bytes_by_tensor(self) -> Bytes:
        p = self.problem
        rows = p.head_count * p.seq
        keys = p.batch * p.kv_heads * self.row_blocks * self.keys
        found = {
            "Q": (self.splits * rows * p.head_dim * p.dtype_bytes, 0),
            "K": (keys * p.head_dim * p.dtype_bytes, 0),
            "V": (keys * p.value_dim * p.dtype_bytes, 0),
            "O": (0, rows * p.value_dim * p.dtype_bytes),
        }
        if self.splits > 1:
            part = self.splits * rows * p.value_dim * p.stat_bytes
            lse = self.splits * rows * p.stat_bytes
            found |= {"O_part": (part, part), "LSE_part": (lse, lse)}
        return found
