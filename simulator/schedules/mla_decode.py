"""Multi-head latent attention, decode: the values are the first columns of the keys, loaded once.

DeepSeek-V2 (arXiv 2405.04434) with the expansions absorbed into Q and O: all query heads attend to
one latent cache of (512 + 64)-wide keys, and the first 512 columns, without the rotary part, are
the values. Split over keys as split_kv. The rotary columns are used once, by S, and go through
registers.
"""

from dataclasses import replace

from ..problem import Attention
from ..program import Program, Role, Space, Tile, Var
from ..tiles import Tiles
from ._decode import Decode

DEFAULT_TILES = Tiles(br=64, bc=64, stages=2)
OPTIONS = ("splits", "kv_order")


class MlaDecode(Decode):
    """A tile of the latent columns serves S and O; the rotary columns have their own."""

    name = "mla_decode"

    def declare_inputs(self) -> None:
        p, problem = self.p, self.problem
        self.rotary = problem.head_dim - problem.value_dim
        self.q = p.tensor("Q", problem.seq, problem.head_dim, Role.INPUT, packed=True)
        self.k = p.tensor("K", problem.kv_seq, problem.head_dim, Role.INPUT, kv=True)

    def declare_tiles(self) -> None:
        p, tiles, latent = self.p, self.tiles, self.problem.value_dim
        self.Q = p.tile("Q", tiles.br, latent, Space.SHARED)
        self.K = p.tile("K", tiles.bc, latent, Space.SHARED, stages=tiles.stages)
        if self.rotary:
            self.Q_rotary = p.tile("Q_rotary", tiles.br, self.rotary, Space.SHARED)
            self.K_rotary = p.tile("K_rotary", tiles.bc, self.rotary, Space.REGISTERS)

    def load_queries(self, r0: Var, s0: Var) -> None:
        self.p.load(self.Q, self.q, r0)
        if self.rotary:
            self.after_latent = self.p.let("d0", None, self.problem.value_dim)
            self.p.load(self.Q_rotary, self.q, r0, self.after_latent)

    def compute_scores(self, S: Tile, c0: Var) -> None:
        self.p.load(self.K, self.k, c0)
        self.p.compute("dot_t", S, self.Q, self.K)
        if self.rotary:
            self.p.load(self.K_rotary, self.k, c0, self.after_latent)
            self.p.compute("dot_t_add", S, self.Q_rotary, self.K_rotary)

    def load_values(self, c0: Var) -> Tile:
        return self.K


def build(problem: Attention, tiles: Tiles) -> Program:
    """As split_kv, with ``shared_kv``: K is the whole cache. Raises InputError when value_dim is
    more than head_dim."""
    return MlaDecode(replace(problem, shared_kv=True), tiles).build()
