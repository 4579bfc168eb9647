"""FlashAttention-1 backward: K and V outside, row blocks inside; dQ re-read and rewritten.

Dao et al. 2022 (arXiv 2205.14135), Algorithm 4, one thread block for each (batch, head). As in the
authors' code D = rowsum(dO ∘ O) is computed once, before: line 19 would read O again for every
column block. The same launch zeroes dQ in HBM (line 2).
"""

from typing import Any

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space, Var
from ..tiles import Tiles
from ._backward import KVGradients, gradient_inputs, row_dots, zero_rows
from ._dropout import Dropout
from ._seen import row_blocks

DIRECTION = "backward"
DEFAULT_TILES = Tiles(br=64, bc=64)
OPTIONS = ("kv_order",)
ANY_MASK = True
DROPOUT = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """K, V, dK and dV of a column block stay on chip while all row blocks pass."""
    p = ProgramBuilder("flash1_backward", problem, tiles)
    q, k, v, do = gradient_inputs(p)
    n_q, br, bc = problem.seq, tiles.br, tiles.bc
    o = p.tensor("O", n_q, problem.value_dim, Role.INPUT)
    m = p.tensor("m", n_q, 1, Role.INPUT, statistic=True)
    l = p.tensor("l", n_q, 1, Role.INPUT, statistic=True)
    dq = p.tensor("dQ", n_q, problem.head_dim, Role.OUTPUT, updated=True)
    gradients = KVGradients(p)
    d = p.tensor("D", n_q, 1, Role.SCRATCH, statistic=True)

    with p.phase("preprocess", ("r0", n_q, br)) as (r0,):
        row_dots(p, o, do, d, br, r0)
        zero_rows(p, dq, br, r0)
    gradients.zero(bc)
    with p.phase("attention"):
        body = _Body(p, tiles, (q, k, v, do, m, l, d, dq))
        with p.loop("c0", bc, problem.kv_seq) as c0:
            body.load_columns(c0)
            with row_blocks(p, tiles, c0) as r0:
                body.update_row_block(r0, c0)
            p.compute("scale", body.dK, body.dK, constant=problem.softmax_scale)
            gradients.put(body.dK, gradients.dk, c0)
            gradients.put(body.dV, gradients.dv, c0)
    gradients.convert(bc)
    return p.build()


class _Body:
    """The steps of Algorithm 4 on one (row block, column block) pair."""

    def __init__(self, p: ProgramBuilder, tiles: Tiles, tensors: Any) -> None:
        self.p = p
        self.q, self.k, self.v, self.do, self.m, self.l, self.d, self.dq = tensors
        br, bc, stages = tiles.br, tiles.bc, tiles.stages
        d_qk, d_v = p.problem.head_dim, p.problem.value_dim
        self.K = p.tile("K", bc, d_qk, Space.SHARED)
        self.V = p.tile("V", bc, d_v, Space.SHARED)
        self.Q = p.tile("Q", br, d_qk, Space.SHARED, stages=stages)
        self.dO = p.tile("dO", br, d_v, Space.SHARED, stages=stages)
        self.P = p.tile("P", br, bc, Space.SHARED)
        self.dS = p.tile("dS", br, bc, Space.SHARED)
        self.S = p.tile("S", br, bc, Space.REGISTERS, accumulator=True)
        self.dP = p.tile("dP", br, bc, Space.REGISTERS, accumulator=True)
        self.dQ = p.tile("dQ", br, d_qk, Space.REGISTERS, accumulator=True)
        self.dQ_part = p.tile("dQ_part", br, d_qk, Space.REGISTERS, accumulator=True)
        self.dK = p.tile("dK", bc, d_qk, Space.REGISTERS, accumulator=True)
        self.dV = p.tile("dV", bc, d_v, Space.REGISTERS, accumulator=True)
        self.m_tile, self.l_tile, self.D = (
            p.tile(name, br, 1, Space.REGISTERS, accumulator=True) for name in ("m", "l", "D")
        )

        self.dropout = Dropout(p, br, bc)

    def load_columns(self, c0: Var) -> None:
        self.p.load(self.K, self.k, c0)
        self.p.load(self.V, self.v, c0)
        self.p.fill(self.dK, 0.0, self.k, c0)
        self.p.fill(self.dV, 0.0, self.v, c0)

    def update_row_block(self, r0: Var, c0: Var) -> None:
        """Lines 10 to 22: P again, dV, dP, dS, and dQ and dK."""
        load, compute, scale = self.p.load, self.p.compute, self.p.problem.softmax_scale
        load(self.Q, self.q, r0)
        load(self.dO, self.do, r0)
        load(self.dQ, self.dq, r0)
        load(self.m_tile, self.m, r0)
        load(self.l_tile, self.l, r0)
        load(self.D, self.d, r0)
        compute("dot_t", self.S, self.Q, self.K)
        compute("scale", self.S, self.S, constant=scale)
        compute("mask", self.S, self.S, row=r0, col=c0)
        compute("exp_minus", self.S, self.S, self.m_tile)
        compute("div_rows", self.S, self.S, self.l_tile)
        compute("copy", self.P, self.S)
        self.dropout.draw(self.S, r0, c0)
        self.dropout.apply(self.P)
        compute("t_dot_add", self.dV, self.P, self.dO)
        compute("dot_t", self.dP, self.dO, self.V)
        self.dropout.apply(self.dP)
        compute("sub_rows", self.dP, self.dP, self.D)
        compute("mul", self.dP, self.dP, self.S)
        compute("copy", self.dS, self.dP)
        compute("dot", self.dQ_part, self.dS, self.K)
        compute("scale", self.dQ_part, self.dQ_part, constant=scale)
        compute("add", self.dQ, self.dQ, self.dQ_part)
        self.p.store(self.dQ, self.dq, r0)
        compute("t_dot_add", self.dK, self.dS, self.Q)
