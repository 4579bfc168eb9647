"""Softmax alone, one pass with the row on chip: S read once, P written once. 2 accesses an element.

No pass over memory is cheaper. (The 1 access of Milakov & Gimelshein 2018, arXiv 1805.02867, is the
softmax fused with a top-k, which writes K numbers a row in place of P.) A thread block a row, as
long as shared memory holds it.
"""

from ..problem import Attention
from ..program import Program, ProgramBuilder
from ..tiles import Tiles
from ._softmax import scores_and_weights
from .standard import softmax_resident

DIRECTION = "softmax"
DEFAULT_TILES = Tiles(br=1, bc=2048)
ANY_MASK = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """One phase, whole rows (tile sizes are not used)."""
    p = ProgramBuilder("softmax_fused", problem, tiles)
    softmax_resident(p, *scores_and_weights(p), rows=1)
    return p.build()
