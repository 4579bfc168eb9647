"""Runs a tile program in NumPy: a schedule whose bytes are counted must give exact attention.

All heads run at once; a tile is an array [batch, heads, rows, cols] (KV heads in a phase of
theirs), and a tensor has the heads that it has in memory. Tiles are stored in the problem's dtype
or, for accumulators, in the accumulator type (fp64 for fp64, else fp32, or one that is asked for),
and every operation computes in the accumulator type (fp32 at least) and rounds to its output tile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dropout import kept
from ..errors import InputError
from ..ops import BY_CODE, OP_A_TRANSPOSED, OP_B_TRANSPOSED, Unit
from ..problem import Attention
from ..program import Axis, Phase, Program, Role, Tensor, Tile
from ..tape import Kind, Record

_MAX_ELEMENTS = 1 << 28  # of the largest array that a check may allocate (2 GiB in fp64)
_MAX_PAIRS = 1 << 30  # batch × heads × seq × kv_seq of a check: a minute or so


def round_to(array: np.ndarray, dtype: str) -> np.ndarray:
    """``array`` rounded to a dtype of the problem; tf32 is kept in float32 with 10 mantissa bits.

    fp8 is e4m3.
    """
    if dtype == "tf32":
        array = np.asarray(array, np.float32)
        bits = array.view(np.uint32)
        rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)
        return np.where(np.isnan(array), array, rounded.view(np.float32))
    return np.asarray(array).astype(storage_dtype(dtype))


def storage_dtype(dtype: str) -> np.dtype:
    """The NumPy type that stores a dtype of the problem."""
    if dtype in ("bf16", "fp8"):
        import ml_dtypes

        return np.dtype({"bf16": ml_dtypes.bfloat16, "fp8": ml_dtypes.float8_e4m3fn}[dtype])
    return np.dtype({"fp64": np.float64, "fp32": np.float32, "tf32": np.float32,
                     "fp16": np.float16}[dtype])


def accumulator_dtype(dtype: str) -> np.dtype:
    """The type that tiles accumulate in: fp64 for fp64, fp32 for all others."""
    return np.dtype(np.float64 if dtype == "fp64" else np.float32)


def require_small(problem: Attention) -> None:
    """Raise InputError for a problem that a CPU would take many minutes over."""
    pairs = problem.head_count * problem.seq * problem.kv_seq
    if pairs > _MAX_PAIRS:
        raise InputError(f"a numeric check of {pairs:,} (query, key) pairs is more than "
                         f"{_MAX_PAIRS:,}; use a smaller seq, kv_seq, batch or heads")


def random_inputs(problem: Attention, seed: int = 0) -> dict[str, np.ndarray]:
    """Normal Q, K and V in the problem's dtype, [batch, heads or kv_heads, rows, cols]."""
    rng = np.random.default_rng(seed)
    shapes = {
        "Q": (problem.batch, problem.heads, problem.seq, problem.head_dim),
        "K": (problem.batch, problem.kv_heads, problem.kv_seq, problem.head_dim),
        "V": (problem.batch, problem.kv_heads, problem.kv_seq, problem.value_dim),
    }
    inputs = {
        name: round_to(rng.standard_normal(shape), problem.dtype)
        for name, shape in shapes.items()
    }
    if problem.shared_kv:
        inputs["V"] = inputs["K"][..., :problem.value_dim]
    return inputs


def reference(problem: Attention, inputs: dict[str, np.ndarray],
              on_progress: Callable[[float], object] = lambda share: None) -> np.ndarray:
    """Attention in float64, written down directly; rows that see nothing give 0.

    Returns O [batch, heads, seq, value_dim]. ``on_progress`` gets the share of its rows.
    """
    q = inputs["Q"].astype(np.float64)
    k, v = (np.repeat(inputs[name].astype(np.float64), problem.group, axis=1) for name in "KV")
    visible = problem.visibility.dense(problem.seq, problem.kv_seq)
    out = np.zeros((*q.shape[:3], problem.value_dim))
    step = max(1, (1 << 24) // (problem.head_count * problem.kv_seq))
    for row in range(0, problem.seq, step):
        on_progress(row / problem.seq)
        rows = slice(row, row + step)
        scores = q[:, :, rows] @ k.swapaxes(-1, -2) * problem.softmax_scale
        scores = np.where(visible[rows], scores, -np.inf)
        peak = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(peak), 0.0, peak))
        total = weights.sum(axis=-1, keepdims=True)
        if problem.dropout:
            stay = kept(problem, row, 0, weights.shape[-2], problem.kv_seq)
            weights *= stay / (1 - problem.dropout)
        out[:, :, rows] = (weights @ v) / np.where(total == 0, 1.0, total)
    return out


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """‖got − want‖ / ‖want‖ in float64; NaN when anything is not finite."""
    difference = np.linalg.norm(got.astype(np.float64).ravel() - want.ravel())
    norm = np.linalg.norm(want.ravel())
    if norm == 0:
        return float(difference)
    return float(difference / norm)


