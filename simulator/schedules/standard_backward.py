"""Standard attention backward: P, dP and dS in HBM, tiled matrix products.

FlashAttention paper (arXiv 2205.14135), Algorithm 3: dV = PᵀdO, dP = dO·Vᵀ, dS = P ∘ (dP −
rowsum(P ∘ dP)), dQ = dS·K/√d, dK = dSᵀ·Q/√d, a kernel each; P was kept by the forward pass. The
products compute every tile (no mask is skipped), Br × Bc output tiles with an inner step of Bk. The
kernel of dS takes one row a thread block: the rows of P and dP are read once while both fit in
48 KiB, longer ones twice.
"""

from typing import Any

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space, Tensor
from ..tiles import Tiles
from ._backward import KVGradients, gradient_inputs
from .standard import ONLINE_CHUNK, RESIDENT_ROW_BYTES, scores

DIRECTION = "backward"
DEFAULT_TILES = Tiles(br=128, bc=128)
ANY_MASK = True


def build(problem: Attention, tiles: Tiles) -> Program:
    """dV, dP, dS, dQ, dK: one phase each."""
    p = ProgramBuilder("standard_backward", problem, tiles)
    q, k, v, do = gradient_inputs(p)
    prob = p.tensor("P", problem.seq, problem.kv_seq, Role.INPUT)
    dp = p.tensor("dP", problem.seq, problem.kv_seq, Role.SCRATCH)
    ds = p.tensor("dS", problem.seq, problem.kv_seq, Role.SCRATCH)
    dq = p.tensor("dQ", problem.seq, problem.head_dim, Role.OUTPUT)
    gradients = KVGradients(p)
    scale = problem.softmax_scale

    gradients.zero(tiles.br)
    _product(p, "grad_v", prob, do, gradients.dv, tiles, gradients.put, transposed=True)
    scores(p, "grad_p", do, v, dp, tiles)
    if 2 * problem.kv_seq * problem.dtype_bytes <= RESIDENT_ROW_BYTES:
        softmax_gradient(p, prob, dp, ds, rows=1)
    else:
        _softmax_gradient_twice(p, prob, dp, ds)
    _product(p, "grad_q", ds, k, dq, tiles, p.store, scale=scale)
    _product(p, "grad_k", ds, q, gradients.dk, tiles, gradients.put, transposed=True, scale=scale)
    gradients.convert(tiles.br)
    return p.build()


def _product(p: ProgramBuilder, name: str, a: Tensor, b: Tensor, out: Tensor, tiles: Tiles,
             put: Any, *, transposed: bool = False, scale: float | None = None) -> None:
    """out = a·b or aᵀ·b, scaled or not, in tiles of Br rows and at most Bc columns."""
    width, bk = min(tiles.bc, out.cols), min(tiles.bk, b.rows)
    a_tile = (bk, tiles.br) if transposed else (tiles.br, bk)
    with p.phase(name, ("r0", out.rows, tiles.br), ("v0", out.cols, width)) as (r0, v0):
        A = p.tile(a.name, *a_tile, Space.SHARED, stages=tiles.stages)
        B = p.tile(b.name, bk, width, Space.SHARED, stages=tiles.stages)
        C = p.tile(out.name, tiles.br, width, Space.REGISTERS, accumulator=True)
        p.fill(C, 0.0, out, r0, v0)
        with p.loop("k0", bk, b.rows) as k0:
            p.load(A, a, *((k0, r0) if transposed else (r0, k0)))
            p.load(B, b, k0, v0)
            p.compute("t_dot_add" if transposed else "dot_add", C, A, B)
        if scale is not None:
            p.compute("scale", C, C, constant=scale)
        put(C, out, r0, v0)


def softmax_gradient(p: ProgramBuilder, prob: Tensor, dp: Tensor, ds: Tensor, *, rows: int) -> None:
    """dS = P ∘ (dP − rowsum(P ∘ dP)) with whole rows on chip: P and dP read once."""
    with p.phase("grad_s", ("r0", ds.rows, rows)) as (r0,):
        P = p.tile("P", rows, ds.cols, Space.SHARED)
        dP = p.tile("dP", rows, ds.cols, Space.SHARED)
        dS = p.tile("dS", rows, ds.cols, Space.REGISTERS, accumulator=True)
        D = p.tile("D", rows, 1, Space.REGISTERS, accumulator=True)
        p.load(P, prob, r0)
        p.load(dP, dp, r0)
        p.compute("mul", dS, P, dP)
        p.compute("row_sum", D, dS)
        p.compute("sub_rows", dS, dP, D)
        p.compute("mul", dS, dS, P)
        p.store(dS, ds, r0)


def _softmax_gradient_twice(p: ProgramBuilder, prob: Tensor, dp: Tensor, ds: Tensor) -> None:
    with p.phase("grad_s", ("r0", ds.rows, 1)) as (r0,):
        P, dP, dS = (p.tile(name, 1, ONLINE_CHUNK, Space.REGISTERS, accumulator=True)
                     for name in ("P", "dP", "dS"))
        D, part = (p.tile(name, 1, 1, Space.REGISTERS, accumulator=True) for name in ("D", "part"))
        p.fill(D, 0.0, ds, r0)
        with p.loop("c0", ONLINE_CHUNK, ds.cols) as c0:
            p.load(P, prob, r0, c0)
            p.load(dP, dp, r0, c0)
            p.compute("mul", dS, P, dP)
            p.compute("row_sum", part, dS)
            p.compute("add", D, D, part)
        with p.loop("c0", ONLINE_CHUNK, ds.cols) as c0:
            p.load(P, prob, r0, c0)
            p.load(dP, dp, r0, c0)
            p.compute("sub_rows", dS, dP, D)
            p.compute("mul", dS, dS, P)
            p.store(dS, ds, r0, c0)
