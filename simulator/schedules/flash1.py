"""FlashAttention-1 forward: K and V outside, row blocks inside; O, m, l re-read and rewritten.

Dao et al. 2022 (arXiv 2205.14135), Algorithm 1, one thread block for each (batch, head). The first
column block that reaches a row block starts its O, m and l without reading them.
"""

from typing import Any

import numpy as np

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space, Var
from ..tiles import Tiles
from ._dropout import Dropout
from ._seen import part_of_list, turned, whole_list

DEFAULT_TILES = Tiles(br=64, bc=128)
OPTIONS = ("kv_order",)
ANY_MASK = True
DROPOUT = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """K and V of a column block stay in shared memory while all row blocks pass through."""
    p = ProgramBuilder("flash1", problem, tiles)
    body = _Flash1Body(p, problem, tiles)
    with p.phase("attention"):
        body.declare_tiles()
        if problem.visibility.listed:
            _listed_pairs(p, body, tiles)
        else:
            _pairs(p, body, tiles)
    return p.build()


def _pairs(p: ProgramBuilder, body: Any, tiles: Tiles) -> None:
    """Column blocks and, in each, the rows whose interval of keys reaches it."""
    mask, n_q, n_kv = p.problem.mask_bounds, p.problem.seq, p.problem.kv_seq
    br, bc = tiles.br, tiles.bc
    first_column = max(mask.lo_shift, 0) // bc * bc
    after_last = (None, n_q - 1 + mask.hi_shift)
    # Row blocks that see nothing at all (n_q > n_kv with a causal mask).
    with p.loop("r0", br, n_q, stop=(None, 2 - br - mask.hi_shift)) as r0:
        body.start_row_block(r0)
        body.store_row_block(r0)
    rows_from, rows_to = 1 - mask.hi_shift, bc - mask.lo_shift
    with p.loop("c0", bc, n_kv, (None, first_column), (None, first_column + 1)) as c0:
        body.load_columns(c0)
        back = turned(p, tiles, c0, bc)
        with p.loop("r0", br, n_q, (c0, rows_from), (c0, rows_to), back) as r0:
            body.update_row_block(r0, c0, first=True)
    with p.loop("c0", bc, n_kv, (None, first_column + bc), after_last) as c0:
        body.load_columns(c0)
        back = turned(p, tiles, c0, bc)
        with p.loop("r0", br, n_q, (c0, rows_from), (c0, -mask.lo_shift), back) as r0:
            body.update_row_block(r0, c0, first=False)
        with p.loop("r0", br, n_q, (c0, br - 1 - mask.lo_shift), (c0, rows_to), back) as r0:
            body.update_row_block(r0, c0, first=True)


def _listed_pairs(p: ProgramBuilder, body: Any, tiles: Tiles) -> None:
    """Block-sparse FlashAttention (Algorithm 5): the same, from lists of row blocks: those that
    saw a column block before, and those whose first it is."""
    br, bc, stages = tiles.br, tiles.bc, tiles.stages
    touched = p.problem.listed_mask.touched(br, bc)
    before = touched.cumsum(axis=1) - touched > 0
    unseen, columns = np.flatnonzero(~touched.any(axis=1)), np.flatnonzero(touched.any(axis=0))
    if len(unseen):
        with whole_list(p, "unseen", unseen * br, "r0", stages) as r0:
            body.start_row_block(r0)
            body.store_row_block(r0)
    with whole_list(p, "columns", columns * bc, "c0", stages) as c0:
        body.load_columns(c0)
        back = turned(p, tiles, c0, bc)
        for kind, pairs in (("again_", touched & before), ("first_", touched & ~before)):
            if pairs.any():
                with part_of_list(p, pairs.T, (c0, bc), ("r0", br), stages, back, kind) as r0:
                    body.update_row_block(r0, c0, first=kind == "first_")