def run(program: Program, inputs: dict[str, np.ndarray], *, accumulate_in: str | None = None,
        term_by_term: bool = False,
        on_progress: Callable[[float], object] = lambda share: None) -> dict[str, np.ndarray]:
    """Execute ``program`` on its inputs by name; returns its outputs by name.

    ``accumulate_in`` is the dtype of accumulator tiles and row statistics, accumulator_dtype's
    when None. ``term_by_term`` rounds after each fused multiply-add of a product, as FMA units do,
    rather than once a product (some twenty times slower). ``on_progress`` gets the share of the
    thread blocks that is done.
    Outputs and scratch tensors start as NaN, so anything that is not stored shows.
    Raises InputError when a tensor is too large to run on a CPU.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a type too narrow shows in the outputs
        return Machine(program, inputs, accumulate_in, term_by_term, on_progress).run()


@dataclass
class Machine:
    program: Program
    inputs: dict[str, np.ndarray]
    accumulate_in: str | None = None
    term_by_term: bool = False
    on_progress: Callable[[float], object] = lambda share: None

    def run(self) -> Any:
        program, problem = self.program, self.program.problem
        self.accumulator = (storage_dtype(self.accumulate_in) if self.accumulate_in
                            else accumulator_dtype(problem.dtype))
        self.computing = np.promote_types(self.accumulator, np.float32)
        self.memory = [self._allocate(tensor) for tensor in program.tensors]
        self.tiles: list[Any] = [None] * len(program.tile_table)
        self.variables = [0] * len(program.vars)
        for phase in program.phases:
            self.group = phase.group
            self._run_axes(phase, phase.axes)
        return {
            tensor.name: self._unpacked(tensor)
            for tensor in program.tensors if tensor.role == Role.OUTPUT
        }

    def _allocate(self, tensor: Tensor) -> np.ndarray:
        problem = self.program.problem
        shape = (problem.batch, problem.heads // tensor.group, tensor.rows, tensor.cols)
        if np.prod(shape, dtype=float) > _MAX_ELEMENTS:
            raise InputError(
                f"a numeric check of {tensor.name} {list(shape)} needs more than "
                f"{_MAX_ELEMENTS} elements; use a smaller seq, batch or heads"
            )
        if tensor.role == Role.INPUT:
            given = self.inputs[tensor.name]
            return given.reshape(shape) if tensor.packed else given
        dtype = self.accumulator if tensor.statistic else storage_dtype(problem.dtype)
        return np.full(shape, np.nan, dtype)

    def _unpacked(self, tensor: Tensor) -> np.ndarray:
        """A tensor as the problem has it: rows of packed heads under their own heads."""
        memory, problem = self.memory[tensor.index], self.program.problem
        if not tensor.packed:
            return memory
        return memory.reshape(problem.batch, problem.heads, -1, tensor.cols)

    def _run_axes(self, phase: Phase, axes: tuple[Axis, ...]) -> None:
        if not axes:
            self._run_body(phase.first, phase.end)
            return
        for offset in range(0, axes[0].extent, axes[0].step):
            if axes is phase.axes:
                before = self.program.phases.index(phase)
                self.on_progress((before + offset / axes[0].extent) / len(self.program.phases))
            self.variables[axes[0].var.index] = offset
            self._run_axes(phase, axes[1:])

    def _value(self, var: int) -> int:
        return 0 if var < 0 else self.variables[var]

    def _run_body(self, first: int, end: int) -> None:
        """Run instructions [first, end): recursion over loops."""
        pc = first
        while pc < end:
            row = self.program.tape[pc]
            if row["kind"] == Kind.LOOP:
                start = max(self._value(row["start_var"]) + row["start_add"], 0)
                stop = min(self._value(row["stop_var"]) + row["stop_add"], row["limit"])
                trips = range(start // row["step"] * row["step"], stop, row["step"])
                backwards = self._value(row["back_var"]) % 2
                for offset in reversed(trips) if backwards else trips:
                    self.variables[row["var"]] = offset
                    self._run_body(pc + 1, row["partner"])
                pc = row["partner"]
            elif row["kind"] == Kind.LET:
                offset = self._value(row["start_var"]) + row["start_add"]
                offset = offset // row["divide"] * row["times"]
                listed = row["listing"] >= 0
                self.variables[row["var"]] = (
                    self.program.numbers[row["listing"] + offset] if listed else offset)
            else:
                self._execute(pc, row)
            pc += 1

    def _execute(self, address: int, row: Record) -> None:
        """One instruction that sets no variable; ``address`` is for readers that look on."""
        if row["kind"] == Kind.COMPUTE:
            self._compute(row)
        else:
            self._move(row)

    def _move(self, row: Record) -> None:
        tile = self.program.tile_table[row["tile"]]
        at_row, at_col = self._value(row["row_var"]), self._value(row["col_var"])
        memory = self.memory[row["tensor"]]
        region = memory[:, :, at_row:at_row + tile.rows, at_col:at_col + tile.cols]
        sharing = self.program.tensors[row["tensor"]].group // self.group
        if row["kind"] == Kind.LOAD:
            self.tiles[tile.index] = self._rounded(np.repeat(region, sharing, axis=1), tile)
        elif row["kind"] == Kind.FILL:
            value = self.program.constants[row["constant"]]
            shape = (region.shape[0], region.shape[1] * sharing, *region.shape[2:])
            self.tiles[tile.index] = np.full(shape, value, self.accumulator)
        elif row["kind"] == Kind.REDUCE:
            batch, heads, *rest = region.shape
            region += self.tiles[tile.index].reshape(batch, heads, sharing, *rest).sum(axis=2)
        elif memory.dtype == self.accumulator:
            region[...] = self.tiles[tile.index]
        else:
            region[...] = round_to(self.tiles[tile.index], self.program.problem.dtype)

    def _compute(self, row: Record) -> None:
        op, out = BY_CODE[row["op"]], self.program.tile_table[row["out"]]
        used = [row["a"], row["b"]] if row["b"] >= 0 else [row["a"]]
        operands = [self.tiles[i].astype(self.computing, copy=False) for i in used]
        if op.name in ("mask", "keep"):
            look_up = self._visible if op.name == "mask" else self._kept
            operands.append(look_up(row, operands[0].shape))
        if row["constant"] >= 0:
            operands.append(self.computing.type(self.program.constants[row["constant"]]))
        if op.accumulates:
            operands.insert(0, self.tiles[out.index].astype(self.computing, copy=False))
        each = self.term_by_term and op.unit == Unit.MATMUL
        result = self._terms(row["op"], *operands) if each else op.compute(*operands)
        self.tiles[out.index] = self._rounded(result, out)

    def _terms(self, code: int, *operands: np.ndarray) -> np.ndarray:
        """A product that adds a term after the other, rounding to the accumulator each time; the
        terms are exact, as in a fused multiply-add."""
        *before, a, b = (operand.astype(np.float64) for operand in operands)
        a = a.swapaxes(-1, -2) if OP_A_TRANSPOSED[code] else a
        b = b.swapaxes(-1, -2) if OP_B_TRANSPOSED[code] else b
        total = (before[0] if before else np.float64(0)).astype(self.accumulator)
        for k in range(a.shape[-1]):
            total = (total + a[..., :, k, None] * b[..., k, None, :]).astype(self.accumulator)
        return total.astype(self.computing)

    def _visible(self, row: Record, shape: tuple[int, ...]) -> np.ndarray:
        problem = self.program.problem
        return problem.visibility.dense(
            problem.seq, problem.kv_seq, self._value(row["row_var"]), self._value(row["col_var"]),
            shape[-2], shape[-1],
        )

    def _kept(self, row: Record, shape: tuple[int, ...]) -> np.ndarray:
        return kept(self.program.problem, self._value(row["row_var"]),
                    self._value(row["col_var"]), shape[-2], shape[-1])

    def _rounded(self, array: np.ndarray, tile: Tile) -> np.ndarray:
        if tile.accumulator:
            return array.astype(self.accumulator)
        return round_to(array, self.program.problem.dtype)
