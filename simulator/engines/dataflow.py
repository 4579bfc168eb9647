"""Walks one head of a program and finds the first instruction that cannot be right.

Engine of the verifier: nothing is used before it is loaded, no region begins beyond its tensor,
extents agree at ragged ends, loads see what was stored before. What was stored is kept a row (a
count and a hash of columns), so memory stays linear in rows.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from ..jit import njit
from ..ops import BY_CODE, OP_A_TRANSPOSED, OP_B_TRANSPOSED, OP_IS_MATMUL, OP_IS_REDUCTION
from ..tape import Kind, Record
from .walk import END, LET, LOOP, assign, enter_loop, next_trip, place, region


class Fault(IntEnum):
    """What the walk can find wrong with one instruction."""

    NONE = 0
    BEYOND = 1
    UNSET = 2
    EXTENT = 3
    SHAPES = 4
    NOT_STORED = 5
    NOT_LOADED = 6
    OTHER_BLOCK = 7
    PART_OF_REGION = 8
    BEYOND_LIST = 9


_ACCUMULATES = np.array([op.accumulates for op in BY_CODE])
_LOAD, _STORE, _REDUCE, _COMPUTE = (
    int(k) for k in (Kind.LOAD, Kind.STORE, Kind.REDUCE, Kind.COMPUTE)
)
_NOTHING = -1  # rows of a tile that holds nothing yet
(_OK, _BEYOND, _UNSET, _EXTENT, _SHAPES, _NOT_STORED, _NOT_LOADED, _OTHER_BLOCK, _PART,
 _BEYOND_LIST) = map(int, Fault)

# What the walk knows of a tensor: `base` is the place of its row 0 in the arrays over rows,
# `readable` says that all of it is stored.
TENSOR_STATE = np.dtype([(name, np.int64) for name in ("base", "updated", "readable")])

# Of each row: how many columns were stored, and the sum of their hashes, both as differences to
# the row before (a store touches two entries). Updated tensors add their first stores only, and
# keep, at the first row of a region, its rows, the block that stored it, whether it was loaded.
ROW_STATE = np.dtype(
    [(name, np.int64) for name in ("columns", "hashes", "region_rows", "owner", "loaded")]
)


@njit
def walk_phase(tape: np.ndarray, first: int, end: int, extent0: int, step0: int, extent1: int,
               step1: int, phase: int, tensors: np.ndarray, tiles: np.ndarray, states: np.ndarray,
               rows: np.ndarray, hashes: np.ndarray, variables: np.ndarray, stops: np.ndarray,
               numbers: np.ndarray) -> tuple[int, int]:
    shape = np.empty((len(tiles), 2), np.int64)
    owner = phase << 40  # a number for each thread block, over all phases
    for r0 in range(0, extent0, step0):
        for c0 in range(0, extent1, step1):
            variables[0], variables[1] = r0, c0
            shape[:] = _NOTHING
            fault, pc = _walk_block(tape, first, end, owner, tensors, tiles, states, rows, hashes,
                                    variables, stops, numbers, shape)
            if fault != _OK:
                return fault, pc
            owner += 1
    return _OK, end


@njit
def _walk_block(tape: np.ndarray, first: int, end: int, owner: int, tensors: np.ndarray,
                tiles: np.ndarray, states: np.ndarray, rows: np.ndarray, hashes: np.ndarray,
                variables: np.ndarray, stops: np.ndarray, numbers: np.ndarray,
                shape: np.ndarray) -> tuple[int, int]:
    pc = first
    while pc < end:
        row = tape[pc]
        if row.kind == LOOP:
            pc = enter_loop(tape, pc, variables, stops)
            continue
        if row.kind == END:
            pc = next_trip(tape, pc, variables, stops)
            continue
        fault = _OK
        if row.kind == LET:
            if row.listing >= 0 and not 0 <= row.listing + place(row, variables) < len(numbers):
                return _BEYOND_LIST, pc
            assign(row, variables, numbers)
        elif row.kind == _COMPUTE:
            fault = _compute(row, shape)
        else:
            fault = _move(row, owner, tensors, tiles, states, rows, hashes, variables, shape)
        if fault != _OK:
            return fault, pc
        pc += 1
    return _OK, end


@njit
def _compute(row: Record, shape: np.ndarray) -> int:
    """The operands hold something, of extents that agree; the output gets the result's extent."""
    b = row.b if row.b >= 0 else row.a
    if shape[row.a, 0] < 0 or shape[b, 0] < 0:
        return _UNSET
    fault, rows, cols = result_shape(
        row.op, shape[row.a, 0], shape[row.a, 1], shape[b, 0], shape[b, 1]
    )
    if fault != _OK:
        return fault
    if _ACCUMULATES[row.op]:
        if shape[row.out, 0] < 0:
            return _UNSET
        if shape[row.out, 0] != rows or shape[row.out, 1] != cols:
            return _EXTENT
    shape[row.out, 0], shape[row.out, 1] = rows, cols
    return _OK


