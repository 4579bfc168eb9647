"""Miss curves: DRAM reads of a program for every L2 size in one pass.

A fully associative LRU cache holds a piece of data exactly when the bytes of all pieces used since
its last use, and its own, fit (Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage
hierarchies", 1970). So one pass that finds this stack distance of each access says what every size
misses. Pieces are granules: the largest rectangles of a tensor of which all the program's tiles
consist. Thread blocks fill sm_count × blocks_per_sm slots in grid order and go in step, one load or
store each in turn. Writes take room and fetch nothing; atomic adds fetch what they add to.

The cache has one partition and whole granules: what the L2 reader's sets, sectors, copies and clock
change is left out, so that size is all there is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..grid_order import OrderLike, issue, of_program
from ..jit import njit
from ..program import Program
from ..tape import NO_VAR, Kind, Record
from .dispatch import place_of
from .heard import run_heard
from .lru_stack import NEVER, empty_stack, use
from .walk import END, LET, LOOP, assign, enter_loop, next_trip, region

if TYPE_CHECKING:
    from ...hwprofiles.schema import Profile

MODEL = "fully associative LRU of tiles, thread blocks in step"
GRANULES_MAX = 40_000_000  # some 20 bytes of memory each
_LOAD, _STORE, _REDUCE = int(Kind.LOAD), int(Kind.STORE), int(Kind.REDUCE)
_MOVES = (Kind.LOAD, Kind.STORE, Kind.REDUCE)

# Granules of a tensor: their size in elements, how many stand side by side and below each other in
# one head's slice, and the number of the first.
GRANULE = np.dtype([(name, np.int64) for name in ("rows", "cols", "down", "across", "first")])
CONTROL = np.dtype([(name, np.int64) for name in ("issued", "total", "stop")])


@dataclass(frozen=True)
class MissCurve:
    """Bytes read of DRAM (``read_bytes``) with an L2 of each of ``l2_bytes``."""

    l2_bytes: np.ndarray
    read_bytes: np.ndarray
    model: str = MODEL


def miss_curve(program: Program, gpu: "Profile", l2_bytes: Sequence[int], *, blocks_per_sm: int,
               order: OrderLike = "row",
               on_progress: Callable[[float], object] = lambda share: None) -> MissCurve:
    """DRAM reads of ``program`` with an L2 of each of the sizes ``l2_bytes``, empty at the start.

    Of ``gpu`` (a Profile) only the number of SMs counts; ``order`` is one of
    grid_order.py's. ``on_progress`` as in l2.simulate.
    Raises InputError when the program has more than GRANULES_MAX granules.
    """
    sizes = np.unique(np.asarray(l2_bytes, np.int64))
    granules = granule_records(program)
    count = int(granules["first"][-1] + _slices(program)[-1] * granules["down"][-1]
                * granules["across"][-1])
    if count > GRANULES_MAX:
        raise InputError(f"a miss curve follows {count:,} pieces of tiles here, {GRANULES_MAX:,} "
                         "at most: fewer heads, a smaller batch or seq")
    order = of_program(order, program)
    stack = empty_stack(count)
    misses = np.zeros(len(sizes) + 1, np.int64)
    for number, phase in enumerate(program.phase_records):
        blocks = -(-phase["extent0"] // phase["step0"]) * -(-phase["extent1"] // phase["step1"])
        heads = program.problem.head_count // int(phase["group"])
        slots = min(gpu.sm_count * blocks_per_sm, int(blocks) * heads)
        control = np.zeros(1, CONTROL)[0]
        control["total"] = blocks * heads

        def progress(done: float, at: int = number) -> None:
            on_progress((at + done) / len(program.phases))

        run_heard(_run_phase, (
            program.tape, phase, program.tensor_records, program.tile_records, program.numbers,
            granules, heads, issue(order, program.problem, heads, int(blocks)),
            np.zeros((slots, len(program.vars)), np.int64), sizes, misses, *stack, control,
        ), control, progress)
    return MissCurve(sizes, misses[::-1].cumsum()[::-1][1:])


def _slices(program: Program) -> list[int]:
    """Slices of each tensor: heads that it has over the batch."""
    return [program.problem.head_count // tensor.group for tensor in program.tensors]


def granule_records(program: Program) -> np.ndarray:
    """The granules of each tensor, as GRANULE records."""
    sizes = _sizes(program)
    records = np.zeros(len(program.tensors), GRANULE)
    first = 0
    for tensor, slices in zip(program.tensors, _slices(program), strict=True):
        row = records[tensor.index]
        for side in ("rows", "cols"):
            length = getattr(tensor, side)
            row[side] = gcd(*(s for s in sizes[tensor.index, side] if s < length)) or length
        row["down"] = -(-tensor.rows // row["rows"])
        row["across"] = -(-tensor.cols // row["cols"])
        row["first"] = first
        first += slices * int(row["down"] * row["across"])
    return records


def _sizes(program: Program) -> dict[tuple[int, str], set[int]]:
    """For each (tensor, side): lengths of its tiles, and steps of the variables that place them."""
    sizes: dict[tuple[int, str], set[int]] = {
        (tensor.index, side): set() for tensor in program.tensors for side in ("rows", "cols")}
    for phase in program.phase_records:
        steps = {0: int(phase["step0"]), 1: int(phase["step1"]), NO_VAR: 0}
        for row in program.tape[phase["first"]:phase["end"]]:
            if row["kind"] == Kind.LOOP:
                steps[int(row["var"])] = int(row["step"])
            elif row["kind"] == Kind.LET:
                listing = program.listing_at(row["listing"])
                steps[int(row["var"])] = int(
                    row["times"] if listing is None else np.gcd.reduce(listing.values))
            elif row["kind"] in _MOVES:
                for side, var in (("rows", "row_var"), ("cols", "col_var")):
                    length = int(program.tile_records[row["tile"]][side])
                    sizes[int(row["tensor"]), side] |= {length, steps[int(row[var])]}
    return sizes


@njit
def _run_phase(tape: np.ndarray, phase: Record, tensors: np.ndarray, tiles: np.ndarray,
               numbers: np.ndarray, granules: np.ndarray, heads: int, order: np.ndarray,
               variables: np.ndarray, sizes: np.ndarray, misses: np.ndarray, stack: Record,
               last: np.ndarray, weights: np.ndarray, owners: np.ndarray, blocks: np.ndarray,
               control: Record) -> None:
    """Run all thread blocks of a phase in step; ``misses`` by the number of sizes that miss."""
    stops, n_slots = np.zeros_like(variables), variables.shape[0]
    pcs, head_of = np.full(n_slots, -1, np.int64), np.zeros(n_slots, np.int64)
    blocks1 = -(-phase.extent1 // phase.step1)
    per_head = control.total // heads
    busy = n_slots
    while busy and not control.stop:
        busy = 0
        for slot in range(n_slots):
            if pcs[slot] < 0:
                if control.issued == control.total:
                    continue
                head_of[slot], block = place_of(control.issued, heads, per_head, order)
                variables[slot, 0] = block // blocks1 * phase.step0
                variables[slot, 1] = block % blocks1 * phase.step1
                pcs[slot] = phase.first
                control.issued += 1
            busy += 1
            pc = _next_move(tape, numbers, pcs[slot], phase.end, variables[slot], stops[slot])
            if pc < phase.end:
                _move(tape[pc], variables[slot], head_of[slot] * phase.group, tensors, tiles,
                      granules, sizes, misses, stack, last, weights, owners, blocks)
                pc += 1
            pcs[slot] = pc if pc < phase.end else -1


@njit
def _next_move(tape: np.ndarray, numbers: np.ndarray, pc: int, end: int, variables: np.ndarray,
               stops: np.ndarray) -> int:
    """The address of the next load, store or atomic add, or ``end``."""
    while pc < end:
        row = tape[pc]
        if row.kind == LOOP:
            pc = enter_loop(tape, pc, variables, stops)
            continue
        if row.kind == END:
            pc = next_trip(tape, pc, variables, stops)
            continue
        if row.kind == LET:
            assign(row, variables, numbers)
        elif row.kind == _LOAD or row.kind == _STORE or row.kind == _REDUCE:
            break
        pc += 1
    return pc


@njit
def _move(row: Record, variables: np.ndarray, head: int, tensors: np.ndarray, tiles: np.ndarray,
          granules: np.ndarray, sizes: np.ndarray, misses: np.ndarray, stack: Record,
          last: np.ndarray, weights: np.ndarray, owners: np.ndarray, blocks: np.ndarray) -> None:
    """Use all granules of a tile."""
    tensor, granule = tensors[row.tensor], granules[row.tensor]
    r0, c0, rows, cols = region(row, variables, tensors, tiles)
    slice_first = granule.first + head // tensor.group * granule.down * granule.across
    for r in range(r0, r0 + rows, granule.rows):
        height = min(granule.rows, tensor.rows - r)
        for c in range(c0, c0 + cols, granule.cols):
            n_bytes = height * min(granule.cols, tensor.cols - c) * tensor.element_bytes
            number = slice_first + r // granule.rows * granule.across + c // granule.cols
            distance = use(number, n_bytes, stack, last, weights, owners, blocks)
            if row.kind != _STORE:
                too_small = np.searchsorted(sizes, distance) if distance != NEVER else len(sizes)
                misses[too_small] += n_bytes