class _Flash1Body:
    """The steps of Algorithm 1 on one (row block, column block) pair."""

    def __init__(self, p: ProgramBuilder, problem: Attention, tiles: Tiles) -> None:
        self.p, self.problem, self.tiles = p, problem, tiles
        self.q, self.k, self.v = p.inputs()
        n_q = problem.seq
        self.o = p.tensor("O", n_q, problem.value_dim, Role.OUTPUT, updated=True)
        self.m = p.tensor("m", n_q, 1, Role.OUTPUT, statistic=True, updated=True)
        self.l = p.tensor("l", n_q, 1, Role.OUTPUT, statistic=True, updated=True)

    def declare_tiles(self) -> None:
        p, problem, br, bc = self.p, self.problem, self.tiles.br, self.tiles.bc
        stages = self.tiles.stages
        self.K = p.tile("K", bc, problem.head_dim, Space.SHARED)
        self.V = p.tile("V", bc, problem.value_dim, Space.SHARED)
        self.Q = p.tile("Q", br, problem.head_dim, Space.SHARED, stages=stages)
        self.S = p.tile("S", br, bc, Space.REGISTERS, accumulator=True)
        self.P = p.tile("P", br, bc, Space.REGISTERS)
        self.O = p.tile("O", br, problem.value_dim, Space.REGISTERS, accumulator=True)
        names = ("m", "m_new", "m_block", "l", "l_new", "l_block", "alpha", "beta")
        (self.m_tile, self.m_new_tile, self.m_block_tile, self.l_tile, self.l_new_tile,
         self.l_block_tile, self.alpha_tile, self.beta_tile) = (
            p.tile(name, br, 1, Space.REGISTERS, accumulator=True) for name in names)
        self.dropout = Dropout(p, br, bc)

    def load_columns(self, c0: Var) -> None:
        self.p.load(self.K, self.k, c0)
        self.p.load(self.V, self.v, c0)

    def start_row_block(self, r0: Var) -> None:
        self.p.fill(self.O, 0.0, self.o, r0)
        self.p.fill(self.m_tile, float("-inf"), self.m, r0)
        self.p.fill(self.l_tile, 0.0, self.l, r0)

    def load_row_block(self, r0: Var) -> None:
        self.p.load(self.O, self.o, r0)
        self.p.load(self.m_tile, self.m, r0)
        self.p.load(self.l_tile, self.l, r0)

    def store_row_block(self, r0: Var) -> None:
        self.p.store(self.O, self.o, r0)
        self.p.store(self.m_tile, self.m, r0)
        self.p.store(self.l_tile, self.l, r0)

    def update_row_block(self, r0: Var, c0: Var, *, first: bool) -> None:
        """Lines 8 to 13: S, its softmax against the running m and l, and the new O."""
        compute = self.p.compute
        self.p.load(self.Q, self.q, r0)
        if first:
            self.start_row_block(r0)
        else:
            self.load_row_block(r0)
        compute("dot_t", self.S, self.Q, self.K)
        compute("scale", self.S, self.S, constant=self.problem.softmax_scale)
        compute("mask", self.S, self.S, row=r0, col=c0)
        compute("row_max", self.m_block_tile, self.S)
        compute("exp_minus", self.S, self.S, self.m_block_tile)
        compute("row_sum", self.l_block_tile, self.S)
        compute("maximum", self.m_new_tile, self.m_tile, self.m_block_tile)
        compute("exp_minus", self.alpha_tile, self.m_tile, self.m_new_tile)
        compute("exp_minus", self.beta_tile, self.m_block_tile, self.m_new_tile)
        compute("mul_rows", self.l_tile, self.l_tile, self.alpha_tile)
        compute("mul_rows", self.l_new_tile, self.l_block_tile, self.beta_tile)
        compute("add", self.l_new_tile, self.l_new_tile, self.l_tile)
        compute("mul_rows", self.O, self.O, self.l_tile)
        compute("mul_rows", self.S, self.S, self.beta_tile)
        self.dropout.draw(self.S, r0, c0)
        self.dropout.apply(self.S)
        compute("copy", self.P, self.S)
        compute("dot_add", self.O, self.P, self.V)
        compute("div_rows", self.O, self.O, self.l_new_tile)
        compute("copy", self.m_tile, self.m_new_tile)
        compute("copy", self.l_tile, self.l_new_tile)
        self.store_row_block(r0)
