"""Standard attention, mask and dropout kernels of their own, each matrix once per kernel.

What the FlashAttention paper (arXiv 2205.14135) compares with in Figure 2: 6N² + 4Nd forward, and
with dropout a pass that reads P, writes what is left of it and a byte an entry of what was kept. A
reconstruction: forward and backward in 16 bits are 18N² + 12Nd, which gives the 40.3 GB that the
paper prints and does not explain. As standard_minimal no scratchpad holds these tiles.
"""

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space
from ..tiles import Tiles
from ._dropout import drop_matrix
from .standard import softmax_resident
from .standard_minimal import output, raw_scores

DEFAULT_TILES = Tiles(br=128, bc=128)
ANY_MASK = True
DROPOUT = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """Scores, mask, softmax, dropout, output: one phase each."""
    p = ProgramBuilder("standard_separate", problem, tiles, idealised=True)
    q, k, v = p.inputs()
    n_q, n_kv = problem.seq, problem.kv_seq
    s, masked, weights = (p.tensor(name, n_q, n_kv, Role.SCRATCH)
                          for name in ("S", "S_masked", "P"))
    o = p.tensor("O", n_q, problem.value_dim, Role.OUTPUT)
    raw_scores(p, q, k, s)
    with p.phase("mask"):
        S = p.tile("S", n_q, n_kv, Space.REGISTERS, accumulator=True)
        p.load(S, s)
        p.compute("mask", S, S)
        p.store(S, masked)
    softmax_resident(p, masked, weights, rows=n_q)
    if problem.dropout:
        left = p.tensor("P_dropped", n_q, n_kv, Role.SCRATCH)
        stay = p.tensor("kept", n_q, n_kv, Role.SCRATCH, element_bytes=1)
        weights = drop_matrix(p, weights, left, stay, draw=True)
    output(p, weights, v, o)
    return p.build()
