"""Standard attention: three kernels, S and P in HBM, tiled matrix products.

FlashAttention paper (arXiv 2205.14135), Algorithm 0. The products compute every tile (no mask is
skipped), Br × Bc output tiles with an inner step of Bk. The softmax kernel takes one row a thread
block: a row of up to 48 KiB (the shared memory any CUDA GPU grants without opting in) is read
once, a longer one twice (online softmax, Milakov & Gimelshein 2018).
"""

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space, Tensor
from ..tiles import Tiles

DEFAULT_TILES = Tiles(br=128, bc=128)
ANY_MASK = True

RESIDENT_ROW_BYTES = 48 * 1024
ONLINE_CHUNK = 2048  # columns a step when the row is read twice


def build(problem: Attention, tiles: Tiles) -> Program:
    """Scores, softmax, output: one phase each."""
    p = ProgramBuilder("standard", problem, tiles)
    q, k, v = p.inputs()
    s = p.tensor("S", problem.seq, problem.kv_seq, Role.SCRATCH)
    prob = p.tensor("P", problem.seq, problem.kv_seq, Role.SCRATCH)
    o = p.tensor("O", problem.seq, problem.value_dim, Role.OUTPUT)
    scores(p, "scores", q, k, s, tiles, scale=problem.softmax_scale)
    if problem.kv_seq * problem.dtype_bytes <= RESIDENT_ROW_BYTES:
        softmax_resident(p, s, prob, rows=1)
    else:
        softmax_online(p, s, prob, ONLINE_CHUNK)
    _output(p, prob, v, o, tiles)
    return p.build()


def scores(p: ProgramBuilder, name: str, q: Tensor, k: Tensor, s: Tensor, tiles: Tiles, *,
           scale: float | None = None) -> None:
    """S = Q·Kᵀ, scaled or not, in Br × Bc tiles."""
    depth = q.cols
    bk = min(tiles.bk, depth)
    with p.phase(name, ("r0", s.rows, tiles.br), ("c0", s.cols, tiles.bc)) as (r0, c0):
        Q = p.tile(q.name, tiles.br, bk, Space.SHARED, stages=tiles.stages)
        K = p.tile(k.name, tiles.bc, bk, Space.SHARED, stages=tiles.stages)
        S = p.tile(s.name, tiles.br, tiles.bc, Space.REGISTERS, accumulator=True)
        p.fill(S, 0.0, s, r0, c0)
        with p.loop("k0", bk, depth) as k0:
            p.load(Q, q, r0, k0)
            p.load(K, k, c0, k0)
            p.compute("dot_t_add", S, Q, K)
        if scale is not None:
            p.compute("scale", S, S, constant=scale)
        p.store(S, s, r0, c0)


def softmax_resident(p: ProgramBuilder, s: Tensor, prob: Tensor, *, rows: int) -> None:
    """P = softmax(S) with whole rows on chip: S read once."""
    with p.phase("softmax", ("r0", s.rows, rows)) as (r0,):
        S = p.tile("S", rows, s.cols, Space.SHARED)
        P = p.tile("P", rows, s.cols, Space.REGISTERS, accumulator=True)
        m = p.tile("m", rows, 1, Space.REGISTERS, accumulator=True)
        l = p.tile("l", rows, 1, Space.REGISTERS, accumulator=True)
        p.load(S, s, r0)
        p.compute("mask", P, S, row=r0)
        p.compute("row_max", m, P)
        p.compute("exp_minus", P, P, m)
        p.compute("row_sum", l, P)
        p.compute("div_rows", P, P, l)
        p.store(P, prob, r0)


def softmax_online(p: ProgramBuilder, s: Tensor, prob: Tensor, chunk: int) -> None:
    """P = softmax(S), a row a thread block in chunks of columns: S read twice, the maximum and the
    sum of exponentials found together."""
    with p.phase("softmax", ("r0", s.rows, 1)) as (r0,):
        S = p.tile("S", 1, chunk, Space.REGISTERS, accumulator=True)
        m, m_new, l, l_block, alpha = (
            p.tile(name, 1, 1, Space.REGISTERS, accumulator=True)
            for name in ("m", "m_new", "l", "l_block", "alpha")
        )
        p.fill(m, float("-inf"), s, r0)
        p.fill(l, 0.0, s, r0)
        with p.loop("c0", chunk, s.cols) as c0:
            p.load(S, s, r0, c0)
            p.compute("mask", S, S, row=r0, col=c0)
            p.compute("row_max", m_new, S)
            p.compute("maximum", m_new, m_new, m)
            p.compute("exp_minus", S, S, m_new)
            p.compute("row_sum", l_block, S)
            p.compute("exp_minus", alpha, m, m_new)
            p.compute("mul_rows", l, l, alpha)
            p.compute("add", l, l, l_block)
            p.compute("copy", m, m_new)
        with p.loop("c0", chunk, s.cols) as c0:
            p.load(S, s, r0, c0)
            p.compute("mask", S, S, row=r0, col=c0)
            p.compute("exp_minus", S, S, m)
            p.compute("div_rows", S, S, l)
            p.store(S, prob, r0, c0)


def _output(p: ProgramBuilder, prob: Tensor, v: Tensor, o: Tensor, tiles: Tiles) -> None:
    width, bk = min(tiles.bc, o.cols), min(tiles.bk, v.rows)
    with p.phase("output", ("r0", o.rows, tiles.br), ("v0", o.cols, width)) as (r0, v0):
        P = p.tile("P", tiles.br, bk, Space.SHARED, stages=tiles.stages)
        V = p.tile("V", bk, width, Space.SHARED, stages=tiles.stages)
        O = p.tile("O", tiles.br, width, Space.REGISTERS, accumulator=True)
        p.fill(O, 0.0, o, r0, v0)
        with p.loop("k0", bk, v.rows) as k0:
            p.load(P, prob, r0, k0)
            p.load(V, v, k0, v0)
            p.compute("dot_add", O, P, V)
        p.store(O, o, r0, v0)
