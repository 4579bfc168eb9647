"""What a tile program does, step by step, on real numbers: what animations are drawn from.

The numeric reader runs the program; this one looks over its shoulder, so the pictures show the
very instructions whose bytes are counted and whose result is exact.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..ops import BY_CODE
from ..program import Program
from ..tape import Kind, Record
from .numeric import Machine

MAX_STEPS = 4000
KINDS = {Kind.LOAD: "load", Kind.STORE: "store", Kind.REDUCE: "store", Kind.FILL: "fill",
         Kind.COMPUTE: "compute"}


@dataclass(frozen=True)
class Step:
    """One instruction of one thread block, after it ran.

    ``address`` is its place on the tape, ``block`` the thread block's place in its grid;
    ``region`` is (tensor number, first row, rows, first column, columns) for what moves, else
    None; ``tile`` the number of the tile written (or stored), ``operands`` those read; ``bytes``
    what crossed the SM boundary; ``statistics`` the first row's value of each one-column tile
    that holds something, by tile name.
    """

    kind: str
    op: str
    address: int
    phase: int
    block: tuple[int, ...]
    tile: int
    operands: tuple[int, ...]
    region: tuple[int, int, int, int, int] | None
    bytes: int
    statistics: dict[str, float]


def steps(program: Program, inputs: dict[str, np.ndarray]) -> list[Step]:
    """Every step of a program of one head, in the order of its thread blocks.

    Raises InputError for more than one head, or more steps than anyone would watch.
    """
    if program.problem.head_count != 1:
        raise InputError("an animation shows one head: batch and heads must be 1")
    machine = _Watched(program, inputs)
    machine.run()
    return machine.steps


class _Watched(Machine):
    """The numeric machine, noting each instruction after it ran."""

    def __init__(self, program: Program, inputs: dict[str, np.ndarray]) -> None:
        super().__init__(program, inputs)
        self.steps: list[Step] = []

    def _execute(self, address: int, row: Record) -> None:
        super()._execute(address, row)
        if len(self.steps) == MAX_STEPS:
            raise InputError(f"more than {MAX_STEPS:,} steps are too many to watch; use a smaller "
                             "seq or larger tiles")
        program = self.program
        phase = next(i for i, p in enumerate(program.phases) if p.first <= address < p.end)
        block = tuple(self.variables[axis.var.index] for axis in program.phases[phase].axes)
        computes = row["kind"] == Kind.COMPUTE
        region = None if computes else self._region(row)
        moved = 0
        if region and row["kind"] in (Kind.LOAD, Kind.STORE, Kind.REDUCE):
            moved = region[2] * region[4] * program.tensors[region[0]].element_bytes
        self.steps.append(Step(
            KINDS[Kind(row["kind"])], BY_CODE[row["op"]].name if computes else "",
            address, phase, block,
            int(row["out"] if computes else row["tile"]),
            tuple(int(row[name]) for name in ("a", "b") if computes and row[name] >= 0),
            region, moved, self._statistics(phase),
        ))

    def _region(self, row: Record) -> tuple[int, int, int, int, int]:
        tile = self.program.tile_table[row["tile"]]
        tensor = self.program.tensors[row["tensor"]]
        r0, c0 = self._value(row["row_var"]), self._value(row["col_var"])
        return (tensor.index, int(r0), int(min(tile.rows, tensor.rows - r0)), int(c0),
                int(min(tile.cols, tensor.cols - c0)))

    def _statistics(self, phase: int) -> dict[str, float]:
        return {
            tile.name: float(self.tiles[tile.index][0, 0, 0, 0])
            for tile in self.program.phases[phase].tiles
            if tile.cols == 1 and self.tiles[tile.index] is not None
        }

