"""The units that the L2 reader moves for a program: as large as its tiles fill.

A unit takes a way of a set, whatever part of it is asked for. Tiles of a wide matrix, as those of S
and P, have a part of a unit in each row, and take more room than their lines would on the GPU until
other thread blocks or later steps fill the rest. So do pages that are smaller than a unit, and at
their ends tiles of whole rows that begin anywhere. What a block walks through row by row does not:
its next tile goes on where this one ends.
"""

from typing import TYPE_CHECKING

from ..program import Program, Tensor
from ..tape import Kind, Record
from .l2_cache import UNIT_BYTES

if TYPE_CHECKING:
    from ...hwprofiles.schema import Profile

ROOM = 1.05  # of the room that lines take: what units may, all tensors of a program together
NEGLIGIBLE = 0.02  # of a program's bytes: vectors of a number a row, one open unit a thread block
BLOCK_AXES = (0, 1)  # variables

Run = tuple[int, int]  # bytes in a row, and from one to the next


def unit_of(program: Program, gpu: "Profile", scale: int = 1) -> int:
    """The unit of a program in bytes: UNIT_BYTES, or the largest half, quarter … of it, a line of
    ``gpu`` (a Profile) at least, whose units take as much room as lines do. A tensor takes the room
    of its worst tile. ``scale``: tiles of whole rows stand for as many times longer ones.
    """
    unit, line, whole = UNIT_BYTES, gpu.l2.line_bytes, program.footprint_bytes
    runs = [found if program.tensor_bytes(tensor) > NEGLIGIBLE * whole else set()
            for tensor, found in zip(program.tensors, _runs(program, scale), strict=True)]

    def room(tensor: Tensor) -> float:
        return program.tensor_bytes(tensor) * max(
            (_room(run, unit) / _room(run, line) for run in runs[tensor.index]), default=1.0)

    while unit // 2 >= line and sum(map(room, program.tensors)) > ROOM * whole:
        unit //= 2
    return unit


def _room(run: Run, unit: int) -> int:
    """Bytes of the units that a run has a part of, on average: it begins at any multiple of what
    divides both its bytes and the distance to the next; units that runs share count once."""
    run_bytes, distance = run
    both = run_bytes | distance
    aligned = both & -both
    return min(run_bytes + unit - min(aligned, unit), distance)


def _runs(program: Program, scale: int) -> list[set[Run]]:
    """The runs of each tensor's tiles, but of those that are walked through. What a trip moves side
    by side is one tile: K's columns come apart where some are no values."""
    found: list[set[Run]] = [set() for _ in program.tensors]
    for (_, index, row_var), moved in _trips(program).items():
        tensor, runs = program.tensors[index], found[index]
        tiles = [program.tile_table[row["tile"]] for row in moved]
        beside = {int(row["col_var"]): tile.cols for row, tile in zip(moved, tiles, strict=True)}
        pitch, rows = tensor.cols * tensor.element_bytes, tensor.rows_kept
        if tensor.page_rows:  # anywhere: no two in one unit
            runs.add((tensor.page_rows * pitch, UNIT_BYTES * tensor.page_rows * pitch))
        elif sum(beside.values()) < tensor.cols and max(tile.rows for tile in tiles) > 1 < rows:
            runs |= {(tile.cols * tensor.element_bytes, pitch) for tile in tiles}
        elif row_var in BLOCK_AXES:
            runs |= {(min(tile.rows, rows) * scale * pitch, rows * scale * pitch) for tile in tiles}
    return found


def _trips(program: Program) -> dict[tuple[int, int, int], list[Record]]:
    """Loads, stores and adds by the loop or phase they stand in, their tensor, and the row they
    begin at."""
    found: dict[tuple[int, int, int], list[Record]] = {}
    for phase in program.phases:
        loops = [~phase.first]
        for at in range(phase.first, phase.end):
            row = program.tape[at]
            if row["kind"] == Kind.LOOP:
                loops.append(at)
            elif row["kind"] == Kind.END:
                loops.pop()
            elif row["kind"] in (Kind.LOAD, Kind.STORE, Kind.REDUCE):
                where = loops[-1], int(row["tensor"]), int(row["row_var"])
                found.setdefault(where, []).append(row)
    return found
