"""The int64 tape: a tile program as flat records that the engines interpret.

One record an instruction. Loops carry their clipped bounds and the address of their partner, so
an engine is a small virtual machine and a new schedule or shape compiles nothing.
"""

from enum import IntEnum
from typing import Any

import numpy as np


class Kind(IntEnum):
    """What an instruction does."""

    LOOP = 0
    END = 1
    LOAD = 2
    STORE = 3
    FILL = 4
    COMPUTE = 5
    REDUCE = 6  # an atomic add of a tile into a tensor
    LET = 7  # a variable of another: the page of a key, the columns of a split, a listed number


Record = Any  # one record of a structured array: np.void, or in compiled code its fields by name

NO_VAR = -1  # the variable that is always zero
NO_TILE = -1

_LOOP_FIELDS = (
    "var", "step", "limit",  # for var in range(start, stop, step)
    "start_var", "start_add",  # start = align_down(max(start_var + start_add, 0), step)
    "stop_var", "stop_add",  # stop = clip(stop_var + stop_add, 0, limit)
    "partner",  # address of the matching END (of LOOP: for END)
    "back_var",  # the trips go from the last to the first where this variable is odd
)
_LET_FIELDS = (
    "divide", "times",  # var = (start_var + start_add) // divide * times
    "listing",  # or the number at that place of a list, which begins here in the program's numbers
)
_REGION_FIELDS = ("tensor", "tile", "row_var", "col_var")  # the tile at (row_var, col_var)
_COMPUTE_FIELDS = ("op", "out", "a", "b", "constant")

INSTRUCTION = np.dtype(
    [(name, np.int64)
     for name in ("kind", *_LOOP_FIELDS, *_LET_FIELDS, *_REGION_FIELDS, *_COMPUTE_FIELDS)]
)
TENSOR = np.dtype(
    [(name, np.int64)
     for name in ("rows", "cols", "element_bytes", "group", "base_bytes", "rows_kept",
                  "page_rows", "pages", "page_stride")]  # the last three 0: not in pages
)
TILE = np.dtype([(name, np.int64) for name in ("rows", "cols", "element_bytes")])
PHASE = np.dtype(
    [(name, np.int64)
     for name in ("first", "end", "extent0", "step0", "extent1", "step1", "group")]
)


_BLANK = dict.fromkeys(INSTRUCTION.names or (), -1)


def record(kind: Kind, **fields: int) -> dict[str, int]:
    """One instruction by field; those that are not named are -1."""
    return _BLANK | {"kind": kind} | fields


def packed(instructions: list[dict[str, int]]) -> np.ndarray:
    """Instructions that ``record`` made, as a tape of INSTRUCTION records."""
    return np.array([tuple(row.values()) for row in instructions], INSTRUCTION)