@njit
def result_shape(op: int, a_rows: int, a_cols: int, b_rows: int,
                 b_cols: int) -> tuple[int, int, Any]:
    """A fault or none, and the rows and columns of op(a, b)."""
    if OP_IS_MATMUL[op]:
        if OP_A_TRANSPOSED[op]:
            a_rows, a_cols = a_cols, a_rows
        if OP_B_TRANSPOSED[op]:
            b_rows, b_cols = b_cols, b_rows
        return (_OK if a_cols == b_rows else _SHAPES), a_rows, b_cols
    if a_rows != b_rows or (b_cols != a_cols and b_cols != 1):
        return _SHAPES, a_rows, a_cols
    return _OK, a_rows, (np.int64(1) if OP_IS_REDUCTION[op] else a_cols)


@njit
def _move(row: Record, owner: int, tensors: np.ndarray, tiles: np.ndarray, states: np.ndarray,
          rows: np.ndarray, hashes: np.ndarray, variables: np.ndarray, shape: np.ndarray) -> int:
    """A load, store, fill or reduce: the region exists, and may be read or written now."""
    tensor, state = tensors[row.tensor], states[row.tensor]
    at_row, at_col, n_rows, n_cols = region(row, variables, tensors, tiles)
    if n_rows < 1 or n_cols < 1:
        return _BEYOND
    if row.kind == _STORE or row.kind == _REDUCE:
        if shape[row.tile, 0] < 0:
            return _UNSET
        if shape[row.tile, 0] != n_rows or shape[row.tile, 1] != n_cols:
            return _EXTENT
    else:
        shape[row.tile, 0], shape[row.tile, 1] = n_rows, n_cols
    first = state.base + at_row
    if state.updated and (row.kind == _LOAD or row.kind == _STORE):
        if n_cols != tensor.cols:
            return _PART
        if row.kind == _LOAD:
            return _load_updated(rows[first], n_rows, owner)
        if rows[first].region_rows > 0:
            return _store_again(rows[first], n_rows, owner)
        rows[first].region_rows, rows[first].owner = n_rows, owner
    if row.kind == _STORE:
        end, hashed = first + n_rows, hashes[at_col + n_cols] - hashes[at_col]
        rows[first].columns += n_cols
        rows[end].columns -= n_cols
        rows[first].hashes += hashed
        rows[end].hashes -= hashed
    elif (row.kind == _LOAD or row.kind == _REDUCE) and not state.readable:
        return _NOT_STORED
    return _OK


@njit
def _load_updated(region: Record, n_rows: int, owner: int) -> int:
    if region.region_rows == 0:
        return _NOT_STORED
    if region.region_rows != n_rows:
        return _PART
    if region.owner != owner and region.owner >> 40 == owner >> 40:
        return _OTHER_BLOCK
    region.owner, region.loaded = owner, 1
    return _OK


@njit
def _store_again(region: Record, n_rows: int, owner: int) -> int:
    if region.region_rows != n_rows:
        return _PART
    if region.loaded == 0:
        return _NOT_LOADED
    if region.owner != owner:
        return _OTHER_BLOCK
    region.loaded = 0
    return _OK
