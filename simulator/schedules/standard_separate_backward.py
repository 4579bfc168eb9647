"""Standard attention backward, dropout a kernel of its own, each matrix once per kernel.

Of standard_separate: Algorithm 3 of FlashAttention (arXiv 2205.14135), 7N² + 8Nd, and with dropout
a pass over dP that reads what was kept. No scratchpad holds these tiles.
"""

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role
from ..tiles import Tiles
from ._backward import KVGradients, gradient_inputs
from ._dropout import drop_matrix
from .standard_backward import softmax_gradient
from .standard_backward_minimal import product

DIRECTION = "backward"
DEFAULT_TILES = Tiles(br=128, bc=128)
ANY_MASK = True
DROPOUT = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """dV, dP, dropout, dS, dQ, dK: one phase each."""
    p = ProgramBuilder("standard_separate_backward", problem, tiles, idealised=True)
    q, k, v, do = gradient_inputs(p)
    n_q, n_kv = problem.seq, problem.kv_seq
    prob = left = p.tensor("P", n_q, n_kv, Role.INPUT)
    if problem.dropout:
        left = p.tensor("P_dropped", n_q, n_kv, Role.INPUT)
        stay = p.tensor("kept", n_q, n_kv, Role.INPUT, element_bytes=1)
        raw = p.tensor("dP_raw", n_q, n_kv, Role.SCRATCH)
    dp, ds = (p.tensor(name, n_q, n_kv, Role.SCRATCH) for name in ("dP", "dS"))
    dq = p.tensor("dQ", n_q, problem.head_dim, Role.OUTPUT)
    gradients = KVGradients(p)
    scale = problem.softmax_scale

    gradients.zero(n_kv)
    product(p, "grad_v", "t_dot", left, do, gradients.dv, gradients.put)
    product(p, "grad_p", "dot_t", do, v, raw if problem.dropout else dp, p.store)
    if problem.dropout:
        drop_matrix(p, raw, dp, stay, draw=False)
    softmax_gradient(p, prob, dp, ds, rows=n_q)
    product(p, "grad_q", "dot", ds, k, dq, p.store, scale=scale)
    product(p, "grad_k", "t_dot", ds, q, gradients.dk, gradients.put, scale=scale)
    gradients.convert(n_kv)
    return p.build()
