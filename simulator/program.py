"""The tile program: one schedule as data, and the builder that writes it.

A program is a list of phases (kernel launches). A phase has a grid of thread blocks, one for each
(batch, head) and each step of up to two block axes, tiles with their space and stages, and a body
of loops, loads, computes, stores and atomic adds that every thread block runs. Axis variables and
loop variables are element offsets (rows or columns), not block numbers; ``let`` makes others.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np

from .errors import InputError
from .ops import CODES, OPS
from .problem import Attention
from .tape import NO_VAR, PHASE, TENSOR, TILE, Kind, packed, record
from .tiles import Tiles

Bound = tuple["Var | None", int]  # of a loop: a variable and an offset

PAGE_NUMBER_BYTES = 4


class Space(StrEnum):
    """Where a tile lives."""

    SHARED = "shared"
    REGISTERS = "registers"


class Role(StrEnum):
    """What a tensor is to the attention call."""

    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"  # lives in HBM between phases: S and P of standard attention
    TABLE = "table"  # says where pages are: read, never computed with


@dataclass(frozen=True)
class Tensor:
    """[batch, heads, rows, cols], contiguous; ``group`` query heads share one slice of it.

    ``updated`` tensors are read back and rewritten (flash1's O, m, l); the others are stored once.
    ``statistic`` tensors (m, l, LSE) hold the accumulator type, the others the problem's dtype.
    The rows of a ``packed`` tensor are those of all query heads of a KV head, one head after the
    other, as they are in memory. Rows of a tensor with ``page_rows`` lie in pages of so many, the
    pages anywhere; whole rows of it are loaded.
    """

    index: int
    name: str
    rows: int
    cols: int
    element_bytes: int
    role: Role
    group: int = 1
    updated: bool = False
    statistic: bool = False
    packed: bool = False
    page_rows: int = 0

    @property
    def rows_kept(self) -> int:
        """Rows that it takes in memory: whole pages."""
        return -(-self.rows // self.page_rows) * self.page_rows if self.page_rows else self.rows


@dataclass(frozen=True)
class Tile:
    """A buffer of rows × cols elements in one space; ``stages`` copies of it when streamed.

    ``statistic`` tiles and accumulators hold the accumulator type, the others the problem's dtype.
    """

    index: int
    name: str
    rows: int
    cols: int
    element_bytes: int
    space: Space
    stages: int = 1
    accumulator: bool = False

    @property
    def bytes(self) -> int:
        """Bytes over all stages."""
        return self.rows * self.cols * self.element_bytes * self.stages


@dataclass(frozen=True)
class Var:
    """An axis or loop variable: an offset in elements."""

    index: int
    name: str


@dataclass(frozen=True, eq=False)
class Listing:
    """A list of whole numbers that ``let`` looks up, from place ``first`` on in the program's
    numbers: the column blocks that a mask leaves to each row block."""

    name: str
    first: int
    values: np.ndarray


@dataclass(frozen=True)
class Axis:
    """A block axis of a grid: thread blocks at 0, step, 2·step … below extent."""

    var: Var
    extent: int
    step: int

    @property
    def blocks(self) -> int:
        """Thread blocks along this axis."""
        return -(-self.extent // self.step)


@dataclass(frozen=True)
class Phase:
    """One kernel launch: instructions [first, end) of the tape, run by every thread block.

    There is a thread block for each ``group`` query heads: 1, or all that share a KV head.
    """

    name: str
    axes: tuple[Axis, ...]
    tiles: tuple[Tile, ...]
    first: int
    end: int
    group: int = 1

    def bytes_in(self, space: Space) -> int:
        """Bytes of this phase's tiles in a space, one thread block."""
        return sum(tile.bytes for tile in self.tiles if tile.space == space)


@dataclass(frozen=True)
class Program:
    """A schedule for one problem and one choice of tiles. ``idealised`` programs ignore capacity:
    they state a paper's count, not a kernel."""

    schedule: str
    problem: Attention
    tiles: Tiles
    tensors: tuple[Tensor, ...]
    tile_table: tuple[Tile, ...]
    phases: tuple[Phase, ...]
    vars: tuple[Var, ...]
    constants: tuple[float, ...]
    tape: np.ndarray
    idealised: bool = False
    listings: tuple[Listing, ...] = ()

    @property
    def smem_bytes_per_block(self) -> int:
        """Shared memory of the hungriest phase, one thread block, in bytes."""
        return max(phase.bytes_in(Space.SHARED) for phase in self.phases)

    @property
    def footprint_bytes(self) -> int:
        """Bytes in HBM of all tensors: inputs, outputs and intermediates."""
        return sum(self.tensor_bytes(tensor) for tensor in self.tensors)

    def tensor_bytes(self, tensor: Tensor) -> int:
        """Bytes of a tensor over batch and heads."""
        heads = self.problem.head_count // tensor.group
        return heads * tensor.rows_kept * tensor.cols * tensor.element_bytes

    @cached_property
    def numbers(self) -> np.ndarray:
        """All lists, one after the other, for the engines."""
        return np.concatenate([np.zeros(0, np.int64), *(one.values for one in self.listings)])

    def listing_at(self, first: int) -> Listing | None:
        """The list that begins at ``first`` of the numbers; None where none does."""
        return next((one for one in self.listings if one.first == first), None)

    @cached_property
    def tensor_records(self) -> np.ndarray:
        """The tensors as TENSOR records, not laid in memory yet."""
        records = np.zeros(len(self.tensors), TENSOR)
        for row, tensor in zip(records, self.tensors, strict=True):
            row["rows"], row["cols"] = tensor.rows, tensor.cols
            row["element_bytes"], row["group"] = tensor.element_bytes, tensor.group
            row["rows_kept"] = tensor.rows_kept
            if tensor.page_rows:
                row["page_rows"] = tensor.page_rows
                heads = self.problem.head_count // tensor.group
                row["pages"] = heads * (tensor.rows_kept // tensor.page_rows)
                row["page_stride"] = _scattering_stride(row["pages"])
        return records

    @cached_property
    def tile_records(self) -> np.ndarray:
        """The tiles as TILE records."""
        rows = [(tile.rows, tile.cols, tile.element_bytes) for tile in self.tile_table]
        return np.array(rows, TILE)

    @cached_property
    def phase_records(self) -> np.ndarray:
        """The phases as PHASE records; an axis that is not there has one block."""
        records = np.ones(len(self.phases), PHASE)
        for row, phase in zip(records, self.phases, strict=True):
            row["first"], row["end"], row["group"] = phase.first, phase.end, phase.group
            for number, axis in enumerate(phase.axes):
                row[f"extent{number}"], row[f"step{number}"] = axis.extent, axis.step
        return records


@dataclass
class ProgramBuilder:
    """Writes a program: declare tensors, open phases, put instructions.

    Axis variables 0 and 1 belong to the grid of every phase; loops get the numbers after them.
    """

    schedule: str
    problem: Attention
    tile_sizes: Tiles
    idealised: bool = False
    tensors: list[Tensor] = field(default_factory=list)
    tiles: list[Tile] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    constants: list[float] = field(default_factory=list)
    tape: list[Any] = field(default_factory=list)
    vars: list[Var] = field(default_factory=lambda: [Var(0, "r0"), Var(1, "c0")])
    listings: list[Listing] = field(default_factory=list)

    def tensor(self, name: str, rows: int, cols: int, role: Role, *, kv: bool = False,
               statistic: bool = False, updated: bool = False, packed: bool = False,
               page_rows: int = 0, element_bytes: int | None = None) -> Tensor:
        """Declare a tensor; ``kv`` ones have KV heads, ``statistic`` ones the statistics' dtype,
        others the problem's unless ``element_bytes`` says otherwise.

        A ``packed`` one has KV heads too, and ``rows`` for each of their query heads.
        """
        size = self.problem.stat_bytes if statistic else self.problem.dtype_bytes
        group = self.problem.group if kv or packed else 1
        rows *= group if packed else 1
        self.tensors.append(Tensor(len(self.tensors), name, rows, cols, element_bytes or size, role,
                                   group, updated, statistic, packed, page_rows))
        return self.tensors[-1]

    def table(self, name: str, pages: int) -> Tensor:
        """Declare a page table: a page number (4 bytes) for each page of a sequence, which all of
        its heads read."""
        self.tensors.append(Tensor(len(self.tensors), name, pages, 1, PAGE_NUMBER_BYTES, Role.TABLE,
                                   self.problem.heads))
        return self.tensors[-1]

    def listing(self, name: str, values: Iterable[int]) -> Listing:
        """Declare a list of whole numbers for ``let``; no tensor: looking one up moves nothing."""
        first = sum(len(one.values) for one in self.listings)
        self.listings.append(Listing(name, first, np.asarray(values, np.int64)))
        return self.listings[-1]

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Declare Q, K and V."""
        p = self.problem
        return (
            self.tensor("Q", p.seq, p.head_dim, Role.INPUT),
            self.tensor("K", p.kv_seq, p.head_dim, Role.INPUT, kv=True),
            self.tensor("V", p.kv_seq, p.value_dim, Role.INPUT, kv=True),
        )

    def tile(self, name: str, rows: int, cols: int, space: Space, *, stages: int = 1,
             accumulator: bool = False, element_bytes: int | None = None) -> Tile:
        """Declare a tile of the open phase."""
        size = self.problem.stat_bytes if accumulator else self.problem.dtype_bytes
        size = element_bytes or size
        self.tiles.append(Tile(len(self.tiles), name, rows, cols, size, space, stages, accumulator))
        return self.tiles[-1]

    @contextmanager
    def phase(self, name: str, *axes: tuple[str, int, int],
              kv: bool = False) -> Iterator[tuple[Var, ...]]:
        """Open a phase with block axes (variable name, extent, step); yields their variables.

        ``kv``: a thread block for each KV head, not each query head; it uses ``kv`` tensors only.
        """
        grid = tuple(Axis(Var(i, var), extent, step) for i, (var, extent, step) in enumerate(axes))
        first, first_tile = len(self.tape), len(self.tiles)
        yield tuple(axis.var for axis in grid)
        tiles = tuple(self.tiles[first_tile:])
        group = self.problem.group if kv else 1
        self.phases.append(Phase(name, grid, tiles, first, len(self.tape), group))

    @contextmanager
    def loop(self, name: str, step: int, limit: int, start: Bound = (None, 0),
             stop: Bound | None = None, back: Var | None = None) -> Iterator[Var]:
        """Loop ``for var in range(align_down(max(start, 0), step), clip(stop, 0, limit), step)``.

        ``start`` and ``stop`` are (variable or None, offset) pairs; ``stop`` defaults to limit.
        Where ``back`` is odd the trips go from the last to the first.
        """
        var = Var(len(self.vars), name)
        self.vars.append(var)
        stop = (None, limit) if stop is None else stop
        address = len(self.tape)
        self.tape.append(
            record(Kind.LOOP, var=var.index, step=step, limit=limit,
                   start_var=_index(start[0]), start_add=start[1],
                   stop_var=_index(stop[0]), stop_add=stop[1], back_var=_index(back))
        )
        yield var
        self.tape[address]["partner"] = len(self.tape)
        self.tape.append(record(Kind.END, var=var.index, step=step, partner=address))

    def let(self, name: str, var: Var | None, add: int = 0, *, divide: int = 1,
            times: int = 1, listing: Listing | None = None) -> Var:
        """A variable ``(var + add) // divide * times``, in scope where it is made: the page of a
        key, the columns of a split. With a ``listing``, the number at that place of it."""
        new = Var(len(self.vars), name)
        self.vars.append(new)
        self.tape.append(record(Kind.LET, var=new.index, start_var=_index(var), start_add=add,
                                divide=divide, times=times,
                                listing=-1 if listing is None else listing.first))
        return new

    def _region(self, kind: Kind, tile: Tile, tensor: Tensor, row: Var | None, col: Var | None,
                constant: int = -1) -> None:
        self.tape.append(
            record(kind, tile=tile.index, tensor=tensor.index, row_var=_index(row),
                   col_var=_index(col), constant=constant)
        )

    def load(self, tile: Tile, tensor: Tensor, row: Var | None = None,
             col: Var | None = None) -> None:
        """tile = tensor[row:+tile.rows, col:+tile.cols], clipped to the tensor."""
        self._region(Kind.LOAD, tile, tensor, row, col)

    def store(self, tile: Tile, tensor: Tensor, row: Var | None = None,
              col: Var | None = None) -> None:
        """tensor[row:+tile.rows, col:+tile.cols] = tile, clipped to the tensor."""
        self._region(Kind.STORE, tile, tensor, row, col)

    def reduce(self, tile: Tile, tensor: Tensor, row: Var | None = None,
               col: Var | None = None) -> None:
        """tensor[row:+tile.rows, col:+tile.cols] += tile, atomically, in whatever order thread
        blocks come; the tensor was stored (as zeros) in an earlier phase."""
        self._region(Kind.REDUCE, tile, tensor, row, col)

    def fill(self, tile: Tile, value: float, like: Tensor, row: Var | None = None,
             col: Var | None = None) -> None:
        """tile = value, with the extent that a load of this region of ``like`` would have."""
        self._region(Kind.FILL, tile, like, row, col, self._constant(value))

    def compute(self, op: str, out: Tile, a: Tile, b: Tile | None = None, *,
                constant: float | None = None, row: Var | None = None,
                col: Var | None = None) -> None:
        """out = op(a, b); ``row`` and ``col`` place the tile in the mask (op ``mask``)."""
        if op not in OPS:
            raise InputError(f"tile program: no operation {op!r}")
        self.tape.append(
            record(Kind.COMPUTE, op=CODES[op], out=out.index, a=a.index,
                   b=-1 if b is None else b.index,
                   constant=-1 if constant is None else self._constant(constant),
                   row_var=_index(row), col_var=_index(col))
        )

    def _constant(self, value: float) -> int:
        if value not in self.constants:
            self.constants.append(float(value))
        return self.constants.index(value)

    def build(self) -> Program:
        """The finished program."""
        return Program(
            self.schedule, self.problem, self.tile_sizes, tuple(self.tensors), tuple(self.tiles),
            tuple(self.phases), tuple(self.vars), tuple(self.constants),
            packed(self.tape), self.idealised, tuple(self.listings),
        )


def _index(var: Var | None) -> int:
    return NO_VAR if var is None else var.index


def _scattering_stride(pages: int) -> int:
    """Page number p goes to place p · stride mod pages: all different, neighbours far apart."""
    stride = round(pages * 0.618)
    while gcd(stride, pages) > 1:
        stride += 1
    return stride
