"""FlashAttention-2 backward: one thread block a column block, Q and dO streamed, dQ by atomics.

Dao 2023 (arXiv 2307.08691), Algorithm 2. K, V, dK and dV of a column block stay on chip; S and P
are recomputed from Q, K and the saved logsumexp. Every block adds its part of dQ to an accumulator
in HBM, in any order; launches before and after compute D = rowsum(dO ∘ O) and zero the accumulator,
and scale and round dQ.
"""

from typing import Any

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space
from ..tiles import Tiles
from ._backward import KVGradients, gradient_inputs, row_dots, zero_rows
from ._dropout import Dropout
from ._seen import row_blocks

DIRECTION = "backward"
DEFAULT_TILES = Tiles(br=64, bc=128)
OPTIONS = ("kv_order",)
ANY_MASK = True
DROPOUT = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """Br rows of Q and dO pass by the Bc columns of K and V that a thread block holds."""
    p = ProgramBuilder("flash2_backward", problem, tiles)
    q, k, v, do = gradient_inputs(p)
    o = p.tensor("O", problem.seq, problem.value_dim, Role.INPUT)
    lse = p.tensor("LSE", problem.seq, 1, Role.INPUT, statistic=True)
    dq = p.tensor("dQ", problem.seq, problem.head_dim, Role.OUTPUT)
    gradients = KVGradients(p)
    d = p.tensor("D", problem.seq, 1, Role.SCRATCH, statistic=True)
    dq_acc = p.tensor("dQ_acc", problem.seq, problem.head_dim, Role.SCRATCH, statistic=True)

    with p.phase("preprocess", ("r0", problem.seq, tiles.br)) as (r0,):
        row_dots(p, o, do, d, tiles.br, r0)
        zero_rows(p, dq_acc, tiles.br, r0)
    gradients.zero(tiles.bc)
    _columns(p, tiles, (q, k, v, do, lse, d, dq_acc), gradients)
    with p.phase("convert_q", ("r0", problem.seq, tiles.br)) as (r0,):
        dQ = p.tile("dQ", tiles.br, problem.head_dim, Space.REGISTERS, accumulator=True)
        p.load(dQ, dq_acc, r0)
        p.compute("scale", dQ, dQ, constant=problem.softmax_scale)
        p.store(dQ, dq, r0)
    gradients.convert(tiles.bc)
    return p.build()


def _columns(p: ProgramBuilder, tiles: Tiles, tensors: Any, gradients: KVGradients) -> None:
    """The main launch: dK and dV of a column block, and its part of every row's dQ."""
    q, k, v, do, lse, d, dq_acc = tensors
    problem, br, bc = p.problem, tiles.br, tiles.bc
    d_qk, d_v = problem.head_dim, problem.value_dim
    with p.phase("attention", ("c0", problem.kv_seq, bc)) as (c0,):
        K = p.tile("K", bc, d_qk, Space.SHARED)
        V = p.tile("V", bc, d_v, Space.SHARED)
        Q = p.tile("Q", br, d_qk, Space.SHARED, stages=tiles.stages)
        dO = p.tile("dO", br, d_v, Space.SHARED, stages=tiles.stages)
        P = p.tile("P", br, bc, Space.SHARED)
        dS = p.tile("dS", br, bc, Space.SHARED)
        S, dP = (p.tile(n, br, bc, Space.REGISTERS, accumulator=True) for n in ("S", "dP"))
        dQ = p.tile("dQ", br, d_qk, Space.REGISTERS, accumulator=True)
        dK = p.tile("dK", bc, d_qk, Space.REGISTERS, accumulator=True)
        dV = p.tile("dV", bc, d_v, Space.REGISTERS, accumulator=True)
        LSE, D = (p.tile(n, br, 1, Space.REGISTERS, accumulator=True) for n in ("LSE", "D"))
        dropout = Dropout(p, br, bc)
        p.load(K, k, c0)
        p.load(V, v, c0)
        p.fill(dK, 0.0, k, c0)
        p.fill(dV, 0.0, v, c0)
        with row_blocks(p, tiles, c0) as r0:
            p.load(Q, q, r0)
            p.load(LSE, lse, r0)
            p.compute("dot_t", S, Q, K)
            p.compute("scale", S, S, constant=problem.softmax_scale)
            p.compute("mask", S, S, row=r0, col=c0)
            p.compute("exp_minus", S, S, LSE)
            p.compute("copy", P, S)
            dropout.draw(S, r0, c0)
            dropout.apply(P)
            p.load(dO, do, r0)
            p.compute("t_dot_add", dV, P, dO)
            p.load(D, d, r0)
            p.compute("dot_t", dP, dO, V)
            dropout.apply(dP)
            p.compute("sub_rows", dP, dP, D)
            p.compute("mul", dP, dP, S)
            p.compute("copy", dS, dP)
            p.compute("t_dot_add", dK, dS, Q)
            p.compute("dot", dQ, dS, K)
            p.reduce(dQ, dq_acc, r0)
        p.compute("scale", dK, dK, constant=problem.softmax_scale)
        gradients.put(dK, gradients.dk, c0)
        gradients.put(dV, gradients.dv, c0)
