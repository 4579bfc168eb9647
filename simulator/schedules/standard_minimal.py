"""Standard attention as the papers count it: each matrix of a head read or written once per kernel.

FlashAttention paper (arXiv 2205.14135), Algorithm 0: 4N² + 4Nd forward. No scratchpad holds these
tiles; the program states the count that no tiling of the three kernels can beat.
"""

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space, Tensor
from ..tiles import Tiles
from .standard import softmax_resident

DEFAULT_TILES = Tiles(br=128, bc=128)
ANY_MASK = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """One thread block a head; whole matrices as tiles (tile sizes are not used)."""
    p = ProgramBuilder("standard_minimal", problem, tiles, idealised=True)
    q, k, v = p.inputs()
    n_q, n_kv = problem.seq, problem.kv_seq
    s = p.tensor("S", n_q, n_kv, Role.SCRATCH)
    prob = p.tensor("P", n_q, n_kv, Role.SCRATCH)
    o = p.tensor("O", n_q, problem.value_dim, Role.OUTPUT)
    raw_scores(p, q, k, s)
    softmax_resident(p, s, prob, rows=n_q)
    output(p, prob, v, o)
    return p.build()


def raw_scores(p: ProgramBuilder, q: Tensor, k: Tensor, s: Tensor) -> None:
    """S = Q·Kᵀ/√d, unmasked, of whole matrices."""
    with p.phase("scores"):
        Q = p.tile("Q", q.rows, q.cols, Space.SHARED)
        K = p.tile("K", k.rows, k.cols, Space.SHARED)
        S = p.tile("S", s.rows, s.cols, Space.REGISTERS, accumulator=True)
        p.load(Q, q)
        p.load(K, k)
        p.compute("dot_t", S, Q, K)
        p.compute("scale", S, S, constant=p.problem.softmax_scale)
        p.store(S, s)


def output(p: ProgramBuilder, prob: Tensor, v: Tensor, o: Tensor) -> None:
    """O = P·V of whole matrices."""
    with p.phase("output"):
        P = p.tile("P", prob.rows, prob.cols, Space.SHARED)
        V = p.tile("V", v.rows, v.cols, Space.SHARED)
        O = p.tile("O", o.rows, o.cols, Space.REGISTERS, accumulator=True)
        p.load(P, prob)
        p.load(V, v)
        p.compute("dot", O, P, V)
        p.store(O, o)
