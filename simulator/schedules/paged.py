"""Split-KV decode of a paged KV cache: a table of each sequence says where its pages are.

As split_kv, with the cache as vLLM keeps it (Kwon et al. 2023, arXiv 2309.06180): pages of ``page``
keys of one KV head, anywhere in memory. A thread block reads the table's entries of its split once.
"""

from ..problem import Attention
from ..program import Program, Space, Var
from ..tiles import Tiles
from .split_kv import SplitKV

DEFAULT_TILES = Tiles(br=16, bc=64, stages=3, page=16)
OPTIONS = ("splits", "page", "kv_order")


class Paged(SplitKV):
    """The tiles of split_kv and the table's entries of one split."""

    name = "paged"
    paged = True

    def declare_inputs(self) -> None:
        super().declare_inputs()
        self.table = self.p.table("table", -(-self.problem.kv_seq // self.tiles.page))

    def declare_tiles(self) -> None:
        super().declare_tiles()
        entries = self.cut.keys // self.tiles.page
        self.entries = self.p.tile("entries", entries, 1, Space.SHARED,
                                   element_bytes=self.table.element_bytes)

    def load_queries(self, r0: Var, s0: Var) -> None:
        super().load_queries(r0, s0)
        page = self.p.let("page", s0, self.cut.first, divide=self.tiles.page)
        self.p.load(self.entries, self.table, page)


def build(problem: Attention, tiles: Tiles) -> Program:
    """As split_kv, K and V through a page table."""
    return Paged(problem, tiles).build()
