"""Softmax alone, two passes: maximum and sum together, then the weights. 3 accesses an element.

Milakov & Gimelshein 2018 (arXiv 1805.02867), Algorithm 3: the running sum is rescaled when the
maximum grows, so S is read twice and P written once. A thread block a row, Bc columns a step.
"""

from ..problem import Attention
from ..program import Program, ProgramBuilder
from ..tiles import Tiles
from ._softmax import scores_and_weights
from .standard import softmax_online

DIRECTION = "softmax"
DEFAULT_TILES = Tiles(br=1, bc=2048)
ANY_MASK = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """One phase of two loops over the columns of a row (Br is not used)."""
    p = ProgramBuilder("softmax_online", problem, tiles)
    softmax_online(p, *scores_and_weights(p), tiles.bc)
    return p.build()
