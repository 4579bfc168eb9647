"""Split-KV decode: heads of a group as rows of one tile, a thread block for each split of the keys.

Flash-decoding, with a phase that combines the splits when there is more than one (``_decode.py``).
Every row block walks all keys that some query sees: made for few queries. K and V are loaded once
for all query heads of a KV head.
"""

from ..problem import Attention
from ..program import Program, Role, Space, Tile, Var
from ..tiles import Tiles
from ._decode import Decode

DEFAULT_TILES = Tiles(br=16, bc=64, stages=3)
OPTIONS = ("splits", "kv_order")


class SplitKV(Decode):
    """Q stays in shared memory, K and V pass through it."""

    name = "split_kv"

    def declare_inputs(self) -> None:
        p, problem = self.p, self.problem
        page = self.tiles.page if self.paged else 0
        self.q = p.tensor("Q", problem.seq, problem.head_dim, Role.INPUT, packed=True)
        self.k = p.tensor("K", problem.kv_seq, problem.head_dim, Role.INPUT, kv=True,
                          page_rows=page)
        self.v = p.tensor("V", problem.kv_seq, problem.value_dim, Role.INPUT, kv=True,
                          page_rows=page)

    def declare_tiles(self) -> None:
        p, tiles, problem = self.p, self.tiles, self.problem
        self.Q = p.tile("Q", tiles.br, problem.head_dim, Space.SHARED)
        self.K = p.tile("K", tiles.bc, problem.head_dim, Space.SHARED, stages=tiles.stages)
        self.V = p.tile("V", tiles.bc, problem.value_dim, Space.SHARED, stages=tiles.stages)

    def load_queries(self, r0: Var, s0: Var) -> None:
        self.p.load(self.Q, self.q, r0)

    def compute_scores(self, S: Tile, c0: Var) -> None:
        self.p.load(self.K, self.k, c0)
        self.p.compute("dot_t", S, self.Q, self.K)

    def load_values(self, c0: Var) -> Tile:
        self.p.load(self.V, self.v, c0)
        return self.V


def build(problem: Attention, tiles: Tiles) -> Program:
    """An attention phase over (rows, splits) and, with several splits, a combine phase."""
    return SplitKV(problem, tiles).build()
