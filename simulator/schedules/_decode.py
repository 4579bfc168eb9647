"""What decode schedules share: packed heads, keys cut into splits, the phase that combines them.

Flash-decoding (Dao, Haziza, Massa, Sizov 2023): decode has one query or a few and many keys, so
row blocks alone do not fill a GPU. All query heads of a KV head are rows of one tile (K and V are
read once for the group), the keys are cut into splits, and each split of each KV head is a thread
block. With more than one split, a block stores its share of O (divided by its own l) and the
logsumexp LSE of its rows; a second phase weighs the shares by exp(LSE − max).
"""

from dataclasses import dataclass
from math import lcm

from ..errors import InputError
from ..problem import Attention
from ..program import Program, ProgramBuilder, Role, Space, Tile, Var
from ..tiles import Tiles
from ._seen import turned

COMBINE_ROWS = 16  # of a thread block of the combine phase, at most


@dataclass(frozen=True)
class Cut:
    """Keys [first, end), cut every ``keys``: all that some query sees, from a whole step on."""

    first: int
    end: int
    keys: int

    @property
    def splits(self) -> int:
        """How many splits there are; none is empty."""
        return -(-(self.end - self.first) // self.keys)


def cut(problem: Attention, splits: int, step: int) -> Cut:
    """At most ``splits`` splits of whole steps, as equal as these allow."""
    low, _ = problem.mask_bounds.column_range(0, problem.kv_seq)
    _, high = problem.mask_bounds.column_range(problem.seq - 1, problem.kv_seq)
    first, end = int(low) // step * step, int(high)
    steps = -(-(end - first) // step)
    return Cut(first, end, -(-steps // splits) * step)


class Decode:
    """Builds a decode schedule. Subclasses say which tiles the keys and values go through."""

    name: str
    paged = False

    def __init__(self, problem: Attention, tiles: Tiles) -> None:
        if problem.direction != "forward":
            raise InputError(f"schedule {self.name} computes the forward pass only")
        self.problem, self.tiles = problem, tiles
        self.p = p = ProgramBuilder(self.name, problem, tiles)
        page = tiles.page if self.paged else 1
        self.cut = cut(problem, tiles.splits, lcm(tiles.bc, page))
        self.declare_inputs()
        seq, parts = problem.seq, self.cut.splits
        self.o = p.tensor("O", seq, problem.value_dim, Role.OUTPUT, packed=True)
        if parts > 1:
            self.o_part = p.tensor("O_part", seq, parts * problem.value_dim, Role.SCRATCH,
                                   statistic=True, packed=True)
            self.lse_part = p.tensor("LSE_part", seq, parts, Role.SCRATCH, statistic=True,
                                     packed=True)

    def declare_inputs(self) -> None:
        """Declares Q, K, V …"""
        raise NotImplementedError

    def declare_tiles(self) -> None:
        """Declares the tiles that hold them."""
        raise NotImplementedError

    def load_queries(self, r0: Var, s0: Var) -> None:
        """What a thread block loads before its first key."""
        raise NotImplementedError

    def compute_scores(self, S: Tile, c0: Var) -> None:
        """S = Q·Kᵀ of the column block at c0, unscaled."""
        raise NotImplementedError

    def load_values(self, c0: Var) -> Tile:
        """The tile that holds V of the column block at c0."""
        raise NotImplementedError

    def build(self) -> Program:
        """One phase, or two where there are several splits."""
        self._attend()
        if self.cut.splits > 1:
            self._combine()
        return self.p.build()

    def _register_tiles(self, rows: int, *names: str) -> tuple[Tile, ...]:
        """O, then row statistics."""
        p = self.p
        O = p.tile("O", rows, self.problem.value_dim, Space.REGISTERS, accumulator=True)
        return O, *(p.tile(name, rows, 1, Space.REGISTERS, accumulator=True) for name in names)

    def _attend(self) -> None:
        p, tiles, cut, compute = self.p, self.tiles, self.cut, self.p.compute
        axes = ("r0", self.o.rows, tiles.br), ("s0", cut.end - cut.first, cut.keys)
        with p.phase("attention", *axes, kv=True) as (r0, s0):
            self.declare_tiles()
            S = p.tile("S", tiles.br, tiles.bc, Space.REGISTERS, accumulator=True)
            P = p.tile("P", tiles.br, tiles.bc, Space.REGISTERS)
            O, m, m_new, m_block, l, l_block, alpha = self._register_tiles(
                tiles.br, "m", "m_new", "m_block", "l", "l_block", "alpha")
            self.load_queries(r0, s0)
            p.fill(O, 0.0, self.o, r0)
            p.fill(m, float("-inf"), self.o, r0)
            p.fill(l, 0.0, self.o, r0)
            from_, to = (s0, cut.first), (s0, cut.first + cut.keys)
            back = turned(p, tiles, r0, tiles.br)
            with p.loop("c0", tiles.bc, cut.end, start=from_, stop=to, back=back) as c0:
                self.compute_scores(S, c0)
                compute("scale", S, S, constant=self.problem.softmax_scale)
                compute("mask", S, S, row=r0, col=c0)
                compute("row_max", m_block, S)
                compute("maximum", m_new, m, m_block)
                compute("exp_minus", S, S, m_new)
                compute("row_sum", l_block, S)
                compute("exp_minus", alpha, m, m_new)
                compute("mul_rows", l, l, alpha)
                compute("add", l, l, l_block)
                compute("mul_rows", O, O, alpha)
                compute("copy", P, S)
                compute("dot_add", O, P, self.load_values(c0))
                compute("copy", m, m_new)
            compute("div_rows", O, O, l)
            if cut.splits == 1:
                p.store(O, self.o, r0)
                return
            p.store(O, self.o_part, r0, p.let("o0", s0, divide=cut.keys, times=self.o.cols))
            compute("log", l, l)
            compute("add", l, l, m)
            p.store(l, self.lse_part, r0, p.let("n0", s0, divide=cut.keys))

    def _combine(self) -> None:
        p, rows, compute = self.p, min(self.tiles.br, COMBINE_ROWS), self.p.compute
        with p.phase("combine", ("r0", self.o.rows, rows), kv=True) as (r0,):
            O, lse, m, m_new, l, weight, alpha = self._register_tiles(
                rows, "lse", "m", "m_new", "l", "weight", "alpha")
            part = p.tile("part", rows, self.o.cols, Space.REGISTERS, accumulator=True)
            p.fill(O, 0.0, self.o, r0)
            p.fill(m, float("-inf"), self.o, r0)
            p.fill(l, 0.0, self.o, r0)
            with p.loop("n0", 1, self.cut.splits) as n0:
                p.load(lse, self.lse_part, r0, n0)
                p.load(part, self.o_part, r0, p.let("o0", n0, times=self.o.cols))
                compute("maximum", m_new, m, lse)
                compute("exp_minus", weight, lse, m_new)
                compute("exp_minus", alpha, m, m_new)
                compute("mul_rows", l, l, alpha)
                compute("add", l, l, weight)
                compute("mul_rows", O, O, alpha)
                compute("mul_rows", part, part, weight)
                compute("add", O, O, part)
                compute("copy", m, m_new)
            compute("div_rows", O, O, l)
            p.store(O, self.o, r0)
