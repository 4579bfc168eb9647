"""Dropout inside a kernel: random numbers are drawn where they are needed, so nothing is moved.

FlashAttention (arXiv 2205.14135, section 3.1 and Algorithm 4) keeps the state of the generator and
draws the same numbers in the backward pass; a kernel that stores P has to store what it kept.
"""

from ..program import ProgramBuilder, Space, Tensor, Tile, Var


class Dropout:
    """What a phase drops out of tiles of Br × Bc weights; nothing where the problem has none."""

    def __init__(self, p: ProgramBuilder, rows: int, cols: int) -> None:
        self.p = p
        if p.problem.dropout:
            self.kept = p.tile("kept", rows, cols, Space.REGISTERS, element_bytes=1)

    def draw(self, like: Tile, row: Var, col: Var) -> None:
        """Draw the numbers of the tile at (row, col)."""
        if self.p.problem.dropout:
            self.p.compute("keep", self.kept, like, row=row, col=col)

    def apply(self, tile: Tile) -> None:
        """tile = tile ∘ kept / (1 − p)"""
        if self.p.problem.dropout:
            self.p.compute("mul", tile, tile, self.kept)
            self.p.compute("scale", tile, tile, constant=1 / (1 - self.p.problem.dropout))


def drop_matrix(p: ProgramBuilder, matrix: Tensor, left: Tensor, stay: Tensor, *,
                draw: bool) -> Tensor:
    """A phase of its own: ``left`` = matrix ∘ kept / (1 − p) of each head at once; which are kept
    is drawn and stored in ``stay``, or read from there. Returns ``left``."""
    rows, cols = matrix.rows, matrix.cols
    with p.phase("dropout"):
        P = p.tile(matrix.name, rows, cols, Space.REGISTERS, accumulator=True)
        kept = p.tile("kept", rows, cols, Space.REGISTERS, element_bytes=1)
        p.load(P, matrix)
        if draw:
            p.compute("keep", kept, P)
            p.store(kept, stay)
        else:
            p.load(kept, stay)
        p.compute("mul", P, P, kept)
        p.compute("scale", P, P, constant=1 / (1 - p.problem.dropout))
        p.store(P, left)
    return left
