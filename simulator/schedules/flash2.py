"""FlashAttention-2 forward: one thread block a row block, K and V streamed past it.

Dao 2023 (arXiv 2307.08691), Algorithm 1. O stays on chip unscaled and is written once; of the row
statistics only the logsumexp LSE = m + log l is saved.
"""

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space
from ..tiles import Tiles
from ._dropout import Dropout
from ._seen import column_blocks

DEFAULT_TILES = Tiles(br=128, bc=64)
OPTIONS = ("kv_order",)
ANY_MASK = True
DROPOUT = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """Q stays in shared memory, K and V pass through it, S, O, m and l live in registers."""
    p = ProgramBuilder("flash2", problem, tiles)
    q, k, v = p.inputs()
    o = p.tensor("O", problem.seq, problem.value_dim, Role.OUTPUT)
    lse = p.tensor("LSE", problem.seq, 1, Role.OUTPUT, statistic=True)
    br, bc = tiles.br, tiles.bc

    with p.phase("attention", ("r0", problem.seq, br)) as (r0,):
        Q = p.tile("Q", br, problem.head_dim, Space.SHARED)
        K = p.tile("K", bc, problem.head_dim, Space.SHARED, stages=tiles.stages)
        V = p.tile("V", bc, problem.value_dim, Space.SHARED, stages=tiles.stages)
        S = p.tile("S", br, bc, Space.REGISTERS, accumulator=True)
        P = p.tile("P", br, bc, Space.REGISTERS)
        O = p.tile("O", br, problem.value_dim, Space.REGISTERS, accumulator=True)
        m, m_new, m_block, l, l_block, alpha = (
            p.tile(name, br, 1, Space.REGISTERS, accumulator=True)
            for name in ("m", "m_new", "m_block", "l", "l_block", "alpha")
        )
        dropout = Dropout(p, br, bc)
        p.load(Q, q, r0)
        p.fill(O, 0.0, o, r0)
        p.fill(m, float("-inf"), lse, r0)
        p.fill(l, 0.0, lse, r0)
        with column_blocks(p, tiles, r0) as c0:
            p.load(K, k, c0)
            p.compute("dot_t", S, Q, K)
            p.compute("scale", S, S, constant=problem.softmax_scale)
            p.compute("mask", S, S, row=r0, col=c0)
            p.compute("row_max", m_block, S)
            p.compute("maximum", m_new, m, m_block)
            p.compute("exp_minus", S, S, m_new)
            p.compute("row_sum", l_block, S)
            p.compute("exp_minus", alpha, m, m_new)
            p.compute("mul_rows", l, l, alpha)
            p.compute("add", l, l, l_block)
            p.compute("mul_rows", O, O, alpha)
            dropout.draw(S, r0, c0)
            dropout.apply(S)
            p.compute("copy", P, S)
            p.load(V, v, c0)
            p.compute("dot_add", O, P, V)
            p.compute("copy", m, m_new)
        p.compute("div_rows", O, O, l)
        p.store(O, o, r0)
        p.compute("log", l, l)
        p.compute("add", l, l, m)
        p.store(l, lse, r0)
    return p.build()
