"""The primitive operations of a tile program: one NumPy line and one FLOP rule each.

Operands are tiles ``[..., rows, cols]`` (any leading head axes); row statistics are tiles of one
column. There is no fused softmax on purpose: a schedule whose result is exact attention has to
spell its online softmax out of these.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Unit(IntEnum):
    """The execution unit whose rate limits an operation."""

    NONE = 0  # moves only
    MATMUL = 1  # tensor cores or FMA pipes
    EXP = 2  # special-function unit
    ALU = 3  # everything else, one FLOP an element


@dataclass(frozen=True)
class Op:
    """``compute(*operands)`` is the meaning; FLOPs are ``flops_per_element`` for each element of
    the first operand, times the output's columns for a matrix product."""

    name: str
    unit: Unit
    flops_per_element: int
    compute: Callable[..., np.ndarray]
    accumulates: bool = False  # the output tile is also the first argument of compute


def _finite(m: np.ndarray) -> np.ndarray:
    """m with -inf replaced by 0, so that exp(-inf - m) is 0 and never NaN."""
    return np.where(np.isneginf(m), 0, m)


def _safe_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, with 0 where b is 0 (a row that sees nothing)."""
    zeros = np.zeros(np.broadcast_shapes(a.shape, b.shape), a.dtype)
    quotient: np.ndarray = np.divide(a, b, out=zeros, where=b != 0)
    return quotient


def _log(a: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        logarithm: np.ndarray = np.log(a)
    return logarithm


def _transposed(b: np.ndarray) -> np.ndarray:
    return np.swapaxes(b, -1, -2)


_TABLE = (
    Op("copy", Unit.NONE, 0, lambda a: a),
    Op("dot", Unit.MATMUL, 2, lambda a, b: a @ b),
    Op("dot_t", Unit.MATMUL, 2, lambda a, b: a @ _transposed(b)),
    Op("dot_add", Unit.MATMUL, 2, lambda out, a, b: out + a @ b, accumulates=True),
    Op("dot_t_add", Unit.MATMUL, 2, lambda out, a, b: out + a @ _transposed(b), accumulates=True),
    Op("t_dot", Unit.MATMUL, 2, lambda a, b: _transposed(a) @ b),
    Op("t_dot_add", Unit.MATMUL, 2, lambda out, a, b: out + _transposed(a) @ b, accumulates=True),
    Op("scale", Unit.ALU, 1, lambda a, constant: a * constant),
    Op("mask", Unit.ALU, 1, lambda a, visible: np.where(visible, a, -np.inf)),
    Op("row_max", Unit.ALU, 1, lambda a: a.max(axis=-1, keepdims=True)),
    Op("row_sum", Unit.ALU, 1, lambda a: a.sum(axis=-1, keepdims=True)),
    Op("maximum", Unit.ALU, 1, np.maximum),
    Op("add", Unit.ALU, 1, np.add),
    Op("mul", Unit.ALU, 1, np.multiply),
    Op("exp_minus", Unit.EXP, 1, lambda a, m: np.exp(a - _finite(m))),
    Op("log", Unit.EXP, 1, _log),
    Op("mul_rows", Unit.ALU, 1, np.multiply),
    Op("sub_rows", Unit.ALU, 1, np.subtract),
    Op("div_rows", Unit.ALU, 1, _safe_divide),
    Op("keep", Unit.ALU, 1, lambda a, kept: kept.astype(a.dtype)),  # dropout.py; a gives the shape
)

OPS: dict[str, Op] = {op.name: op for op in _TABLE}
CODES: dict[str, int] = {op.name: code for code, op in enumerate(_TABLE)}
BY_CODE: tuple[Op, ...] = _TABLE

# The same table as flat arrays, for the engines.
OP_UNIT = np.array([op.unit for op in _TABLE], dtype=np.int64)
OP_FLOPS = np.array([op.flops_per_element for op in _TABLE], dtype=np.int64)
OP_IS_MATMUL = np.array([op.unit == Unit.MATMUL for op in _TABLE])
OP_IS_REDUCTION = np.array([op.name in ("row_max", "row_sum") for op in _TABLE])
OP_A_TRANSPOSED = np.array([op.name in ("t_dot", "t_dot_add") for op in _TABLE])
OP_B_TRANSPOSED = np.array([op.name in ("dot_t", "dot_t_add") for op in _TABLE])
