"""Softmax alone, three passes: maximum, sum of exponentials, weights. 4 accesses an element.

Milakov & Gimelshein 2018 (arXiv 1805.02867), Algorithm 2, what frameworks did before: S is read
three times and P written once. A thread block a row, Bc columns a step.
"""

from ..problem import Attention
from ..program import Program, ProgramBuilder, Space
from ..tiles import Tiles
from ._softmax import scores_and_weights

DIRECTION = "softmax"
DEFAULT_TILES = Tiles(br=1, bc=2048)
ANY_MASK = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """One phase of three loops over the columns of a row (Br is not used)."""
    p = ProgramBuilder("softmax_safe", problem, tiles)
    s, prob = scores_and_weights(p)
    with p.phase("softmax", ("r0", s.rows, 1)) as (r0,):
        S = p.tile("S", 1, tiles.bc, Space.REGISTERS, accumulator=True)
        m, m_chunk, l, l_chunk = (p.tile(name, 1, 1, Space.REGISTERS, accumulator=True)
                                  for name in ("m", "m_chunk", "l", "l_chunk"))
        p.fill(m, float("-inf"), s, r0)
        p.fill(l, 0.0, s, r0)
        with p.loop("c0", tiles.bc, s.cols) as c0:
            p.load(S, s, r0, c0)
            p.compute("mask", S, S, row=r0, col=c0)
            p.compute("row_max", m_chunk, S)
            p.compute("maximum", m, m, m_chunk)
        with p.loop("c0", tiles.bc, s.cols) as c0:
            p.load(S, s, r0, c0)
            p.compute("mask", S, S, row=r0, col=c0)
            p.compute("exp_minus", S, S, m)
            p.compute("row_sum", l_chunk, S)
            p.compute("add", l, l, l_chunk)
        with p.loop("c0", tiles.bc, s.cols) as c0:
            p.load(S, s, r0, c0)
            p.compute("mask", S, S, row=r0, col=c0)
            p.compute("exp_minus", S, S, m)
            p.compute("div_rows", S, S, l)
            p.store(S, prob, r0, c0)
    return p.build()
