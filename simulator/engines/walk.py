"""The part of the virtual machine that every compiled engine shares: loops and regions."""

import numpy as np

from ..jit import inlined
from ..tape import Kind, Record

LOOP, END, LET = int(Kind.LOOP), int(Kind.END), int(Kind.LET)


@inlined
def value(variables: np.ndarray, var: int) -> int:
    """The variable's offset; NO_VAR is 0."""
    return variables[var] if var >= 0 else 0


@inlined
def enter_loop(tape: np.ndarray, pc: int, variables: np.ndarray, stops: np.ndarray) -> int:
    """At a LOOP: set its variable and stop; the address to go on at.

    A loop that goes backwards has ~(its first offset), which is negative, as its stop.
    """
    row = tape[pc]
    start = max(value(variables, row.start_var) + row.start_add, 0) // row.step * row.step
    stop = min(max(value(variables, row.stop_var) + row.stop_add, 0), row.limit)
    if start >= stop:
        return row.partner + 1
    if value(variables, row.back_var) % 2:
        variables[row.var] = (stop - 1) // row.step * row.step
        stops[row.var] = ~start
    else:
        variables[row.var] = start
        stops[row.var] = stop
    return pc + 1


@inlined
def next_trip(tape: np.ndarray, pc: int, variables: np.ndarray, stops: np.ndarray) -> int:
    """At an END: step the variable; the address to go on at."""
    row = tape[pc]
    stop = stops[row.var]
    if stop < 0:
        variables[row.var] -= row.step
        more = variables[row.var] >= ~stop
    else:
        variables[row.var] += row.step
        more = variables[row.var] < stop
    return row.partner + 1 if more else pc + 1


@inlined
def trips_left(row: Record, variables: np.ndarray, stops: np.ndarray) -> int:
    """Trips of a LOOP (or its END) that is entered, this one included."""
    at, stop = variables[row.var], stops[row.var]
    last = stop - 1 - at if stop >= 0 else at - ~stop
    return last // row.step + 1


@inlined
def place(row: Record, variables: np.ndarray) -> int:
    """What a LET makes of its variable: the new offset, or the place in a list."""
    return (value(variables, row.start_var) + row.start_add) // row.divide * row.times


@inlined
def assign(row: Record, variables: np.ndarray, numbers: np.ndarray) -> None:
    """At a LET: set its variable; ``numbers`` are the program's lists."""
    offset = place(row, variables)
    variables[row.var] = offset if row.listing < 0 else numbers[row.listing + offset]


@inlined
def extent(offset: int, tile_length: int, tensor_length: int) -> int:
    """Elements of a tile along one side, clipped to the tensor."""
    return max(min(tile_length, tensor_length - offset), 0)


@inlined
def region(row: Record, variables: np.ndarray, tensors: np.ndarray,
           tiles: np.ndarray) -> tuple[int, int, int, int]:
    """What a LOAD, STORE, REDUCE or FILL names of a tensor: first row and column, rows, columns."""
    tensor, tile = tensors[row.tensor], tiles[row.tile]
    r0, c0 = value(variables, row.row_var), value(variables, row.col_var)
    return (r0, c0, extent(r0, tile.rows, tensor.rows), extent(c0, tile.cols, tensor.cols))
