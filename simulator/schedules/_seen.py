"""Walks over the blocks that a mask leaves: the column blocks that a row block sees, the row blocks
that see a column block. An interval that moves with the block, or part of a list; in the order that
the tiles say."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..program import Bound, ProgramBuilder, Space, Var
from ..tiles import Tiles


@contextmanager
def column_blocks(p: ProgramBuilder, tiles: Tiles, r0: Var) -> Iterator[Var]:
    """Loop over the column blocks of which row block ``r0`` sees a key; yields their offset."""
    problem, back = p.problem, turned(p, tiles, r0, tiles.br)
    if problem.visibility.listed:
        touched = problem.listed_mask.touched(tiles.br, tiles.bc)
        with part_of_list(p, touched, (r0, tiles.br), ("c0", tiles.bc), tiles.stages, back) as c0:
            yield c0
        return
    mask = problem.mask_bounds
    first, last = (r0, mask.lo_shift), (r0, tiles.br - 1 + mask.hi_shift)
    with p.loop("c0", tiles.bc, problem.kv_seq, start=first, stop=last, back=back) as c0:
        yield c0


@contextmanager
def row_blocks(p: ProgramBuilder, tiles: Tiles, c0: Var) -> Iterator[Var]:
    """Loop over the row blocks that see a key of column block ``c0``; yields their offset."""
    problem, back = p.problem, turned(p, tiles, c0, tiles.bc)
    if problem.visibility.listed:
        touched = problem.listed_mask.touched(tiles.br, tiles.bc).T
        with part_of_list(p, touched, (c0, tiles.bc), ("r0", tiles.br), tiles.stages, back) as r0:
            yield r0
        return
    mask = problem.mask_bounds
    first, end = (c0, 1 - mask.hi_shift), (c0, tiles.bc - mask.lo_shift)
    with p.loop("r0", tiles.br, problem.seq, first, end, back) as r0:
        yield r0


def turned(p: ProgramBuilder, tiles: Tiles, block: Var, step: int) -> Var | None:
    """A variable that is odd in blocks that walk backward; None where all walk forward."""
    if tiles.kv_turn == 0:
        return None
    if tiles.kv_turn < 0:
        return p.let("back", None, 1)
    return p.let("back", block, divide=step * tiles.kv_turn)


@contextmanager
def part_of_list(p: ProgramBuilder, touched: np.ndarray, block: tuple[Var, int],
                 walked: tuple[str, int], stages: int, back: Var | None = None,
                 kind: str = "") -> Iterator[Var]:
    """Loop over a block's part of the list of ``touched`` [block, walked block] pairs.

    ``block`` is a variable and its step, ``walked`` a name and its step. Thread blocks read where
    their part begins and ends, and an entry a trip, from tables that all heads of a sequence share,
    named by their ``kind``.
    """
    numbers, others = np.nonzero(touched)
    begins = np.searchsorted(numbers, np.arange(len(touched) + 1))
    places, table = p.listing(f"{kind}begins", begins), p.table(f"{kind}begins", len(begins))
    ends = p.tile("ends", 2, 1, Space.REGISTERS, element_bytes=table.element_bytes)
    number = p.let("n0", block[0], divide=block[1])
    p.load(ends, table, number)
    part = (p.let("first", number, listing=places), 0), (p.let("end", number, 1, listing=places), 0)
    with whole_list(p, f"{kind}blocks", others * walked[1], walked[0], stages, *part, back) as var:
        yield var


@contextmanager
def whole_list(p: ProgramBuilder, name: str, offsets: np.ndarray, variable: str, stages: int,
               start: Bound = (None, 0), stop: Bound | None = None,
               back: Var | None = None) -> Iterator[Var]:
    """Loop over the ``offsets`` of a table, or those from ``start`` to ``stop``; an entry is read
    each trip."""
    listing, table = p.listing(name, offsets), p.table(name, len(offsets))
    entry = p.tile("entry", 1, 1, Space.REGISTERS, stages=stages,
                   element_bytes=table.element_bytes)
    with p.loop("e0", 1, len(offsets), start, stop, back) as e0:
        p.load(entry, table, e0)
        yield p.let(variable, e0, listing=listing)
