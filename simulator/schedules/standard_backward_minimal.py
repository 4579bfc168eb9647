"""Standard attention backward as the papers count it: each matrix once per kernel.

FlashAttention paper (arXiv 2205.14135), Algorithm 3: 7N² + 8Nd. No scratchpad holds these tiles;
the program states the count that no tiling of the five kernels can beat.
"""

from typing import Any

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space, Tensor
from ..tiles import Tiles
from ._backward import KVGradients, gradient_inputs
from .standard_backward import softmax_gradient

DIRECTION = "backward"
DEFAULT_TILES = Tiles(br=128, bc=128)
ANY_MASK = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """One thread block a head; whole matrices as tiles (tile sizes are not used)."""
    p = ProgramBuilder("standard_backward_minimal", problem, tiles, idealised=True)
    q, k, v, do = gradient_inputs(p)
    n_q, n_kv = problem.seq, problem.kv_seq
    prob = p.tensor("P", n_q, n_kv, Role.INPUT)
    dp = p.tensor("dP", n_q, n_kv, Role.SCRATCH)
    ds = p.tensor("dS", n_q, n_kv, Role.SCRATCH)
    dq = p.tensor("dQ", n_q, problem.head_dim, Role.OUTPUT)
    gradients = KVGradients(p)
    scale = problem.softmax_scale

    gradients.zero(n_kv)
    product(p, "grad_v", "t_dot", prob, do, gradients.dv, gradients.put)
    product(p, "grad_p", "dot_t", do, v, dp, p.store)
    softmax_gradient(p, prob, dp, ds, rows=n_q)
    product(p, "grad_q", "dot", ds, k, dq, p.store, scale=scale)
    product(p, "grad_k", "t_dot", ds, q, gradients.dk, gradients.put, scale=scale)
    gradients.convert(n_kv)
    return p.build()


def product(p: ProgramBuilder, name: str, op: str, a: Tensor, b: Tensor, out: Tensor, put: Any, *,
            scale: float | None = None) -> None:
    """out = op(a, b), scaled or not, of whole matrices."""
    with p.phase(name):
        A = p.tile(a.name, a.rows, a.cols, Space.SHARED)
        B = p.tile(b.name, b.rows, b.cols, Space.SHARED)
        C = p.tile(out.name, out.rows, out.cols, Space.REGISTERS, accumulator=True)
        p.load(A, a)
        p.load(B, b)
        p.compute(op, C, A, B)
        if scale is not None:
            p.compute("scale", C, C, constant=scale)
        put(C, out, None)
