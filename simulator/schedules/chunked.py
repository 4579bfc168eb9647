"""Chunked attention of Rabe & Staats: O, m and l of each pair of chunks, combined afterwards.

Rabe & Staats 2021 (arXiv 2112.05682). A chunk of Br queries meets every chunk of Bc keys by itself:
its unnormalised O, maximum m and sum l go to memory, and a second phase rescales them by the
largest m and adds them up. Every pair of chunks is computed; the mask only hides. The paper leaves
to the compiler where the scores of a pair live: here on chip whatever their size, an idealised
count. It goes through query chunks one after the other, so that the parts of one chunk are in
memory at a time; here those of all are.
"""

from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space, Tensor
from ..tiles import Tiles

DEFAULT_TILES = Tiles(br=1024, bc=4096)  # the paper's listing
ANY_MASK = True
COMBINE_ROWS = 16  # of a thread block of the second phase, at most


def build(problem: Attention, tiles: Tiles) -> Program:
    """A phase over pairs of chunks, and one that combines the key chunks of each row."""
    p = ProgramBuilder("chunked", problem, tiles, idealised=True)
    q, k, v = p.inputs()
    o = p.tensor("O", problem.seq, problem.value_dim, Role.OUTPUT)
    chunks = -(-problem.kv_seq // tiles.bc)
    o_part = p.tensor("O_part", problem.seq, chunks * o.cols, Role.SCRATCH, statistic=True)
    m_part, l_part = (p.tensor(name, problem.seq, chunks, Role.SCRATCH, statistic=True)
                      for name in ("m_part", "l_part"))
    _pairs(p, tiles, (q, k, v), (o_part, m_part, l_part))
    _combine(p, min(tiles.br, COMBINE_ROWS), chunks, (o_part, m_part, l_part), o)
    return p.build()


def _pairs(p: ProgramBuilder, tiles: Tiles, inputs: tuple[Tensor, ...],
           parts: tuple[Tensor, ...]) -> None:
    """O, m and l of a query chunk and a key chunk."""
    (q, k, v), (o_part, m_part, l_part) = inputs, parts
    br, bc, compute = tiles.br, tiles.bc, p.compute
    with p.phase("pairs", ("r0", q.rows, br), ("c0", k.rows, bc)) as (r0, c0):
        Q = p.tile("Q", br, q.cols, Space.SHARED)
        K, V = (p.tile(x.name, bc, x.cols, Space.SHARED) for x in (k, v))
        S = p.tile("S", br, bc, Space.REGISTERS, accumulator=True)
        P = p.tile("P", br, bc, Space.REGISTERS)
        O = p.tile("O", br, v.cols, Space.REGISTERS, accumulator=True)
        m, l = (p.tile(name, br, 1, Space.REGISTERS, accumulator=True) for name in "ml")
        p.load(Q, q, r0)
        p.load(K, k, c0)
        compute("dot_t", S, Q, K)
        compute("scale", S, S, constant=p.problem.softmax_scale)
        compute("mask", S, S, row=r0, col=c0)
        compute("row_max", m, S)
        compute("exp_minus", S, S, m)
        compute("row_sum", l, S)
        compute("copy", P, S)
        p.load(V, v, c0)
        compute("dot", O, P, V)
        n0 = p.let("n0", c0, divide=bc)
        p.store(O, o_part, r0, p.let("o0", c0, divide=bc, times=v.cols))
        p.store(m, m_part, r0, n0)
        p.store(l, l_part, r0, n0)


def _combine(p: ProgramBuilder, rows: int, chunks: int, parts: tuple[Tensor, ...],
             o: Tensor) -> None:
    """The largest m of all key chunks, then the sums of O and l rescaled to it."""
    (o_part, m_part, l_part), compute = parts, p.compute
    with p.phase("combine", ("r0", o.rows, rows)) as (r0,):
        O, part = (p.tile(name, rows, o.cols, Space.REGISTERS, accumulator=True)
                   for name in ("O", "part"))
        m, m_chunk, l, l_chunk = (p.tile(name, rows, 1, Space.REGISTERS, accumulator=True)
                                  for name in ("m", "m_chunk", "l", "l_chunk"))
        p.fill(m, float("-inf"), m_part, r0)
        with p.loop("n0", 1, chunks) as n0:
            p.load(m_chunk, m_part, r0, n0)
            compute("maximum", m, m, m_chunk)
        p.fill(O, 0.0, o, r0)
        p.fill(l, 0.0, l_part, r0)
        with p.loop("n0", 1, chunks) as n0:
            p.load(m_chunk, m_part, r0, n0)
            compute("exp_minus", m_chunk, m_chunk, m)
            p.load(l_chunk, l_part, r0, n0)
            compute("mul_rows", l_chunk, l_chunk, m_chunk)
            compute("add", l, l, l_chunk)
            p.load(part, o_part, r0, p.let("o0", n0, times=o.cols))
            compute("mul_rows", part, part, m_chunk)
            compute("add", O, O, part)
        compute("div_rows", O, O, l)
        p.store(O, o, r0)
