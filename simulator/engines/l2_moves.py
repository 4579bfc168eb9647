"""A phase as the L2 reader runs it: what moves and when it may, without the computes between.

A load is issued when all before it is done, or ahead of that: as soon as its buffer is free, which
is when the last compute that read the tile of ``stages`` loads ago is done; or, where one product
hides one load, when the load before it is there, and it is waited for after that product.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..ops import BY_CODE, Unit
from ..program import Program
from ..tape import INSTRUCTION, Kind, Record
from .dispatch import Pace, by_age

if TYPE_CHECKING:
    from ...hwprofiles.schema import Profile

# How many loads of its tile ago freed a load's buffer (0: it waits for all before it; ONE_PRODUCT:
# for the load before it), in how many batches a thread block loads it, one after the other; cycles
# of work since the move before, for a load cycles of work until its tile is read for the last time;
# and the instruction itself.
MOVE = np.dtype([("ahead", np.int64), ("batches", np.int64), ("work", np.float64),
                 ("held", np.float64), *INSTRUCTION.descr])
ONE_PRODUCT = -1
PREFETCHES = ("none", "product", "trip")  # execution.Execution.prefetch
# Pace beside the next older block on the SM (recorded/residents, H200): mma.sync, 32 rows a warp.
YOUNGER_PACES = (0.78,)
_KEPT = (Kind.LOOP, Kind.END, Kind.LET, Kind.LOAD, Kind.STORE, Kind.REDUCE)


@dataclass(frozen=True)
class Running:
    """How a kernel runs a phase, as far as the reader asks.

    ``prefetch``: what a thread block computes between a load and its use: "none" (it then loads
    ``in_flight_bytes`` at a time), a "product" of the same trip, or a whole "trip"; None: a trip
    for tiles with more than one stage. ``cycles`` of one execution of each of the phase's
    instructions by a block with an SM to itself, its loads in place (None: whole tiles at the GPU's
    rates), and ``beside``: how many times longer it takes where 1, 2, … share the SM (empty: as
    many). ``younger_paces``: how fast a block runs beside the next older one where 2, 3, … share
    the SM, or all by age (dispatch.by_age). ``clock_spread``: of GPCs (l2_machine.MACHINE).
    Raises InputError for another prefetch.
    """

    prefetch: str | None = None
    in_flight_bytes: int | None = None
    cycles: tuple[float, ...] | None = None
    beside: tuple[float, ...] = ()
    younger_paces: tuple[Pace, ...] = YOUNGER_PACES
    clock_spread: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.prefetch is not None and self.prefetch not in PREFETCHES:
            raise InputError(f"prefetch {self.prefetch!r} is not known; it is one of "
                             f"{', '.join(PREFETCHES)}")

    def paces(self, residents: int) -> np.ndarray:
        """[blocks on an SM, age rank]: by how much slower than alone each works."""
        found = np.ones((residents + 1, residents))
        for present in range(1, residents + 1):
            pace = self.younger_paces[min(max(present - 2, 0), len(self.younger_paces) - 1)]
            speeds = by_age(pace, present)
            longer = self.beside[present - 1] if self.beside else present
            found[present, :present] = speeds.mean() / speeds * longer
        return found


def moves(program: Program, phase: Record, cycles: np.ndarray, running: Running) -> np.ndarray:
    """The phase (a PHASE record) as MOVE records; ``cycles`` of each of its instructions."""
    tape = program.tape
    addresses = np.arange(int(phase["first"]), int(phase["end"]))
    kept = addresses[np.isin(tape["kind"][addresses], _KEPT)]
    found = np.zeros(len(kept), MOVE)
    for name in INSTRUCTION.names:  # type: ignore[union-attr]
        found[name] = tape[name][kept]
    loops = np.isin(found["kind"], (Kind.LOOP, Kind.END))
    found["partner"][loops] = np.searchsorted(kept, found["partner"][loops])
    work = np.concatenate([[0.0], np.cumsum(cycles)])  # before each address
    prefetch, done = running.prefetch, work[kept - addresses[0]]
    depth = np.cumsum(found["kind"] == Kind.LOOP) - np.cumsum(found["kind"] == Kind.END)
    if prefetch == "product":
        done = np.where(found["kind"] == Kind.LOAD, _after_products(tape, kept, work), done)
    found["work"] = np.diff(done, prepend=0.0)
    for move, address, inside in zip(found, kept, depth > 0, strict=True):
        if move["kind"] == Kind.LOAD:
            tile = program.tile_table[int(move["tile"])]
            size, batch = tile.rows * tile.cols * tile.element_bytes, running.in_flight_bytes
            move["batches"] = -(-size // batch) if batch else 1
            ahead = {None: tile.stages > 1, "none": False}.get(prefetch, True)
            move["ahead"] = tile.stages if ahead else 0
            if prefetch == "product" and inside:
                move["ahead"] = ONE_PRODUCT
            move["held"] = work[_last_use(tape, address, phase["end"]) + 1 - addresses[0]] - work[
                address - addresses[0]]
    return found


def _after_products(tape: np.ndarray, kept: np.ndarray, work: np.ndarray) -> np.ndarray:
    """[move] cycles of work before it, and after the last product between it and the move before
    it; where there is none, as before that move."""
    done = np.zeros(len(kept))
    for at in range(1, len(kept)):
        products = [address for address in range(kept[at - 1] + 1, kept[at])
                    if BY_CODE[tape["op"][address]].unit == Unit.MATMUL]
        after = products[-1] + 1 if products else kept[at - 1]
        done[at] = work[after - kept[0]]
    return done


def _last_use(tape: np.ndarray, address: int, end: int) -> int:
    """The last compute that reads the tile loaded at ``address`` before it is loaded again or its
    loop ends; the load itself when there is none."""
    tile, last = tape[address]["tile"], address
    for later in range(address + 1, int(end)):
        row = tape[later]
        if row["kind"] == Kind.END or (row["kind"] == Kind.LOAD and row["tile"] == tile):
            break
        if row["kind"] == Kind.COMPUTE and tile in (row["a"], row["b"]):
            last = later
    return last


def instruction_cycles(program: Program, phase: Record, gpu: "Profile") -> np.ndarray:
    """Cycles of each instruction of a phase when it has an SM to itself: 0 but for computes, whose
    whole tiles run at the GPU's rate for their unit and the dtype."""
    per_sm_clock = gpu.sm_count * gpu.boost_clock_hz
    matmul = getattr(gpu.flops, program.problem.dtype) or gpu.flops.fp32
    rates = {Unit.MATMUL: matmul / per_sm_clock, Unit.EXP: gpu.exp_per_clock_per_sm,
             Unit.ALU: gpu.flops.fp32 / 2 / per_sm_clock}
    tape = program.tape[int(phase["first"]):int(phase["end"])]
    cycles = np.zeros(len(tape))
    for address in np.flatnonzero(tape["kind"] == Kind.COMPUTE):
        row = tape[address]
        op = BY_CODE[row["op"]]
        if op.unit == Unit.NONE:
            continue
        first, out = program.tile_table[row["a"]], program.tile_table[row["out"]]
        work = first.rows * first.cols * op.flops_per_element
        if op.unit == Unit.MATMUL:
            work *= out.cols
        cycles[address] = work / rates[op.unit]
    return cycles
